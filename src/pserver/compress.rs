//! Gradients, sums and changes of values on their way to another node, in fewer bytes. What is lost
//! goes into the next ones of the block (error feedback; Karimireddy et al., arXiv 1901.09847).

mod top_k;

use half::{bf16, f16};
use nodectl_types::servers::{Compression, TopKValues};
use std::io;

/// Numbers that share a scale in `Int8`; in `Int4`, and two sizes in `Int2`.
const GROUP: usize = 1024;
const GROUP_OF_FEW_BITS: usize = 128;

/// Encodes `gradient` and what was left of the last one, `residual` (empty at first). Afterwards
/// `gradient` is what the other end makes of it, and `residual` what it lacks.
pub fn encode(compression: Compression, gradient: &mut [f32], residual: &mut Vec<f32>) -> Vec<u8> {
    if residual.len() == gradient.len() {
        gradient
            .iter_mut()
            .zip(residual.iter())
            .for_each(|(g, r)| *g += r);
    }
    let bytes = written(compression, gradient);
    let sent = decode(compression, &bytes, gradient.len()).expect("what was just encoded");
    residual.clear();
    residual.extend(gradient.iter().zip(&sent).map(|(g, sent)| g - sent));
    gradient.copy_from_slice(&sent);
    bytes
}

fn written(compression: Compression, numbers: &[f32]) -> Vec<u8> {
    match compression {
        Compression::None => bytemuck::cast_slice(numbers).to_vec(),
        Compression::F16 => numbers
            .iter()
            .flat_map(|g| f16::from_f32(within(*g, f16::MAX.into())).to_le_bytes())
            .collect(),
        Compression::Bf16 => numbers
            .iter()
            .flat_map(|g| bf16::from_f32(within(*g, bf16::MAX.into())).to_le_bytes())
            .collect(),
        Compression::Int8 => numbers.chunks(GROUP).flat_map(int8).collect(),
        Compression::Int4 => numbers.chunks(GROUP_OF_FEW_BITS).flat_map(int4).collect(),
        Compression::Int2 => numbers.chunks(GROUP_OF_FEW_BITS).flat_map(int2).collect(),
        Compression::TopK { fraction, values } => {
            let places = top_k::places(numbers, fraction);
            let largest: Vec<f32> = places.iter().map(|place| numbers[*place]).collect();
            let mut bytes = top_k::write_places(&places);
            bytes.extend(written(values.compression(), &largest));
            bytes
        }
    }
}

/// How sums and values travel where gradients are compressed like this. Most of their numbers
/// change with each step, so the largest alone do not tell of them.
pub fn of_sums(compression: Compression) -> Compression {
    match compression {
        Compression::TopK { values, .. } => match values {
            TopKValues::Bf16 => Compression::Int8,
            TopKValues::Int2 => Compression::Int2,
        },
        other => other,
    }
}

/// A number that is too large for the format is sent as the largest that it has: the rest goes with
/// the next ones. What is not finite stays so.
fn within(number: f32, largest: f32) -> f32 {
    if number.is_finite() {
        number.clamp(-largest, largest)
    } else {
        number
    }
}

/// Fails on bytes that are not those of `len` numbers.
pub fn check(compression: Compression, bytes: &[u8], len: usize) -> io::Result<()> {
    let is_right = match compression {
        Compression::None => bytes.len() == len * 4,
        Compression::F16 | Compression::Bf16 => bytes.len() == len * 2,
        Compression::Int8 => bytes.len() == len + len.div_ceil(GROUP) * 4,
        Compression::Int4 => bytes.len() == bytes_of_bits(4, len),
        Compression::Int2 => bytes.len() == bytes_of_bits(2, len),
        Compression::TopK { fraction, values } => {
            let count = top_k::count(len, fraction);
            let (places, largest) = parts_of_top_k(bytes, count);
            top_k::read_places(places, len, fraction)?;
            return check(values.compression(), largest, count);
        }
    };
    if is_right {
        Ok(())
    } else {
        Err(wrong(bytes.len(), len))
    }
}

/// The `len` numbers of `encode`'s bytes. Fails as `check` does.
pub fn decode(compression: Compression, bytes: &[u8], len: usize) -> io::Result<Vec<f32>> {
    // To read the largest numbers is to check them.
    if !matches!(compression, Compression::TopK { .. }) {
        check(compression, bytes, len)?;
    }
    let halves = || bytes.chunks_exact(2).map(|pair| [pair[0], pair[1]]);
    Ok(match compression {
        Compression::None => return numbers(bytes, len),
        Compression::F16 => halves()
            .map(|pair| f16::from_le_bytes(pair).to_f32())
            .collect(),
        Compression::Bf16 => halves()
            .map(|pair| bf16::from_le_bytes(pair).to_f32())
            .collect(),
        Compression::Int8 => {
            let groups = bytes
                .chunks(GROUP + 4)
                .filter_map(|group| group.split_first_chunk::<4>());
            let number = |scale: [u8; 4]| {
                move |byte: &u8| f32::from(*byte as i8) * f32::from_le_bytes(scale)
            };
            groups
                .flat_map(|(scale, rest)| rest.iter().map(number(*scale)))
                .collect()
        }
        Compression::Int4 => {
            let groups = bytes
                .chunks(GROUP_OF_FEW_BITS / 2 + 4)
                .filter_map(|group| group.split_first_chunk::<4>());
            let pair = |scale: [u8; 4]| {
                let scale = f32::from_le_bytes(scale);
                // The upper four bits are shifted down with their sign.
                move |byte: &u8| [byte << 4, *byte].map(|high| f32::from(high as i8 >> 4) * scale)
            };
            let mut out: Vec<f32> = groups
                .flat_map(|(scale, rest)| rest.iter().flat_map(pair(*scale)))
                .collect();
            out.truncate(len);
            out
        }
        Compression::Int2 => {
            let groups = bytes
                .chunks(GROUP_OF_FEW_BITS / 4 + 4)
                .filter_map(|group| group.split_first_chunk::<4>());
            let mut out: Vec<f32> = groups
                .flat_map(|(sizes, rest)| rest.iter().flat_map(numbers_of_2_bits(*sizes)))
                .collect();
            out.truncate(len);
            out
        }
        Compression::TopK { fraction, values } => {
            let count = top_k::count(len, fraction);
            let (places, largest) = parts_of_top_k(bytes, count);
            let places = top_k::read_places(places, len, fraction)?;
            let largest = decode(values.compression(), largest, count)?;
            let mut out = vec![0.0; len];
            places
                .into_iter()
                .zip(largest)
                .for_each(|(place, value)| out[place] = value);
            out
        }
    })
}

/// The bytes of so many places, as far as there are such, and the rest: the numbers that are there.
fn parts_of_top_k(bytes: &[u8], count: usize) -> (&[u8], &[u8]) {
    bytes.split_at(top_k::bytes_of_places(count).min(bytes.len()))
}

/// `len` plain f32.
pub fn numbers(bytes: &[u8], len: usize) -> io::Result<Vec<f32>> {
    if bytes.len() != len * 4 {
        return Err(wrong(bytes.len(), len));
    }
    Ok(bytemuck::pod_collect_to_vec(bytes))
}

fn wrong(bytes: usize, len: usize) -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidData,
        format!("{bytes} bytes are not {len} numbers"),
    )
}

fn int8(group: &[f32]) -> Vec<u8> {
    let scale = scale_of(group, 127.0);
    let quantised = group.iter().map(|g| quantised(*g, scale) as u8);
    scale.to_le_bytes().into_iter().chain(quantised).collect()
}

/// Two numbers a byte, the first in its lower four bits.
fn int4(group: &[f32]) -> Vec<u8> {
    let scale = scale_of(group, 7.0);
    let pairs = group.chunks(2).map(|pair| {
        let [low, high] = [pair.first(), pair.get(1)]
            .map(|number| number.map_or(0, |number| quantised(*number, scale) as u8));
        (low & 0xf) | (high << 4)
    });
    scale.to_le_bytes().into_iter().chain(pairs).collect()
}

/// Four numbers a byte, the first in its lowest two bits: the sign, and whether it is of the larger
/// size. The sizes are the means of those above the mean and of the others: who encodes what was
/// decoded finds the same.
fn int2(group: &[f32]) -> Vec<u8> {
    let mean = |sum: f64, count: usize| match count {
        0 => 0.0,
        count => sum / count as f64,
    };
    let size = |number: &f32| f64::from(number.abs());
    let edge = mean(group.iter().map(size).sum(), group.len());
    let is_large = |number: &f32| size(number) > edge;
    let mean_of = |large: bool| {
        let of = || group.iter().filter(|number| is_large(number) == large);
        mean(of().map(size).sum(), of().count()) as f32
    };
    let sizes = [false, true].map(|large| bf16::from_f32(within(mean_of(large), bf16::MAX.into())));
    let bits =
        |number: &f32| u8::from(number.is_sign_negative()) | (u8::from(is_large(number)) << 1);
    let four = |numbers: &[f32]| {
        let places = numbers.iter().zip([0, 2, 4, 6]);
        places.fold(0, |byte, (number, place)| byte | (bits(number) << place))
    };
    let sizes = sizes.into_iter().flat_map(bf16::to_le_bytes);
    sizes.chain(group.chunks(4).map(four)).collect()
}

/// The four numbers of a byte, by the two sizes of its group.
fn numbers_of_2_bits([a, b, c, d]: [u8; 4]) -> impl Fn(&u8) -> [f32; 4] {
    let sizes = [[a, b], [c, d]].map(|size| bf16::from_le_bytes(size).to_f32());
    move |byte| {
        [0, 2, 4, 6].map(|place| {
            let bits = byte >> place;
            let size = sizes[usize::from(bits >> 1 & 1)];
            if bits & 1 == 1 { -size } else { size }
        })
    }
}

/// So many bits a number, and four bytes a group.
fn bytes_of_bits(bits: usize, len: usize) -> usize {
    len.div_ceil(GROUP_OF_FEW_BITS) * 4 + (len * bits).div_ceil(8)
}

/// What the integers of a group are multiplied by, of which the largest is `most`.
fn scale_of(group: &[f32], most: f32) -> f32 {
    let largest = group.iter().fold(0.0f32, |largest, g| largest.max(g.abs()));
    if largest.is_finite() {
        largest / most
    } else {
        f32::NAN
    }
}

fn quantised(number: f32, scale: f32) -> i8 {
    if scale > 0.0 {
        (number / scale).round() as i8
    } else {
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const ALL: [Compression; 8] = [
        Compression::None,
        Compression::F16,
        Compression::Bf16,
        Compression::Int8,
        Compression::Int4,
        Compression::Int2,
        Compression::TopK {
            fraction: 0.1,
            values: TopKValues::Bf16,
        },
        Compression::TopK {
            fraction: 0.1,
            values: TopKValues::Int2,
        },
    ];

    proptest! {
        #[test]
        fn what_is_lost_is_kept_for_the_next(gradient in prop::collection::vec(-100.0f32..100.0, 1..3000)) {
            for compression in ALL {
                let (mut sent, mut residual) = (gradient.clone(), Vec::new());
                let bytes = encode(compression, &mut sent, &mut residual);
                prop_assert_eq!(&decode(compression, &bytes, gradient.len()).unwrap(), &sent);
                for ((g, s), r) in gradient.iter().zip(&sent).zip(&residual) {
                    prop_assert!((s + r - g).abs() <= 1e-4, "{:?}: {} + {} is not {}", compression, s, r, g);
                }
                // Encoded again, it is the same.
                let mut again = sent.clone();
                encode(compression, &mut again, &mut Vec::new());
                for (a, s) in again.iter().zip(&sent) {
                    prop_assert!((a - s).abs() <= s.abs() * 1e-6, "{:?}", compression);
                }
            }
        }

        #[test]
        fn any_bytes_are_read_without_harm(bytes in prop::collection::vec(any::<u8>(), 0..200), len in 0usize..100) {
            for compression in ALL {
                if let Ok(numbers) = decode(compression, &bytes, len) {
                    prop_assert_eq!(numbers.len(), len);
                }
            }
        }
    }

    #[test]
    fn a_block_without_parameters_is_sent_as_nothing() {
        for compression in ALL {
            let bytes = encode(compression, &mut [], &mut Vec::new());
            assert_eq!(
                decode(compression, &bytes, 0).unwrap(),
                [0.0; 0],
                "{compression:?}"
            );
        }
    }

    #[test]
    fn what_is_too_large_for_the_format_goes_in_parts() {
        let large = [1e5f32, -2e5, 3.0, f32::MAX];
        for (compression, most) in [(Compression::F16, 65504.0), (Compression::Bf16, 3.39e38)] {
            let (mut sent, mut residual) = (large, Vec::new());
            encode(compression, &mut sent, &mut residual);
            assert!(
                sent.iter()
                    .zip(&large)
                    .all(|(sent, g)| sent.abs() <= most && sent * g > 0.0),
                "{sent:?}"
            );
            assert!(
                residual.iter().all(|r| r.is_finite()),
                "{compression:?}: {residual:?}"
            );
        }
        let (mut total, mut residual) = (0.0, Vec::new());
        for gradient in [1e5f32, 0.0, 0.0] {
            let mut sent = [gradient];
            encode(Compression::F16, &mut sent, &mut residual);
            total += sent[0];
        }
        assert_eq!(total, 1e5);
        let mut not_finite = [f32::NAN, f32::INFINITY];
        encode(Compression::F16, &mut not_finite, &mut Vec::new());
        assert!(
            not_finite[0].is_nan() && not_finite[1] == f32::INFINITY,
            "a training that diverges is not hidden"
        );
    }

    #[test]
    fn sums_of_what_is_sent_come_close_to_sums_of_what_was_meant() {
        for compression in ALL {
            let mut residual = Vec::new();
            let mut total = [0.0f32; 64];
            for _ in 0..200 {
                let mut gradient: Vec<f32> = (0..64).map(|i| (i as f32 - 32.0) * 0.013).collect();
                encode(compression, &mut gradient, &mut residual);
                total.iter_mut().zip(&gradient).for_each(|(t, g)| *t += g);
            }
            for (i, total) in total.iter().enumerate() {
                let wanted = (i as f32 - 32.0) * 0.013 * 200.0;
                assert!(
                    (total - wanted).abs() < 6.0,
                    "{compression:?}: {total} is not {wanted}"
                );
            }
        }
    }
}
