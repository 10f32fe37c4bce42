//! Each decoder beside an encoder written from its format's description, and on bytes that are no
//! chunk.

use super::{DecodeError, FilterSpec, Pipeline, Scratch, bits, bytes, lz4};
use proptest::prelude::*;

/// bitshuffle's transposition, bit by bit, as its definition has it.
fn transpose(source: &[u8], size: usize) -> Vec<u8> {
    let columns = source.len() / (8 * size);
    let mut target = vec![0; source.len()];
    for element in 0..columns * 8 {
        for byte in 0..size {
            for bit in 0..8 {
                let value = source[element * size + byte] >> bit & 1;
                target[(byte * 8 + bit) * columns + element / 8] |= value << (element % 8);
            }
        }
    }
    target
}

/// A chunk of filter 32008 with LZ4, blocks of `block` elements.
pub(crate) fn bitshuffle_lz4(data: &[u8], size: usize, block: usize) -> Vec<u8> {
    let mut chunk = (data.len() as u64).to_be_bytes().to_vec();
    chunk.extend(((block * size) as u32).to_be_bytes());
    let whole = data.len() / (8 * size) * (8 * size);
    for part in data[..whole].chunks(block * size) {
        let packed = lz4_flex::block::compress(&transpose(part, size));
        chunk.extend((packed.len() as u32).to_be_bytes());
        chunk.extend(packed);
    }
    chunk.extend(&data[whole..]);
    chunk
}

/// Counts: mostly small, some saturated.
pub(crate) fn counts(length: usize, seed: u32) -> Vec<u8> {
    let mut state = seed | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        state
    };
    let elements = (0..length.div_ceil(4)).map(|_| match next() % 100 {
        0 => u32::MAX,
        1..=5 => next() % 70_000,
        _ => next() % 12,
    });
    elements.flat_map(u32::to_le_bytes).take(length).collect()
}

fn decode(
    filter: u16,
    parameters: &[u32],
    source: &[u8],
    length: usize,
) -> Result<Vec<u8>, DecodeError> {
    let pipeline = Pipeline::new(
        &[FilterSpec {
            id: filter,
            parameters: parameters.to_vec(),
        }],
        4,
    )?;
    let mut target = vec![0; length];
    pipeline
        .decode(source, 0, &mut target, &mut Scratch::default())
        .map(|()| target)
}

/// A chunk of filter 32001 with LZ4: blocks of `block` bytes, each of a stream for each byte of an
/// element where it is long enough.
fn blosc_lz4(data: &[u8], size: usize, block: usize, bits: bool) -> Vec<u8> {
    let flags = 1 << 5 | if bits { 4 } else { 1 };
    let mut chunk = vec![2, 1, flags, size as u8];
    for number in [data.len(), block, 0] {
        chunk.extend((number as u32).to_le_bytes());
    }
    let places = chunk.len();
    chunk.resize(places + 4 * data.len().div_ceil(block), 0);
    for (index, part) in data.chunks(block).enumerate() {
        let place = (chunk.len() as u32).to_le_bytes();
        chunk[places + 4 * index..][..4].copy_from_slice(&place);
        let count = part.len() / size;
        let turned = match (bits, count.is_multiple_of(8)) {
            (true, true) => transpose(part, size),
            (true, false) => part.to_vec(),
            (false, _) => {
                let row = |row: usize| (0..count).map(move |at| part[at * size + row]);
                let rows = (0..size).flat_map(row);
                rows.chain(part[count * size..].iter().copied()).collect()
            }
        };
        let splits = part.len() == block && block / size >= 128;
        let streams = if splits { size } else { 1 };
        for stream in turned.chunks(part.len() / streams) {
            let packed = lz4_flex::block::compress(stream);
            let own = if packed.len() < stream.len() {
                &packed[..]
            } else {
                stream
            };
            chunk.extend((own.len() as u32).to_le_bytes());
            chunk.extend(own);
        }
    }
    chunk
}

#[test]
fn a_chunk_of_blosc_comes_back() {
    for size in [1usize, 2, 4, 8] {
        for (elements, block) in [(1024, 256), (1000, 256), (1003, 64), (7, 8), (128, 128)] {
            for bits in [false, true] {
                let data = counts(elements * size, 3 + elements as u32);
                let chunk = blosc_lz4(&data, size, block * size, bits);
                let decoded = decode(32001, &[], &chunk, data.len()).unwrap();
                assert!(
                    decoded == data,
                    "{elements} of {size} bytes, blocks of {block}, {bits}"
                );
                for cut in [0, 3, 15, 17, chunk.len() - 1] {
                    let decoded = decode(32001, &[], &chunk[..cut], data.len());
                    assert!(decoded.is_err(), "{cut} of {} bytes", chunk.len());
                }
            }
        }
    }
    let error = decode(32001, &[], &blosc_lz4(&counts(400, 1), 4, 400, false), 404);
    let size = DecodeError::Size {
        expected: 404,
        found: 400,
    };
    assert_eq!(error, Err(size));
    // Matches near, far and over themselves: 8 literals, 3 of them again from 8 before, …
    let far = 9000usize;
    let mut stream: Vec<u8> = Vec::new();
    for piece in (0..far).collect::<Vec<_>>().chunks(32) {
        stream.push(piece.len() as u8 - 1);
        stream.extend(piece.iter().map(|at| (at % 251) as u8));
    }
    let mut data: Vec<u8> = (0..far).map(|at| (at % 251) as u8).collect();
    // 5 bytes from 8 before; 300 from 1 before; 12 from the beginning, which is far.
    stream.extend([3 << 5, 7]);
    stream.extend([7 << 5, 255, 36, 0]);
    let distance = far + 5 + 300 - 8192;
    stream.extend([7 << 5 | 31, 3, 255, (distance >> 8) as u8, distance as u8]);
    for (distance, count) in [(8, 5), (1, 300), (far + 305, 12)] {
        (0..count).for_each(|_| data.push(data[data.len() - distance]));
    }
    let mut chunk = vec![2, 1, 16, 1];
    for number in [data.len(), data.len(), 0, 20, stream.len()] {
        chunk.extend((number as u32).to_le_bytes());
    }
    chunk.extend(stream);
    assert!(decode(32001, &[], &chunk, data.len()).unwrap() == data);
}

#[test]
fn a_chunk_of_every_length_comes_back() {
    for size in [1usize, 2, 4, 8] {
        for elements in (0..40).chain([255, 256, 257, 2047, 2048, 2056, 5003]) {
            let data = counts(elements * size, 7 + elements as u32);
            let chunk = bitshuffle_lz4(&data, size, 2048);
            let decoded = decode(32008, &[0, 2, size as u32, 0, 2], &chunk, data.len()).unwrap();
            assert!(decoded == data, "{elements} elements of {size} bytes");
        }
    }
}

/// The cases of silx's tests of its decoder (`test_bitshuffle_lz4.py`): bytes of an element, rows
/// and columns.
pub(crate) const CASES_OF_SILX: [(usize, [usize; 2]); 8] = [
    (8, [103, 503]),
    (8, [101, 509]),
    (4, [229, 659]),
    (4, [233, 653]),
    (2, [743, 647]),
    (2, [751, 643]),
    (1, [157, 1373]),
    (1, [163, 1367]),
];

/// An image of one of these cases, of counts about a mean, and its chunk, which does not say how
/// large its blocks are.
pub(crate) fn image_of_silx(size: usize, shape: [usize; 2]) -> (Vec<u8>, Vec<u8>) {
    let noise = counts(shape[0] * shape[1] * 32, 5);
    let ones = |bits: &[u8]| bits.iter().map(|byte| byte.count_ones()).sum::<u32>();
    let image: Vec<u8> = noise
        .chunks(32)
        .flat_map(|bits| {
            u64::from(ones(bits) + 50)
                .to_le_bytes()
                .into_iter()
                .take(size)
        })
        .collect();
    let mut chunk = bitshuffle_lz4(&image, size, 8192 / size);
    chunk[8..12].fill(0);
    (image, chunk)
}

#[test]
fn the_images_of_silx_s_tests_come_back() {
    for (size, shape) in CASES_OF_SILX {
        let (image, chunk) = image_of_silx(size, shape);
        let decoded = decode(32008, &[0, 2, size as u32, 0, 2], &chunk, image.len()).unwrap();
        assert!(decoded == image, "{shape:?} of {size} bytes");
    }
}

/// Pieces of any lengths, which need not be those of blocks.
#[test]
fn a_chunk_comes_back_in_pieces() {
    let pipeline = |block: u32| {
        Pipeline::new(
            &[FilterSpec {
                id: 32008,
                parameters: vec![0, 2, 4, block, 2],
            }],
            4,
        )
        .expect("it is known")
    };
    let data = counts(4 * 5003, 11);
    for (block, length) in [
        (2048, 8192),
        (2048, 1000),
        (128, 8192),
        (8, 20_012),
        (2048, 3),
    ] {
        let chunk = bitshuffle_lz4(&data, 4, block);
        let pipeline = pipeline(block as u32);
        let mut scratch = Scratch::default();
        let mut pieces = pipeline
            .pieces(&chunk, 0, data.len())
            .expect("blocks")
            .expect("sound");
        let mut target = vec![0; data.len()];
        for part in target.chunks_mut(length) {
            pieces.fill(part, &mut scratch).expect("sound");
        }
        assert!(target == data, "blocks of {block}, pieces of {length}");
        assert!(
            pieces.fill(&mut [0], &mut scratch).is_err(),
            "beyond the end"
        );
    }
    // What lacks at the end is told with the last block.
    let chunk = bitshuffle_lz4(&data, 4, 2048);
    let pipeline = pipeline(2048);
    let mut pieces = pipeline
        .pieces(&chunk[..chunk.len() - 1], 0, data.len())
        .expect("blocks")
        .expect("its header");
    assert!(
        pieces
            .fill(&mut vec![0; data.len()], &mut Scratch::default())
            .is_err()
    );
    assert!(
        pipeline
            .pieces(&chunk, 0, data.len() - 4)
            .expect("blocks")
            .is_err()
    );
    assert!(
        pipeline
            .pieces(&data, 1, data.len())
            .expect("no filter was applied")
            .is_ok()
    );
    let deflate = Pipeline::new(
        &[FilterSpec {
            id: 1,
            parameters: vec![],
        }],
        4,
    )
    .expect("it is known");
    assert!(deflate.pieces(&chunk, 0, data.len()).is_none());
}

#[test]
fn the_portable_transposition_agrees_with_the_fast_one() {
    for size in [1usize, 2, 4, 8] {
        let data = counts(8 * size * 77, 3);
        let turned = transpose(&data, size);
        let (mut fast, mut plain) = (vec![1; data.len()], vec![2; data.len()]);
        bits::untranspose(&turned, &mut fast, size);
        bits::portable(&turned, &mut plain, size, 0);
        assert!(fast == data && plain == data, "{size} bytes");
    }
}

#[test]
fn shuffled_bytes_come_back() {
    for size in 1..9 {
        let data = counts(size * 50 + 3, 5);
        let count = data.len() / size;
        let mut shuffled: Vec<u8> = Vec::new();
        (0..size).for_each(|row| shuffled.extend((0..count).map(|index| data[index * size + row])));
        shuffled.extend(&data[count * size..]);
        let mut target = vec![0; data.len()];
        bytes::unshuffle(&shuffled, &mut target, size);
        assert!(target == data, "{size} bytes");
    }
}

#[test]
fn what_is_wrong_with_a_chunk_is_told() {
    let data = counts(4 * 3000, 9);
    let chunk = bitshuffle_lz4(&data, 4, 2048);
    let lz4 = [0, 2, 4, 0, 2];
    let size = |found| DecodeError::Size {
        expected: 4 * 3000,
        found,
    };
    assert_eq!(
        decode(
            32008,
            &lz4,
            &bitshuffle_lz4(&data[4..], 4, 2048),
            data.len()
        ),
        Err(size(4 * 2999))
    );
    for cut in [0, 5, 11, 12, 15, 20, chunk.len() - 1] {
        assert!(
            matches!(
                decode(32008, &lz4, &chunk[..cut], data.len()),
                Err(DecodeError::Damaged(_))
            ),
            "{cut}"
        );
    }
    assert_eq!(
        decode(307, &[], &chunk, 4),
        Err(DecodeError::UnknownFilter { id: 307 })
    );
    assert_eq!(
        decode(1, &[], &chunk, data.len()),
        Err(DecodeError::Damaged("it is no deflate stream"))
    );
    assert!(matches!(
        decode(32015, &[], &chunk, data.len()),
        Err(DecodeError::Damaged(_))
    ));
    assert!(
        Pipeline::new(
            &[FilterSpec {
                id: 32008,
                parameters: vec![0, 2, 3, 0, 2]
            }],
            4
        )
        .is_err()
    );
}

#[test]
fn a_filter_that_a_chunk_was_spared_is_not_undone() {
    let data = counts(64, 1);
    let pipeline = Pipeline::new(
        &[FilterSpec {
            id: 32004,
            parameters: vec![],
        }],
        4,
    )
    .unwrap();
    let (mut target, mut scratch) = (vec![0; 64], Scratch::default());
    pipeline
        .decode(&data, 1, &mut target, &mut scratch)
        .unwrap();
    assert_eq!(target, data);
    assert_eq!(
        pipeline.decode(&data[1..], 1, &mut target, &mut scratch),
        Err(DecodeError::Size {
            expected: 64,
            found: 63
        })
    );
}

proptest! {
    #[test]
    fn lz4_agrees_with_another_implementation(
        data in prop::collection::vec(prop_oneof![Just(0u8), any::<u8>(), 0u8..3], 0..3000),
        period in 1usize..40,
        repeats in 0usize..60,
    ) {
        // Matches at short distances, overlapping themselves.
        let data: Vec<u8> =
            data.iter().copied().chain((0..repeats * period).map(|index| (index % period) as u8)).collect();
        let packed = lz4_flex::block::compress(&data);
        let mut target = vec![0; data.len() + lz4::SLACK];
        lz4::decode(&packed, &mut target, data.len()).unwrap();
        prop_assert!(target[..data.len()] == data);
    }

    #[test]
    fn lz4_reads_whatever_it_is_given(source in prop::collection::vec(any::<u8>(), 0..300), length in 0usize..600) {
        let ours = super::fuzz::lz4(&source, length);
        let mut theirs = vec![0; length];
        let theirs = lz4_flex::block::decompress_into(&source, &mut theirs).ok().filter(|found| *found == length).map(|_| theirs);
        if let Some(theirs) = theirs {
            // The other one takes blocks too that end with a match.
            prop_assert!(ours.is_none_or(|ours| ours == theirs));
        } else {
            prop_assert!(ours.is_none());
        }
    }

    #[test]
    fn no_chunk_makes_a_decoder_panic(
        source in prop::collection::vec(any::<u8>(), 0..300),
        filter in prop_oneof![Just(1u16), Just(2), Just(3), Just(32001), Just(32004), Just(32008), Just(32015)],
        parameters in prop::collection::vec(0u32..9, 0..6),
        length in 0usize..300,
        honest in any::<bool>(),
    ) {
        let mut chunk = source;
        if honest && chunk.len() >= 12 {
            chunk[..8].copy_from_slice(&(length as u64).to_be_bytes());
            chunk[8..12].copy_from_slice(&64u32.to_be_bytes());
        }
        let _ = decode(filter, &parameters, &chunk, length);
    }
}
