//! Numbers of one type as numbers of another.

use half::f16;
use nodectl_types::Scalar;

/// A number that holds any other exactly.
#[derive(Clone, Copy)]
enum Wide {
    Int(i128),
    Float(f64),
}

/// Numbers as another type. What the other type does not have is rounded to the nearest and
/// saturates; NaN becomes 0 where there is none, and everything but 0 becomes true.
///
/// # Panics
/// If `bytes` are no whole number of numbers.
pub fn convert(bytes: Vec<u8>, from: Scalar, to: Scalar) -> Vec<u8> {
    if from == to {
        return bytes;
    }
    let (old, new) = (from.bytes(), to.bytes());
    assert!(bytes.len().is_multiple_of(old), "whole numbers");
    let mut converted = vec![0; bytes.len() / old * new];
    for (source, target) in bytes.chunks_exact(old).zip(converted.chunks_exact_mut(new)) {
        put(to, get(from, source), target);
    }
    converted
}

/// `scale` to 0 … 1, then to the whole range of an unsigned type.
pub fn to_range(bytes: &[u8], from: Scalar, scale: [f64; 2], to: Scalar) -> Vec<u8> {
    let most = if to == Scalar::U8 { 255.0 } else { 65535.0 };
    let mut converted = vec![0; bytes.len() / from.bytes() * to.bytes()];
    for (source, target) in bytes
        .chunks_exact(from.bytes())
        .zip(converted.chunks_exact_mut(to.bytes()))
    {
        let number = match get(from, source) {
            Wide::Int(number) => number as f64,
            Wide::Float(number) => number,
        };
        put(
            to,
            Wide::Float((number - scale[0]) / (scale[1] - scale[0]) * most),
            target,
        );
    }
    converted
}

fn get(scalar: Scalar, bytes: &[u8]) -> Wide {
    macro_rules! int {
        ($type:ty) => {
            Wide::Int(
                <$type>::from_le_bytes(bytes.try_into().expect("a chunk of its size")) as i128,
            )
        };
    }
    match scalar {
        Scalar::Bool => Wide::Int(i128::from(bytes[0] != 0)),
        Scalar::U8 => int!(u8),
        Scalar::I8 => int!(i8),
        Scalar::U16 => int!(u16),
        Scalar::I16 => int!(i16),
        Scalar::U32 => int!(u32),
        Scalar::I32 => int!(i32),
        Scalar::U64 => int!(u64),
        Scalar::I64 => int!(i64),
        Scalar::F16 => Wide::Float(f16::from_le_bytes([bytes[0], bytes[1]]).to_f64()),
        Scalar::F32 => Wide::Float(f64::from(f32::from_le_bytes(
            bytes.try_into().expect("a chunk of its size"),
        ))),
        Scalar::F64 => Wide::Float(f64::from_le_bytes(
            bytes.try_into().expect("a chunk of its size"),
        )),
    }
}

fn put(scalar: Scalar, number: Wide, bytes: &mut [u8]) {
    macro_rules! int {
        ($type:ty) => {{
            let value = match number {
                Wide::Int(number) => {
                    number.clamp(<$type>::MIN as i128, <$type>::MAX as i128) as $type
                }
                // `as` saturates, and makes NaN 0.
                Wide::Float(number) => number.round() as $type,
            };
            bytes.copy_from_slice(&value.to_le_bytes())
        }};
    }
    macro_rules! float {
        ($from_int:expr, $from_float:expr) => {
            match number {
                Wide::Int(number) => bytes.copy_from_slice(&$from_int(number).to_le_bytes()),
                Wide::Float(number) => bytes.copy_from_slice(&$from_float(number).to_le_bytes()),
            }
        };
    }
    match scalar {
        Scalar::Bool => {
            bytes[0] = match number {
                Wide::Int(number) => u8::from(number != 0),
                Wide::Float(number) => u8::from(number != 0.0),
            }
        }
        Scalar::U8 => int!(u8),
        Scalar::I8 => int!(i8),
        Scalar::U16 => int!(u16),
        Scalar::I16 => int!(i16),
        Scalar::U32 => int!(u32),
        Scalar::I32 => int!(i32),
        Scalar::U64 => int!(u64),
        Scalar::I64 => int!(i64),
        Scalar::F16 => float!(|number| f16::from_f64(number as f64), f16::from_f64),
        Scalar::F32 => float!(|number| number as f32, |number| number as f32),
        Scalar::F64 => float!(|number| number as f64, |number: f64| number),
    }
}
