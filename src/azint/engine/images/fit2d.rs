//! Masks of Fit2D: a header of 1024 bytes, then a bit a pixel, rows padded to 32 of them.

use nodectl_formats::{Array, Info};
use nodectl_types::Scalar;

const HEADER: usize = 1024;
const MARK: &[u8; 16] = b"M\0\0\0A\0\0\0S\0\0\0K\0\0\0";

pub(super) fn is_one(bytes: &[u8]) -> bool {
    let letters = |bytes: &[u8]| bytes.iter().step_by(4).copied().collect::<Vec<u8>>();
    bytes
        .get(..16)
        .is_some_and(|head| letters(head) == letters(MARK))
}

/// A mask, 1 where a pixel is masked.
pub(super) fn decode(bytes: &[u8]) -> Result<Array, String> {
    let cut = || "it is cut short".to_string();
    let number = |at: usize| {
        let four = bytes.get(at..at + 4)?.first_chunk::<4>()?;
        Some(u32::from_le_bytes(*four) as usize)
    };
    let (columns, rows) = number(16).zip(number(20)).ok_or_else(cut)?;
    let row_bytes = columns.div_ceil(32) * 4;
    let packed = bytes.get(HEADER..).ok_or_else(cut)?;
    let length = row_bytes.checked_mul(rows).ok_or_else(cut)?;
    let packed = packed.get(..length).ok_or_else(cut)?;
    let row = |row: &[u8]| {
        let bit = |column: usize| row[column / 8] >> (column % 8) & 1;
        (0..columns).map(bit).collect::<Vec<u8>>()
    };
    let pixels = packed.chunks_exact(row_bytes.max(1)).flat_map(row);
    Ok(Array {
        info: Info {
            scalar: Scalar::U8,
            shape: vec![rows as u64, columns as u64],
        },
        bytes: pixels.collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_are_pixels() {
        let mut file = MARK.to_vec();
        file.extend(35u32.to_le_bytes());
        file.extend(2u32.to_le_bytes());
        file.resize(HEADER, 0);
        // Two rows of 35 pixels: 8 bytes each.
        file.extend([1, 0, 0, 0x80, 4, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0]);
        assert!(is_one(&file) && !is_one(b"{ EDF"));
        let mask = decode(&file).expect("a mask");
        assert_eq!(mask.info.shape, [2, 35]);
        let set: Vec<usize> = (0..70).filter(|at| mask.bytes[*at] == 1).collect();
        assert_eq!(set, [0, 31, 34, 35 + 9]);
        assert!(decode(&file[..file.len() - 1]).is_err());
    }
}
