//! Blocks of LZ4 (lz4.org, "LZ4 Block Format Description"). A decoder of our own because everything
//! else waits for it: it copies whole vectors past the end of what is wanted, into slack that its
//! caller provides.

use super::DecodeError;
use std::ptr;

/// How far beyond `length` the target must reach.
pub(super) const SLACK: usize = 64;

/// The shortest match that the format has.
const MIN_MATCH: usize = 4;

/// Decodes all of `source` into the first `length` bytes of `target`, which is at least `SLACK`
/// longer; what lies behind them is overwritten. The error says what is wrong; the target's content
/// is undefined then.
pub(super) fn decode(source: &[u8], target: &mut [u8], length: usize) -> Result<(), DecodeError> {
    const SHORT: DecodeError = DecodeError::Damaged("an LZ4 block ends too early");
    const LONG: DecodeError = DecodeError::Damaged("an LZ4 block is longer than it should be");
    assert!(target.len() >= length + SLACK, "the target has slack");
    let (end, start) = (source.len(), target.as_mut_ptr());
    let (mut at, mut written) = (0usize, 0usize);
    loop {
        let token = *source.get(at).ok_or(SHORT)?;
        at += 1;
        let mut literals = usize::from(token >> 4);
        if literals < 15 && at + 16 <= end {
            if written + literals > length {
                return Err(LONG);
            }
            // SAFETY: 16 bytes from `at` lie in the source; `written` is at most `length`, and the
            // target has slack behind it.
            unsafe { copy16(source.as_ptr().add(at), start.add(written)) };
        } else {
            if literals == 15 {
                literals += extension(source, &mut at).ok_or(SHORT)?;
            }
            if literals > end - at {
                return Err(SHORT);
            }
            if literals > length - written {
                return Err(LONG);
            }
            // SAFETY: both ranges were checked above.
            unsafe {
                ptr::copy_nonoverlapping(source.as_ptr().add(at), start.add(written), literals)
            };
        }
        at += literals;
        written += literals;
        if at >= end {
            return if at == end && written == length {
                Ok(())
            } else {
                Err(SHORT)
            };
        }
        let Some(&[low, high]) = source.get(at..at + 2) else {
            return Err(SHORT);
        };
        at += 2;
        let offset = usize::from(u16::from_le_bytes([low, high]));
        let mut count = usize::from(token & 15);
        if count == 15 {
            count += extension(source, &mut at).ok_or(SHORT)?;
        }
        count = count.saturating_add(MIN_MATCH);
        if offset == 0 || offset > written {
            return Err(DecodeError::Damaged("an LZ4 match begins before the block"));
        }
        if count > length - written {
            return Err(LONG);
        }
        // SAFETY: the match lies in what was written; `count` bytes fit, and slack lies behind
        // them.
        unsafe { repeat(start.add(written), offset, count) };
        written += count;
    }
}

/// What follows a length of 15: bytes to add, the last of them below 255.
#[inline(always)]
fn extension(source: &[u8], at: &mut usize) -> Option<usize> {
    let mut sum = 0usize;
    loop {
        let byte = *source.get(*at)?;
        *at += 1;
        sum += usize::from(byte);
        if byte != 255 {
            return Some(sum);
        }
    }
}

/// Writes `count` bytes at `to` that repeat those `offset` before it; may write up to 32 bytes
/// more.
///
/// # Safety
/// `offset` bytes before `to` are initialised, and `count` + 32 at it are writable.
#[inline(always)]
unsafe fn repeat(to: *mut u8, offset: usize, count: usize) {
    // SAFETY: within what the caller promises: each copy begins before `to + count` and is at most
    // 32 bytes long, and reads only what lies before the byte that it writes first.
    unsafe {
        if offset >= 32 {
            let mut done = 0;
            while done < count {
                copy32(to.add(done).sub(offset), to.add(done));
                done += 32;
            }
        } else if offset == 1 {
            ptr::write_bytes(to, *to.sub(1), count);
        } else if offset >= 16 {
            let mut done = 0;
            while done < count {
                copy16(to.add(done).sub(offset), to.add(done));
                done += 16;
            }
        } else {
            // A short period: byte by byte until a multiple of it is as long as a vector.
            let period = offset * 16usize.div_ceil(offset);
            let first = count.min(period);
            for index in 0..first {
                *to.add(index) = *to.add(index).sub(offset);
            }
            let mut done = first;
            while done < count {
                copy16(to.add(done).sub(period), to.add(done));
                done += 16;
            }
        }
    }
}

/// # Safety
/// 16 bytes are readable and writable; the places may touch, not overlap.
#[inline(always)]
unsafe fn copy16(from: *const u8, to: *mut u8) {
    // SAFETY: the caller's.
    unsafe {
        to.cast::<[u8; 16]>()
            .write_unaligned(from.cast::<[u8; 16]>().read_unaligned())
    }
}

/// # Safety
/// 32 bytes are readable and writable; the places may touch, not overlap.
#[inline(always)]
unsafe fn copy32(from: *const u8, to: *mut u8) {
    // SAFETY: the caller's.
    unsafe {
        to.cast::<[u8; 32]>()
            .write_unaligned(from.cast::<[u8; 32]>().read_unaligned())
    }
}
