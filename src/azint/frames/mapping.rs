//! Virtual datasets: their mappings as blocks of whole frames. Pure but for the last function,
//! which looks where a source is.

use super::MAX_SOURCES;
use rust_hdf5::format::{
    messages::virtual_mapping::VirtualMapping,
    selection::{Hyperslab, Selection, UNLIMITED},
};
use std::path::{Path, PathBuf};

/// The most pieces of a virtual dataset.
const MAX_BLOCKS: usize = 1 << 20;

/// Frames `start .. start + count` of a source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FrameBlock {
    pub(super) file: String,
    pub(super) dataset: String,
    pub(super) start: u64,
    pub(super) count: u64,
}

/// The blocks of a virtual dataset of this shape, in the order of its frames. The error is a
/// sentence.
pub(super) fn blocks(
    mappings: &[VirtualMapping],
    shape: &[usize],
) -> Result<Vec<FrameBlock>, String> {
    let [frames, rows, columns] = match *shape {
        [rows, columns] => [1, rows as u64, columns as u64],
        [frames, rows, columns] => [frames as u64, rows as u64, columns as u64],
        _ => {
            return Err(format!(
                "it has {} axes; frames, rows and columns are expected",
                shape.len()
            ));
        }
    };
    let mut placed: Vec<(u64, FrameBlock)> = Vec::with_capacity(mappings.len());
    for mapping in mappings {
        let name = format!("{}::{}", mapping.source_file_name, mapping.source_dset_name);
        let odd = || {
            format!(
                "it puts frames together from tiles, one of them of `{name}`; only whole frames are taken\nhint: `h5repack` writes them as a plain dataset"
            )
        };
        let names = [&mapping.source_file_name, &mapping.source_dset_name];
        if names.iter().any(|name| name.contains("%b")) {
            placed.extend(numbered(mapping, [frames, rows, columns]).ok_or_else(odd)?);
            continue;
        }
        let target = slabs(&mapping.virtual_selection, [frames, rows, columns]).ok_or_else(odd)?;
        // An unlimited source selection takes what the target has room for.
        let source =
            slabs(&mapping.source_selection, [UNLIMITED, rows, columns]).ok_or_else(odd)?;
        for (first, start, count) in paired(target, source) {
            let (file, dataset) = (
                mapping.source_file_name.clone(),
                mapping.source_dset_name.clone(),
            );
            let block = FrameBlock {
                file,
                dataset,
                start,
                count,
            };
            placed.push((first, block));
        }
        if placed.len() > MAX_BLOCKS {
            return Err(format!("it has more than {MAX_BLOCKS} pieces"));
        }
    }
    placed.sort_by_key(|(first, _)| *first);
    let mut next = 0;
    for (first, block) in &placed {
        if *first != next {
            return Err(format!(
                "its frames {next} to {first} have no source, or two"
            ));
        }
        next += block.count;
    }
    if next > frames {
        return Err(format!("its sources have {next} frames for {frames}"));
    }
    Ok(placed.into_iter().map(|(_, block)| block).collect())
}

/// The blocks of sources that `%b` in a name numbers, each with its first frame.
fn numbered(
    mapping: &VirtualMapping,
    [frames, rows, columns]: [u64; 3],
) -> Option<Vec<(u64, FrameBlock)>> {
    let (start, size) = pattern(&mapping.virtual_selection, rows, columns)?;
    let step = usize::try_from(size).unwrap_or(usize::MAX);
    let block = |(index, first): (usize, u64)| {
        let name = |name: &str| name.replace("%b", &index.to_string()).replace("%%", "%");
        let block = FrameBlock {
            file: name(&mapping.source_file_name),
            dataset: name(&mapping.source_dset_name),
            start: 0,
            count: size.min(frames - first),
        };
        (first, block)
    };
    let numbers = (start..frames).step_by(step).enumerate();
    Some(numbers.take(MAX_SOURCES).map(block).collect())
}

/// Of a selection without end that `%b` numbers: its first frame, and the frames of each source.
fn pattern(selection: &Selection, rows: u64, columns: u64) -> Option<(u64, u64)> {
    let Selection::Hyperslab {
        form: Hyperslab::Regular(regular),
        rank: 3,
    } = selection
    else {
        return None;
    };
    let is_whole = |axis: usize, extent: u64| {
        let (count, block) = (*regular.count.get(axis)?, *regular.block.get(axis)?);
        (*regular.start.get(axis)? == 0 && count.checked_mul(block)? == extent).then_some(())
    };
    is_whole(1, rows)?;
    is_whole(2, columns)?;
    let (stride, count, block) = (
        *regular.stride.first()?,
        *regular.count.first()?,
        *regular.block.first()?,
    );
    (count == UNLIMITED && stride == block && block > 0).then_some((*regular.start.first()?, block))
}

/// Target and source of a mapping, frame by frame: where in the target, where in the source, how
/// many that follow each other in both.
fn paired(target: Vec<(u64, u64)>, source: Vec<(u64, u64)>) -> Vec<(u64, u64, u64)> {
    let mut pairs = Vec::new();
    let (mut target, mut source) = (target.into_iter(), source.into_iter());
    let (mut to, mut from) = (target.next(), source.next());
    while let (Some((first, room)), Some((start, count))) = (to, from) {
        let both = room.min(count);
        if both > 0 {
            pairs.push((first, start, both));
        }
        let rest = |(at, length): (u64, u64)| (length > both).then(|| (at + both, length - both));
        to = rest((first, room)).or_else(|| target.next());
        from = rest((start, count)).or_else(|| source.next());
    }
    pairs
}

/// First frame and number of frames of each piece of a selection of whole frames.
fn slabs(selection: &Selection, extent: [u64; 3]) -> Option<Vec<(u64, u64)>> {
    match selection {
        Selection::All => Some(vec![(0, extent[0])]),
        Selection::Hyperslab {
            form: Hyperslab::Regular(regular),
            rank,
        } => {
            let axis = |axis: usize| -> Option<Vec<(u64, u64)>> {
                let (start, stride) = (*regular.start.get(axis)?, *regular.stride.get(axis)?);
                let (count, block) = (*regular.count.get(axis)?, *regular.block.get(axis)?);
                match (count, block) {
                    (1, UNLIMITED) => Some(vec![(start, UNLIMITED)]),
                    (UNLIMITED, block) if block == stride => Some(vec![(start, UNLIMITED)]),
                    (1, block) => Some(vec![(start, block)]),
                    (count, block) if block == stride => {
                        Some(vec![(start, count.checked_mul(block)?)])
                    }
                    (count, block) if count as usize <= MAX_BLOCKS => {
                        let piece = |number: u64| {
                            let at = number.checked_mul(stride)?.checked_add(start)?;
                            Some((at, block))
                        };
                        (0..count).map(piece).collect()
                    }
                    _ => None,
                }
            };
            whole(*rank, axis, extent)
        }
        Selection::Hyperslab {
            form: Hyperslab::Blocks(blocks),
            rank,
        } => {
            let one = |block: &rust_hdf5::format::selection::HyperslabBlock| {
                let axis = |axis: usize| {
                    let (start, end) = (*block.start.get(axis)?, *block.end.get(axis)?);
                    Some(vec![(start, end.checked_sub(start)?.checked_add(1)?)])
                };
                whole(*rank, axis, extent)
            };
            let pieces: Option<Vec<Vec<(u64, u64)>>> = blocks.iter().map(one).collect();
            pieces.map(|pieces| pieces.concat())
        }
        Selection::None | Selection::Points(_) => None,
    }
}

/// The frames, if all rows and columns are selected. Of two axes they are a frame.
fn whole(
    rank: usize,
    axis: impl Fn(usize) -> Option<Vec<(u64, u64)>>,
    extent: [u64; 3],
) -> Option<Vec<(u64, u64)>> {
    let first = rank.checked_sub(2)?;
    let is_all = |of: usize, extent: u64| Some(axis(of)? == [(0, extent)]);
    if first > 1 || !is_all(first, extent[1])? || !is_all(first + 1, extent[2])? {
        return None;
    }
    if first == 0 {
        Some(vec![(0, 1)])
    } else {
        axis(0)
    }
}

/// Where a source of the virtual dataset in `path` is: as it is named, or beside that file, which
/// may have moved with it.
pub(super) fn source_path(path: &Path, named: &str) -> PathBuf {
    if named == "." {
        return path.to_path_buf();
    }
    let beside = |name: &Path| path.parent().unwrap_or(Path::new("")).join(name);
    let named = Path::new(named);
    let first = beside(named);
    if first.exists() {
        return first;
    }
    match named.file_name().map(|name| beside(Path::new(name))) {
        Some(moved) if moved.exists() => moved,
        _ => first,
    }
}
