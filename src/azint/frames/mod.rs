//! Stacks of detector frames in HDF5 files: plain datasets of three axes, virtual ones, Eiger's
//! master files with their data files, LIMA's. A `Stack` says where each frame lies; a `Reader`
//! brings the stored bytes of a few frames at a time, and decoding them needs no file, so that
//! threads can do it. Everything that a file claims is checked before it is believed.
//!
//! | file | owns |
//! |---|---|
//! | `find` | which dataset holds the frames when nobody says |
//! | `stack` | a dataset's frames: shape, type, and the sources that they lie in |
//! | `build` | how a stack comes together, through links and virtual datasets |
//! | `source` | a dataset with pixels of its own |
//! | `spare` | memory of chunks that were read, for the next ones |
//! | `mapping` | virtual datasets: which rectangles of which frames of which source |
//! | `tiles` | frames that are put together from rectangles |
//! | `parts` | data files of a master file that are not there |
//! | `chunks` | where stored chunks lie |
//! | `indexes` | the indexes of chunks that files have |
//! | `objects` | from a file's superblock to a dataset's header |
//! | `convert` | numbers that engines do not have |
//! | `read` | stored chunks, and the frames that they decode to |

mod build;
mod chunks;
mod convert;
mod find;
mod indexes;
mod mapping;
mod objects;
mod parts;
mod read;
mod source;
mod spare;
mod stack;
#[cfg(test)]
pub(super) mod tests;
mod tiles;

pub(super) use chunks::Chunks;
pub use read::{Decoder, Pieces, Reader, StoredFrames};
pub use source::FrameSource;
pub use stack::Stack;

use super::decode::DecodeError;
use nodectl_formats::links::LinkError;
use std::path::PathBuf;

/// The largest frame, in bytes; the largest detectors have a tenth of it.
pub const MAX_FRAME_BYTES: usize = 1 << 30;
/// The most bytes that one chunk decodes to.
pub(super) const MAX_CHUNK_BYTES: u64 = 2 << 30;
/// The most frames of a dataset.
const MAX_FRAMES: u64 = 1 << 28;
/// The most files behind a dataset.
const MAX_SOURCES: usize = 100_000;

/// Why the frames of a file cannot be had. Each is a sentence for the user, and names the file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FramesError {
    #[error("{path}: {why}", path = path.display())]
    File { path: PathBuf, why: String },
    #[error("{path}: `{dataset}`: {why}", path = path.display())]
    Dataset {
        path: PathBuf,
        dataset: String,
        why: String,
    },
    #[error("{path}: `{dataset}` takes frames from {missing}, which cannot be opened\nhint: put it beside {path}, or restore it", path = path.display(), missing = missing.display())]
    MissingSource {
        path: PathBuf,
        dataset: String,
        missing: PathBuf,
    },
    #[error("{path}: `{dataset}` leads to {outside}, outside of its directory\nhint: if that is meant, name its directory in the job file: directories = [\"…\"]", path = path.display(), outside = outside.display())]
    Outside {
        path: PathBuf,
        dataset: String,
        outside: PathBuf,
    },
    #[error("{path}: `{dataset}`, frame {frame}: {why}", path = path.display())]
    Frame {
        path: PathBuf,
        dataset: String,
        frame: u64,
        why: String,
    },
    #[error("{path}: `{dataset}`: {error}", path = path.display())]
    Decode {
        path: PathBuf,
        dataset: String,
        error: DecodeError,
    },
}

impl From<LinkError> for FramesError {
    fn from(error: LinkError) -> Self {
        match error {
            LinkError::Missing {
                path,
                name,
                missing,
            } => Self::MissingSource {
                path,
                dataset: name,
                missing,
            },
            LinkError::Outside {
                path,
                name,
                outside,
            } => Self::Outside {
                path,
                dataset: name,
                outside,
            },
            LinkError::Unreadable { path, why } => Self::File { path, why },
            LinkError::TooMany { path, name } => Self::Dataset {
                path,
                dataset: name,
                why: "too many links follow each other".into(),
            },
        }
    }
}
