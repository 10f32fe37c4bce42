//! Arrays that no file holds. The number at place i of an array, counted row by row, is the same whatever part of the array is
//! asked for, and on every machine.

use crate::{
    types::Scalar,
    workloads::{arrays, kernel::ResolvedSource},
};

/// The numbers of the box `shape` at `start` of an array of `whole`, as `scalar`s: integers are cut off for uniform ones,
/// rounded for others, and saturate.
pub fn block(
    source: &ResolvedSource,
    scalar: Scalar,
    whole: &[u64],
    (start, shape): (&[u64], &[u64]),
) -> Result<Vec<u8>, String> {
    let count: u64 = whole.iter().product();
    let number: Box<dyn Fn(u64) -> f64> = match *source {
        ResolvedSource::File { .. } => return Err("a file's content is read, not generated".into()),
        ResolvedSource::Range { start, step } => Box::new(move |i| start + i as f64 * step),
        ResolvedSource::Linspace { start, stop } => {
            let step = if count > 1 { (stop - start) / (count - 1) as f64 } else { 0.0 };
            Box::new(move |i| start + i as f64 * step)
        }
        ResolvedSource::Fill { value } => Box::new(move |_| value),
        ResolvedSource::Uniform { seed, low, high } => Box::new(move |i| {
            let [a, b, ..] = philox(i, seed);
            let number = low + (high - low) * unit(a, b);
            if scalar.is_float() { number } else { number.floor() }
        }),
        ResolvedSource::Normal { seed, mean, deviation } => {
            Box::new(move |i| mean + deviation * standard_normal(philox(i, seed)))
        }
    };
    let numbers = places(whole, start, shape).flat_map(|i| number(i).to_le_bytes()).collect();
    Ok(arrays::convert(numbers, Scalar::F64, scalar))
}

/// The places, in an array of `whole`, of the cells of a box, row by row.
fn places(whole: &[u64], start: &[u64], shape: &[u64]) -> impl Iterator<Item = u64> {
    let count: u64 = shape.iter().product();
    (0..count).map(move |cell| {
        let (mut rest, mut place, mut stride) = (cell, 0, 1);
        for axis in (0..shape.len()).rev() {
            place += (start[axis] + rest % shape[axis]) * stride;
            rest /= shape[axis];
            stride *= whole[axis];
        }
        place
    })
}

/// Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011) of counter (i, 0) and a key.
fn philox(i: u64, key: u64) -> [u32; 4] {
    const MULTIPLIERS: [u32; 2] = [0xD251_1F53, 0xCD9E_8D57];
    const WEYL: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];
    let halves = |word: u64| [word as u32, (word >> 32) as u32];
    let [mut a, mut b] = halves(i);
    let (mut c, mut d) = (0, 0);
    let mut key = halves(key);
    for round in 0..10 {
        if round > 0 {
            key = [key[0].wrapping_add(WEYL[0]), key[1].wrapping_add(WEYL[1])];
        }
        let [low, high] = halves(u64::from(MULTIPLIERS[0]) * u64::from(a));
        let [low2, high2] = halves(u64::from(MULTIPLIERS[1]) * u64::from(c));
        (a, b, c, d) = (high2 ^ b ^ key[0], low2, high ^ d ^ key[1], low);
    }
    [a, b, c, d]
}

/// From 0 to below 1, in steps of 2^-53.
fn unit(a: u32, b: u32) -> f64 {
    let bits = (u64::from(a) << 32 | u64::from(b)) >> 11;
    bits as f64 * (1.0 / (1u64 << 53) as f64)
}

/// Box and Muller's transform.
fn standard_normal([a, b, c, d]: [u32; 4]) -> f64 {
    let radius = (-2.0 * (1.0 - unit(a, b)).ln()).sqrt();
    radius * (std::f64::consts::TAU * unit(c, d)).cos()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn numbers(source: &ResolvedSource, whole: &[u64], start: &[u64], shape: &[u64]) -> Vec<f64> {
        let bytes = block(source, Scalar::F64, whole, (start, shape)).unwrap();
        bytes.chunks_exact(8).map(|bytes| f64::from_le_bytes(bytes.try_into().unwrap())).collect()
    }

    /// Of Random123's known answers (`kat_vectors`), the one whose counter and key are zero.
    #[test]
    fn philox_is_that_of_random123() {
        assert_eq!(philox(0, 0), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
    }

    #[test]
    fn linspace_ends_where_it_should_and_integers_saturate() {
        let line = ResolvedSource::Linspace { start: -1.0, stop: 1.0 };
        assert_eq!(numbers(&line, &[5], &[0], &[5]), [-1.0, -0.5, 0.0, 0.5, 1.0]);
        assert_eq!(numbers(&line, &[1], &[0], &[1]), [-1.0]);
        let range = ResolvedSource::Range { start: 250.0, step: 3.0 };
        assert_eq!(block(&range, Scalar::U8, &[4], (&[0], &[4])).unwrap(), [250, 253, 255, 255]);
        let dice = ResolvedSource::Uniform { seed: 1, low: 1.0, high: 7.0 };
        let thrown = block(&dice, Scalar::U8, &[6000], (&[0], &[6000])).unwrap();
        for face in 1..=6 {
            let count = thrown.iter().filter(|number| **number == face).count();
            assert!((850..1150).contains(&count), "{face}: {count}");
        }
    }

    #[test]
    fn normal_numbers_have_their_mean_and_deviation() {
        let normal = ResolvedSource::Normal { seed: 7, mean: 3.0, deviation: 2.0 };
        let drawn = numbers(&normal, &[20_000], &[0], &[20_000]);
        let mean = drawn.iter().sum::<f64>() / 20_000.0;
        let variance = drawn.iter().map(|number| (number - mean).powi(2)).sum::<f64>() / 20_000.0;
        // Four standard errors.
        assert!((mean - 3.0).abs() < 4.0 * 2.0 / 20_000f64.sqrt(), "{mean}");
        assert!((variance - 4.0).abs() < 4.0 * 4.0 * (2.0 / 20_000f64).sqrt(), "{variance}");
    }

    proptest! {
        #[test]
        fn a_block_is_a_part_of_the_whole(seed: u64, rows in 1u64..6, columns in 1u64..6, at in (0u64..6, 0u64..6)) {
            let source = ResolvedSource::Uniform { seed, low: 0.0, high: 1.0 };
            let whole = numbers(&source, &[rows, columns], &[0, 0], &[rows, columns]);
            prop_assert!(whole.iter().all(|number| (0.0..1.0).contains(number)));
            let start = [at.0 % rows, at.1 % columns];
            let shape = [rows - start[0], columns - start[1]];
            let expected: Vec<f64> = (start[0]..rows)
                .flat_map(|row| (start[1]..columns).map(move |column| (row * columns + column) as usize))
                .map(|place| whole[place])
                .collect();
            prop_assert_eq!(numbers(&source, &[rows, columns], &start, &shape), expected);
        }
    }
}
