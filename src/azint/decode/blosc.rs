//! Blosc (HDF5 filter 32001), as c-blosc 1 writes it: a header, the places of blocks, and blocks,
//! each of one stream or of one for each byte of an element, then shuffled bytes or bits
//! (`README_HEADER.rst` and `blosc.c` of c-blosc). Its own compression is BloscLZ, whose literal
//! runs and matches are FastLZ's with distances of up to 72 KiB.

use super::{
    DecodeError, bits, bytes, lz4,
    pipeline::{FilterBuffers, inflate},
};

const HEADER: usize = 16;
const SHUFFLED: u8 = 1;
const STORED: u8 = 2;
const BIT_SHUFFLED: u8 = 4;
const ONE_STREAM: u8 = 16;
/// Larger elements are never split into streams, nor blocks of fewer elements than these.
const MOST_STREAMS: usize = 16;
const LEAST_ELEMENTS: usize = 128;
/// BloscLZ's matches are near up to here; beyond, two bytes more say how far.
const NEAR: usize = 8191;

const CUT: DecodeError = DecodeError::Damaged("its Blosc data ends too early");
const LONG: DecodeError = DecodeError::Damaged("a block of Blosc is longer than it should be");

/// What the header says.
struct BloscHeader {
    flags: u8,
    /// Bytes of an element.
    size: usize,
    /// Bytes of a block.
    block: usize,
}

/// Decodes a chunk to exactly `target`.
pub(super) fn decode(
    source: &[u8],
    target: &mut [u8],
    buffers: &mut FilterBuffers,
) -> Result<(), DecodeError> {
    let header = BloscHeader::read(source, target.len())?;
    if header.flags & STORED != 0 {
        let plain = source.get(HEADER..HEADER + target.len()).ok_or(CUT)?;
        target.copy_from_slice(plain);
        return Ok(());
    }
    let mut turned = std::mem::take(&mut buffers.turned);
    let decoded = target
        .chunks_mut(header.block.max(1))
        .enumerate()
        .try_for_each(|(index, part)| {
            let place = number(source, HEADER + 4 * index)?;
            let own = source.get(place..).ok_or(CUT)?;
            let is_whole = part.len() == header.block;
            if !header.is_turned(part.len()) {
                return header.block_streams(own, part, is_whole, buffers);
            }
            turned.resize(part.len(), 0);
            header.block_streams(own, &mut turned, is_whole, buffers)?;
            header.turn_back(&turned, part)
        });
    buffers.turned = turned;
    decoded
}

impl BloscHeader {
    fn read(source: &[u8], expected: usize) -> Result<Self, DecodeError> {
        let [_, _, flags, size] = *source.first_chunk::<4>().ok_or(CUT)?;
        let (found, block) = (number(source, 4)?, number(source, 8)?);
        number(source, 12)?;
        if found != expected {
            return Err(DecodeError::Size {
                expected,
                found: found as u64,
            });
        }
        if block == 0 && expected > 0 {
            return Err(DecodeError::Damaged("its blocks have no length"));
        }
        Ok(Self {
            flags,
            size: usize::from(size).max(1),
            block,
        })
    }

    /// The streams of a block, one after the other; `is_whole` if it is no shorter last one.
    fn block_streams(
        &self,
        mut source: &[u8],
        target: &mut [u8],
        is_whole: bool,
        buffers: &mut FilterBuffers,
    ) -> Result<(), DecodeError> {
        let splits = self.flags & ONE_STREAM == 0
            && self.size <= MOST_STREAMS
            && self.block / self.size >= LEAST_ELEMENTS
            && is_whole;
        let streams = if splits { self.size } else { 1 };
        if !target.len().is_multiple_of(streams) {
            return Err(DecodeError::Damaged("its blocks hold no whole elements"));
        }
        for part in target.chunks_mut((target.len() / streams).max(1)) {
            let length = number(source, 0)?;
            let (own, rest) = source[4..].split_at_checked(length).ok_or(CUT)?;
            source = rest;
            if length == part.len() {
                part.copy_from_slice(own);
            } else {
                self.expand(own, part, buffers)?;
            }
        }
        Ok(())
    }

    /// Undoes the compression of a stream.
    fn expand(
        &self,
        source: &[u8],
        target: &mut [u8],
        buffers: &mut FilterBuffers,
    ) -> Result<(), DecodeError> {
        match self.flags >> 5 {
            0 => blosclz(source, target),
            1 => {
                let (buffer, _) = buffers.block(target.len() + lz4::SLACK);
                lz4::decode(source, buffer, target.len())?;
                target.copy_from_slice(&buffer[..target.len()]);
                Ok(())
            }
            3 => inflate(source, target),
            4 => buffers.block(0).1.decode(source, target),
            _ => Err(DecodeError::Damaged(
                "Blosc with a compression that is not BloscLZ, LZ4, zlib or zstd",
            )),
        }
    }

    /// Whether bytes or bits of a block of `length` bytes are shuffled.
    fn is_turned(&self, length: usize) -> bool {
        match self.flags & (SHUFFLED | BIT_SHUFFLED) {
            0 => false,
            SHUFFLED => self.size > 1,
            // Of other numbers of elements it leaves them as they are.
            _ => length >= self.size && (length / self.size).is_multiple_of(8),
        }
    }

    fn turn_back(&self, source: &[u8], target: &mut [u8]) -> Result<(), DecodeError> {
        if self.flags & BIT_SHUFFLED == 0 {
            bytes::unshuffle(source, target, self.size);
            return Ok(());
        }
        if !matches!(self.size, 1 | 2 | 4 | 8) {
            return Err(DecodeError::Damaged(
                "Blosc's bitshuffle of elements that are not 1, 2, 4 or 8 bytes",
            ));
        }
        let whole = source.len() / self.size * self.size;
        bits::untranspose(&source[..whole], &mut target[..whole], self.size);
        target[whole..].copy_from_slice(&source[whole..]);
        Ok(())
    }
}

/// The number at a place.
fn number(source: &[u8], at: usize) -> Result<usize, DecodeError> {
    let bytes = source.get(at..).and_then(|rest| rest.first_chunk::<4>());
    Ok(u32::from_le_bytes(*bytes.ok_or(CUT)?) as usize)
}

/// A stream of BloscLZ that makes exactly `target`.
fn blosclz(source: &[u8], target: &mut [u8]) -> Result<(), DecodeError> {
    let mut rest = source.iter();
    let mut next = || rest.next().map(|byte| usize::from(*byte)).ok_or(CUT);
    let mut written = 0;
    // The first one is always a literal run; its other bits tell of the version.
    let mut control = next()? & 31;
    loop {
        if control < 32 {
            for _ in 0..=control {
                *target.get_mut(written).ok_or(LONG)? = next()? as u8;
                written += 1;
            }
        } else {
            let mut length = (control >> 5) + 2;
            if length == 9 {
                loop {
                    let more = next()?;
                    length += more;
                    if more < 255 {
                        break;
                    }
                }
            }
            let (high, low) = ((control & 31) << 8, next()?);
            let distance = match high + low {
                NEAR => (next()? << 8) + next()? + NEAR,
                near => near,
            } + 1;
            let far = DecodeError::Damaged("a match of Blosc begins before its block");
            let from = written.checked_sub(distance).ok_or(far)?;
            if length > target.len() - written {
                return Err(LONG);
            }
            // What is copied may overlap what it makes.
            (0..length).for_each(|offset| target[written + offset] = target[from + offset]);
            written += length;
        }
        match next() {
            Ok(byte) => control = byte,
            Err(_) if written == target.len() => return Ok(()),
            Err(cut) => return Err(cut),
        }
    }
}
