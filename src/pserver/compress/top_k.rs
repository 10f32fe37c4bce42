//! The largest numbers of each 4,096: where they are in twelve bits, what they are in few (Sarfi et
//! al., SparseLoCo, arXiv 2508.15706, section 3).

use super::wrong;
use std::io;

/// Numbers of which the largest are chosen together: a place among them is a number of twelve bits.
const CHUNK: usize = 4096;

/// Where the largest of `numbers` are, in order: of each chunk this fraction. NaN counts as larger
/// than all.
pub fn places(numbers: &[f32], fraction: f32) -> Vec<usize> {
    let of_chunk = |(index, chunk): (usize, &[f32])| {
        let mut order: Vec<usize> = (0..chunk.len()).collect();
        let count = count_of_chunk(chunk.len(), fraction);
        if count < order.len() {
            let size = |place: &usize| chunk[*place].abs();
            order.select_nth_unstable_by(count, |a, b| size(b).total_cmp(&size(a)));
            order.truncate(count);
            order.sort_unstable();
        }
        order.into_iter().map(move |place| index * CHUNK + place)
    };
    numbers
        .chunks(CHUNK)
        .enumerate()
        .flat_map(of_chunk)
        .collect()
}

/// How many of `len` numbers are sent.
pub fn count(len: usize, fraction: f32) -> usize {
    let (chunks, rest) = (len / CHUNK, len % CHUNK);
    chunks * count_of_chunk(CHUNK, fraction) + count_of_chunk(rest, fraction)
}

/// At least one, unless there is none.
fn count_of_chunk(len: usize, fraction: f32) -> usize {
    ((len as f64 * f64::from(fraction)).ceil() as usize).clamp(len.min(1), len)
}

/// Bytes that so many places are written in.
pub fn bytes_of_places(count: usize) -> usize {
    (count * 12).div_ceil(8)
}

/// Places in their chunks, two in three bytes.
pub fn write_places(places: &[usize]) -> Vec<u8> {
    let pair = |pair: &[usize]| {
        let [first, second] = [0, 1].map(|at| pair.get(at).map_or(0, |place| place % CHUNK));
        let bytes = [
            first as u8,
            (first >> 8 | second << 4) as u8,
            (second >> 4) as u8,
        ];
        bytes.into_iter().take(bytes_of_places(pair.len()))
    };
    places.chunks(2).flat_map(pair).collect()
}

/// The places of the largest of `len` numbers. Fails if one is behind them, or if there are not as
/// many bytes as they take.
pub fn read_places(bytes: &[u8], len: usize, fraction: f32) -> io::Result<Vec<usize>> {
    let all = count(len, fraction);
    if bytes.len() != bytes_of_places(all) {
        return Err(wrong(bytes.len(), len));
    }
    let byte = |at: usize| usize::from(bytes[at]);
    let in_chunk = |number: usize| match (number / 2 * 3, number % 2) {
        (at, 0) => byte(at) | (byte(at + 1) & 0xf) << 8,
        (at, _) => byte(at + 1) >> 4 | byte(at + 2) << 4,
    };
    // All chunks but the last have as many.
    let of_chunk = count_of_chunk(CHUNK, fraction);
    let places: Vec<usize> = (0..all)
        .map(|number| number / of_chunk * CHUNK + in_chunk(number))
        .collect();
    if places.iter().any(|place| *place >= len) {
        return Err(wrong(bytes.len(), len));
    }
    Ok(places)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn reading_places_inverts_writing(len in 0usize..20_000, fraction in 0.0001f32..=1.0) {
            let numbers: Vec<f32> = (0..len).map(|at| (at * 7919 % 10_007) as f32 - 5000.0).collect();
            let chosen = places(&numbers, fraction);
            prop_assert_eq!(chosen.len(), count(len, fraction));
            prop_assert!(chosen.is_sorted());
            let written = write_places(&chosen);
            prop_assert_eq!(written.len(), bytes_of_places(chosen.len()));
            prop_assert_eq!(read_places(&written, len, fraction).unwrap(), chosen);
        }
    }

    #[test]
    fn each_chunk_has_its_largest() {
        let mut numbers = vec![1.0f32; CHUNK + 100];
        numbers[17] = -3.0;
        numbers[CHUNK + 5] = f32::NAN;
        assert_eq!(places(&numbers, 0.0002), [17, CHUNK + 5]);
        assert_eq!(places(&[], 0.5), [0usize; 0]);
    }

    #[test]
    fn a_place_behind_the_numbers_is_refused() {
        let bytes = write_places(&[99]);
        assert!(read_places(&bytes, 100, 0.01).is_ok());
        assert!(read_places(&bytes, 99, 0.01).is_err());
        assert!(read_places(&[0; 3], 100, 0.01).is_err());
    }
}
