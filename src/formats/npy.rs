//! numpy's format, versions 1 to 3: a magic number, a header that is the text of a Python
//! dictionary, the numbers.
//! <https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html>

use super::{
    Array, Info,
    array::{MAX_AXES, runs},
};
use nodectl_types::Scalar;
use std::{
    fs::File,
    io::{self, BufReader, Read, Seek},
    os::unix::fs::FileExt,
};

const MAGIC: &[u8; 6] = b"\x93NUMPY";
/// numpy refuses more than 10,000 bytes unless told otherwise.
const MAX_HEADER_BYTES: usize = 64 << 10;

/// What stands before the numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NpyHeader {
    pub info: Info,
    is_big_endian: bool,
    is_fortran: bool,
    /// Where the numbers begin.
    offset: u64,
}

/// The header of a file, which has as many bytes as that says.
pub fn inspect(mut file: &File) -> Result<NpyHeader, String> {
    file.rewind().map_err(|error| error.to_string())?;
    let header = NpyHeader::read(&mut BufReader::new(file))?;
    let length = file.metadata().map_err(|error| error.to_string())?.len();
    header.check(length)?;
    Ok(header)
}

pub fn read(file: &File) -> Result<Array, String> {
    let header = inspect(file)?;
    header.numbers(|bytes| file.read_exact_at(bytes, header.offset))
}

pub fn read_block(file: &File, start: &[u64], shape: &[u64]) -> Result<Array, String> {
    let header = inspect(file)?;
    header.info.check_box(start, shape)?;
    if header.is_fortran {
        return Ok(read(file)?.block(start, shape));
    }
    let info = Info {
        scalar: header.info.scalar,
        shape: shape.to_vec(),
    };
    let mut block = read_runs(file, header.offset, &header.info, start, info)?;
    if header.is_big_endian {
        swap(&mut block.bytes, block.info.scalar);
    }
    Ok(block)
}

/// The box of `block` at `start` of a row-major array whose numbers begin at `offset`.
pub fn read_runs(
    file: &File,
    offset: u64,
    whole: &Info,
    start: &[u64],
    block: Info,
) -> Result<Array, String> {
    let size = whole.scalar.bytes() as u64;
    let mut array = Array::zeros(block).ok_or("it is too large")?;
    let mut rest = array.bytes.as_mut_slice();
    for run in runs(&whole.shape, start, &array.info.shape) {
        let (target, others) = rest.split_at_mut((run.length * size) as usize);
        file.read_exact_at(target, offset + run.offset * size)
            .map_err(|error| error.to_string())?;
        rest = others;
    }
    Ok(array)
}

/// An array from the bytes of a whole file.
pub fn decode(bytes: &[u8]) -> Result<Array, String> {
    let mut rest = bytes;
    let header = NpyHeader::read(&mut rest)?;
    header.check(bytes.len() as u64)?;
    header.numbers(|numbers| rest.read_exact(numbers))
}

/// An array from a stream of `length` bytes; more are not read, fewer are an error.
pub fn read_stream(mut stream: impl Read, length: u64) -> Result<Array, String> {
    let header = NpyHeader::read(&mut stream)?;
    header.check(length)?;
    header.numbers(|bytes| stream.read_exact(bytes))
}

/// The bytes of a file, version 1, or 2 for a very long shape.
pub fn encode(array: &Array) -> Vec<u8> {
    let descr = match array.info.scalar {
        Scalar::Bool => "|b1".to_string(),
        Scalar::U8 => "|u1".to_string(),
        Scalar::I8 => "|i1".to_string(),
        scalar if scalar.is_float() => format!("<f{}", scalar.bytes()),
        scalar => format!("<{}{}", &scalar.name()[..1], scalar.bytes()),
    };
    let extents: Vec<String> = array.info.shape.iter().map(u64::to_string).collect();
    let comma = if extents.len() == 1 { "," } else { "" };
    let shape = format!("({}{comma})", extents.join(", "));
    let mut header = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}");
    // The numbers begin at a multiple of 64 bytes, after a newline.
    let before = MAGIC.len() + 4;
    let padding = (before + header.len() + 1).next_multiple_of(64) - (before + header.len() + 1);
    header.push_str(&" ".repeat(padding));
    header.push('\n');
    let mut bytes = Vec::with_capacity(before + header.len() + array.bytes.len());
    bytes.extend(MAGIC);
    bytes.extend([1, 0]);
    bytes.extend(
        u16::try_from(header.len())
            .expect("32 axes of 20 digits")
            .to_le_bytes(),
    );
    bytes.extend(header.as_bytes());
    bytes.extend(&array.bytes);
    bytes
}

impl NpyHeader {
    pub fn read(stream: &mut impl Read) -> Result<Self, String> {
        let unreadable = |error: io::Error| match error.kind() {
            io::ErrorKind::UnexpectedEof => "it ends within its header".to_string(),
            _ => error.to_string(),
        };
        let mut start = [0; 8];
        stream.read_exact(&mut start).map_err(unreadable)?;
        if !start.starts_with(MAGIC) {
            return Err("it is not an .npy file: it does not begin with \\x93NUMPY".into());
        }
        let mut length = [0; 4];
        let width = match start[6] {
            1 => 2,
            2 | 3 => 4,
            version => {
                return Err(format!(
                    "it is of version {version} of the .npy format; 1 to 3 are known"
                ));
            }
        };
        stream
            .read_exact(&mut length[..width])
            .map_err(unreadable)?;
        let length = u32::from_le_bytes(length) as usize;
        if length > MAX_HEADER_BYTES {
            return Err(format!("its header claims to have {length} bytes"));
        }
        let mut text = vec![0; length];
        stream.read_exact(&mut text).map_err(unreadable)?;
        let text = String::from_utf8(text).map_err(|_| "its header is not text")?;
        let mut header = parse(&text).map_err(|problem| format!("its header {problem}"))?;
        header.offset = (start.len() + width + length) as u64;
        Ok(header)
    }

    /// Against the length of the file.
    fn check(&self, length: u64) -> Result<(), String> {
        let there = length.saturating_sub(self.offset);
        if self.info.bytes() == Some(there) {
            return Ok(());
        }
        let Info { scalar, shape } = &self.info;
        let wanted = self
            .info
            .bytes()
            .map_or("too many".to_string(), |bytes| bytes.to_string());
        Err(format!(
            "its header says {shape:?} of {scalar}, which are {wanted} bytes, but {there} follow"
        ))
    }

    /// The numbers as `Array` has them; `fill` gives the bytes as they are stored. Their number was
    /// checked.
    fn numbers(&self, fill: impl FnOnce(&mut [u8]) -> io::Result<()>) -> Result<Array, String> {
        let mut array = Array::zeros(self.info.clone()).ok_or("it is too large")?;
        fill(&mut array.bytes).map_err(|error| error.to_string())?;
        if self.is_big_endian {
            swap(&mut array.bytes, self.info.scalar);
        }
        if self.is_fortran {
            Ok(from_fortran(array))
        } else {
            Ok(array)
        }
    }
}

fn swap(bytes: &mut [u8], scalar: Scalar) {
    bytes
        .chunks_exact_mut(scalar.bytes())
        .for_each(<[u8]>::reverse);
}

/// The first axis varies fastest in `array.bytes`; not so in what is returned.
fn from_fortran(array: Array) -> Array {
    let size = array.info.scalar.bytes();
    let shape = &array.info.shape;
    let strides: Vec<u64> = (0..shape.len())
        .map(|axis| shape[..axis].iter().product())
        .collect();
    let mut index = vec![0u64; shape.len()];
    let mut bytes = Vec::with_capacity(array.bytes.len());
    while bytes.len() < array.bytes.len() {
        let offset = index
            .iter()
            .zip(&strides)
            .map(|(index, stride)| index * stride)
            .sum::<u64>() as usize
            * size;
        bytes.extend(&array.bytes[offset..offset + size]);
        for axis in (0..shape.len()).rev() {
            index[axis] += 1;
            if index[axis] < shape[axis] {
                break;
            }
            index[axis] = 0;
        }
    }
    Array {
        bytes,
        info: array.info,
    }
}

/// `{'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }`, the keys in any order.
fn parse(text: &str) -> Result<NpyHeader, String> {
    let mut rest = LiteralText(text);
    let (mut descr, mut fortran, mut shape) = (None, None, None);
    rest.expect('{')?;
    while !rest.take('}') {
        let key = rest.string()?;
        rest.expect(':')?;
        match key {
            "descr" => descr = Some(rest.string()?),
            "fortran_order" => fortran = Some(rest.truth()?),
            "shape" => shape = Some(rest.tuple()?),
            other => return Err(format!("has an unknown key {other:?}")),
        }
        if !rest.take(',') {
            rest.expect('}')?;
            break;
        }
    }
    let (Some(descr), Some(is_fortran), Some(shape)) = (descr, fortran, shape) else {
        return Err("lacks one of descr, fortran_order and shape".into());
    };
    let (order, kind) = descr.split_at_checked(1).unwrap_or_default();
    let scalar = match kind {
        "b1" => Some(Scalar::Bool),
        kind => Scalar::ALL.into_iter().find(|scalar| {
            *scalar != Scalar::Bool && kind == format!("{}{}", &scalar.name()[..1], scalar.bytes())
        }),
    };
    let (Some(scalar), "<" | ">" | "|" | "=") = (scalar, order) else {
        return Err(format!(
            "has the type {descr:?}, which is neither whole numbers nor floats nor truth values"
        ));
    };
    let info = Info { scalar, shape };
    Ok(NpyHeader {
        info,
        is_big_endian: order == ">",
        is_fortran,
        offset: 0,
    })
}

/// The rest of a text with Python's literals.
struct LiteralText<'t>(&'t str);

impl<'t> LiteralText<'t> {
    fn take(&mut self, c: char) -> bool {
        match self.0.trim_start().strip_prefix(c) {
            Some(rest) => {
                self.0 = rest;
                true
            }
            None => false,
        }
    }

    fn expect(&mut self, c: char) -> Result<(), String> {
        if self.take(c) {
            Ok(())
        } else {
            Err(format!("is not a Python dictionary: `{c}` is missing"))
        }
    }

    fn string(&mut self) -> Result<&'t str, String> {
        let rest = self.0.trim_start();
        if rest.starts_with('[') {
            return Err("describes records, which are not arrays of numbers".into());
        }
        let quote = rest
            .chars()
            .next()
            .filter(|c| matches!(c, '\'' | '"'))
            .ok_or("has something that is not text")?;
        let (text, remaining) = rest[1..]
            .split_once(quote)
            .ok_or("has a text that never ends")?;
        self.0 = remaining;
        Ok(text)
    }

    fn truth(&mut self) -> Result<bool, String> {
        let rest = self.0.trim_start();
        for (word, truth) in [("True", true), ("False", false)] {
            if let Some(remaining) = rest.strip_prefix(word) {
                self.0 = remaining;
                return Ok(truth);
            }
        }
        Err("has something that is not a truth value".into())
    }

    fn tuple(&mut self) -> Result<Vec<u64>, String> {
        let mut numbers = Vec::new();
        self.expect('(')?;
        while !self.take(')') {
            if numbers.len() == MAX_AXES {
                return Err(format!("has a shape of more than {MAX_AXES} axes"));
            }
            let rest = self.0.trim_start();
            let digits = rest
                .find(|c: char| !c.is_ascii_digit())
                .unwrap_or(rest.len());
            numbers.push(
                rest[..digits]
                    .parse()
                    .map_err(|_| "has a shape that is not a list of extents")?,
            );
            // Python 2 marks long numbers.
            self.0 = rest[digits..].strip_prefix('L').unwrap_or(&rest[digits..]);
            if !self.take(',') {
                self.expect(')')?;
                break;
            }
        }
        Ok(numbers)
    }
}
