//! Batches of frames on their way to a device: as pixels, or as chunks that it decodes itself. Pure
//! but for copies.

use crate::decode::ChunkBlocks;
use nodectl_gpu::device::{DeviceError, HostBuffer};
use std::ops::Range;

/// Bytes of a block, at most, as in the shader.
const MAX_BLOCK_BYTES: usize = 8192;
/// Where chunks end, the shader reads a word more.
const BEHIND: usize = size_of::<u32>();

/// How frames lie in the memory of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct BatchLayout {
    /// Of the frames' numbers, as in the shader, and their size in bytes.
    pub(super) kind: u32,
    pub(super) pixel_bytes: usize,
    /// Pixels from one frame's first to the next one's.
    pub(super) stride: usize,
    /// How chunks are made that the device decodes; None: pixels come as they are.
    pub(super) blocks: Option<BlockLayout>,
}

/// What chunks have in common that are decoded together; in bytes, decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct BlockLayout {
    pub(super) element: usize,
    pub(super) block: usize,
    pub(super) in_blocks: usize,
    pub(super) length: usize,
    /// Blocks of a chunk, and what follows them.
    pub(super) per_frame: usize,
}

/// Frames that the device gets by one call.
pub(super) struct FrameBatch {
    pub(super) layout: BatchLayout,
    pub(super) frames: usize,
    pub(super) content: BatchContent,
    pub(super) size: SlotSize,
}

/// What is uploaded.
pub(super) enum BatchContent {
    Pixels(HostBuffer),
    /// Chunks one after the other; first byte and length of each block.
    Chunks {
        source: HostBuffer,
        places: HostBuffer,
    },
}

/// What the memory for a batch must hold, in bytes; of sums and faults, for how many frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct SlotSize {
    pub(super) pixels: u64,
    pub(super) frames: usize,
    pub(super) source: u64,
    pub(super) places: u64,
}

impl BatchLayout {
    /// Bytes from one frame's first to the next one's.
    pub(super) fn frame_bytes(&self) -> usize {
        self.stride * self.pixel_bytes
    }
}

impl BlockLayout {
    /// What all of the chunks have in common; None where they differ, or the shader does not decode
    /// such.
    pub(super) fn of(chunks: &[ChunkBlocks<'_>]) -> Option<Self> {
        let of = |chunk: &ChunkBlocks<'_>| Self {
            element: chunk.element,
            block: chunk.block,
            in_blocks: chunk.in_blocks,
            length: chunk.length,
            per_frame: chunk.places.len(),
        };
        let layout = of(chunks.first()?);
        let is_same = chunks.iter().all(|chunk| of(chunk) == layout);
        let is_known = matches!(layout.element, 1 | 2 | 4) && layout.block <= MAX_BLOCK_BYTES;
        (is_same && is_known && layout.per_frame > 0).then_some(layout)
    }

    /// Frames that it makes, each beginning a word.
    pub(super) fn frames(self, kind: u32, pixel_bytes: usize) -> BatchLayout {
        BatchLayout {
            kind,
            pixel_bytes,
            stride: self.length.next_multiple_of(size_of::<u32>()) / pixel_bytes,
            blocks: Some(self),
        }
    }
}

impl FrameBatch {
    /// Of whole frames one after the other. Memory is made for `most` of them.
    pub(super) fn of_pixels(layout: BatchLayout, pixels: HostBuffer, most: usize) -> Self {
        let frame_bytes = layout.frame_bytes();
        Self {
            layout,
            frames: pixels.len() / frame_bytes.max(1),
            content: BatchContent::Pixels(pixels),
            size: SlotSize {
                pixels: whole_words(most * frame_bytes) as u64,
                frames: most,
                ..SlotSize::default()
            },
        }
    }

    /// Of chunks, a frame each, which are a group within `limit` bytes. Memory on the device is
    /// made for `most` of them; `host` has memory that it reads.
    pub(super) fn of_chunks(
        layout: BatchLayout,
        chunks: &[ChunkBlocks<'_>],
        most: usize,
        limit: usize,
        host: impl Fn(usize) -> Result<HostBuffer, DeviceError>,
    ) -> Result<Self, DeviceError> {
        let bytes = source_bytes(chunks);
        // Chunks differ in length: not each that is longer shall need new memory.
        let room = bytes.next_power_of_two().min(limit).max(bytes);
        let mut source = host(room)?;
        source.truncate(bytes);
        let mut places = host(places_bytes(chunks))?;
        write_chunks(chunks, &mut source, &mut places);
        let size = SlotSize {
            pixels: (most * layout.frame_bytes()) as u64,
            frames: most,
            source: room as u64,
            places: (places.len() / chunks.len().max(1) * most) as u64,
        };
        Ok(Self {
            layout,
            frames: chunks.len(),
            content: BatchContent::Chunks { source, places },
            size,
        })
    }
}

/// Writes chunks one after the other, and first byte and length of each block.
fn write_chunks(chunks: &[ChunkBlocks<'_>], source: &mut [u8], places: &mut [u8]) {
    let mut first = 0;
    let mut words = places.as_chunks_mut::<{ size_of::<u32>() }>().0.iter_mut();
    for chunk in chunks {
        let of_block = |place: &Range<usize>| [first + place.start, place.len()];
        let numbers = chunk.places.iter().flat_map(of_block);
        for (number, word) in numbers.zip(&mut words) {
            *word = (number as u32).to_le_bytes();
        }
        let end = first + chunk.source.len();
        source[first..end].copy_from_slice(chunk.source);
        first = end;
    }
    source[first..].fill(0);
}

impl SlotSize {
    pub(super) fn max(self, other: Self) -> Self {
        Self {
            pixels: self.pixels.max(other.pixels),
            frames: self.frames.max(other.frames),
            source: self.source.max(other.source),
            places: self.places.max(other.places),
        }
    }
}

/// Chunks as they are uploaded together: at most `frames` of them and `bytes`. None where one alone
/// is more.
pub(super) fn groups<'c, 's>(
    mut chunks: &'c [ChunkBlocks<'s>],
    frames: usize,
    bytes: usize,
) -> Option<Vec<&'c [ChunkBlocks<'s>]>> {
    let mut groups = Vec::new();
    while !chunks.is_empty() {
        let mut count = 0;
        let mut sum = 2 * BEHIND;
        for chunk in chunks.iter().take(frames) {
            sum += chunk.source.len();
            if sum > bytes {
                break;
            }
            count += 1;
        }
        if count == 0 {
            return None;
        }
        let (group, rest) = chunks.split_at(count);
        groups.push(group);
        chunks = rest;
    }
    Some(groups)
}

/// Bytes of chunks one after the other, as the shader reads them.
fn source_bytes(chunks: &[ChunkBlocks<'_>]) -> usize {
    let sum: usize = chunks.iter().map(|chunk| chunk.source.len()).sum();
    whole_words(sum) + BEHIND
}

/// Bytes of the places of all blocks.
fn places_bytes(chunks: &[ChunkBlocks<'_>]) -> usize {
    let blocks: usize = chunks.iter().map(|chunk| chunk.places.len()).sum();
    blocks * 2 * size_of::<u32>()
}

fn whole_words(bytes: usize) -> usize {
    bytes.next_multiple_of(size_of::<u32>())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chunk(source: &[u8]) -> ChunkBlocks<'_> {
        ChunkBlocks {
            source,
            places: std::iter::once(0..source.len()).collect(),
            element: 2,
            block: 64,
            in_blocks: 48,
            length: 50,
        }
    }

    #[test]
    fn chunks_that_differ_or_have_large_blocks_are_not_for_the_device() {
        let bytes = [0u8; 9];
        let layout = BlockLayout::of(&[chunk(&bytes), chunk(&bytes[..3])]).expect("alike");
        assert_eq!((layout.block, layout.per_frame), (64, 1));
        // 25 pixels of two bytes, and one to the next word.
        assert_eq!(layout.frames(1, 2).stride, 26);
        let other = ChunkBlocks {
            block: 128,
            ..chunk(&bytes)
        };
        assert_eq!(BlockLayout::of(&[chunk(&bytes), other]), None);
        let large = ChunkBlocks {
            block: MAX_BLOCK_BYTES + 16,
            ..chunk(&bytes)
        };
        assert_eq!(BlockLayout::of(&[large]), None);
        let wide = ChunkBlocks {
            element: 8,
            ..chunk(&bytes)
        };
        assert_eq!(BlockLayout::of(&[wide]), None);
        assert_eq!(BlockLayout::of(&[]), None);
    }

    #[test]
    fn groups_of_chunks_fit_and_are_all_of_them() {
        let bytes = [0u8; 100];
        let chunks: Vec<_> = [10, 30, 50, 20, 5]
            .map(|length| chunk(&bytes[..length]))
            .into();
        let sizes = |frames, most| -> Option<Vec<usize>> {
            Some(
                groups(&chunks, frames, most)?
                    .iter()
                    .map(|group| group.len())
                    .collect(),
            )
        };
        assert_eq!(sizes(2, 1000), Some(vec![2, 2, 1]));
        assert_eq!(sizes(9, 60), Some(vec![2, 1, 2]));
        assert_eq!(sizes(9, 57), None, "one has 50 bytes, and words behind it");
    }

    #[test]
    fn places_are_those_of_all_chunks_together() {
        let chunks = [chunk(&[1; 5]), chunk(&[2; 6])];
        assert_eq!((source_bytes(&chunks), places_bytes(&chunks)), (16, 16));
        // Whatever was in that memory before.
        let (mut source, mut places) = (vec![9; 16], vec![9; 16]);
        write_chunks(&chunks, &mut source, &mut places);
        assert_eq!(source, [1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 0, 0, 0, 0, 0]);
        let places: Vec<u32> = bytemuck::pod_collect_to_vec(&places);
        assert_eq!(places, [0, 5, 5, 6]);
    }
}
