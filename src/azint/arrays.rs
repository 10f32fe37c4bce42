//! Arrays that go with frames: masks, monitors. As `nodectl_formats` reads them; chunks of HDF5
//! datasets through the decoders of frames, so that Dectris' compressed masks are read, too.

use super::{
    decode::{FilterSpec, Pipeline, Scratch},
    frames::Chunks,
};
use nodectl_formats::{
    Array, ArrayError, ArrayLocation, Format, Info, hdf5,
    links::{self, LinkBounds},
};
use rust_hdf5::H5Dataset;
use std::path::Path;

/// Filters below are HDF5's own, which the library undoes.
const FIRST_REGISTERED: u16 = 256;

/// The array at a place in a file.
pub(crate) fn read(location: &ArrayLocation) -> Result<Array, ArrayError> {
    let is_hdf5 = Format::of(&location.path) == Some(Format::Hdf5);
    if let (true, Some(member)) = (is_hdf5, &location.member) {
        let found = hdf5::guarded(|| decoded(&location.path, member));
        let invalid = |problem| ArrayError::Invalid {
            path: location.path.clone(),
            problem,
        };
        if let Some(array) = found.map_err(invalid)? {
            return Ok(array);
        }
    }
    location.read()
}

/// A dataset in chunks with filters that the library does not have. None of another.
fn decoded(path: &Path, member: &str) -> Result<Option<Array>, String> {
    let said = |error: rust_hdf5::Hdf5Error| error.to_string();
    // What is wrong with the file is told by who reads it in the usual way.
    let Ok(file) = hdf5::open(path) else {
        return Ok(None);
    };
    let (place, name) = links::follow(&file, path, member, &LinkBounds::of(path, &[]))
        .map_err(|error| error.to_string())?;
    let file = if place == path {
        file
    } else {
        hdf5::open(&place)?
    };
    let Ok(dataset) = file.dataset(&name) else {
        return Ok(None);
    };
    let filters = dataset.filters().map_err(said)?;
    let is_foreign = filters.iter().any(|filter| filter.id >= FIRST_REGISTERED);
    let Some(chunk) = dataset.chunk_dims().filter(|_| is_foreign) else {
        return Ok(None);
    };
    let info = hdf5::info(&place, &dataset)?;
    let specs: Vec<FilterSpec> = filters
        .into_iter()
        .map(|filter| FilterSpec {
            id: filter.id,
            parameters: filter.cd_values,
        })
        .collect();
    let pipeline = Pipeline::new(&specs, info.scalar.bytes()).map_err(|error| error.to_string())?;
    let source = ChunkSource {
        chunks: Chunks::of(&place, &name),
        dataset,
        chunk: chunk.into_iter().map(|extent| extent as u64).collect(),
        pipeline,
    };
    source.array(info).map(Some)
}

/// A dataset that is read chunk by chunk.
struct ChunkSource {
    dataset: H5Dataset,
    chunks: Option<Chunks>,
    chunk: Vec<u64>,
    pipeline: Pipeline,
}

impl ChunkSource {
    fn array(&self, info: Info) -> Result<Array, String> {
        let size = info.scalar.bytes();
        let chunk_bytes = self
            .chunk
            .iter()
            .try_fold(size as u64, |product, extent| product.checked_mul(*extent))
            .filter(|bytes| (1..=crate::frames::MAX_CHUNK_BYTES).contains(bytes))
            .ok_or("its chunks are impossible")?;
        if self.chunk.len() != info.shape.len() {
            return Err("its chunks have other axes than the dataset".into());
        }
        let bytes = info.bytes().ok_or("it is too large")?;
        let mut whole = vec![0; usize::try_from(bytes).map_err(|_| "it is too large")?];
        let mut decoded = vec![0; chunk_bytes as usize];
        let mut scratch = Scratch::default();
        let grid: Vec<u64> = info
            .shape
            .iter()
            .zip(&self.chunk)
            .map(|(extent, chunk)| extent.div_ceil(*chunk))
            .collect();
        for number in 0..grid.iter().product() {
            let place = place_of(number, &grid);
            let (raw, mask) = self.stored(&place)?;
            self.pipeline
                .decode(&raw, mask, &mut decoded, &mut scratch)
                .map_err(|error| error.to_string())?;
            copy(&decoded, &self.chunk, &place, &info.shape, size, &mut whole);
        }
        let datatype = self.dataset.datatype().map_err(|error| error.to_string())?;
        if hdf5::is_big_endian(&datatype) {
            whole.chunks_exact_mut(size).for_each(<[u8]>::reverse);
        }
        Ok(Array { info, bytes: whole })
    }

    fn stored(&self, place: &[u64]) -> Result<(Vec<u8>, u32), String> {
        if let Some(read) = self.chunks.as_ref().and_then(|chunks| chunks.read(place)) {
            return read;
        }
        let place: Vec<usize> = place.iter().map(|extent| *extent as usize).collect();
        let read = self.dataset.read_chunk_raw_at(&place);
        read.map_err(|error| error.to_string())
    }
}

/// Place of a chunk in the grid, the last axis being the fastest.
fn place_of(mut number: u64, grid: &[u64]) -> Vec<u64> {
    let mut place: Vec<u64> = grid
        .iter()
        .rev()
        .map(|extent| {
            let at = number % extent;
            number /= extent;
            at
        })
        .collect();
    place.reverse();
    place
}

/// Copies what a decoded chunk has of an array, row by row of its last axis.
fn copy(
    decoded: &[u8],
    chunk: &[u64],
    place: &[u64],
    shape: &[u64],
    size: usize,
    whole: &mut [u8],
) {
    let origin: Vec<u64> = place
        .iter()
        .zip(chunk)
        .map(|(at, chunk)| at * chunk)
        .collect();
    let inside: Vec<u64> = (0..chunk.len())
        .map(|axis| chunk[axis].min(shape[axis] - origin[axis]))
        .collect();
    let Some((width, outer)) = inside.split_last() else {
        return;
    };
    let length = *width as usize * size;
    for row in 0..outer.iter().product() {
        let mut at = place_of(row, outer);
        at.push(0);
        let index = |extents: &[u64], origin: &dyn Fn(usize) -> u64| {
            (0..at.len()).fold(0, |index, axis| {
                index * extents[axis] + origin(axis) + at[axis]
            })
        };
        let from = index(chunk, &|_| 0) as usize * size;
        let to = index(shape, &|axis| origin[axis]) as usize * size;
        whole[to..to + length].copy_from_slice(&decoded[from..from + length]);
    }
}
