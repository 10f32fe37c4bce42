//! Chunks of HDF5 datasets back to bytes: the filters that detectors' files are written with. Pure:
//! bytes in, bytes out. What a chunk claims is checked against what is expected of it before
//! anything is allocated; no input makes it panic.
//!
//! | file | owns |
//! |---|---|
//! | `lz4` | blocks of LZ4 |
//! | `lzf` | filter 32000 |
//! | `blosc` | filter 32001 |
//! | `bits` | the inverse of the bitshuffle transposition, with AVX2 where the CPU has it |
//! | `bitshuffle` | filter 32008: blocks that are decompressed and transposed one by one, while they are in the cache |
//! | `bytes` | the inverse of the shuffle filter |
//! | `pipeline` | a dataset's filters, one after the other |

mod bits;
mod bitshuffle;
mod blosc;
mod bytes;
mod lz4;
mod lzf;
mod pipeline;
#[cfg(test)]
pub(crate) mod tests;

pub use bitshuffle::ChunkBlocks;
pub use pipeline::{ChunkPieces, FilterSpec, Pipeline, Scratch};

/// Why a chunk cannot be decoded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    #[error(
        "the frames are compressed with the HDF5 filter {id}{name}, which nodectl does not know\nhint: bitshuffle, LZ4, zstd, Blosc, LZF, gzip, shuffle and fletcher32 are read; `h5repack -f GZIP=1 IN OUT` writes gzip",
        name = name_of(*id)
    )]
    UnknownFilter { id: u16 },
    #[error("the chunk is {found} bytes after decompression, not {expected}")]
    Size { expected: usize, found: u64 },
    #[error("the chunk is damaged: {0}")]
    Damaged(&'static str),
}

/// The name of a registered filter, in brackets.
fn name_of(id: u16) -> String {
    let known = [
        (4, "szip"),
        (5, "nbit"),
        (6, "scaleoffset"),
        (305, "LZO"),
        (307, "bzip2"),
        (32003, "Snappy"),
        (32007, "JPEG XR"),
        (32012, "JPEG-LS"),
        (32013, "zfp"),
        (32014, "fpzip"),
        (32017, "SZ"),
        (32018, "FCIDECOMP"),
        (32019, "JPEG"),
        (32022, "BitGroom"),
        (32024, "SZ3"),
        (32026, "Blosc2"),
    ];
    let name = known.iter().find(|(known, _)| *known == id);
    name.map_or(String::new(), |(_, name)| format!(" ({name})"))
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
