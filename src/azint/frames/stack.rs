//! A dataset's frames: how many of which shape and type, and the sources in which they lie.

use super::{
    FramesError, MAX_CHUNK_BYTES, MAX_FRAME_BYTES, MAX_FRAMES, MAX_SOURCES, find, mapping, parts,
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
    ops::Range,
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
    /// As they lie in the file; decoding makes `Stack::scalar` of them.
    pub(super) stored: Scalar,
    pub(super) is_big_endian: bool,
    /// Frames, rows and columns of a chunk; None for what is stored in one piece.
    pub(super) chunk: Option<[u64; 3]>,
    pub(super) pipeline: Pipeline,
    /// Extents of the axes before rows and columns: none of a single frame, two of a map.
    pub(super) lead: Vec<u64>,
    /// The file is not there: its frames are bad.
    pub(super) is_missing: bool,
}

impl FrameSource {
    /// The chunk, of `length` frames, that holds a frame: its place along the axes before rows and
    /// columns, and its frames.
    pub(super) fn chunk_of(&self, frame: u64, length: u64) -> (Vec<u64>, Range<u64>) {
        let row = self.lead.last().copied().unwrap_or(1).max(1);
        let (outer, inner) = (frame / row, frame % row);
        let number = inner / length;
        let start = outer * row;
        let frames = start + number * length..start + ((number + 1) * length).min(row);
        let place = match self.lead.len() {
            0 => Vec::new(),
            1 => vec![number],
            _ => vec![outer, number],
        };
        (place, frames)
    }

    /// What its pixels are decoded to.
    fn delivered(&self) -> Scalar {
        delivered(self.stored)
    }
}

/// The type that engines get for one that is stored. What they do not know becomes 32-bit floats,
/// as in pyFAI.
fn delivered(stored: Scalar) -> Scalar {
    match stored {
        Scalar::Bool => Scalar::U8,
        known if Stack::SCALARS.contains(&known) => known,
        _ => Scalar::F32,
    }
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
        let mut builder = Builder::new(path, &found.name, bounds);
        let other = if found.path == path {
            None
        } else {
            Some(open(&found.path)?)
        };
        let file = other.as_ref().unwrap_or(&file);
        match builder.all(file, &found) {
            Err(FramesError::MissingSource { .. }) if found.datasets.len() > 1 => {
                let mut builder = Builder::new(path, &found.name, builder.bounds);
                builder.those_there(file, &found)?;
                builder.finish()
            }
            added => added.and_then(|()| builder.finish()),
        }
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

/// Virtual datasets within each other.
const MAX_DEPTH: usize = 8;
/// Axes before rows and columns.
const MAX_LEAD: usize = 2;

/// A virtual dataset of an open file.
struct VirtualPlace<'f> {
    file: &'f H5File,
    path: &'f Path,
    dataset: &'f str,
    depth: usize,
}

impl VirtualPlace<'_> {
    fn fault(&self, why: String) -> FramesError {
        FramesError::Dataset {
            path: self.path.to_path_buf(),
            dataset: self.dataset.to_string(),
            why,
        }
    }
}

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

    fn all(&mut self, file: &H5File, found: &find::FoundDatasets) -> Result<(), FramesError> {
        let mut links = found.datasets.iter();
        links.try_for_each(|link| self.add(file, &found.path, link))
    }

    /// Of several datasets those whose files are there; the frames of the others are bad.
    fn those_there(
        &mut self,
        file: &H5File,
        found: &find::FoundDatasets,
    ) -> Result<(), FramesError> {
        let mut missing = Vec::new();
        let mut counts = Vec::new();
        let mut known: Option<FrameSource> = None;
        for link in &found.datasets {
            let mut part = Self::new(&found.path, link, self.bounds.clone());
            match part.add(file, &found.path, link) {
                Ok(()) => {
                    counts.push(Some(part.stack.frames));
                    missing.push(None);
                }
                Err(FramesError::MissingSource { missing: file, .. }) => {
                    counts.push(None);
                    missing.push(Some(file));
                }
                Err(error) => return Err(error),
            }
            known = known.or_else(|| part.stack.sources.into_iter().next());
        }
        let lengths = parts::lengths(&counts, parts::asked(&found.path));
        let (Some(lengths), Some(known)) = (lengths, known) else {
            // Nothing says how many frames are missing.
            return self.all(file, found);
        };
        for ((link, missing), frames) in found.datasets.iter().zip(missing).zip(lengths) {
            let Some(path) = missing else {
                self.add(file, &found.path, link)?;
                continue;
            };
            let source = self.source(FrameSource {
                path,
                dataset: link.clone(),
                frames,
                chunk: None,
                pipeline: Pipeline::default(),
                lead: vec![frames],
                is_missing: true,
                ..known.clone()
            })?;
            self.run(source, 0, frames)?;
        }
        Ok(())
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
        let place = VirtualPlace {
            file,
            path,
            dataset,
            depth,
        };
        self.add_virtual(&opened, &place, range)
    }

    /// Some frames of a virtual dataset.
    fn add_virtual(
        &mut self,
        opened: &H5Dataset,
        own: &VirtualPlace<'_>,
        range: Option<(u64, u64)>,
    ) -> Result<(), FramesError> {
        let of = |why: String| own.fault(why);
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
                let range = (block.start + (from - first), to - from);
                self.add_block(opened, own, &block, range)?;
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
    fn add_block(
        &mut self,
        opened: &H5Dataset,
        own: &VirtualPlace<'_>,
        block: &mapping::FrameBlock,
        range: (u64, u64),
    ) -> Result<(), FramesError> {
        let place = match mapping::source_path(own.path, &block.file) {
            same if same == own.path => same,
            other => links::tidy(other),
        };
        let name = links::clean(&block.dataset);
        if self.known.contains_key(&(place.clone(), name.clone())) {
            return self.add_from(own.file, &place, &name, Some(range), own.depth);
        }
        if !place.exists() {
            let source = missing(opened, own, (place, name), range)?;
            let source = self.source(source)?;
            return self.run(source, range.0, range.1);
        }
        if place != own.path && !self.bounds.have(&place) {
            return Err(FramesError::Outside {
                path: own.path.to_path_buf(),
                dataset: own.dataset.to_string(),
                outside: place,
            });
        }
        let other = if place == own.path {
            None
        } else {
            Some(open(&place)?)
        };
        let file = other.as_ref().unwrap_or(own.file);
        let (target, name) = links::follow(file, &place, &name, &self.bounds)?;
        if target == place {
            return self.add_from(file, &place, &name, Some(range), own.depth + 1);
        }
        self.add_from(&open(&target)?, &target, &name, Some(range), own.depth + 1)
    }

    fn source(&mut self, source: FrameSource) -> Result<usize, FramesError> {
        let stack = &mut self.stack;
        // What is not there decides nothing unless all is not there.
        let is_first = stack.sources.iter().all(|source| source.is_missing);
        if stack.sources.is_empty() || (is_first && !source.is_missing) {
            (stack.shape, stack.scalar) = (source.shape, source.delivered());
        }
        let of = |why: String| FramesError::Dataset {
            path: source.path.clone(),
            dataset: source.dataset.clone(),
            why,
        };
        let is_same = source.shape == stack.shape && source.delivered() == stack.scalar;
        if !is_same && !source.is_missing {
            let [rows, columns] = source.shape;
            let [first_rows, first_columns] = stack.shape;
            return Err(of(format!(
                "its frames are {rows} × {columns} of {}, those before {first_rows} × {first_columns} of {}",
                source.stored, stack.scalar
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
    let (&[rows, columns], lead) = match shape.split_last_chunk() {
        Some((lead, frame)) if lead.len() <= MAX_LEAD => (frame, lead.to_vec()),
        _ => {
            return Err(of(format!(
                "it has {} axes, {shape:?}; frames, rows and columns are expected",
                shape.len()
            )));
        }
    };
    let frames = lead
        .iter()
        .try_fold(1u64, |product, extent| product.checked_mul(*extent))
        .unwrap_or(u64::MAX);
    let stored = pixel_type(dataset).map_err(of)?;
    let is_big_endian = hdf5::is_big_endian(&dataset.datatype().map_err(said)?);
    let size = stored.bytes().max(delivered(stored).bytes());
    let bytes = u128::from(rows) * u128::from(columns) * size as u128;
    if bytes == 0 || bytes > MAX_FRAME_BYTES as u128 || frames > MAX_FRAMES {
        return Err(of(format!(
            "it claims to hold {frames} frames of {rows} × {columns} pixels"
        )));
    }
    let chunk = chunk_of(dataset, lead.len(), stored).map_err(of)?;
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
        Pipeline::new(&filters, stored.bytes()).map_err(|error| FramesError::Decode {
            path: path.to_path_buf(),
            dataset: name.to_string(),
            error,
        })?;
    Ok(FrameSource {
        path: path.to_path_buf(),
        dataset: name.to_string(),
        frames,
        shape: [rows as usize, columns as usize],
        stored,
        is_big_endian,
        chunk,
        pipeline,
        lead,
        is_missing: false,
    })
}

fn pixel_type(dataset: &H5Dataset) -> Result<Scalar, String> {
    let datatype = dataset.datatype().map_err(|error| error.to_string())?;
    hdf5::scalar(&datatype)
        .ok_or_else(|| format!("its pixels are {datatype}; whole numbers and fractions are read"))
}

/// Frames, rows and columns of its chunks; None for what is stored in one piece. `lead`: how many
/// axes come before rows and columns.
fn chunk_of(dataset: &H5Dataset, lead: usize, stored: Scalar) -> Result<Option<[u64; 3]>, String> {
    let Some(dims) = dataset.chunk_dims() else {
        return Ok(None);
    };
    let dims: Vec<u64> = dims.into_iter().map(|extent| extent as u64).collect();
    let chunk = match (lead, &dims[..]) {
        (0, &[rows, columns]) => [1, rows, columns],
        (1, &[frames, rows, columns]) | (2, &[1, frames, rows, columns]) => [frames, rows, columns],
        (2, &[_, _, _, _]) => {
            return Err(
                "its chunks hold frames of several rows of the map\nhint: `h5repack -l CHUNK=1x1xROWSxCOLUMNS` writes others"
                    .into(),
            );
        }
        (_, other) => {
            return Err(format!(
                "its chunks are {other:?}, its shape is {:?}",
                dataset.shape()
            ));
        }
    };
    let bytes = chunk
        .iter()
        .try_fold(stored.bytes() as u64, |product, extent| {
            product.checked_mul(*extent)
        });
    if bytes.is_none_or(|bytes| bytes == 0 || bytes > MAX_CHUNK_BYTES) {
        return Err(format!("its chunks of {chunk:?} pixels are impossible"));
    }
    Ok(Some(chunk))
}

/// A source that is not there, as the virtual dataset over it describes its frames.
fn missing(
    opened: &H5Dataset,
    own: &VirtualPlace<'_>,
    (path, dataset): (PathBuf, String),
    (start, count): (u64, u64),
) -> Result<FrameSource, FramesError> {
    let shape = opened.shape();
    let (_, frame) = shape
        .split_last_chunk::<2>()
        .ok_or_else(|| own.fault("it has no rows and columns".into()))?;
    let frames = start.saturating_add(count);
    let pixels = frame[0].checked_mul(frame[1]);
    if pixels.is_none_or(|pixels| pixels == 0 || pixels > MAX_FRAME_BYTES / 8) {
        return Err(own.fault(format!("it claims to hold frames of {frame:?} pixels")));
    }
    Ok(FrameSource {
        path,
        dataset,
        frames,
        shape: *frame,
        stored: pixel_type(opened).map_err(|why| own.fault(why))?,
        is_big_endian: false,
        chunk: None,
        pipeline: Pipeline::default(),
        lead: vec![frames],
        is_missing: true,
    })
}
