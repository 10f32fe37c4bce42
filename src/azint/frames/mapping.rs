//! Virtual datasets: their mappings as rectangles of frames. Pure but for the last function, which
//! looks where a source is.

use super::{
    MAX_SOURCES,
    tiles::{MAX_PIECES, Rectangle},
};
use rust_hdf5::format::{
    messages::virtual_mapping::VirtualMapping,
    selection::{Hyperslab, HyperslabBlock, RegularHyperslab, Selection, UNLIMITED},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
};

/// A rectangle of frames `first .. first + count` of a virtual dataset, which is that of a source
/// from its frame `start` on that begins at `from`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct MappedPiece {
    pub(super) first: u64,
    pub(super) count: u64,
    pub(super) place: Rectangle,
    /// The source's number in `Mapped::sources`.
    pub(super) source: usize,
    pub(super) start: u64,
    pub(super) from: [u64; 2],
}

/// What a virtual dataset says of itself.
#[derive(Debug, Default)]
pub(super) struct Mapped {
    /// Files and datasets, as they are named.
    pub(super) sources: Vec<(String, String)>,
    pub(super) pieces: Vec<MappedPiece>,
    numbers: BTreeMap<(String, String), usize>,
}

/// First and number of what is selected along frames, rows and columns: all combinations are.
type SelectedAxes = [Vec<(u64, u64)>; 3];

/// First in the virtual dataset, first in the source, and how many that follow each other in both.
type Pairs = Vec<(u64, u64, u64)>;

impl Mapped {
    /// The pieces of a virtual dataset of so many frames, rows and columns. The error is a
    /// sentence.
    pub(super) fn of(mappings: &[VirtualMapping], extent: [u64; 3]) -> Result<Self, String> {
        let mut mapped = Self::default();
        for mapping in mappings {
            let name = format!("{}::{}", mapping.source_file_name, mapping.source_dset_name);
            mapped.add(mapping, extent).ok_or_else(|| {
                format!(
                    "it takes pixels of `{name}` in another shape or order than they have there, or has too many pieces\nhint: `h5repack` writes them as a plain dataset"
                )
            })?;
        }
        Ok(mapped)
    }

    fn add(&mut self, mapping: &VirtualMapping, extent: [u64; 3]) -> Option<()> {
        let names = [&mapping.source_file_name, &mapping.source_dset_name];
        if names.iter().any(|name| name.contains("%b")) {
            return self.add_numbered(mapping, extent);
        }
        let target = axes(&mapping.virtual_selection)?.unwrap_or_else(|| whole(extent));
        // An unlimited source selection takes what the target has room for.
        let source = axes(&mapping.source_selection)?
            .unwrap_or_else(|| whole([UNLIMITED, total(&target[1]), total(&target[2])]));
        let source_names = (
            mapping.source_file_name.clone(),
            mapping.source_dset_name.clone(),
        );
        self.add_pairs(source_names, &target, &source, extent)
    }

    /// The pieces of sources that `%b` in a name numbers.
    fn add_numbered(&mut self, mapping: &VirtualMapping, extent: [u64; 3]) -> Option<()> {
        let Selection::Hyperslab {
            form: Hyperslab::Regular(regular),
            rank: 3,
        } = &mapping.virtual_selection
        else {
            return None;
        };
        let (start, size) = (*regular.start.first()?, *regular.block.first()?);
        let stride = *regular.stride.first()?;
        if *regular.count.first()? != UNLIMITED || size == 0 || stride < size {
            return None;
        }
        let (rows, columns) = (along(regular, 1)?, along(regular, 2)?);
        let source = axes(&mapping.source_selection)?
            .unwrap_or_else(|| whole([size, total(&rows), total(&columns)]));
        let step = usize::try_from(stride).unwrap_or(usize::MAX);
        let firsts = (start..extent[0]).step_by(step).enumerate();
        for (index, first) in firsts.take(MAX_SOURCES) {
            let name = |name: &str| name.replace("%b", &index.to_string()).replace("%%", "%");
            let names = (
                name(&mapping.source_file_name),
                name(&mapping.source_dset_name),
            );
            let target = [vec![(first, size)], rows.clone(), columns.clone()];
            self.add_pairs(names, &target, &source, extent)?;
        }
        Some(())
    }

    fn add_pairs(
        &mut self,
        names: (String, String),
        target: &SelectedAxes,
        source: &SelectedAxes,
        extent: [u64; 3],
    ) -> Option<()> {
        let [frames, rows, columns] = [0, 1, 2].map(|axis| paired(&target[axis], &source[axis]));
        let is_same = |axis: usize| total(&target[axis]) == total(&source[axis]);
        if !is_same(1) || !is_same(2) {
            return None;
        }
        let more = frames.len().checked_mul(rows.len())?;
        let all = more.checked_mul(columns.len())?;
        if all.checked_add(self.pieces.len())? > MAX_PIECES {
            return None;
        }
        let next = self.sources.len();
        let number = *self.numbers.entry(names.clone()).or_insert(next);
        if number == next {
            self.sources.push(names);
        }
        for &(first, start, count) in frames.iter().filter(|(first, ..)| *first < extent[0]) {
            for &(row, from_row, height) in &rows {
                for &(column, from_column, width) in &columns {
                    let place = Rectangle {
                        first: [row, column],
                        shape: [height, width],
                    };
                    if !place.is_within([extent[1], extent[2]]) {
                        return None;
                    }
                    self.pieces.push(MappedPiece {
                        first,
                        count: count.min(extent[0] - first),
                        place,
                        source: number,
                        start,
                        from: [from_row, from_column],
                    });
                }
            }
        }
        Some(())
    }
}

fn whole(extent: [u64; 3]) -> SelectedAxes {
    extent.map(|extent| vec![(0, extent)])
}

fn total(pieces: &[(u64, u64)]) -> u64 {
    pieces
        .iter()
        .fold(0, |sum: u64, (_, count)| sum.saturating_add(*count))
}

/// The pieces of two selections along an axis, one by one.
fn paired(target: &[(u64, u64)], source: &[(u64, u64)]) -> Pairs {
    let mut pairs = Vec::new();
    let (mut target, mut source) = (target.iter().copied(), source.iter().copied());
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

/// What is selected along each axis; of two axes they are a frame. None of what is no such
/// selection, within it None of everything.
fn axes(selection: &Selection) -> Option<Option<SelectedAxes>> {
    let Selection::Hyperslab { form, rank } = selection else {
        return matches!(selection, Selection::All).then_some(None);
    };
    let lead = rank.checked_sub(2).filter(|lead| *lead <= 1)?;
    match form {
        Hyperslab::Regular(regular) => {
            let frames = match lead {
                0 => vec![(0, 1)],
                _ => along(regular, 0)?,
            };
            Some(Some([
                frames,
                along(regular, lead)?,
                along(regular, lead + 1)?,
            ]))
        }
        Hyperslab::Blocks(blocks) => product(blocks, lead).map(Some),
    }
}

/// What a regular selection has along an axis.
fn along(regular: &RegularHyperslab, axis: usize) -> Option<Vec<(u64, u64)>> {
    let (start, stride) = (*regular.start.get(axis)?, *regular.stride.get(axis)?);
    let (count, block) = (*regular.count.get(axis)?, *regular.block.get(axis)?);
    match (count, block) {
        (1, UNLIMITED) => Some(vec![(start, UNLIMITED - start)]),
        (UNLIMITED, block) if block == stride => Some(vec![(start, UNLIMITED - start)]),
        (1, block) => Some(vec![(start, block)]),
        (count, block) if block == stride => Some(vec![(start, count.checked_mul(block)?)]),
        (count, block) if count as usize <= MAX_PIECES => {
            let piece = |number: u64| {
                let at = number.checked_mul(stride)?.checked_add(start)?;
                Some((at, block))
            };
            (0..count).map(piece).collect()
        }
        _ => None,
    }
}

/// Blocks that are all combinations of what they have along the axes, as HDF5 lists those of a
/// regular selection.
fn product(blocks: &[HyperslabBlock], lead: usize) -> Option<SelectedAxes> {
    let mut axes: [BTreeSet<(u64, u64)>; 3] = Default::default();
    if lead == 0 {
        axes[0].insert((0, 1));
    }
    for block in blocks {
        for axis in 0..lead + 2 {
            let (start, end) = (*block.start.get(axis)?, *block.end.get(axis)?);
            let count = end.checked_sub(start)?.checked_add(1)?;
            start.checked_add(count)?;
            axes[axis + 1 - lead].insert((start, count));
        }
    }
    let all = axes
        .iter()
        .try_fold(1usize, |all, axis| all.checked_mul(axis.len()))?;
    (all == blocks.len()).then(|| axes.map(|axis| axis.into_iter().collect()))
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
