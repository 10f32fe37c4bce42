//! Filter 32008 (bitshuffle, `bshuf_h5filter.c`): blocks of some kilobytes, each transposed by itself and then, mostly,
//! compressed. A block is decompressed into a buffer that stays in the first cache and transposed from there.

use super::{
    DecodeError, bits, lz4,
    pipeline::{Scratch, Zstd},
};

/// Without another size, a block has so many bytes (`BSHUF_TARGET_BLOCK_SIZE_B`), and at least so many elements.
const TARGET_BLOCK_BYTES: usize = 8192;
const MIN_BLOCK_ELEMENTS: usize = 128;
/// A block is a multiple of so many elements.
const MULTIPLE: usize = 8;
/// The largest block that is believed; writers use 8 KiB.
const MAX_BLOCK_BYTES: usize = 64 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Compression {
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
    pub(super) compression: Compression,
}

impl Bitshuffle {
    /// Decodes a whole chunk into `target`.
    pub(super) fn decode(
        &self,
        source: &[u8],
        target: &mut [u8],
        scratch: &mut Scratch,
        zstd: &mut Zstd,
    ) -> Result<(), DecodeError> {
        let size = self.size;
        let (mut rest, block) = match self.compression {
            Compression::None if source.len() != target.len() => {
                return Err(DecodeError::Size { expected: target.len(), found: source.len() as u64 });
            }
            Compression::None => (source, self.block_bytes()),
            Compression::Lz4 | Compression::Zstd => header(source, target.len())?,
        };
        if block == 0 || !block.is_multiple_of(size * MULTIPLE) || block > MAX_BLOCK_BYTES {
            return Err(DecodeError::Damaged("its blocks have an impossible size"));
        }
        // Blocks, then one of what is left in eights of elements, then some elements as they are.
        let whole = target.len() / (size * MULTIPLE) * (size * MULTIPLE);
        let (blocks, plain) = target.split_at_mut(whole);
        for part in blocks.chunks_mut(block) {
            if self.compression == Compression::None {
                let (own, behind) = rest.split_at(part.len());
                rest = behind;
                bits::untranspose(own, part, size);
                continue;
            }
            let own = sized(&mut rest)?;
            let buffer = scratch.block(part.len() + lz4::SLACK);
            match self.compression {
                Compression::Zstd => zstd.decode(own, &mut buffer[..part.len()])?,
                _ => lz4::decode(own, buffer, part.len())?,
            }
            bits::untranspose(&buffer[..part.len()], part, size);
        }
        if rest.len() != plain.len() {
            return Err(DecodeError::Damaged("its blocks are shorter or longer than it says"));
        }
        plain.copy_from_slice(rest);
        Ok(())
    }

    fn block_bytes(&self) -> usize {
        match self.block {
            0 => {
                let elements = TARGET_BLOCK_BYTES / self.size / MULTIPLE * MULTIPLE;
                elements.max(MIN_BLOCK_ELEMENTS) * self.size
            }
            elements => elements.saturating_mul(self.size),
        }
    }
}

/// What a compressed chunk begins with: its size, eight bytes, and that of a block, four; big-endian. Returns what follows.
pub(super) fn header(source: &[u8], expected: usize) -> Result<(&[u8], usize), DecodeError> {
    let Some((head, rest)) = source.split_first_chunk::<12>() else {
        return Err(DecodeError::Damaged("it is shorter than its header"));
    };
    let number = |bytes: &[u8]| bytes.iter().fold(0u64, |number, byte| number << 8 | u64::from(*byte));
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
    let (own, behind) = behind.split_at_checked(u32::from_be_bytes(*length) as usize).ok_or(SHORT)?;
    *rest = behind;
    Ok(own)
}
