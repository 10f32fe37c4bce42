//! Random numbers that depend on nothing but a seed and their place: Philox4x32-10 of Salmon et
//! al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011. Every tile, worker and machine
//! makes the same.

/// The four words of a counter under a key.
fn philox(mut counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    const MULTIPLIERS: [u64; 2] = [0xd251_1f53, 0xcd9e_8d57];
    const WEYL: [u32; 2] = [0x9e37_79b9, 0xbb67_ae85];
    for round in 0..10 {
        if round > 0 {
            key = [key[0].wrapping_add(WEYL[0]), key[1].wrapping_add(WEYL[1])];
        }
        let (first, second) = (
            MULTIPLIERS[0] * u64::from(counter[0]),
            MULTIPLIERS[1] * u64::from(counter[2]),
        );
        let (high, low) = (
            |product: u64| (product >> 32) as u32,
            |product: u64| product as u32,
        );
        counter = [
            high(second) ^ counter[1] ^ key[0],
            low(second),
            high(first) ^ counter[3] ^ key[1],
            low(first),
        ];
    }
    counter
}

/// Two numbers of 53 bits, from 0 to below 1, for place `index` under `seed`.
fn pair(seed: u64, index: u64) -> [f64; 2] {
    let words = philox(
        [index as u32, (index >> 32) as u32, 0, 0],
        [seed as u32, (seed >> 32) as u32],
    );
    let unit = |low: u32, high: u32| {
        (((u64::from(high) << 32) | u64::from(low)) >> 11) as f64 / (1u64 << 53) as f64
    };
    [unit(words[0], words[1]), unit(words[2], words[3])]
}

/// From `low` to below `high`.
pub(super) fn uniform(seed: u64, index: u64, low: f64, high: f64) -> f64 {
    low + (high - low) * pair(seed, index)[0]
}

/// By the transform of Box and Muller, Ann. Math. Statist. 29 (1958) 610.
pub(super) fn normal(seed: u64, index: u64, mean: f64, deviation: f64) -> f64 {
    let [radius, angle] = pair(seed, index);
    // 1 - radius is never 0.
    mean + deviation * (-2.0 * (1.0 - radius).ln()).sqrt() * (std::f64::consts::TAU * angle).cos()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn philox_is_that_of_random123() {
        // kat_vectors of Random123 1.14.
        assert_eq!(
            philox([0; 4], [0; 2]),
            [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]
        );
        assert_eq!(
            philox([u32::MAX; 4], [u32::MAX; 2]),
            [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]
        );
        let pi = [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344];
        assert_eq!(
            philox(pi, [0xa409_3822, 0x299f_31d0]),
            [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]
        );
    }

    #[test]
    fn distributions_have_their_moments() {
        let count = 100_000;
        let moments = |number: &dyn Fn(u64) -> f64| {
            let mean = (0..count).map(number).sum::<f64>() / count as f64;
            let variance = (0..count)
                .map(|index| (number(index) - mean).powi(2))
                .sum::<f64>()
                / count as f64;
            (mean, variance)
        };
        let (mean, variance) = moments(&|index| uniform(7, index, -1.0, 3.0));
        assert!(
            (mean - 1.0).abs() < 0.02 && (variance - 16.0 / 12.0).abs() < 0.02,
            "{mean} {variance}"
        );
        let (mean, variance) = moments(&|index| normal(7, index, 5.0, 2.0));
        assert!(
            (mean - 5.0).abs() < 0.03 && (variance - 4.0).abs() < 0.08,
            "{mean} {variance}"
        );
        assert!((0..count).all(|index| (0.0..1.0).contains(&uniform(1, index, 0.0, 1.0))));
    }
}
