//! Puts a stack together, source by source, through links and virtual datasets.

use super::{
    FramesError, MAX_FRAME_BYTES, MAX_FRAMES, MAX_SOURCES, Stack, find,
    mapping::{self, Mapped, MappedPiece},
    parts,
    source::{self, FrameSource},
    stack::open,
    tiles::{FrameLayout, PlacedTile, Rectangle, TileOrigin},
};
use nodectl_formats::{
    hdf5,
    links::{self, LinkBounds},
};
use nodectl_types::Scalar;
use rust_hdf5::{FillValue, H5Dataset, H5File, StorageLayout};
use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    rc::Rc,
};

/// Virtual datasets within each other.
const MAX_DEPTH: usize = 8;
/// The largest number of a file's type, in bytes.
const MAX_NUMBER_BYTES: usize = 8;

/// A dataset of an open file.
#[derive(Clone, Copy)]
struct OpenPlace<'f> {
    file: &'f H5File,
    path: &'f Path,
    dataset: &'f str,
    /// How many virtual datasets it lies within.
    depth: usize,
}

impl OpenPlace<'_> {
    fn fault(&self, why: String) -> FramesError {
        FramesError::Dataset {
            path: self.path.to_path_buf(),
            dataset: self.dataset.to_string(),
            why,
        }
    }
}

/// A stack that comes together.
pub(super) struct Builder {
    path: PathBuf,
    dataset: String,
    sources: Vec<FrameSource>,
    /// What engines get of the sources that are there.
    scalar: Option<Scalar>,
    /// Datasets that were looked at, by file and name.
    known: BTreeMap<(PathBuf, String), Rc<FrameLayout>>,
    bounds: LinkBounds,
}

impl Builder {
    pub(super) fn new(path: &Path, name: &str, bounds: LinkBounds) -> Self {
        Self {
            path: path.to_path_buf(),
            dataset: name.to_string(),
            sources: Vec::new(),
            scalar: None,
            known: BTreeMap::new(),
            bounds,
        }
    }

    /// The frames of all that was found, one after the other. Where files of some are not there,
    /// and the others say how many frames they had, these are bad frames.
    pub(super) fn stack(
        mut self,
        file: &H5File,
        found: &find::FoundDatasets,
    ) -> Result<Stack, FramesError> {
        let mut layouts = Vec::new();
        for link in &found.datasets {
            layouts.push(match self.follow(file, &found.path, link, 0) {
                Err(error @ FramesError::MissingSource { .. }) => Err(error),
                followed => Ok(followed?),
            });
        }
        let counts: Vec<Option<u64>> = layouts
            .iter()
            .map(|layout| layout.as_ref().ok().map(|layout| layout.frames))
            .collect();
        let lengths = if counts.contains(&None) && counts.len() > 1 {
            parts::lengths(&counts, parts::asked(&found.path))
        } else {
            None
        };
        let known = layouts.iter().flatten().next().map(|layout| layout.shape);
        let mut all = Vec::new();
        for (at, layout) in layouts.into_iter().enumerate() {
            let absent = match layout {
                Ok(layout) => {
                    all.push(layout);
                    continue;
                }
                Err(error) => error,
            };
            let (Some(lengths), Some(shape)) = (&lengths, known) else {
                // Nothing says how many frames are missing.
                return Err(absent);
            };
            let FramesError::MissingSource { missing, .. } = absent else {
                return Err(absent);
            };
            let name = (missing, found.datasets[at].clone());
            let source = self.missing(name, shape, lengths[at])?;
            all.push(Rc::new(FrameLayout::of_source(source, lengths[at], shape)));
        }
        self.finish(&all)
    }

    /// A dataset of `file`, which is at `path`, or what it leads to.
    fn follow(
        &mut self,
        file: &H5File,
        path: &Path,
        dataset: &str,
        depth: usize,
    ) -> Result<Rc<FrameLayout>, FramesError> {
        let (path_behind, name) = links::follow(file, path, dataset, &self.bounds)?;
        let other = if path_behind == path {
            None
        } else {
            Some(open(&path_behind)?)
        };
        self.layout(OpenPlace {
            file: other.as_ref().unwrap_or(file),
            path: &path_behind,
            dataset: &name,
            depth,
        })
    }

    fn layout(&mut self, place: OpenPlace<'_>) -> Result<Rc<FrameLayout>, FramesError> {
        let key = (place.path.to_path_buf(), place.dataset.to_string());
        if let Some(known) = self.known.get(&key) {
            return Ok(known.clone());
        }
        let opened = place
            .file
            .dataset(place.dataset)
            .map_err(|error| unopened(&place, &error))?;
        let layout = opened
            .storage_layout()
            .map_err(|error| place.fault(error.to_string()))?;
        let layout = Rc::new(if layout == StorageLayout::Virtual {
            self.virtual_layout(&opened, place)?
        } else {
            let source = source::describe(&opened, place.path, place.dataset)?;
            let (frames, shape) = (source.frames, source.shape.map(|extent| extent as u64));
            FrameLayout::of_source(self.source(source)?, frames, shape)
        });
        self.known.insert(key, layout.clone());
        Ok(layout)
    }

    fn virtual_layout(
        &mut self,
        opened: &H5Dataset,
        own: OpenPlace<'_>,
    ) -> Result<FrameLayout, FramesError> {
        if own.depth == MAX_DEPTH {
            return Err(own.fault(format!(
                "more than {MAX_DEPTH} virtual datasets lie within each other"
            )));
        }
        let shape: Vec<u64> = opened
            .shape()
            .into_iter()
            .map(|extent| extent as u64)
            .collect();
        let [frames, rows, columns] = match shape[..] {
            [rows, columns] => [1, rows, columns],
            [frames, rows, columns] => [frames, rows, columns],
            _ => {
                return Err(own.fault(format!(
                    "it has {} axes; frames, rows and columns are expected",
                    shape.len()
                )));
            }
        };
        let bytes = u128::from(rows) * u128::from(columns) * MAX_NUMBER_BYTES as u128;
        if bytes == 0 || bytes > MAX_FRAME_BYTES as u128 || frames > MAX_FRAMES {
            return Err(own.fault(format!(
                "it claims to hold {frames} frames of {rows} × {columns} pixels"
            )));
        }
        let mappings = opened
            .virtual_mappings()
            .map_err(|error| own.fault(error.to_string()))?;
        let mapped =
            Mapped::of(&mappings, [frames, rows, columns]).map_err(|why| own.fault(why))?;
        let mut layouts = Vec::with_capacity(mapped.sources.len());
        for named in &mapped.sources {
            layouts.push(self.named(opened, own, named, [rows, columns])?);
        }
        let mut placed = Vec::with_capacity(mapped.pieces.len());
        for piece in &mapped.pieces {
            let layout = &layouts[piece.source];
            placed.extend(within(piece, layout).map_err(|why| {
                let (file, dataset) = &mapped.sources[piece.source];
                own.fault(format!("of {file}::{dataset} {why}"))
            })?);
        }
        let mut layout =
            FrameLayout::assemble(placed, frames, [rows, columns]).map_err(|why| own.fault(why))?;
        if layout.has_gaps() {
            layout.fill_gaps(fill_value(opened).map_err(|why| own.fault(why))?);
        }
        Ok(layout)
    }

    /// What a virtual dataset names, which may be links and virtual datasets again. Of what is not
    /// there all frames are missing that are asked for.
    fn named(
        &mut self,
        opened: &H5Dataset,
        own: OpenPlace<'_>,
        (file, dataset): &(String, String),
        shape: [u64; 2],
    ) -> Result<Rc<FrameLayout>, FramesError> {
        let place = match mapping::source_path(own.path, file) {
            same if same == own.path => same,
            other => links::tidy(other),
        };
        let name = links::clean(dataset);
        let key = (place.clone(), name.clone());
        if let Some(known) = self.known.get(&key) {
            return Ok(known.clone());
        }
        if !place.exists() {
            let stored = source::pixel_type(opened).map_err(|why| own.fault(why))?;
            let shape = shape.map(|extent| extent as usize);
            let missing = FrameSource::missing(place, name, stored, shape, MAX_FRAMES);
            let source = self.source(missing)?;
            let layout = Rc::new(FrameLayout::of_source(source, u64::MAX, [u64::MAX; 2]));
            self.known.insert(key, layout.clone());
            return Ok(layout);
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
        let layout = self.follow(
            other.as_ref().unwrap_or(own.file),
            &place,
            &name,
            own.depth + 1,
        )?;
        // By the name that it goes by here, too: it may be asked for once more.
        self.known.insert(key, layout.clone());
        Ok(layout)
    }

    /// Frames that are not there, of the type of those that are.
    fn missing(
        &mut self,
        (path, dataset): (PathBuf, String),
        shape: [u64; 2],
        frames: u64,
    ) -> Result<usize, FramesError> {
        let stored = self.scalar.unwrap_or(Scalar::U8);
        let shape = shape.map(|extent| extent as usize);
        self.source(FrameSource::missing(path, dataset, stored, shape, frames))
    }

    fn source(&mut self, source: FrameSource) -> Result<usize, FramesError> {
        let of = |why: String| FramesError::Dataset {
            path: source.path.clone(),
            dataset: source.dataset.clone(),
            why,
        };
        if self.sources.len() == MAX_SOURCES {
            return Err(of(format!(
                "the frames lie in more than {MAX_SOURCES} datasets"
            )));
        }
        // What is not there decides nothing.
        if !source.is_missing {
            let first = *self.scalar.get_or_insert(source.delivered());
            if first != source.delivered() {
                return Err(of(format!(
                    "its pixels are {}, those before {first}",
                    source.stored
                )));
            }
        }
        self.sources.push(source);
        Ok(self.sources.len() - 1)
    }

    fn finish(self, layouts: &[Rc<FrameLayout>]) -> Result<Stack, FramesError> {
        let of = |why: String| FramesError::Dataset {
            path: self.path.clone(),
            dataset: self.dataset.clone(),
            why,
        };
        let shape = layouts.first().map_or([0; 2], |layout| layout.shape);
        let (mut frames, mut runs) = (0u64, Vec::new());
        for layout in layouts {
            if layout.shape != shape {
                let ([rows, columns], [first_rows, first_columns]) = (layout.shape, shape);
                return Err(of(format!(
                    "some of its frames are {rows} × {columns}, those before {first_rows} × {first_columns}"
                )));
            }
            for run in &layout.runs {
                let mut run = run.clone();
                run.first += frames;
                run.push(&mut runs);
            }
            frames = frames.saturating_add(layout.frames);
        }
        if frames == 0 {
            return Err(of("it holds no frame".into()));
        }
        if frames > MAX_FRAMES {
            return Err(of(format!(
                "it claims to hold {frames} frames; at most {MAX_FRAMES} are read"
            )));
        }
        let first = self.sources.first().map(FrameSource::delivered);
        let Some(scalar) = self.scalar.or(first) else {
            return Err(of("none of its frames has a source".into()));
        };
        let origins = runs.iter().flat_map(|run| &run.tiles);
        let has_all = origins
            .filter_map(|tile| match tile.origin {
                TileOrigin::Fill(bits) => Some(f64::from_bits(bits)),
                _ => None,
            })
            .all(|number| is_number_of(number, scalar));
        Ok(Stack {
            frames,
            shape: shape.map(|extent| extent as usize),
            // Gaps of NaN, say, between modules of whole numbers.
            scalar: if has_all { scalar } else { Scalar::F32 },
            sources: self.sources,
            runs,
            path: self.path,
            dataset: self.dataset,
        })
    }
}

/// What a piece of a virtual dataset is made of. The error ends a sentence that begins with its
/// source.
fn within(piece: &MappedPiece, layout: &FrameLayout) -> Result<Vec<PlacedTile>, String> {
    let rectangle = Rectangle {
        first: piece.from,
        shape: piece.place.shape,
    };
    let end = piece
        .start
        .checked_add(piece.count)
        .filter(|end| *end <= layout.frames && rectangle.is_within(layout.shape));
    let Some(end) = end else {
        let [rows, columns] = layout.shape;
        return Err(format!(
            "it takes {} frames from {} on and rows and columns from {:?} on, {:?} of them; there are {} frames of {rows} × {columns} pixels",
            piece.count, piece.start, rectangle.first, rectangle.shape, layout.frames
        ));
    };
    let mut placed = layout.cut(&(piece.start..end), &rectangle);
    for tile in &mut placed {
        tile.first += piece.first;
        let ([row, column], by) = (tile.tile.place.first, piece.place.first);
        tile.tile.place.first = [row + by[0], column + by[1]];
    }
    Ok(placed)
}

/// The number of pixels that no source has.
fn fill_value(opened: &H5Dataset) -> Result<f64, String> {
    let stored = source::pixel_type(opened)?;
    let said = |error: rust_hdf5::Hdf5Error| error.to_string();
    let mut bytes = match opened.fill_value().map_err(said)? {
        FillValue::UserDefined(bytes) if bytes.len() == stored.bytes() => bytes,
        _ => return Ok(0.0),
    };
    if hdf5::is_big_endian(&opened.datatype().map_err(said)?) {
        bytes.reverse();
    }
    let bytes = nodectl_formats::convert(bytes, stored, Scalar::F64);
    let number = bytes.first_chunk().copied().map(f64::from_le_bytes);
    Ok(number.unwrap_or(0.0))
}

/// Whether a type has a number, as it is.
fn is_number_of(number: f64, scalar: Scalar) -> bool {
    let converted = nodectl_formats::convert(number.to_le_bytes().to_vec(), Scalar::F64, scalar);
    let again = nodectl_formats::convert(converted, scalar, Scalar::F64);
    scalar.is_float() || again == number.to_le_bytes()
}

fn unopened(place: &OpenPlace<'_>, error: &rust_hdf5::Hdf5Error) -> FramesError {
    if let rust_hdf5::Hdf5Error::ExternalFileNotFound { file, searched, .. } = error {
        let missing = searched
            .first()
            .map_or_else(|| PathBuf::from(file), PathBuf::from);
        return FramesError::MissingSource {
            path: place.path.to_path_buf(),
            dataset: place.dataset.to_string(),
            missing,
        };
    }
    place.fault(error.to_string())
}
