//! Chunks of HDF5 datasets back to bytes: the filters that detectors' files are written with. Pure:
//! bytes in, bytes out. What a chunk claims is checked against what is expected of it before
//! anything is allocated; no input makes it panic.
//!
//! | file | owns |
//! |---|---|
//! | `lz4` | blocks of LZ4 |
//! | `bits` | the inverse of the bitshuffle transposition, with AVX2 where the CPU has it |
//! | `bitshuffle` | filter 32008: blocks that are decompressed and transposed one by one, while they are in the cache |
//! | `bytes` | the inverse of the shuffle filter |
//! | `pipeline` | a dataset's filters, one after the other |

mod bits;
mod bitshuffle;
mod bytes;
mod lz4;
mod pipeline;
#[cfg(test)]
mod tests;

pub use pipeline::{ChunkPieces, FilterSpec, Pipeline, Scratch};

/// Why a chunk cannot be decoded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    #[error(
        "the frames are compressed with the HDF5 filter {id}, which nodectl does not know\nhint: it knows bitshuffle (32008) with LZ4 or zstd, LZ4 (32004), zstd (32015), deflate (1), shuffle (2) and fletcher32 (3)"
    )]
    UnknownFilter { id: u16 },
    #[error("the chunk is {found} bytes after decompression, not {expected}")]
    Size { expected: usize, found: u64 },
    #[error("the chunk is damaged: {0}")]
    Damaged(&'static str),
}

/// The interior of the decoders, for `tests/fuzz`.
#[doc(hidden)]
pub mod fuzz {
    /// An LZ4 block of `length` decoded bytes.
    pub fn lz4(source: &[u8], length: usize) -> Option<Vec<u8>> {
        let mut target = vec![0; length + super::lz4::SLACK];
        super::lz4::decode(source, &mut target, length).ok()?;
        target.truncate(length);
        Some(target)
    }
}
