//! A dataset with pixels of its own: what it says of itself, checked before it is believed.

use super::{FramesError, MAX_CHUNK_BYTES, MAX_FRAME_BYTES, MAX_FRAMES, Stack};
use crate::decode::{FilterSpec, Pipeline};
use nodectl_formats::hdf5;
use nodectl_types::Scalar;
use rust_hdf5::H5Dataset;
use std::{
    ops::Range,
    path::{Path, PathBuf},
};

/// Axes before rows and columns.
const MAX_LEAD: usize = 2;

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

    /// One whose file is not there; `stored` and `shape` are those of frames that it would be part
    /// of.
    pub(super) fn missing(
        path: PathBuf,
        dataset: String,
        stored: Scalar,
        shape: [usize; 2],
        frames: u64,
    ) -> Self {
        Self {
            path,
            dataset,
            frames,
            shape,
            stored,
            is_big_endian: false,
            chunk: None,
            pipeline: Pipeline::default(),
            lead: vec![frames],
            is_missing: true,
        }
    }

    /// What its pixels are decoded to, unless the stack says otherwise.
    pub(super) fn delivered(&self) -> Scalar {
        delivered(self.stored)
    }
}

/// The type that engines get for one that is stored. What they do not know becomes 32-bit floats,
/// as in pyFAI.
pub(super) fn delivered(stored: Scalar) -> Scalar {
    match stored {
        Scalar::Bool => Scalar::U8,
        known if Stack::SCALARS.contains(&known) => known,
        _ => Scalar::F32,
    }
}

/// What a dataset with pixels of its own says of itself.
pub(super) fn describe(
    dataset: &H5Dataset,
    path: &Path,
    name: &str,
) -> Result<FrameSource, FramesError> {
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

pub(super) fn pixel_type(dataset: &H5Dataset) -> Result<Scalar, String> {
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
