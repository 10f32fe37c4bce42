//! LZF, h5py's own filter (32000): literal runs, and copies of up to 264 bytes from at most 8 KiB
//! before (`lzf_d.c` of liblzf).

use super::DecodeError;

const CUT: DecodeError = DecodeError::Damaged("its LZF data ends too early");

/// Decodes to exactly `target`.
pub(super) fn decode(mut source: &[u8], target: &mut [u8]) -> Result<(), DecodeError> {
    let mut at = 0;
    while let Some((control, rest)) = source.split_first() {
        source = rest;
        let control = usize::from(*control);
        if control < 32 {
            let length = control + 1;
            let (plain, rest) = source.split_at_checked(length).ok_or(CUT)?;
            room(target, at, length)?.copy_from_slice(plain);
            (source, at) = (rest, at + length);
            continue;
        }
        let mut next = || {
            let (byte, rest) = source.split_first().ok_or(CUT)?;
            source = rest;
            Ok::<usize, DecodeError>(usize::from(*byte))
        };
        let mut length = (control >> 5) + 2;
        if length == 9 {
            length += next()?;
        }
        let distance = ((control & 31) << 8) + next()? + 1;
        let from = at
            .checked_sub(distance)
            .ok_or(DecodeError::Damaged("its LZF data begins before itself"))?;
        room(target, at, length)?;
        // What is copied may overlap what it makes.
        (0..length).for_each(|offset| target[at + offset] = target[from + offset]);
        at += length;
    }
    if at == target.len() {
        return Ok(());
    }
    Err(DecodeError::Size {
        expected: target.len(),
        found: at as u64,
    })
}

fn room(target: &mut [u8], at: usize, length: usize) -> Result<&mut [u8], DecodeError> {
    let too_long = DecodeError::Damaged("its LZF data is longer than the chunk");
    target.get_mut(at..at + length).ok_or(too_long)
}
