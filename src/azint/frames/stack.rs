//! A dataset's frames: how many of which shape and type, and the sources in which they lie.

use super::{
    FramesError, MAX_CHUNK_BYTES, MAX_FRAME_BYTES, MAX_FRAMES, MAX_SOURCES, find, mapping,
};
use crate::decode::{FilterSpec, Pipeline};
use nodectl_formats::{
    hdf5,
    links::{self, LinkBounds},
};
use nodectl_types::Scalar;
use rust_hdf5::{H5Dataset, H5File, StorageLayout};
use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

/// Frames in order. Invariant: `runs` cover 0..`frames` without gaps, in order, each within its
/// source.
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

/// A dataset with pixels of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FrameSource {
    pub path: PathBuf,
    pub dataset: String,
    pub frames: u64,
    pub(super) shape: [usize; 2],
    pub(super) scalar: Scalar,
    pub(super) is_big_endian: bool,
    /// Frames, rows and columns of a chunk; None for what is stored in one piece.
    pub(super) chunk: Option<[u64; 3]>,
    pub(super) pipeline: Pipeline,
    /// A single frame, stored with two axes.
    pub(super) is_flat: bool,
}

/// Frames `first .. first + count` are `start ..` of a source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FrameRun {
    pub(super) first: u64,
    pub(super) count: u64,
    pub(super) source: usize,
    pub(super) start: u64,
}

impl Stack {
    /// The types of pixels that are read.
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

    /// The same for a file that may lead to what is below these directories, besides its own.
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
        let mut builder = Builder::new(path, &found.name, bounds);
        let other = if found.path == path {
            None
        } else {
            Some(open(&found.path)?)
        };
        for link in &found.datasets {
            builder.add(other.as_ref().unwrap_or(&file), &found.path, link)?;
        }
        builder.finish()
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

    /// How many frames the chunk of frame `frame` holds: what is read together costs no more.
    pub fn unit(&self) -> u64 {
        self.sources
            .iter()
            .map(|source| source.chunk.map_or(1, |chunk| chunk[0]))
            .max()
            .unwrap_or(1)
    }
}

/// Virtual datasets within each other.
const MAX_DEPTH: usize = 8;

/// Puts a stack together, source by source.
pub(super) struct Builder {
    stack: Stack,
    /// Sources by file and name.
    known: BTreeMap<(PathBuf, String), usize>,
    bounds: LinkBounds,
}

impl Builder {
    fn new(path: &Path, name: &str, bounds: LinkBounds) -> Self {
        let stack = Stack {
            path: path.to_path_buf(),
            dataset: name.to_string(),
            frames: 0,
            shape: [0; 2],
            scalar: Scalar::U8,
            sources: Vec::new(),
            runs: Vec::new(),
        };
        Self {
            stack,
            known: BTreeMap::new(),
            bounds,
        }
    }

    /// All frames of a dataset of `file`, which is at `path`, behind those that are there.
    fn add(&mut self, file: &H5File, path: &Path, dataset: &str) -> Result<(), FramesError> {
        let (place, name) = links::follow(file, path, dataset, &self.bounds)?;
        if place == path {
            return self.add_from(file, &place, &name, None, 0);
        }
        self.add_from(&open(&place)?, &place, &name, None, 0)
    }

    /// Some frames of a dataset: `start` and how many; None for all. `depth`: of virtual datasets
    /// within others.
    fn add_from(
        &mut self,
        file: &H5File,
        path: &Path,
        dataset: &str,
        range: Option<(u64, u64)>,
        depth: usize,
    ) -> Result<(), FramesError> {
        if let Some(known) = self
            .known
            .get(&(path.to_path_buf(), dataset.to_string()))
            .copied()
        {
            let (start, count) = range.unwrap_or((0, self.stack.sources[known].frames));
            return self.run(known, start, count);
        }
        let opened = file
            .dataset(dataset)
            .map_err(|error| unopened(path, dataset, &error))?;
        let of = |why: String| FramesError::Dataset {
            path: path.to_path_buf(),
            dataset: dataset.to_string(),
            why,
        };
        let layout = opened
            .storage_layout()
            .map_err(|error| of(error.to_string()))?;
        if layout != StorageLayout::Virtual {
            let source = describe(&opened, path, dataset)?;
            let (start, count) = range.unwrap_or((0, source.frames));
            let source = self.source(source)?;
            return self.run(source, start, count);
        }
        if depth == MAX_DEPTH {
            return Err(of(format!(
                "more than {MAX_DEPTH} virtual datasets lie within each other"
            )));
        }
        let shape = opened.shape();
        let mappings = opened
            .virtual_mappings()
            .map_err(|error| of(error.to_string()))?;
        let extent = if shape.len() == 2 {
            1
        } else {
            shape.first().copied().unwrap_or(0) as u64
        };
        let (start, count) = range.unwrap_or((0, extent));
        let (mut first, before) = (0, self.stack.frames);
        for block in mapping::blocks(&mappings, &shape).map_err(of)? {
            let (from, to) = (
                start.max(first),
                start.saturating_add(count).min(first + block.count),
            );
            if from < to {
                let place = match mapping::source_path(path, &block.file) {
                    own if own == path => own,
                    other => links::tidy(other),
                };
                if !place.exists() {
                    let (path, dataset) = (path.to_path_buf(), dataset.to_string());
                    return Err(FramesError::MissingSource {
                        path,
                        dataset,
                        missing: place,
                    });
                }
                if place != path && !self.bounds.have(&place) {
                    let (path, dataset) = (path.to_path_buf(), dataset.to_string());
                    return Err(FramesError::Outside {
                        path,
                        dataset,
                        outside: place,
                    });
                }
                let range = (block.start + (from - first), to - from);
                self.add_block(file, path, (&place, &block.dataset), range, depth)?;
            }
            first += block.count;
        }
        let found = self.stack.frames - before;
        if found < count {
            return Err(of(format!(
                "only {found} of its {count} frames have a source"
            )));
        }
        Ok(())
    }

    /// What a block of a virtual dataset is made of, which may be links and virtual datasets again.
    /// `file` is that of the virtual dataset, open at `path`.
    fn add_block(
        &mut self,
        file: &H5File,
        path: &Path,
        (place, dataset): (&Path, &str),
        range: (u64, u64),
        depth: usize,
    ) -> Result<(), FramesError> {
        let name = links::clean(dataset);
        if self
            .known
            .contains_key(&(place.to_path_buf(), name.clone()))
        {
            return self.add_from(file, place, &name, Some(range), depth);
        }
        let other = if place == path {
            None
        } else {
            Some(open(place)?)
        };
        let own = other.as_ref().unwrap_or(file);
        let (target, name) = links::follow(own, place, &name, &self.bounds)?;
        if target == place {
            return self.add_from(own, place, &name, Some(range), depth + 1);
        }
        self.add_from(&open(&target)?, &target, &name, Some(range), depth + 1)
    }

    fn source(&mut self, source: FrameSource) -> Result<usize, FramesError> {
        let stack = &mut self.stack;
        if stack.sources.is_empty() {
            (stack.shape, stack.scalar) = (source.shape, source.scalar);
        }
        let of = |why: String| FramesError::Dataset {
            path: source.path.clone(),
            dataset: source.dataset.clone(),
            why,
        };
        if source.shape != stack.shape || source.scalar != stack.scalar {
            let [rows, columns] = source.shape;
            let [first_rows, first_columns] = stack.shape;
            return Err(of(format!(
                "its frames are {rows} × {columns} of {}, those before {first_rows} × {first_columns} of {}",
                source.scalar, stack.scalar
            )));
        }
        if stack.sources.len() == MAX_SOURCES {
            return Err(of(format!(
                "the frames lie in more than {MAX_SOURCES} datasets"
            )));
        }
        self.known.insert(
            (source.path.clone(), source.dataset.clone()),
            stack.sources.len(),
        );
        stack.sources.push(source);
        Ok(stack.sources.len() - 1)
    }

    fn run(&mut self, source: usize, start: u64, count: u64) -> Result<(), FramesError> {
        let stack = &mut self.stack;
        let of = &stack.sources[source];
        if start.checked_add(count).is_none_or(|end| end > of.frames) {
            let why = format!(
                "it has {} frames, and {} of them from {start} on are asked for",
                of.frames, count
            );
            return Err(FramesError::Dataset {
                path: of.path.clone(),
                dataset: of.dataset.clone(),
                why,
            });
        }
        let goes_on = |last: &FrameRun| last.source == source && last.start + last.count == start;
        if let Some(last) = stack.runs.last_mut().filter(|last| goes_on(last)) {
            last.count += count;
            stack.frames += count;
        } else if count > 0 {
            stack.runs.push(FrameRun {
                first: stack.frames,
                count,
                source,
                start,
            });
            stack.frames += count;
        }
        Ok(())
    }

    fn finish(self) -> Result<Stack, FramesError> {
        let stack = self.stack;
        let of = |why: String| FramesError::Dataset {
            path: stack.path.clone(),
            dataset: stack.dataset.clone(),
            why,
        };
        if stack.frames == 0 {
            return Err(of("it holds no frame".into()));
        }
        if stack.frames > MAX_FRAMES {
            return Err(of(format!(
                "it claims to hold {} frames; at most {MAX_FRAMES} are read",
                stack.frames
            )));
        }
        Ok(stack)
    }
}

fn unopened(path: &Path, dataset: &str, error: &rust_hdf5::Hdf5Error) -> FramesError {
    if let rust_hdf5::Hdf5Error::ExternalFileNotFound { file, searched, .. } = error {
        let missing = searched
            .first()
            .map_or_else(|| PathBuf::from(file), PathBuf::from);
        return FramesError::MissingSource {
            path: path.to_path_buf(),
            dataset: dataset.to_string(),
            missing,
        };
    }
    FramesError::Dataset {
        path: path.to_path_buf(),
        dataset: dataset.to_string(),
        why: error.to_string(),
    }
}

/// Opens a file for reading, without a lock: it may be that of a running acquisition.
pub(super) fn open(path: &Path) -> Result<H5File, FramesError> {
    hdf5::open(path).map_err(|why| {
        let length = path.metadata().map(|metadata| metadata.len());
        let why = match length {
            Err(error) => error.to_string(),
            Ok(0) => "the file is empty".into(),
            Ok(length) => format!("{why}\nhint: the file has {length} bytes; is it whole?"),
        };
        FramesError::File {
            path: path.to_path_buf(),
            why,
        }
    })
}

/// What a dataset with pixels of its own says of itself.
fn describe(dataset: &H5Dataset, path: &Path, name: &str) -> Result<FrameSource, FramesError> {
    let of = |why: String| FramesError::Dataset {
        path: path.to_path_buf(),
        dataset: name.to_string(),
        why,
    };
    let said = |error: rust_hdf5::Hdf5Error| of(error.to_string());
    hdf5::check_stored(dataset).map_err(of)?;
    let shape: Vec<u64> = dataset
        .shape()
        .into_iter()
        .map(|extent| extent as u64)
        .collect();
    let (frames, rows, columns, is_flat) = match shape[..] {
        [rows, columns] => (1, rows, columns, true),
        [frames, rows, columns] => (frames, rows, columns, false),
        _ => {
            return Err(of(format!(
                "it has {} axes, {shape:?}; frames, rows and columns are expected",
                shape.len()
            )));
        }
    };
    let datatype = dataset.datatype().map_err(said)?;
    let scalar = hdf5::scalar(&datatype).filter(|scalar| Stack::SCALARS.contains(scalar));
    let scalar = scalar.ok_or_else(|| {
        of(format!(
            "its pixels are {datatype}; u8, u16, u32, i32 and f32 are read"
        ))
    })?;
    let bytes = u128::from(rows) * u128::from(columns) * scalar.bytes() as u128;
    if bytes == 0 || bytes > MAX_FRAME_BYTES as u128 || frames > MAX_FRAMES {
        return Err(of(format!(
            "it claims to hold {frames} frames of {rows} × {columns} pixels"
        )));
    }
    let is_big_endian = hdf5::is_big_endian(&datatype);
    let chunk = dataset.chunk_dims().map(|dims| {
        dims.into_iter()
            .map(|extent| extent as u64)
            .collect::<Vec<_>>()
    });
    let chunk = match chunk.as_deref() {
        None => None,
        Some(&[rows, columns]) if is_flat => Some([1, rows, columns]),
        Some(&[frames, rows, columns]) if !is_flat => Some([frames, rows, columns]),
        Some(other) => {
            return Err(of(format!(
                "its chunks are {other:?}, its shape is {shape:?}"
            )));
        }
    };
    if let Some(chunk) = chunk {
        let bytes = chunk
            .iter()
            .try_fold(scalar.bytes() as u64, |product, extent| {
                product.checked_mul(*extent)
            });
        if bytes.is_none_or(|bytes| bytes == 0 || bytes > MAX_CHUNK_BYTES) {
            return Err(of(format!("its chunks of {chunk:?} pixels are impossible")));
        }
    }
    let filters: Vec<FilterSpec> = dataset
        .filters()
        .map_err(said)?
        .into_iter()
        .map(|filter| FilterSpec {
            id: filter.id,
            parameters: filter.cd_values,
        })
        .collect();
    let pipeline =
        Pipeline::new(&filters, scalar.bytes()).map_err(|error| FramesError::Decode {
            path: path.to_path_buf(),
            dataset: name.to_string(),
            error,
        })?;
    Ok(FrameSource {
        path: path.to_path_buf(),
        dataset: name.to_string(),
        frames,
        shape: [rows as usize, columns as usize],
        scalar,
        is_big_endian,
        chunk,
        pipeline,
        is_flat,
    })
}
