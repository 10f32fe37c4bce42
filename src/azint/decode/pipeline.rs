//! A dataset's filters, as its header lists them, undone one after the other.

use super::{
    DecodeError,
    bitshuffle::{self, Bitshuffle, BlockCompression, ChunkBlocks},
    blosc, bytes, lz4, lzf,
};
use flate2::{Decompress, FlushDecompress, Status};
use serde::{Deserialize, Serialize};

/// A filter of a dataset: its registered number and its parameters ("client data").
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FilterSpec {
    pub id: u16,
    pub parameters: Vec<u32>,
}

/// The filters of a dataset, in the order of writing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pipeline(Vec<DecodeStep>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum DecodeStep {
    Deflate,
    Shuffle { size: usize },
    Fletcher32,
    Lzf,
    Lz4,
    Zstd,
    Blosc,
    Bitshuffle(Bitshuffle),
}

/// What decoding needs besides its target, kept from chunk to chunk; one a thread.
#[derive(Default)]
pub struct Scratch {
    /// Between the steps of a pipeline of several.
    steps: [Vec<u8>; 2],
    buffers: FilterBuffers,
}

/// What single steps need.
#[derive(Default)]
pub(super) struct FilterBuffers {
    block: Vec<u8>,
    /// A block whose bytes or bits are still shuffled.
    pub(super) turned: Vec<u8>,
    zstd: Zstd,
}

/// A chunk that is decoded some bytes at a time, in order.
pub struct ChunkPieces<'s>(FilterKind<'s>);

enum FilterKind<'s> {
    Plain(&'s [u8]),
    Bitshuffle(bitshuffle::BitshufflePieces<'s>),
}

/// The state of a zstd decoder, made when the first frame asks for it.
#[derive(Default)]
pub(super) struct Zstd(Option<Box<ruzstd::decoding::FrameDecoder>>);

impl Pipeline {
    /// `size` is that of an element, in bytes. The error names a filter that is unknown.
    pub fn new(filters: &[FilterSpec], size: usize) -> Result<Self, DecodeError> {
        let step = |filter: &FilterSpec| {
            let parameter =
                |index: usize| filter.parameters.get(index).map(|value| *value as usize);
            Ok(match filter.id {
                1 => DecodeStep::Deflate,
                2 => DecodeStep::Shuffle {
                    size: parameter(0).filter(|size| *size > 0).unwrap_or(size),
                },
                3 => DecodeStep::Fletcher32,
                32000 => DecodeStep::Lzf,
                32001 => DecodeStep::Blosc,
                32004 => DecodeStep::Lz4,
                32015 => DecodeStep::Zstd,
                32008 => {
                    let compression = match parameter(4).unwrap_or(0) {
                        0 => BlockCompression::None,
                        2 => BlockCompression::Lz4,
                        3 => BlockCompression::Zstd,
                        _ => {
                            return Err(DecodeError::Damaged(
                                "bitshuffle with a compression that is neither LZ4 nor zstd",
                            ));
                        }
                    };
                    let size = parameter(2).filter(|size| *size > 0).unwrap_or(size);
                    if !matches!(size, 1 | 2 | 4 | 8) {
                        return Err(DecodeError::Damaged(
                            "bitshuffle of elements that are not 1, 2, 4 or 8 bytes",
                        ));
                    }
                    DecodeStep::Bitshuffle(Bitshuffle {
                        size,
                        block: parameter(3).unwrap_or(0),
                        compression,
                    })
                }
                id => return Err(DecodeError::UnknownFilter { id }),
            })
        };
        filters.iter().map(step).collect::<Result<_, _>>().map(Self)
    }

    /// Begins with a chunk of `length` decoded bytes where no filter but one of blocks is to be
    /// undone. None where the whole chunk must be decoded at once. `mask` as in `decode`.
    pub fn pieces<'s>(
        &'s self,
        source: &'s [u8],
        mask: u32,
        length: usize,
    ) -> Option<Result<ChunkPieces<'s>, DecodeError>> {
        let mut applied = self.applied(mask);
        match (applied.next(), applied.next()) {
            (None, _) => Some(ChunkPieces::plain(source, length)),
            (Some(DecodeStep::Bitshuffle(bitshuffle)), None) => Some(
                bitshuffle
                    .pieces(source, length)
                    .map(|pieces| ChunkPieces(FilterKind::Bitshuffle(pieces))),
            ),
            _ => None,
        }
    }

    /// The compressed blocks of a chunk of `length` decoded bytes, for whoever decodes them
    /// elsewhere. None where no bitshuffle with LZ4 is all that is to be undone, or the chunk is
    /// damaged: `decode` says how. `mask` as there.
    pub fn blocks<'s>(
        &self,
        source: &'s [u8],
        mask: u32,
        length: usize,
    ) -> Option<ChunkBlocks<'s>> {
        let mut applied = self.applied(mask);
        match (applied.next(), applied.next()) {
            (Some(DecodeStep::Bitshuffle(bitshuffle)), None) => bitshuffle.blocks(source, length),
            _ => None,
        }
    }

    /// The steps of a chunk, in the order of writing.
    fn applied(&self, mask: u32) -> impl DoubleEndedIterator<Item = &DecodeStep> {
        let applied =
            move |(index, _): &(usize, &DecodeStep)| *index >= 32 || mask >> index & 1 == 0;
        self.0
            .iter()
            .enumerate()
            .filter(applied)
            .map(|(_, step)| step)
    }

    /// Undoes the filters but those that `mask` names (bit i: filter i was not applied to this
    /// chunk). `target` is as long as the chunk's elements are.
    pub fn decode(
        &self,
        source: &[u8],
        mask: u32,
        target: &mut [u8],
        scratch: &mut Scratch,
    ) -> Result<(), DecodeError> {
        let steps: Vec<&DecodeStep> = self.applied(mask).rev().collect();
        let Some((last, before)) = steps.split_last() else {
            if source.len() != target.len() {
                return Err(DecodeError::Size {
                    expected: target.len(),
                    found: source.len() as u64,
                });
            }
            target.copy_from_slice(source);
            return Ok(());
        };
        let [mut from, mut to] = std::mem::take(&mut scratch.steps);
        let buffers = &mut scratch.buffers;
        let mut run = || {
            let mut is_first = true;
            for step in before {
                // A checksum shortens; everything else that comes before the last step keeps the
                // length of the elements.
                let length = match step {
                    DecodeStep::Fletcher32 => {
                        let length = if is_first { source.len() } else { from.len() };
                        length
                            .checked_sub(CHECKSUM_BYTES)
                            .ok_or(DecodeError::Damaged("it is shorter than its checksum"))?
                    }
                    _ => target.len(),
                };
                to.resize(length, 0);
                step.decode(if is_first { source } else { &from }, &mut to, buffers)?;
                std::mem::swap(&mut from, &mut to);
                is_first = false;
            }
            last.decode(if is_first { source } else { &from }, target, buffers)
        };
        let decoded = run();
        scratch.steps = [from, to];
        decoded
    }
}

/// Fletcher32 appends four bytes.
const CHECKSUM_BYTES: usize = 4;

impl DecodeStep {
    fn decode(
        &self,
        source: &[u8],
        target: &mut [u8],
        buffers: &mut FilterBuffers,
    ) -> Result<(), DecodeError> {
        match self {
            Self::Deflate => inflate(source, target),
            Self::Lzf => lzf::decode(source, target),
            Self::Lz4 => lz4_blocks(source, target, buffers),
            Self::Blosc => blosc::decode(source, target, buffers),
            Self::Zstd => buffers.zstd.decode(source, target),
            Self::Bitshuffle(bitshuffle) => bitshuffle.decode(source, target, buffers),
            Self::Shuffle { .. } if source.len() != target.len() => Err(DecodeError::Size {
                expected: target.len(),
                found: source.len() as u64,
            }),
            Self::Shuffle { size } => {
                bytes::unshuffle(source, target, *size);
                Ok(())
            }
            Self::Fletcher32 => {
                let Some((data, sum)) = source.split_last_chunk::<CHECKSUM_BYTES>() else {
                    return Err(DecodeError::Damaged("it is shorter than its checksum"));
                };
                if data.len() != target.len() {
                    return Err(DecodeError::Size {
                        expected: target.len(),
                        found: data.len() as u64,
                    });
                }
                if fletcher32(data) != u32::from_le_bytes(*sum) {
                    return Err(DecodeError::Damaged("its checksum is wrong"));
                }
                target.copy_from_slice(data);
                Ok(())
            }
        }
    }
}

/// Filter 1: a zlib stream.
pub(super) fn inflate(source: &[u8], target: &mut [u8]) -> Result<(), DecodeError> {
    let mut stream = Decompress::new(true);
    let status = stream.decompress(source, target, FlushDecompress::Finish);
    let found = stream.total_out();
    match status {
        Ok(Status::StreamEnd) if found == target.len() as u64 => Ok(()),
        Ok(Status::StreamEnd) => Err(DecodeError::Size {
            expected: target.len(),
            found,
        }),
        Ok(Status::Ok | Status::BufError) if found == target.len() as u64 => {
            Err(DecodeError::Damaged("it inflates to more than it should"))
        }
        Ok(Status::Ok | Status::BufError) => {
            Err(DecodeError::Damaged("it ends within its deflate stream"))
        }
        Err(_) => Err(DecodeError::Damaged("it is no deflate stream")),
    }
}

/// Filter 32004 (`H5Zlz4.c`): the header of bitshuffle, then blocks; one that did not shrink is as
/// it was.
fn lz4_blocks(
    source: &[u8],
    target: &mut [u8],
    buffers: &mut FilterBuffers,
) -> Result<(), DecodeError> {
    let (mut rest, block) = bitshuffle::header(source, target.len())?;
    if block == 0 {
        return Err(DecodeError::Damaged("its blocks have an impossible size"));
    }
    for part in target.chunks_mut(block) {
        let own = bitshuffle::sized(&mut rest)?;
        if own.len() == part.len() {
            part.copy_from_slice(own);
            continue;
        }
        let (buffer, _) = buffers.block(part.len() + lz4::SLACK);
        lz4::decode(own, buffer, part.len())?;
        part.copy_from_slice(&buffer[..part.len()]);
    }
    if rest.is_empty() {
        Ok(())
    } else {
        Err(DecodeError::Damaged("bytes follow its last block"))
    }
}

/// As `H5_checksum_fletcher32` reckons: over big-endian pairs of bytes, an odd one last.
fn fletcher32(data: &[u8]) -> u32 {
    let (mut one, mut two) = (0u32, 0u32);
    let fold = |sum: u32| (sum & 0xffff) + (sum >> 16);
    let (pairs, odd) = data.as_chunks::<2>();
    // So many additions cannot overflow 32 bits.
    for piece in pairs.chunks(360) {
        for pair in piece {
            one += u32::from(u16::from_be_bytes(*pair));
            two += one;
        }
        (one, two) = (fold(one), fold(two));
    }
    if let [odd] = odd {
        one += u32::from(*odd) << 8;
        two += one;
        (one, two) = (fold(one), fold(two));
    }
    fold(two) << 16 | fold(one)
}

impl<'s> ChunkPieces<'s> {
    /// Of bytes as they are.
    pub fn plain(source: &'s [u8], length: usize) -> Result<Self, DecodeError> {
        if source.len() != length {
            return Err(DecodeError::Size {
                expected: length,
                found: source.len() as u64,
            });
        }
        Ok(Self(FilterKind::Plain(source)))
    }

    /// Decodes as many bytes as `target` has; all pieces together are as long as the chunk.
    pub fn fill(&mut self, target: &mut [u8], scratch: &mut Scratch) -> Result<(), DecodeError> {
        match &mut self.0 {
            FilterKind::Plain(rest) => {
                let (own, behind) = rest
                    .split_at_checked(target.len())
                    .ok_or(DecodeError::Damaged("it ends before its last element"))?;
                target.copy_from_slice(own);
                *rest = behind;
                Ok(())
            }
            FilterKind::Bitshuffle(pieces) => pieces.fill(target, &mut scratch.buffers),
        }
    }
}

impl FilterBuffers {
    /// Room for a block, and what decodes zstd.
    pub(super) fn block(&mut self, length: usize) -> (&mut [u8], &mut Zstd) {
        if self.block.len() < length {
            self.block.resize(length, 0);
        }
        (&mut self.block[..length], &mut self.zstd)
    }
}

impl Zstd {
    /// Frames of zstd that make exactly `target`.
    pub(super) fn decode(&mut self, source: &[u8], target: &mut [u8]) -> Result<(), DecodeError> {
        let decoder = self
            .0
            .get_or_insert_with(|| Box::new(ruzstd::decoding::FrameDecoder::new()));
        match decoder.decode_all(source, target) {
            Ok(found) if found == target.len() => Ok(()),
            Ok(found) => Err(DecodeError::Size {
                expected: target.len(),
                found: found as u64,
            }),
            Err(ruzstd::decoding::errors::FrameDecoderError::TargetTooSmall) => Err(
                DecodeError::Damaged("a zstd frame is longer than it should be"),
            ),
            Err(_) => Err(DecodeError::Damaged("it is no zstd frame")),
        }
    }
}
