//! Filter 32008 (bitshuffle, `bshuf_h5filter.c`): blocks of some kilobytes, each transposed by
//! itself and then, mostly, compressed. A block is decompressed into a buffer that stays in the
//! first cache and transposed from there.

use super::{DecodeError, bits, lz4, pipeline::FilterBuffers};
use std::ops::Range;

/// Without another size, a block has so many bytes (`BSHUF_TARGET_BLOCK_SIZE_B`), and at least so
/// many elements.
const TARGET_BLOCK_BYTES: usize = 8192;
const MIN_BLOCK_ELEMENTS: usize = 128;
const MISMATCH: DecodeError = DecodeError::Damaged("its blocks are shorter or longer than it says");
/// A block is a multiple of so many elements.
const MULTIPLE: usize = 8;
/// The largest block that is believed; writers use 8 KiB.
const MAX_BLOCK_BYTES: usize = 64 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BlockCompression {
    None,
    Lz4,
    Zstd,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Bitshuffle {
    /// Bytes of an element.
    pub(super) size: usize,
    /// Elements of a block where the chunk itself does not say; 0 for the default.
    pub(super) block: usize,
    pub(super) compression: BlockCompression,
}

/// A chunk whose blocks were found and not decoded: each was transposed, then compressed by LZ4.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChunkBlocks<'s> {
    pub source: &'s [u8],
    /// Where in the source each block's compressed bytes lie, in order; behind them the chunk's
    /// last elements as they are, where they are fewer than eight.
    pub places: Vec<Range<usize>>,
    /// Bytes of an element: 1, 2, 4 or 8.
    pub element: usize,
    /// Decoded bytes of each block but the last, which has what is left.
    pub block: usize,
    /// Decoded bytes of all blocks.
    pub in_blocks: usize,
    /// Decoded bytes of the chunk.
    pub length: usize,
}

/// A chunk that is decoded some bytes at a time, in order.
pub(super) struct BitshufflePieces<'s> {
    bitshuffle: &'s Bitshuffle,
    rest: &'s [u8],
    /// Bytes of a block.
    block: usize,
    /// Decoded bytes to come that are in blocks, and behind them as they are.
    in_blocks: usize,
    plain: usize,
    /// A block whose end from `taken` on nobody has asked for yet.
    held: Vec<u8>,
    taken: usize,
}

impl Bitshuffle {
    /// Decodes a whole chunk into `target`.
    pub(super) fn decode(
        &self,
        source: &[u8],
        target: &mut [u8],
        buffers: &mut FilterBuffers,
    ) -> Result<(), DecodeError> {
        self.pieces(source, target.len())?.fill(target, buffers)
    }

    /// Begins with a chunk that decodes to `length` bytes.
    pub(super) fn pieces<'s>(
        &'s self,
        source: &'s [u8],
        length: usize,
    ) -> Result<BitshufflePieces<'s>, DecodeError> {
        let (rest, block) = match self.compression {
            BlockCompression::None if source.len() != length => {
                return Err(DecodeError::Size {
                    expected: length,
                    found: source.len() as u64,
                });
            }
            BlockCompression::None => (source, self.block_bytes()),
            BlockCompression::Lz4 | BlockCompression::Zstd => match header(source, length)? {
                (rest, 0) => (rest, default_block_bytes(self.size)),
                said => said,
            },
        };
        let multiple = self.size * MULTIPLE;
        if block == 0 || !block.is_multiple_of(multiple) || block > MAX_BLOCK_BYTES {
            return Err(DecodeError::Damaged("its blocks have an impossible size"));
        }
        // Blocks, the last of what is left in eights of elements, then some elements as they are.
        let in_blocks = length / multiple * multiple;
        let pieces = BitshufflePieces {
            bitshuffle: self,
            rest,
            block,
            in_blocks,
            plain: length - in_blocks,
            held: Vec::new(),
            taken: 0,
        };
        pieces.check_end()?;
        Ok(pieces)
    }

    /// The blocks of a chunk that decodes to `length` bytes. None where they are not compressed by
    /// LZ4, or are not what they should be: `decode` says what is wrong then.
    pub(super) fn blocks<'s>(&self, source: &'s [u8], length: usize) -> Option<ChunkBlocks<'s>> {
        if self.compression != BlockCompression::Lz4 {
            return None;
        }
        let BitshufflePieces {
            mut rest,
            block,
            in_blocks,
            plain,
            ..
        } = self.pieces(source, length).ok()?;
        let count = in_blocks.div_ceil(block);
        let mut places = Vec::with_capacity(count + 1);
        for _ in 0..count {
            let own = sized(&mut rest).ok()?;
            // LZ4 makes nothing so much longer.
            if own.len() > 2 * block {
                return None;
            }
            let end = source.len() - rest.len();
            places.push(end - own.len()..end);
        }
        if rest.len() != plain {
            return None;
        }
        if plain > 0 {
            places.push(source.len() - plain..source.len());
        }
        Some(ChunkBlocks {
            source,
            places,
            element: self.size,
            block,
            in_blocks,
            length,
        })
    }

    fn block_bytes(&self) -> usize {
        match self.block {
            0 => default_block_bytes(self.size),
            elements => elements.saturating_mul(self.size),
        }
    }
}

/// Bytes of a block where its size is said to be 0, in the filter's parameters or in a chunk
/// (`bshuf_default_block_size` in bitshuffle's `bitshuffle_core.c`).
fn default_block_bytes(size: usize) -> usize {
    let elements = TARGET_BLOCK_BYTES / size / MULTIPLE * MULTIPLE;
    elements.max(MIN_BLOCK_ELEMENTS) * size
}

impl BitshufflePieces<'_> {
    /// Decodes as many bytes as `target` has, which are there.
    pub(super) fn fill(
        &mut self,
        mut target: &mut [u8],
        buffers: &mut FilterBuffers,
    ) -> Result<(), DecodeError> {
        loop {
            let count = target.len().min(self.held.len() - self.taken);
            let (own, behind) = target.split_at_mut(count);
            own.copy_from_slice(&self.held[self.taken..self.taken + count]);
            self.taken += count;
            target = behind;
            if target.is_empty() {
                return Ok(());
            }
            let length = self.block.min(self.in_blocks);
            if length == 0 {
                let (own, behind) = self.rest.split_at_checked(target.len()).ok_or(MISMATCH)?;
                target.copy_from_slice(own);
                self.rest = behind;
                return Ok(());
            }
            if target.len() >= length {
                let (own, behind) = target.split_at_mut(length);
                self.decode_block(own, buffers)?;
                target = behind;
            } else {
                let mut held = std::mem::take(&mut self.held);
                held.resize(length, 0);
                self.decode_block(&mut held, buffers)?;
                (self.held, self.taken) = (held, 0);
            }
        }
    }

    fn decode_block(
        &mut self,
        target: &mut [u8],
        buffers: &mut FilterBuffers,
    ) -> Result<(), DecodeError> {
        let (size, length) = (self.bitshuffle.size, target.len());
        if self.bitshuffle.compression == BlockCompression::None {
            let (own, behind) = self.rest.split_at_checked(length).ok_or(MISMATCH)?;
            self.rest = behind;
            bits::untranspose(own, target, size);
        } else {
            let own = sized(&mut self.rest)?;
            let (block, zstd) = buffers.block(length + lz4::SLACK);
            match self.bitshuffle.compression {
                BlockCompression::Zstd => zstd.decode(own, &mut block[..length])?,
                _ => lz4::decode(own, block, length)?,
            }
            bits::untranspose(&block[..length], target, size);
        }
        self.in_blocks -= length;
        self.check_end()
    }

    /// Behind the last block is what was left as it is, and nothing else.
    fn check_end(&self) -> Result<(), DecodeError> {
        if self.in_blocks == 0 && self.rest.len() != self.plain {
            Err(MISMATCH)
        } else {
            Ok(())
        }
    }
}

/// What a compressed chunk begins with: its size, eight bytes, and that of a block, four;
/// big-endian. Returns what follows.
pub(super) fn header(source: &[u8], expected: usize) -> Result<(&[u8], usize), DecodeError> {
    let Some((head, rest)) = source.split_first_chunk::<12>() else {
        return Err(DecodeError::Damaged("it is shorter than its header"));
    };
    let number = |bytes: &[u8]| {
        bytes
            .iter()
            .fold(0u64, |number, byte| number << 8 | u64::from(*byte))
    };
    let (found, block) = (number(&head[..8]), number(&head[8..]));
    if found != expected as u64 {
        return Err(DecodeError::Size { expected, found });
    }
    Ok((rest, block as usize))
}

/// A block behind its length: four bytes, big-endian.
pub(super) fn sized<'s>(rest: &mut &'s [u8]) -> Result<&'s [u8], DecodeError> {
    const SHORT: DecodeError = DecodeError::Damaged("it ends within a block");
    let (length, behind) = rest.split_first_chunk::<4>().ok_or(SHORT)?;
    let (own, behind) = behind
        .split_at_checked(u32::from_be_bytes(*length) as usize)
        .ok_or(SHORT)?;
    *rest = behind;
    Ok(own)
}
