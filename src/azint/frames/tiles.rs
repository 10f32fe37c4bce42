//! Frames that are put together from rectangles: which of them come from which source, for which
//! frames. Pure.

use std::ops::Range;

/// The most rectangles of a frame.
const MAX_TILES: usize = 1024;
/// The most rectangles of all runs of a dataset.
pub(super) const MAX_PIECES: usize = 1 << 20;

/// Some rows and columns of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Rectangle {
    /// Row and column of its first pixel.
    pub(super) first: [u64; 2],
    /// How many rows and columns it has.
    pub(super) shape: [u64; 2],
}

impl Rectangle {
    pub(super) fn whole(shape: [u64; 2]) -> Self {
        Self {
            first: [0; 2],
            shape,
        }
    }

    fn pixels(&self) -> u64 {
        self.shape[0].saturating_mul(self.shape[1])
    }

    /// The pixels of both, if there are any.
    fn intersection(&self, other: &Self) -> Option<Self> {
        let end = |of: &Self, axis: usize| of.first[axis].saturating_add(of.shape[axis]);
        let first = [0, 1].map(|axis| self.first[axis].max(other.first[axis]));
        let ends = [0, 1].map(|axis| end(self, axis).min(end(other, axis)));
        let shape = [
            ends[0].checked_sub(first[0])?,
            ends[1].checked_sub(first[1])?,
        ];
        (shape[0] > 0 && shape[1] > 0).then_some(Self { first, shape })
    }

    /// Whether all of it lies in frames of this shape.
    pub(super) fn is_within(&self, shape: [u64; 2]) -> bool {
        (0..2).all(|axis| {
            let end = self.first[axis].checked_add(self.shape[axis]);
            end.is_some_and(|end| end <= shape[axis])
        })
    }
}

/// Where the pixels of a rectangle come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TileOrigin {
    /// A source, from its frame `start` on: the rectangle of its frames that begins at `first`.
    Source {
        source: usize,
        start: u64,
        first: [u64; 2],
    },
    /// All have this number, the bits of a 64-bit float.
    Fill(u64),
    /// No source has them.
    Nowhere,
}

/// A rectangle of a run's frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FrameTile {
    pub(super) place: Rectangle,
    pub(super) origin: TileOrigin,
}

impl FrameTile {
    /// Where the tile's pixels come from so many frames later.
    fn later(self, frames: u64) -> Self {
        let origin = match self.origin {
            TileOrigin::Source {
                source,
                start,
                first,
            } => TileOrigin::Source {
                source,
                start: start + frames,
                first,
            },
            other => other,
        };
        Self { origin, ..self }
    }
}

/// Frames `first .. first + count`, which are put together in the same way. Invariant: `tiles` do
/// not overlap, and cover the frames once gaps are filled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FrameRun {
    pub(super) first: u64,
    pub(super) count: u64,
    pub(super) tiles: Vec<FrameTile>,
}

impl FrameRun {
    /// Adds a run that follows this one, if it is put together in the same way.
    fn join(&mut self, next: &Self) -> bool {
        let goes_on = self.first + self.count == next.first
            && self.tiles.len() == next.tiles.len()
            && self
                .tiles
                .iter()
                .zip(&next.tiles)
                .all(|(tile, next)| tile.later(self.count) == *next);
        if goes_on {
            self.count += next.count;
        }
        goes_on
    }

    /// Adds a run to others, the last of which ends where it begins.
    pub(super) fn push(self, runs: &mut Vec<Self>) {
        let is_joined = runs.last_mut().is_some_and(|last| last.join(&self));
        if !is_joined && self.count > 0 {
            runs.push(self);
        }
    }

    fn has_gaps(&self, shape: [u64; 2]) -> bool {
        let covered: u64 = self.tiles.iter().map(|tile| tile.place.pixels()).sum();
        covered < Rectangle::whole(shape).pixels()
    }
}

/// A dataset's frames: `runs` follow each other, and are all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FrameLayout {
    pub(super) frames: u64,
    pub(super) shape: [u64; 2],
    pub(super) runs: Vec<FrameRun>,
}

/// A rectangle of frames `first .. first + count`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PlacedTile {
    pub(super) first: u64,
    pub(super) count: u64,
    pub(super) tile: FrameTile,
}

impl FrameLayout {
    /// All frames of a source.
    pub(super) fn of_source(source: usize, frames: u64, shape: [u64; 2]) -> Self {
        let origin = TileOrigin::Source {
            source,
            start: 0,
            first: [0; 2],
        };
        let place = Rectangle::whole(shape);
        Self {
            frames,
            shape,
            runs: vec![FrameRun {
                first: 0,
                count: frames,
                tiles: vec![FrameTile { place, origin }],
            }],
        }
    }

    /// What a rectangle of some of its frames is made of: frames are counted from the first of
    /// them, places from the rectangle's first pixel.
    pub(super) fn cut(&self, frames: &Range<u64>, rectangle: &Rectangle) -> Vec<PlacedTile> {
        let mut cut = Vec::new();
        let begin = self
            .runs
            .partition_point(|run| run.first + run.count <= frames.start);
        for run in self.runs[begin..]
            .iter()
            .take_while(|run| run.first < frames.end)
        {
            let first = run.first.max(frames.start);
            let count = (run.first + run.count).min(frames.end) - first;
            for tile in &run.tiles {
                let Some(common) = tile.place.intersection(rectangle) else {
                    continue;
                };
                let within = |from: [u64; 2]| [0, 1].map(|axis| common.first[axis] - from[axis]);
                let mut tile = tile.later(first - run.first);
                if let TileOrigin::Source { first, .. } = &mut tile.origin {
                    let moved = within(tile.place.first);
                    *first = [first[0] + moved[0], first[1] + moved[1]];
                }
                tile.place = Rectangle {
                    first: within(rectangle.first),
                    shape: common.shape,
                };
                cut.push(PlacedTile {
                    first: first - frames.start,
                    count,
                    tile,
                });
            }
        }
        cut
    }

    /// So many frames of this shape, of rectangles in any order. The error is a sentence.
    pub(super) fn assemble(
        mut placed: Vec<PlacedTile>,
        frames: u64,
        shape: [u64; 2],
    ) -> Result<Self, String> {
        let ends = placed
            .iter()
            .flat_map(|tile| [tile.first, tile.first.saturating_add(tile.count)]);
        let mut bounds: Vec<u64> = ends.chain([0, frames]).filter(|at| *at <= frames).collect();
        bounds.sort_unstable();
        bounds.dedup();
        placed.sort_by_key(|tile| tile.first);
        let mut waiting = placed.into_iter().peekable();
        let (mut active, mut runs): (Vec<PlacedTile>, Vec<FrameRun>) = (Vec::new(), Vec::new());
        let (mut pieces, mut places) = (0, Vec::new());
        for bound in bounds.windows(2) {
            let (first, count) = (bound[0], bound[1] - bound[0]);
            active.retain(|tile| tile.first.saturating_add(tile.count) > first);
            while let Some(tile) = waiting.next_if(|tile| tile.first <= first) {
                active.push(tile);
            }
            pieces += active.len();
            if active.len() > MAX_TILES || pieces > MAX_PIECES {
                return Err(format!(
                    "it has more than {MAX_PIECES} pieces, or more than {MAX_TILES} in a frame"
                ));
            }
            let mut tiles: Vec<FrameTile> = active
                .iter()
                .map(|tile| tile.tile.later(first - tile.first))
                .collect();
            let found: Vec<Rectangle> = tiles.iter().map(|tile| tile.place).collect();
            if found != places && overlap(&found) {
                return Err(format!("pixels of its frame {first} have two sources"));
            }
            places = found;
            // So that runs that are alike look alike.
            tiles.sort_by_key(|tile| tile.place.first);
            if tiles.is_empty() {
                tiles.push(FrameTile {
                    place: Rectangle::whole(shape),
                    origin: TileOrigin::Nowhere,
                });
            }
            FrameRun {
                first,
                count,
                tiles,
            }
            .push(&mut runs);
        }
        Ok(Self {
            frames,
            shape,
            runs,
        })
    }

    pub(super) fn has_gaps(&self) -> bool {
        self.runs.iter().any(|run| run.has_gaps(self.shape))
    }

    /// Gives the pixels that no rectangle has this number.
    pub(super) fn fill_gaps(&mut self, number: f64) {
        let origin = TileOrigin::Fill(number.to_bits());
        let shape = self.shape;
        for run in self.runs.iter_mut().filter(|run| run.has_gaps(shape)) {
            let fill = |place| FrameTile { place, origin };
            run.tiles
                .extend(gaps(&run.tiles, shape).into_iter().map(fill));
        }
    }
}

/// What rectangles that do not overlap leave of a frame: in each band of rows in which the same
/// ones lie, what is between them.
fn gaps(tiles: &[FrameTile], shape: [u64; 2]) -> Vec<Rectangle> {
    let end = |place: &Rectangle, axis: usize| place.first[axis] + place.shape[axis];
    let mut places: Vec<Rectangle> = tiles.iter().map(|tile| tile.place).collect();
    places.sort_by_key(|place| place.first[1]);
    let ends = places
        .iter()
        .flat_map(|place| [place.first[0], end(place, 0)]);
    let mut bounds: Vec<u64> = ends.chain([0, shape[0]]).collect();
    bounds.sort_unstable();
    bounds.dedup();
    let mut gaps = Vec::new();
    for band in bounds.windows(2) {
        let mut column = 0;
        let mut add = |from: u64, to: u64| {
            if from < to {
                gaps.push(Rectangle {
                    first: [band[0], from],
                    shape: [band[1] - band[0], to - from],
                });
            }
        };
        let is_here = |place: &&Rectangle| place.first[0] <= band[0] && end(place, 0) >= band[1];
        for place in places.iter().filter(is_here) {
            add(column, place.first[1]);
            column = end(place, 1);
        }
        add(column, shape[1]);
    }
    gaps
}

fn overlap(places: &[Rectangle]) -> bool {
    places.iter().enumerate().any(|(at, place)| {
        let mut others = places[at + 1..].iter();
        others.any(|other| place.intersection(other).is_some())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tile(first: [u64; 2], shape: [u64; 2], source: usize, start: u64) -> FrameTile {
        FrameTile {
            place: Rectangle { first, shape },
            origin: TileOrigin::Source {
                source,
                start,
                first: [0; 2],
            },
        }
    }

    fn placed(first: u64, count: u64, tile: FrameTile) -> PlacedTile {
        PlacedTile { first, count, tile }
    }

    #[test]
    fn frames_of_two_halves_are_one_run_where_both_go_on() {
        let (left, right) = (tile([0, 0], [4, 3], 0, 10), tile([0, 3], [4, 3], 1, 0));
        let pieces = vec![
            placed(0, 2, left),
            placed(2, 3, left.later(2)),
            placed(0, 5, right),
        ];
        let layout = FrameLayout::assemble(pieces, 5, [4, 6]).unwrap();
        assert_eq!(layout.runs.len(), 1);
        assert_eq!(layout.runs[0].tiles, [left, right]);
        assert!(!layout.has_gaps());
        // The second half ends before the first.
        let pieces = vec![placed(0, 5, left), placed(0, 3, right)];
        let mut layout = FrameLayout::assemble(pieces, 5, [4, 6]).unwrap();
        assert!(layout.has_gaps());
        layout.fill_gaps(7.0);
        assert_eq!(layout.runs[1].first, 3);
        let fill = TileOrigin::Fill(7.0f64.to_bits());
        assert_eq!(layout.runs[1].tiles[1].place, right.place);
        let origins = layout.runs[1].tiles.iter().map(|tile| tile.origin);
        assert_eq!(origins.collect::<Vec<_>>(), [left.later(3).origin, fill]);
    }

    #[test]
    fn frames_without_a_source_are_nowhere_and_pixels_have_one_at_most() {
        let half = tile([0, 0], [4, 3], 0, 0);
        let layout = FrameLayout::assemble(vec![placed(1, 1, half)], 3, [4, 6]).unwrap();
        let is_nowhere = |run: &FrameRun| run.tiles[0].origin == TileOrigin::Nowhere;
        let nowhere: Vec<bool> = layout.runs.iter().map(is_nowhere).collect();
        assert_eq!(nowhere, [true, false, true]);
        let other = tile([3, 2], [1, 1], 1, 0);
        let pieces = vec![placed(0, 3, half), placed(2, 1, other)];
        let told = FrameLayout::assemble(pieces, 3, [4, 6]).unwrap_err();
        assert_eq!(told, "pixels of its frame 2 have two sources");
    }

    #[test]
    fn gaps_are_what_is_left_and_nothing_else() {
        let tiles = [
            tile([0, 0], [2, 3], 0, 0),
            tile([0, 4], [3, 2], 1, 0),
            tile([4, 1], [1, 1], 2, 0),
        ];
        let mut seen = [[0; 6]; 5];
        let places = tiles.iter().map(|tile| tile.place);
        for place in places.chain(gaps(&tiles, [5, 6])) {
            for row in 0..place.shape[0] {
                for column in 0..place.shape[1] {
                    seen[(place.first[0] + row) as usize][(place.first[1] + column) as usize] += 1;
                }
            }
        }
        assert_eq!(seen, [[1; 6]; 5]);
    }

    /// A virtual dataset of parts of another one.
    #[test]
    fn a_part_of_a_layout_is_counted_from_its_own_first_pixel() {
        let pieces = vec![
            placed(0, 9, tile([0, 0], [4, 3], 0, 100)),
            placed(0, 9, tile([0, 3], [4, 3], 1, 0)),
        ];
        let layout = FrameLayout::assemble(pieces, 9, [4, 6]).unwrap();
        let part = Rectangle {
            first: [1, 2],
            shape: [2, 3],
        };
        let cut = layout.cut(&(4..6), &part);
        let origin = |source, start, first| TileOrigin::Source {
            source,
            start,
            first,
        };
        let expected = [
            ([0, 0], [2, 1], origin(0, 104, [1, 2])),
            ([0, 1], [2, 2], origin(1, 4, [1, 0])),
        ]
        .map(|(first, shape, origin)| {
            let place = Rectangle { first, shape };
            placed(0, 2, FrameTile { place, origin })
        });
        assert_eq!(cut, expected);
    }
}
