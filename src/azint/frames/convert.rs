//! Numbers of files as 32-bit floats, as pyFAI makes of those that engines do not have.

use nodectl_types::Scalar;

/// `target` has a float for each number of `source`, both little-endian.
pub(super) fn to_f32(stored: Scalar, source: &[u8], target: &mut [u8]) {
    match stored {
        Scalar::I8 => each(source, target, |bytes| f32::from(i8::from_le_bytes(bytes))),
        Scalar::I16 => each(source, target, |bytes| f32::from(i16::from_le_bytes(bytes))),
        Scalar::I64 => each(source, target, |bytes| i64::from_le_bytes(bytes) as f32),
        Scalar::U64 => each(source, target, |bytes| of_u64(u64::from_le_bytes(bytes))),
        Scalar::F64 => each(source, target, |bytes| f64::from_le_bytes(bytes) as f32),
        other => {
            let floats = nodectl_formats::convert(source.to_vec(), other, Scalar::F32);
            target.copy_from_slice(&floats);
        }
    }
}

/// The largest ones mark dead pixels, as with fewer bits; of these, floats know nothing.
fn of_u64(number: u64) -> f32 {
    if number >= u64::MAX - 1 {
        f32::NAN
    } else {
        number as f32
    }
}

fn each<const N: usize>(source: &[u8], target: &mut [u8], convert: impl Fn([u8; N]) -> f32) {
    for (source, target) in source
        .as_chunks::<N>()
        .0
        .iter()
        .zip(target.as_chunks_mut::<4>().0)
    {
        *target = convert(*source).to_le_bytes();
    }
}
