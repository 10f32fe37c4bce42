//! Stored chunks, and the frames that they decode to. A `Reader` holds files open and belongs to
//! one thread; a `StoredFrames` is plain bytes and may be decoded by another.

use super::{
    FramesError, Stack,
    chunks::Chunks,
    convert,
    stack::{self, FrameRun, FrameSource},
};
use crate::decode::{self, DecodeError, Scratch};
use nodectl_formats::hdf5;
use nodectl_types::Scalar;
use rust_hdf5::{H5Dataset, H5File};
use std::{ops::Range, sync::Arc};

/// Sources whose files are open at once.
const MAX_OPEN: usize = 16;

/// Brings the frames of a stack, in any order.
pub struct Reader {
    stack: Arc<Stack>,
    /// Sources that were used last, the last one first.
    open: Vec<Open>,
}

/// A source whose file is open.
struct Open {
    source: usize,
    dataset: H5Dataset,
    _file: H5File,
    chunks: Option<Chunks>,
}

impl Open {
    /// The stored bytes of the chunk at a place in the grid of chunks, and its filter mask.
    fn chunk(&self, place: &[u64]) -> Result<(Vec<u8>, u32), String> {
        if let Some(read) = self.chunks.as_ref().and_then(|chunks| chunks.read(place)) {
            return read;
        }
        let place: Vec<usize> = place.iter().map(|extent| *extent as usize).collect();
        self.dataset
            .read_chunk_raw_at(&place)
            .map_err(|error| error.to_string())
    }
}

/// Some frames as they are stored.
pub struct StoredFrames {
    stack: Arc<Stack>,
    source: usize,
    /// The frames of the stack that it decodes to.
    pub frames: Range<u64>,
    /// The first of them in the source.
    start: u64,
    parts: Vec<StoredPart>,
}

/// A chunk, or a whole frame that was stored without any.
struct StoredPart {
    raw: Vec<u8>,
    mask: u32,
    /// Place of its first pixel in the source: frame, row, column.
    origin: [u64; 3],
}

impl Reader {
    pub fn new(stack: Arc<Stack>) -> Self {
        Self {
            stack,
            open: Vec::new(),
        }
    }

    /// The next frames of `frames`, which is not empty: those of the chunk that holds the first
    /// one.
    pub fn read(&mut self, frames: Range<u64>) -> Result<StoredFrames, FramesError> {
        let stack = self.stack.clone();
        let run = *run(&stack, frames.start);
        let source = &stack.sources[run.source];
        let start = run.start + (frames.start - run.first);
        if source.is_missing {
            return Err(FramesError::MissingSource {
                path: stack.path.clone(),
                dataset: stack.dataset.clone(),
                missing: source.path.clone(),
            });
        }
        let parts = hdf5::guarded(|| Ok(self.parts(&stack, run.source, start)))
            .unwrap_or_else(Err)
            .map_err(|why| failed(source, start, why))?;
        Ok(StoredFrames {
            source: run.source,
            frames: together(&stack, &frames),
            start,
            parts,
            stack,
        })
    }

    /// The frames that `read` brings, or that are lost together where it fails.
    pub fn together(&self, frames: &Range<u64>) -> Range<u64> {
        together(&self.stack, frames)
    }

    fn parts(&mut self, stack: &Stack, at: usize, frame: u64) -> Result<Vec<StoredPart>, String> {
        let source = &stack.sources[at];
        let open = self.open(source, at)?;
        let Some(chunk) = source.chunk else {
            return Ok(vec![StoredPart {
                raw: whole(source, &open.dataset, frame)?,
                mask: 0,
                origin: [frame, 0, 0],
            }]);
        };
        let [rows, columns] = source.shape.map(|extent| extent as u64);
        let mut parts = Vec::new();
        for row in 0..rows.div_ceil(chunk[1]) {
            for column in 0..columns.div_ceil(chunk[2]) {
                let (mut place, frames) = source.chunk_of(frame, chunk[0]);
                place.extend([row, column]);
                let (raw, mask) = open.chunk(&place)?;
                let origin = [frames.start, row * chunk[1], column * chunk[2]];
                parts.push(StoredPart { raw, mask, origin });
            }
        }
        Ok(parts)
    }

    fn open(&mut self, source: &FrameSource, at: usize) -> Result<&Open, String> {
        match self.open.iter().position(|open| open.source == at) {
            Some(known) => self.open[..=known].rotate_right(1),
            None => {
                let file = stack::open(&source.path).map_err(|error| error.to_string())?;
                let dataset = file
                    .dataset(&source.dataset)
                    .map_err(|error| error.to_string())?;
                let chunks = source
                    .chunk
                    .and_then(|_| Chunks::of(&source.path, &source.dataset));
                self.open.insert(
                    0,
                    Open {
                        source: at,
                        dataset,
                        _file: file,
                        chunks,
                    },
                );
                self.open.truncate(MAX_OPEN);
            }
        }
        Ok(&self.open[0])
    }
}

/// The run that holds a frame.
fn run(stack: &Stack, frame: u64) -> &FrameRun {
    let after = stack.runs.partition_point(|run| run.first <= frame);
    &stack.runs[after.saturating_sub(1)]
}

/// The first frames of `frames` that are of the same chunk and run.
fn together(stack: &Stack, frames: &Range<u64>) -> Range<u64> {
    let run = run(stack, frames.start);
    let source = &stack.sources[run.source];
    let start = run.start + (frames.start - run.first);
    let in_chunk = source
        .chunk
        .map_or(1, |chunk| source.chunk_of(start, chunk[0]).1.end - start);
    let in_chunk = if source.is_missing {
        u64::MAX
    } else {
        in_chunk
    };
    let count = in_chunk
        .min(frames.end - frames.start)
        .min(run.first + run.count - frames.start);
    frames.start..frames.start + count
}

/// A frame of a dataset that is stored in one piece.
fn whole(source: &FrameSource, dataset: &H5Dataset, frame: u64) -> Result<Vec<u8>, String> {
    let [rows, columns] = source.shape;
    let (mut starts, _) = source.chunk_of(frame, 1);
    let mut counts = vec![1; starts.len()];
    starts.extend([0, 0]);
    counts.extend([rows, columns]);
    let starts: Vec<usize> = starts.into_iter().map(|start| start as usize).collect();
    // The library turns numbers of another byte order round.
    match source.stored.bytes() {
        1 => dataset
            .read_slice::<u8>(&starts, &counts)
            .map_err(|error| error.to_string()),
        2 => dataset
            .read_slice::<u16>(&starts, &counts)
            .map(bytes)
            .map_err(|error| error.to_string()),
        4 => dataset
            .read_slice::<u32>(&starts, &counts)
            .map(bytes)
            .map_err(|error| error.to_string()),
        _ => dataset
            .read_slice::<u64>(&starts, &counts)
            .map(bytes)
            .map_err(|error| error.to_string()),
    }
}

fn bytes<T: bytemuck::NoUninit>(numbers: Vec<T>) -> Vec<u8> {
    bytemuck::cast_slice(&numbers).to_vec()
}

fn failed(source: &FrameSource, frame: u64, why: String) -> FramesError {
    let why = match why {
        why if why.contains("has not been written") => "it was never written".into(),
        why if why.contains("read past end") => format!("the file is cut short: {why}"),
        why => why,
    };
    FramesError::Frame {
        path: source.path.clone(),
        dataset: source.dataset.clone(),
        frame,
        why,
    }
}

impl StoredFrames {
    /// Stored bytes.
    pub fn stored_bytes(&self) -> usize {
        self.parts.iter().map(|part| part.raw.len()).sum()
    }

    /// Decodes all its frames into `target`, which is as long as they are as the stack's numbers:
    /// row by row, little-endian.
    pub fn decode(&self, target: &mut [u8], scratch: &mut Decoder) -> Result<(), FramesError> {
        let stored = self.stack.sources[self.source].stored;
        let pixels = self.stack.shape.iter().product::<usize>() * self.count();
        assert_eq!(target.len(), pixels * self.stack.scalar.bytes());
        if !self.is_converted() {
            return self.decode_stored(target, scratch);
        }
        let mut numbers = std::mem::take(&mut scratch.numbers);
        numbers.resize(pixels * stored.bytes(), 0);
        let decoded = self.decode_stored(&mut numbers, scratch);
        if decoded.is_ok() {
            convert::to_f32(stored, &numbers, target);
        }
        scratch.numbers = numbers;
        decoded
    }

    fn count(&self) -> usize {
        (self.frames.end - self.frames.start) as usize
    }

    /// Whether engines get other numbers than the file has.
    fn is_converted(&self) -> bool {
        let stored = self.stack.sources[self.source].stored;
        stored != self.stack.scalar && stored.bytes() != 1 || stored == Scalar::I8
    }

    /// Decodes all its frames into `target` as numbers of the file.
    fn decode_stored(&self, target: &mut [u8], scratch: &mut Decoder) -> Result<(), FramesError> {
        let source = &self.stack.sources[self.source];
        let told = |error: DecodeError| self.failed(&error);
        for part in &self.parts {
            match source.chunk {
                // The chunk is just these frames: no copy.
                None => {
                    if part.raw.len() != target.len() {
                        return Err(told(DecodeError::Size {
                            expected: target.len(),
                            found: part.raw.len() as u64,
                        }));
                    }
                    target.copy_from_slice(&part.raw);
                }
                Some(chunk) if self.fits(chunk) => {
                    source
                        .pipeline
                        .decode(&part.raw, part.mask, target, &mut scratch.scratch)
                        .map_err(told)?;
                }
                Some(chunk) => {
                    let bytes = chunk.iter().product::<u64>() as usize * source.stored.bytes();
                    scratch.chunk.resize(bytes, 0);
                    source
                        .pipeline
                        .decode(
                            &part.raw,
                            part.mask,
                            &mut scratch.chunk,
                            &mut scratch.scratch,
                        )
                        .map_err(told)?;
                    self.place(&scratch.chunk, chunk, part.origin, target);
                }
            }
        }
        if source.is_big_endian && source.chunk.is_some() {
            target
                .chunks_exact_mut(source.stored.bytes())
                .for_each(<[u8]>::reverse);
        }
        Ok(())
    }

    /// The pixels some at a time, little-endian, where it is one frame and its chunk can be decoded
    /// so.
    pub fn pieces(&self) -> Option<Result<Pieces<'_>, FramesError>> {
        let source = &self.stack.sources[self.source];
        let [part] = &self.parts[..] else { return None };
        if self.is_converted() {
            return None;
        }
        let length = self.stack.frame_bytes();
        let pieces = match source.chunk {
            // What is stored in one piece was read as numbers of this machine.
            None => decode::ChunkPieces::plain(&part.raw, length),
            Some(chunk) if chunk[0] == 1 && self.fits(chunk) && !source.is_big_endian => {
                source.pipeline.pieces(&part.raw, part.mask, length)?
            }
            Some(_) => return None,
        };
        Some(
            pieces
                .map(|pieces| Pieces { unit: self, pieces })
                .map_err(|error| self.failed(&error)),
        )
    }

    fn failed(&self, error: &DecodeError) -> FramesError {
        failed(
            &self.stack.sources[self.source],
            self.start,
            error.to_string(),
        )
    }

    /// Whether a chunk is these frames, and nothing else.
    fn fits(&self, chunk: [u64; 3]) -> bool {
        let shape = self.stack.shape.map(|extent| extent as u64);
        chunk == [self.frames.end - self.frames.start, shape[0], shape[1]]
    }

    /// Copies what a decoded chunk has of these frames.
    fn place(&self, decoded: &[u8], chunk: [u64; 3], origin: [u64; 3], target: &mut [u8]) {
        let size = self.stack.sources[self.source].stored.bytes() as u64;
        let [rows, columns] = self.stack.shape.map(|extent| extent as u64);
        let count = self.frames.end - self.frames.start;
        let width = chunk[2].min(columns - origin[2]);
        for frame in 0..count {
            let layer = self.start + frame - origin[0];
            for row in 0..chunk[1].min(rows - origin[1]) {
                let from = (layer * chunk[1] + row) * chunk[2] * size;
                let to = ((frame * rows + origin[1] + row) * columns + origin[2]) * size;
                let length = (width * size) as usize;
                let (from, to) = (from as usize, to as usize);
                target[to..to + length].copy_from_slice(&decoded[from..from + length]);
            }
        }
    }
}

/// A frame that is decoded some bytes at a time, in order.
pub struct Pieces<'u> {
    unit: &'u StoredFrames,
    pieces: decode::ChunkPieces<'u>,
}

impl Pieces<'_> {
    /// The next bytes, as many as `target` has.
    pub fn fill(&mut self, target: &mut [u8], decoder: &mut Decoder) -> Result<(), FramesError> {
        self.pieces
            .fill(target, &mut decoder.scratch)
            .map_err(|error| self.unit.failed(&error))
    }
}

/// What a thread that decodes keeps from unit to unit.
#[derive(Default)]
pub struct Decoder {
    scratch: Scratch,
    /// A chunk that is more or less than its frames.
    chunk: Vec<u8>,
    /// Numbers of a type that engines do not have.
    numbers: Vec<u8>,
}
