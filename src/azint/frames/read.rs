//! Stored chunks, and the frames that they decode to. A `Reader` holds files open and belongs to
//! one thread; a `StoredFrames` is plain bytes and may be decoded by another.

use super::{
    FramesError, Stack,
    chunks::Chunks,
    convert,
    source::FrameSource,
    spare::SpareMemory,
    stack,
    tiles::{FrameRun, FrameTile, Rectangle, TileOrigin},
};
use crate::decode::{self, ChunkBlocks, DecodeError, Scratch};
use nodectl_formats::hdf5;
use nodectl_types::Scalar;
use rust_hdf5::{H5Dataset, H5File};
use std::{ops::Range, sync::Arc};

/// Sources whose files are open at once: a detector may have a file for each of its modules.
const MAX_OPEN: usize = 64;

/// Brings the frames of a stack, in any order.
pub struct Reader {
    stack: Arc<Stack>,
    /// Sources that were used last, the last one first.
    open: Vec<Open>,
    spare: Arc<SpareMemory>,
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
    fn chunk(&self, place: &[u64], spare: &SpareMemory) -> Result<(Vec<u8>, u32), String> {
        let read = |chunks: &Chunks| chunks.read_into(place, || spare.take());
        if let Some(read) = self.chunks.as_ref().and_then(read) {
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
    /// The frames of the stack that it decodes to.
    pub frames: Range<u64>,
    tiles: Vec<StoredTile>,
    spare: Arc<SpareMemory>,
}

/// A rectangle of some frames: all that is stored of the source's frames in which it lies, or of
/// the rows and columns of their chunks.
struct StoredTile {
    place: Rectangle,
    content: TileContent,
}

enum TileContent {
    Stored(SourceFrames),
    /// All pixels are this number, as it lies in the frames.
    Fill(Vec<u8>),
}

/// Frames of a source.
struct SourceFrames {
    source: usize,
    /// The first of them in the source.
    start: u64,
    /// Where the rectangle begins in them.
    first: [u64; 2],
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
            spare: Arc::default(),
        }
    }

    /// The next frames of `frames`, which is not empty: those of the chunk that holds the first
    /// one.
    pub fn read(&mut self, frames: Range<u64>) -> Result<StoredFrames, FramesError> {
        let stack = self.stack.clone();
        let run = run(&stack, frames.start).clone();
        let frames = together(&stack, &frames);
        let mut tiles = Vec::with_capacity(run.tiles.len());
        for tile in &run.tiles {
            tiles.push(StoredTile {
                place: tile.place,
                content: self.content(&stack, tile, frames.start - run.first, frames.start)?,
            });
        }
        Ok(StoredFrames {
            stack,
            frames,
            tiles,
            spare: self.spare.clone(),
        })
    }

    /// A rectangle's pixels, so many frames after the first of its run, which is the stack's frame
    /// `frame`.
    fn content(
        &mut self,
        stack: &Stack,
        tile: &FrameTile,
        later: u64,
        frame: u64,
    ) -> Result<TileContent, FramesError> {
        let (source, start, first) = match tile.origin {
            TileOrigin::Source {
                source,
                start,
                first,
            } => (source, start + later, first),
            TileOrigin::Fill(bits) => {
                let number = f64::from_bits(bits).to_le_bytes().to_vec();
                let bytes = nodectl_formats::convert(number, Scalar::F64, stack.scalar);
                return Ok(TileContent::Fill(bytes));
            }
            TileOrigin::Nowhere => {
                return Err(FramesError::Frame {
                    path: stack.path.clone(),
                    dataset: stack.dataset.clone(),
                    frame,
                    why: "it has no source".into(),
                });
            }
        };
        let of = &stack.sources[source];
        if of.is_missing {
            return Err(FramesError::MissingSource {
                path: stack.path.clone(),
                dataset: stack.dataset.clone(),
                missing: of.path.clone(),
            });
        }
        let part = Rectangle {
            first,
            shape: tile.place.shape,
        };
        let parts = hdf5::guarded(|| Ok(self.parts(stack, source, start, &part)))
            .unwrap_or_else(Err)
            .map_err(|why| failed(of, start, why))?;
        Ok(TileContent::Stored(SourceFrames {
            source,
            start,
            first,
            parts,
        }))
    }

    /// The frames that `read` brings, or that are lost together where it fails.
    pub fn together(&self, frames: &Range<u64>) -> Range<u64> {
        together(&self.stack, frames)
    }

    /// What is stored of a rectangle of a source's frames that lie in a chunk.
    fn parts(
        &mut self,
        stack: &Stack,
        at: usize,
        frame: u64,
        rectangle: &Rectangle,
    ) -> Result<Vec<StoredPart>, String> {
        let source = &stack.sources[at];
        let spare = self.spare.clone();
        let open = self.open(source, at)?;
        let Some(chunk) = source.chunk else {
            return Ok(vec![StoredPart {
                raw: whole(source, &open.dataset, frame)?,
                mask: 0,
                origin: [frame, 0, 0],
            }]);
        };
        let chunks = |axis: usize| {
            let first = rectangle.first[axis];
            let end = first + rectangle.shape[axis];
            first / chunk[axis + 1]..end.div_ceil(chunk[axis + 1])
        };
        let mut parts = Vec::new();
        for row in chunks(0) {
            for column in chunks(1) {
                let (mut place, frames) = source.chunk_of(frame, chunk[0]);
                place.extend([row, column]);
                let (raw, mask) = open.chunk(&place, &spare)?;
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

impl Drop for StoredFrames {
    fn drop(&mut self) {
        for tile in &mut self.tiles {
            if let TileContent::Stored(stored) = &mut tile.content {
                let parts = stored.parts.drain(..);
                parts.for_each(|part| self.spare.give(part.raw));
            }
        }
    }
}

/// The run that holds a frame.
fn run(stack: &Stack, frame: u64) -> &FrameRun {
    let after = stack.runs.partition_point(|run| run.first <= frame);
    &stack.runs[after.saturating_sub(1)]
}

/// The first frames of `frames` that are of the same chunks and run. Those that cannot be had are
/// lost together.
fn together(stack: &Stack, frames: &Range<u64>) -> Range<u64> {
    let run = run(stack, frames.start);
    let later = frames.start - run.first;
    let is_there = |tile: &FrameTile| match tile.origin {
        TileOrigin::Source { source, .. } => !stack.sources[source].is_missing,
        TileOrigin::Fill(_) => true,
        TileOrigin::Nowhere => false,
    };
    let in_chunk = |tile: &FrameTile| match tile.origin {
        TileOrigin::Source { source, start, .. } => {
            let (source, start) = (&stack.sources[source], start + later);
            let end = |chunk: [u64; 3]| source.chunk_of(start, chunk[0]).1.end;
            Some(source.chunk.map_or(1, |chunk| end(chunk) - start))
        }
        _ => None,
    };
    let in_chunks = if run.tiles.iter().all(is_there) {
        run.tiles.iter().filter_map(in_chunk).min()
    } else {
        None
    };
    let count = in_chunks
        .unwrap_or(u64::MAX)
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
        let parts = self.tiles.iter().flat_map(|tile| match &tile.content {
            TileContent::Stored(stored) => &stored.parts[..],
            TileContent::Fill(_) => &[],
        });
        parts.map(|part| part.raw.len()).sum()
    }

    /// Decodes all its frames into `target`, which is as long as they are as the stack's numbers:
    /// row by row, little-endian.
    pub fn decode(&self, target: &mut [u8], scratch: &mut Decoder) -> Result<(), FramesError> {
        assert_eq!(target.len(), self.stack.frame_bytes() * self.count());
        if let Some(stored) = self.one_source() {
            return self.decode_source(stored, target, scratch);
        }
        let size = self.stack.scalar.bytes();
        for StoredTile { place, content } in &self.tiles {
            let stored = match content {
                TileContent::Fill(number) => {
                    self.each_row(place, |row| {
                        let row = &mut target[row];
                        row.chunks_exact_mut(size)
                            .for_each(|pixel| pixel.copy_from_slice(number));
                    });
                    continue;
                }
                TileContent::Stored(stored) => stored,
            };
            let shape = self.stack.sources[stored.source].shape;
            let mut frames = std::mem::take(&mut scratch.source);
            frames.resize(shape.iter().product::<usize>() * self.count() * size, 0);
            let decoded = self.decode_source(stored, &mut frames, scratch);
            if decoded.is_ok() {
                let part = Rectangle {
                    first: stored.first,
                    shape: place.shape,
                };
                let mut from = rows(&part, shape, self.count(), size);
                self.each_row(place, |row| {
                    let from = from.next().expect("as many rows");
                    target[row].copy_from_slice(&frames[from]);
                });
            }
            scratch.source = frames;
            decoded?;
        }
        Ok(())
    }

    /// The bytes of each row of a rectangle in all frames.
    fn each_row(&self, place: &Rectangle, each: impl FnMut(Range<usize>)) {
        let size = self.stack.scalar.bytes();
        rows(place, self.stack.shape, self.count(), size).for_each(each);
    }

    fn count(&self) -> usize {
        (self.frames.end - self.frames.start) as usize
    }

    /// The source whose frames these are, as a whole.
    fn one_source(&self) -> Option<&SourceFrames> {
        let [
            StoredTile {
                place,
                content: TileContent::Stored(stored),
            },
        ] = &self.tiles[..]
        else {
            return None;
        };
        let shape = self.stack.shape;
        let is_whole = stored.first == [0; 2]
            && *place == Rectangle::whole(shape.map(|extent| extent as u64))
            && self.stack.sources[stored.source].shape == shape;
        is_whole.then_some(stored)
    }

    /// Whether engines get other numbers than the source has.
    fn is_converted(&self, source: &FrameSource) -> bool {
        let is_same = source.stored == self.stack.scalar
            || (source.stored, self.stack.scalar) == (Scalar::Bool, Scalar::U8);
        !is_same
    }

    /// Decodes a source's frames into `target` as the stack's numbers.
    fn decode_source(
        &self,
        stored: &SourceFrames,
        target: &mut [u8],
        scratch: &mut Decoder,
    ) -> Result<(), FramesError> {
        let source = &self.stack.sources[stored.source];
        if !self.is_converted(source) {
            return self.decode_stored(stored, target, scratch);
        }
        let pixels = target.len() / self.stack.scalar.bytes();
        let mut numbers = std::mem::take(&mut scratch.numbers);
        numbers.resize(pixels * source.stored.bytes(), 0);
        let decoded = self.decode_stored(stored, &mut numbers, scratch);
        if decoded.is_ok() {
            convert::to_f32(source.stored, &numbers, target);
        }
        scratch.numbers = numbers;
        decoded
    }

    /// Decodes a source's frames into `target` as numbers of the file.
    fn decode_stored(
        &self,
        stored: &SourceFrames,
        target: &mut [u8],
        scratch: &mut Decoder,
    ) -> Result<(), FramesError> {
        let source = &self.stack.sources[stored.source];
        let told = |error: DecodeError| self.failed(stored, &error);
        for part in &stored.parts {
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
                Some(chunk) if self.fits(source, chunk) => {
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
                    self.place(stored, part.origin, &scratch.chunk, target);
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
        let (stored, part) = self.one_part()?;
        let source = &self.stack.sources[stored.source];
        let length = self.stack.frame_bytes();
        let pieces = match source.chunk {
            // What is stored in one piece was read as numbers of this machine.
            None => decode::ChunkPieces::plain(&part.raw, length),
            Some(chunk) if self.is_frame(source, chunk) => {
                source.pipeline.pieces(&part.raw, part.mask, length)?
            }
            Some(_) => return None,
        };
        Some(
            pieces
                .map(|pieces| Pieces {
                    unit: self,
                    stored,
                    pieces,
                })
                .map_err(|error| self.failed(stored, &error)),
        )
    }

    /// The compressed blocks of its chunk, where it is one frame, little-endian, and the chunk is
    /// made of such blocks.
    pub fn blocks(&self) -> Option<ChunkBlocks<'_>> {
        let (stored, part) = self.one_part()?;
        let source = &self.stack.sources[stored.source];
        if !self.is_frame(source, source.chunk?) {
            return None;
        }
        let length = self.stack.frame_bytes();
        source.pipeline.blocks(&part.raw, part.mask, length)
    }

    /// All that is stored, where it is one piece of numbers as the stack has them.
    fn one_part(&self) -> Option<(&SourceFrames, &StoredPart)> {
        let stored = self.one_source()?;
        let [part] = &stored.parts[..] else {
            return None;
        };
        (!self.is_converted(&self.stack.sources[stored.source])).then_some((stored, part))
    }

    /// Whether such a chunk decodes to a frame as it is.
    fn is_frame(&self, source: &FrameSource, chunk: [u64; 3]) -> bool {
        chunk[0] == 1 && self.fits(source, chunk) && !source.is_big_endian
    }

    fn failed(&self, stored: &SourceFrames, error: &DecodeError) -> FramesError {
        failed(
            &self.stack.sources[stored.source],
            stored.start,
            error.to_string(),
        )
    }

    /// Whether a chunk is these frames, and nothing else.
    fn fits(&self, source: &FrameSource, chunk: [u64; 3]) -> bool {
        let shape = source.shape.map(|extent| extent as u64);
        chunk == [self.frames.end - self.frames.start, shape[0], shape[1]]
    }

    /// Copies what a decoded chunk has of these frames.
    fn place(&self, stored: &SourceFrames, origin: [u64; 3], decoded: &[u8], target: &mut [u8]) {
        let source = &self.stack.sources[stored.source];
        let Some(chunk) = source.chunk else { return };
        let size = source.stored.bytes() as u64;
        let [rows, columns] = source.shape.map(|extent| extent as u64);
        let count = self.frames.end - self.frames.start;
        let width = chunk[2].min(columns - origin[2]);
        for frame in 0..count {
            let layer = stored.start + frame - origin[0];
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

/// The bytes of each row of a rectangle in frames of this shape that follow each other.
fn rows(
    rectangle: &Rectangle,
    [rows, columns]: [usize; 2],
    frames: usize,
    size: usize,
) -> impl Iterator<Item = Range<usize>> {
    let [row, column] = rectangle.first.map(|first| first as usize);
    let [height, width] = rectangle.shape.map(|extent| extent as usize);
    (0..frames).flat_map(move |frame| {
        (row..row + height).map(move |row| {
            let start = ((frame * rows + row) * columns + column) * size;
            start..start + width * size
        })
    })
}

/// A frame that is decoded some bytes at a time, in order.
pub struct Pieces<'u> {
    unit: &'u StoredFrames,
    stored: &'u SourceFrames,
    pieces: decode::ChunkPieces<'u>,
}

impl Pieces<'_> {
    /// The next bytes, as many as `target` has.
    pub fn fill(&mut self, target: &mut [u8], decoder: &mut Decoder) -> Result<(), FramesError> {
        self.pieces
            .fill(target, &mut decoder.scratch)
            .map_err(|error| self.unit.failed(self.stored, &error))
    }
}

/// What a thread that decodes keeps from unit to unit.
#[derive(Default)]
pub struct Decoder {
    scratch: Scratch,
    /// A chunk that is more or less than its frames.
    chunk: Vec<u8>,
    /// Numbers of another type than the stack's.
    numbers: Vec<u8>,
    /// Frames of a source that are more than what is taken of them.
    source: Vec<u8>,
}
