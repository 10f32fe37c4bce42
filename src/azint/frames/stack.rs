//! A dataset's frames: how many of which shape and type, and the sources in which they lie.

use super::{FramesError, build::Builder, find, source::FrameSource, tiles::FrameRun};
use nodectl_formats::{hdf5, links::LinkBounds};
use nodectl_types::Scalar;
use rust_hdf5::H5File;
use std::path::{Path, PathBuf};

/// Frames in order. Invariant: `runs` cover 0..`frames` without gaps, in order, each tile
/// within its source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stack {
    pub path: PathBuf,
    /// Where the frames are in the file; several links are named by their group.
    pub dataset: String,
    pub frames: u64,
    /// Rows and columns of each.
    pub shape: [usize; 2],
    /// One of `Stack::SCALARS`.
    pub scalar: Scalar,
    pub sources: Vec<FrameSource>,
    pub(super) runs: Vec<FrameRun>,
}

impl Stack {
    /// The types of pixels that engines get.
    pub const SCALARS: [Scalar; 5] = [
        Scalar::U8,
        Scalar::U16,
        Scalar::U32,
        Scalar::I32,
        Scalar::F32,
    ];

    /// Looks into a file and whatever its frames lie in. `dataset` is a path to a dataset, or to a
    /// group that holds or names one; None looks for it, within the group `entry` where one is
    /// given.
    pub fn open(
        path: &Path,
        dataset: Option<&str>,
        entry: Option<&str>,
    ) -> Result<Self, FramesError> {
        Self::open_within(path, dataset, entry, &[])
    }

    /// Looks into a file that may lead to what is below these directories, besides its own.
    pub fn open_within(
        path: &Path,
        dataset: Option<&str>,
        entry: Option<&str>,
        directories: &[PathBuf],
    ) -> Result<Self, FramesError> {
        let bounds = LinkBounds::of(path, directories);
        hdf5::guarded(|| Ok(Self::look(path, dataset, entry, bounds))).unwrap_or_else(|why| {
            Err(FramesError::File {
                path: path.to_path_buf(),
                why,
            })
        })
    }

    fn look(
        path: &Path,
        dataset: Option<&str>,
        entry: Option<&str>,
        bounds: LinkBounds,
    ) -> Result<Self, FramesError> {
        let file = open(path)?;
        let found = find::frames(&file, path, dataset, entry, &bounds)?;
        let other = if found.path == path {
            None
        } else {
            Some(open(&found.path)?)
        };
        let file = other.as_ref().unwrap_or(&file);
        Builder::new(path, &found.name, bounds).stack(file, &found)
    }

    /// The bytes of one frame.
    pub fn frame_bytes(&self) -> usize {
        self.shape[0] * self.shape[1] * self.scalar.bytes()
    }

    /// Every file that is read, the one that was named first.
    pub fn files(&self) -> Vec<PathBuf> {
        let mut files = vec![self.path.clone()];
        for source in &self.sources {
            if !files.contains(&source.path) {
                files.push(source.path.clone());
            }
        }
        files
    }

    /// Whether files are not there that frames lie in.
    pub fn lacks_files(&self) -> bool {
        self.sources.iter().any(|source| source.is_missing)
    }

    /// How many frames the chunk of frame `frame` holds: what is read together costs no more.
    pub fn unit(&self) -> u64 {
        self.sources
            .iter()
            .map(|source| source.chunk.map_or(1, |chunk| chunk[0]))
            .max()
            .unwrap_or(1)
    }
}

/// Opens a file for reading, without a lock: it may be that of a running acquisition.
pub(super) fn open(path: &Path) -> Result<H5File, FramesError> {
    hdf5::open(path).map_err(|why| {
        let metadata = path.metadata();
        let why = match metadata.map(|metadata| (metadata.is_dir(), metadata.len())) {
            Err(error) => error.to_string(),
            Ok((true, _)) => "it is a directory".into(),
            Ok((false, 0)) => "the file is empty".into(),
            Ok((false, length)) => {
                format!("{why}\nhint: the file has {length} bytes; is it whole?")
            }
        };
        FramesError::File {
            path: path.to_path_buf(),
            why,
        }
    })
}
