//! Compressions of images in TIFF and EDF files. What comes out is never longer than the image can
//! be.

use flate2::read::{MultiGzDecoder, ZlibDecoder};
use std::io::Read;

const CUT: &str = "its compressed data is cut short or damaged";

/// zlib's format.
pub(super) fn zlib(packed: &[u8], most: usize) -> Result<Vec<u8>, String> {
    take(ZlibDecoder::new(packed), most)
}

/// gzip's format.
pub(super) fn gzip(packed: &[u8], most: usize) -> Result<Vec<u8>, String> {
    take(MultiGzDecoder::new(packed), most)
}

fn take(decoder: impl Read, most: usize) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::new();
    decoder
        .take(most as u64)
        .read_to_end(&mut bytes)
        .map_err(|_| CUT)?;
    Ok(bytes)
}

/// PackBits, TIFF 6.0 section 9: runs of a byte, and bytes as they are.
pub(super) fn pack_bits(mut packed: &[u8], most: usize) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::new();
    while bytes.len() < most
        && let Some((count, rest)) = packed.split_first()
    {
        packed = match i8::from_ne_bytes([*count]) {
            count @ 0.. => {
                let (plain, rest) = rest.split_at_checked(count as usize + 1).ok_or(CUT)?;
                bytes.extend(plain);
                rest
            }
            i8::MIN => rest,
            count => {
                let (byte, rest) = rest.split_first().ok_or(CUT)?;
                bytes.resize(bytes.len() + 1 + usize::from(count.unsigned_abs()), *byte);
                rest
            }
        };
    }
    bytes.truncate(most);
    Ok(bytes)
}

/// LZW, TIFF 6.0 section 13: codes of 9 to 12 bits, the highest bit first, that grow one code
/// early.
pub(super) fn lzw(packed: &[u8], most: usize) -> Result<Vec<u8>, String> {
    const CLEAR: usize = 256;
    const END: usize = 257;
    let mut bytes: Vec<u8> = Vec::new();
    // Of codes from 258 on: where their bytes are among those written, and how many.
    let mut table: Vec<(usize, usize)> = Vec::new();
    let mut before: Option<(usize, usize)> = None;
    let (mut bits, mut bit_count, mut width) = (0u32, 0, 9);
    let mut packed = packed.iter();
    while bytes.len() < most {
        while bit_count < width {
            bits = bits << 8 | u32::from(*packed.next().ok_or(CUT)?);
            bit_count += 8;
        }
        bit_count -= width;
        let code = (bits >> bit_count) as usize & ((1 << width) - 1);
        match code {
            CLEAR => {
                (table, before, width) = (Vec::new(), None, 9);
                continue;
            }
            END => break,
            _ => {}
        }
        let start = bytes.len();
        match (code, before) {
            (0..CLEAR, _) => bytes.push(code as u8),
            (_, Some((from, length))) if code == END + 1 + table.len() => {
                bytes.extend_from_within(from..from + length);
                bytes.push(bytes[from]);
            }
            _ => {
                let (from, length) = *table.get(code - END - 1).ok_or(CUT)?;
                bytes.extend_from_within(from..from + length);
            }
        }
        if let Some((from, length)) = before {
            // The bytes of the code before and the first of this one lie side by side.
            table.push((from, length + 1));
        }
        before = Some((start, bytes.len() - start));
        width = match table.len() + END + 1 {
            2047.. => 12,
            1023.. => 11,
            511.. => 10,
            _ => 9,
        };
    }
    bytes.truncate(most);
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use flate2::{Compression, write::ZlibEncoder};
    use std::io::Write;

    #[test]
    fn the_example_of_the_specification() {
        let packed = [
            0xfe, 0xaa, 0x02, 0x80, 0x00, 0x2a, 0xfd, 0xaa, 0x03, 0x80, 0x00, 0x2a, 0x22, 0xf7,
            0xaa,
        ];
        let bytes = pack_bits(&packed, 24).expect("whole");
        assert_eq!(bytes[..8], [0xaa, 0xaa, 0xaa, 0x80, 0x00, 0x2a, 0xaa, 0xaa]);
        assert_eq!(bytes.len(), 24);
        assert!(pack_bits(&packed[..14], 24).is_err());
        assert_eq!(
            pack_bits(&packed, 5).expect("as much as is wanted").len(),
            5
        );
    }

    /// Codes of their own width, the highest bit first.
    fn codes(codes: &[(u32, u32)]) -> Vec<u8> {
        let bits = codes
            .iter()
            .flat_map(|(code, width)| (0..*width).rev().map(move |bit| code >> bit & 1));
        let bits: Vec<u32> = bits.collect();
        bits.chunks(8)
            .map(|byte| {
                byte.iter()
                    .enumerate()
                    .fold(0, |all, (at, bit)| all | (*bit as u8) << (7 - at))
            })
            .collect()
    }

    #[test]
    fn lzw_says_strings_again() {
        // TIFF 6.0, section 13: 7 7 7 8 8 7 7 6 6.
        let packed = codes(&[
            (256, 9),
            (7, 9),
            (258, 9),
            (8, 9),
            (8, 9),
            (258, 9),
            (6, 9),
            (6, 9),
            (257, 9),
        ]);
        assert_eq!(lzw(&packed, 9), Ok(vec![7, 7, 7, 8, 8, 7, 7, 6, 6]));
        assert!(lzw(&packed[..4], 9).is_err());
        assert!(lzw(&codes(&[(256, 9), (300, 9)]), 9).is_err());
    }

    #[test]
    fn zlib_ends_where_the_image_does() {
        let mut encoder = ZlibEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(&[3; 100_000]).expect("memory");
        let packed = encoder.finish().expect("memory");
        assert_eq!(zlib(&packed, 1000).expect("whole"), [3; 1000]);
        assert!(zlib(&packed[..packed.len() / 2], 100_000).is_err());
    }
}
