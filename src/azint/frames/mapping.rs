//! Virtual datasets: their mappings as blocks of whole frames. Pure but for the last function,
//! which looks where a source is.

use super::MAX_SOURCES;
use rust_hdf5::format::{
    messages::virtual_mapping::VirtualMapping,
    selection::{Hyperslab, Selection, UNLIMITED},
};
use std::path::{Path, PathBuf};

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
            format!("it takes parts of frames from `{name}`; only whole frames are put together")
        };
        if [&mapping.source_file_name, &mapping.source_dset_name]
            .iter()
            .any(|name| name.contains("%b"))
        {
            let (start, size) =
                pattern(&mapping.virtual_selection, rows, columns).ok_or_else(odd)?;
            let step = usize::try_from(size).unwrap_or(usize::MAX);
            for (index, first) in (start..frames).step_by(step).enumerate().take(MAX_SOURCES) {
                let name = |name: &str| name.replace("%b", &index.to_string()).replace("%%", "%");
                let (file, dataset) = (
                    name(&mapping.source_file_name),
                    name(&mapping.source_dset_name),
                );
                placed.push((
                    first,
                    FrameBlock {
                        file,
                        dataset,
                        start: 0,
                        count: size.min(frames - first),
                    },
                ));
            }
            continue;
        }
        let target = slab(&mapping.virtual_selection, [frames, rows, columns]).ok_or_else(odd)?;
        // An unlimited source selection takes what the target has room for.
        let source = slab(&mapping.source_selection, [UNLIMITED, rows, columns]).ok_or_else(odd)?;
        let count = source.1.min(target.1);
        let (file, dataset) = (
            mapping.source_file_name.clone(),
            mapping.source_dset_name.clone(),
        );
        placed.push((
            target.0,
            FrameBlock {
                file,
                dataset,
                start: source.0,
                count,
            },
        ));
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

/// First frame and number of frames of a selection of whole frames that follow each other.
fn slab(selection: &Selection, extent: [u64; 3]) -> Option<(u64, u64)> {
    match selection {
        Selection::All => Some((0, extent[0])),
        Selection::Hyperslab {
            form: Hyperslab::Regular(regular),
            rank,
        } => {
            let axis = |axis: usize| -> Option<(u64, u64)> {
                let (start, stride) = (*regular.start.get(axis)?, *regular.stride.get(axis)?);
                let (count, block) = (*regular.count.get(axis)?, *regular.block.get(axis)?);
                match (count, block) {
                    (1, UNLIMITED) => Some((start, UNLIMITED)),
                    (UNLIMITED, block) if block == stride => Some((start, UNLIMITED)),
                    (1, block) => Some((start, block)),
                    (count, block) if block == stride => Some((start, count.checked_mul(block)?)),
                    _ => None,
                }
            };
            whole(*rank, axis, extent)
        }
        Selection::Hyperslab {
            form: Hyperslab::Blocks(blocks),
            rank,
        } => match blocks.as_slice() {
            [block] => {
                let axis = |axis: usize| -> Option<(u64, u64)> {
                    let (start, end) = (*block.start.get(axis)?, *block.end.get(axis)?);
                    Some((start, end.checked_sub(start)?.checked_add(1)?))
                };
                whole(*rank, axis, extent)
            }
            _ => None,
        },
        Selection::None | Selection::Points(_) => None,
    }
}

/// The frames, if all rows and columns are selected. Of two axes they are a frame.
fn whole(
    rank: usize,
    axis: impl Fn(usize) -> Option<(u64, u64)>,
    extent: [u64; 3],
) -> Option<(u64, u64)> {
    let first = rank.checked_sub(2)?;
    if first > 1 || axis(first)? != (0, extent[1]) || axis(first + 1)? != (0, extent[2]) {
        return None;
    }
    if first == 0 { Some((0, 1)) } else { axis(0) }
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
