//! TIFF 6.0, as detectors and viewers write it: one sample a pixel, in strips, compressed or not.

use super::unpack;
use nodectl_formats::{Array, Info};
use nodectl_types::Scalar;
use std::collections::BTreeMap;

/// The most numbers in a field that is read: one for each strip.
const MAX_NUMBERS: usize = 1 << 20;
/// What a byte of a compressed image becomes at most: with LZW, twelve bits may say some four
/// thousand bytes.
const MAX_INFLATION: u64 = 4096;

mod tag {
    pub const WIDTH: u16 = 256;
    pub const LENGTH: u16 = 257;
    pub const BITS: u16 = 258;
    pub const COMPRESSION: u16 = 259;
    pub const PHOTOMETRIC: u16 = 262;
    pub const STRIP_OFFSETS: u16 = 273;
    pub const SAMPLES: u16 = 277;
    pub const STRIP_ROWS: u16 = 278;
    pub const STRIP_BYTES: u16 = 279;
    pub const PREDICTOR: u16 = 317;
    pub const SAMPLE_FORMAT: u16 = 339;
}

type Unpack = fn(&[u8], usize) -> Result<Vec<u8>, String>;

/// The first image of a file.
pub(super) fn decode(bytes: &[u8]) -> Result<Array, String> {
    let file = File::new(bytes)?;
    let fields = TiffFields(file.fields()?);
    let unpack = unpacker(fields.first(tag::COMPRESSION).unwrap_or(1))?;
    let is_differences = match fields.first(tag::PREDICTOR).unwrap_or(1) {
        1 => false,
        2 => true,
        other => return Err(format!("its predictor {other} is not supported")),
    };
    if fields.first(tag::SAMPLES).unwrap_or(1) != 1 {
        return Err("it has colours; masks and images have one number a pixel".into());
    }
    let shape = vec![
        fields.known(tag::LENGTH, "length")?,
        fields.known(tag::WIDTH, "width")?,
    ];
    let (bits, format) = (
        fields.first(tag::BITS).unwrap_or(1),
        fields.first(tag::SAMPLE_FORMAT).unwrap_or(1),
    );
    if bits == 1 {
        let row_bytes = shape[1].div_ceil(8);
        let packed = strips(bytes, &fields, unpack, [shape[0], row_bytes])?;
        // Photometric interpretation 0: a set bit is black.
        let is_inverted = fields.first(tag::PHOTOMETRIC) == Some(0);
        return Ok(bilevel(&packed, shape, is_inverted));
    }
    let scalar = scalar(bits, format).ok_or(format!(
        "samples of {bits} bits (format {format}) are not supported"
    ))?;
    let row_bytes = shape[1].saturating_mul(scalar.bytes() as u64);
    let mut data = strips(bytes, &fields, unpack, [shape[0], row_bytes])?;
    if file.is_big_endian {
        data.chunks_mut(scalar.bytes()).for_each(<[u8]>::reverse);
    }
    if is_differences {
        data.chunks_mut((row_bytes as usize).max(1))
            .for_each(|row| add_up(row, scalar.bytes()));
    }
    Ok(Array {
        info: Info { scalar, shape },
        bytes: data,
    })
}

fn unpacker(compression: u64) -> Result<Unpack, String> {
    Ok(match compression {
        1 => |bytes, most| Ok(bytes[..bytes.len().min(most)].to_vec()),
        5 => unpack::lzw,
        8 | 32_946 => unpack::zlib,
        32_773 => unpack::pack_bits,
        other => {
            return Err(format!(
                "its compression {other} is not supported; LZW, Deflate and PackBits are"
            ));
        }
    })
}

/// The bytes of all rows, strip by strip.
fn strips(
    bytes: &[u8],
    fields: &TiffFields,
    unpack: Unpack,
    [rows, row_bytes]: [u64; 2],
) -> Result<Vec<u8>, String> {
    let is_possible = |needed: &u64| *needed <= (bytes.len() as u64).saturating_mul(MAX_INFLATION);
    let needed = rows.checked_mul(row_bytes).filter(is_possible);
    let needed = needed.ok_or("it is cut short")? as usize;
    let offsets = fields
        .all(tag::STRIP_OFFSETS)
        .ok_or("it has no strips; tiles are not supported")?;
    let lengths = fields
        .all(tag::STRIP_BYTES)
        .ok_or("the lengths of its strips are missing")?;
    let strip_rows = fields.first(tag::STRIP_ROWS).unwrap_or(u64::MAX).min(rows);
    let strip_bytes = (strip_rows * row_bytes) as usize;
    let mut data = Vec::new();
    for (offset, length) in offsets.iter().zip(lengths) {
        let end = offset.checked_add(*length).map(usize::try_from);
        let range = usize::try_from(*offset).ok().zip(end.and_then(Result::ok));
        let strip = range
            .and_then(|(start, end)| bytes.get(start..end))
            .ok_or("it is cut short")?;
        data.extend(unpack(strip, strip_bytes.min(needed - data.len()))?);
    }
    if data.len() < needed {
        return Err(format!("it is cut short: {} of {needed} bytes", data.len()));
    }
    Ok(data)
}

/// A bit a pixel, the highest first, rows padded to bytes.
fn bilevel(packed: &[u8], shape: Vec<u64>, is_inverted: bool) -> Array {
    let columns = shape[1] as usize;
    let row = |row: &[u8]| {
        let bit = |column: usize| (row[column / 8] >> (7 - column % 8) & 1) ^ u8::from(is_inverted);
        (0..columns).map(bit).collect::<Vec<u8>>()
    };
    let bytes = packed.chunks(columns.div_ceil(8).max(1)).flat_map(row);
    Array {
        bytes: bytes.collect(),
        info: Info {
            scalar: Scalar::U8,
            shape,
        },
    }
}

/// The fields of whole numbers in a directory.
struct TiffFields(BTreeMap<u16, Vec<u64>>);

impl TiffFields {
    fn all(&self, tag: u16) -> Option<&[u64]> {
        self.0.get(&tag).map(Vec::as_slice)
    }

    fn first(&self, tag: u16) -> Option<u64> {
        self.all(tag)?.first().copied()
    }

    fn known(&self, tag: u16, name: &str) -> Result<u64, String> {
        self.first(tag).ok_or(format!("its {name} is missing"))
    }
}

/// Horizontal differencing undone: each number of a row says how much more it is than the one
/// before it. Byte by byte, as whole numbers of `size` bytes that wrap around.
fn add_up(row: &mut [u8], size: usize) {
    for at in (size..row.len()).step_by(size) {
        let mut carried = 0;
        for byte in at..(at + size).min(row.len()) {
            let sum = u16::from(row[byte]) + u16::from(row[byte - size]) + carried;
            (row[byte], carried) = (sum as u8, sum >> 8);
        }
    }
}

fn scalar(bits: u64, format: u64) -> Option<Scalar> {
    Some(match (format, bits) {
        (1, 8) => Scalar::U8,
        (1, 16) => Scalar::U16,
        (1, 32) => Scalar::U32,
        (2, 8) => Scalar::I8,
        (2, 16) => Scalar::I16,
        (2, 32) => Scalar::I32,
        (3, 32) => Scalar::F32,
        (3, 64) => Scalar::F64,
        _ => return None,
    })
}

struct File<'a> {
    bytes: &'a [u8],
    is_big_endian: bool,
}

impl<'a> File<'a> {
    fn new(bytes: &'a [u8]) -> Result<Self, String> {
        let is_big_endian = match bytes.get(..4) {
            Some(b"II*\0") => false,
            Some(b"MM\0*") => true,
            _ => return Err("it is no TIFF file".into()),
        };
        Ok(Self {
            bytes,
            is_big_endian,
        })
    }

    /// The unsigned number of `size` bytes at a place.
    fn number(&self, at: usize, size: usize) -> Result<u64, String> {
        let bytes = at
            .checked_add(size)
            .and_then(|end| self.bytes.get(at..end))
            .ok_or("it is cut short")?;
        let join = |number: u64, byte: &u8| number << 8 | u64::from(*byte);
        Ok(if self.is_big_endian {
            bytes.iter().fold(0, join)
        } else {
            bytes.iter().rev().fold(0, join)
        })
    }

    /// The fields of whole numbers in the first directory, by tag.
    fn fields(&self) -> Result<BTreeMap<u16, Vec<u64>>, String> {
        let directory = self.number(4, 4)? as usize;
        let entries = self.number(directory, 2)? as usize;
        let mut fields = BTreeMap::new();
        for entry in (0..entries).map(|index| directory + 2 + 12 * index) {
            let size = match self.number(entry + 2, 2)? {
                1 => 1,
                3 => 2,
                4 => 4,
                _ => continue,
            };
            let count = self.number(entry + 4, 4)? as usize;
            if count > MAX_NUMBERS {
                return Err(format!("a field of {count} numbers"));
            }
            // Numbers that fit into the entry are in the entry.
            let at = if count * size <= 4 {
                entry + 8
            } else {
                self.number(entry + 8, 4)? as usize
            };
            let numbers = (0..count)
                .map(|index| self.number(at + index * size, size))
                .collect::<Result<_, _>>()?;
            fields.insert(self.number(entry, 2)? as u16, numbers);
        }
        Ok(fields)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 2 × 3 pixels of 16 bits in two strips.
    fn file(big: bool) -> Vec<u8> {
        let two = |n: u16| {
            if big {
                n.to_be_bytes()
            } else {
                n.to_le_bytes()
            }
        };
        let four = |n: u32| {
            if big {
                n.to_be_bytes()
            } else {
                n.to_le_bytes()
            }
        };
        let mut bytes = if big {
            b"MM\0*".to_vec()
        } else {
            b"II*\0".to_vec()
        };
        bytes.extend(four(36));
        (1..7).for_each(|n| bytes.extend(two(n)));
        [8, 14, 6, 6]
            .into_iter()
            .for_each(|n| bytes.extend(four(n)));
        let fields = [(256, 3), (257, 2), (258, 16), (259, 1), (339, 1)];
        bytes.extend(two(fields.len() as u16 + 2));
        for (tag, value) in fields {
            bytes.extend([two(tag), two(3)].concat());
            bytes.extend(four(1));
            bytes.extend([two(value), two(0)].concat());
        }
        for (tag, at) in [(273, 20), (279, 28)] {
            bytes.extend([two(tag), two(4)].concat());
            bytes.extend([four(2), four(at)].concat());
        }
        bytes
    }

    #[test]
    fn both_byte_orders() {
        for big in [false, true] {
            let array = decode(&file(big)).expect("an image");
            let values: Vec<u8> = (1..7u16).flat_map(u16::to_le_bytes).collect();
            assert_eq!((array.info.shape, array.bytes), (vec![2, 3], values));
        }
    }

    #[test]
    fn a_bit_a_pixel() {
        // 11 pixels a row: two rows of two bytes.
        let packed = [0b1000_0001, 0b0110_0000, 0, 0b0010_0000];
        let set = |is_inverted: bool| {
            let array = bilevel(&packed, vec![2, 11], is_inverted);
            assert_eq!(array.bytes.len(), 22);
            (0..22)
                .filter(|at| array.bytes[*at] == 1)
                .collect::<Vec<_>>()
        };
        assert_eq!(set(false), [0, 7, 9, 10, 11 + 10]);
        assert_eq!(set(true).len(), 22 - 5);
    }

    #[test]
    fn differences_are_added_up() {
        let mut row: Vec<u8> = [250u16, 10, 65535, 1]
            .into_iter()
            .flat_map(u16::to_le_bytes)
            .collect();
        add_up(&mut row, 2);
        assert_eq!(
            row,
            [250u16, 260, 259, 260]
                .into_iter()
                .flat_map(u16::to_le_bytes)
                .collect::<Vec<u8>>()
        );
    }

    #[test]
    fn whatever_is_cut_off_is_an_error() {
        let whole = file(false);
        for length in 0..whole.len() - 1 {
            assert!(decode(&whole[..length]).is_err(), "{length} bytes");
        }
    }

    #[test]
    fn damaged_headers_do_no_harm() {
        for big in [false, true] {
            let whole = file(big);
            super::super::damage::check(&whole, whole.len(), 1 << 20, decode);
        }
    }
}
