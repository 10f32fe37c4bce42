//! The cutting of an index space into tiles. Pure arithmetic; axes are x, y, z throughout.

/// A box of cells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cells {
    /// The first cell along x, y and z.
    pub origin: [u32; 3],
    /// Cells along x, y and z.
    pub size: [u32; 3],
}

/// One tile of a space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tile {
    /// The cells that are this tile's alone: what its parts hold.
    pub own: Cells,
    /// The cells of the tile and those that they depend on: what its task computes.
    pub wide: Cells,
}

/// Tile `index` of a space that is cut `grid` times along each axis, x fastest: along an axis of n
/// cells tile i of g has cells ⌊in/g⌋ to ⌊(i+1)n/g⌋. `reach` is how far the cells' values depend on
/// others: halo times steps.
///
/// # Panics
/// If `index` is not below the product of `grid`.
pub fn tile(space: [u32; 3], grid: [u32; 3], reach: [u32; 3], index: u32) -> Tile {
    assert!(
        u64::from(index) < grid.iter().map(|cuts| u64::from(*cuts)).product(),
        "tile {index} of {grid:?}"
    );
    let at = [
        index % grid[0],
        index / grid[0] % grid[1],
        index / grid[0] / grid[1],
    ];
    let edge = |axis: usize, cut: u32| {
        (u64::from(cut) * u64::from(space[axis]) / u64::from(grid[axis])) as u32
    };
    let (mut own, mut wide) = (
        Cells {
            origin: [0; 3],
            size: [0; 3],
        },
        Cells {
            origin: [0; 3],
            size: [0; 3],
        },
    );
    for axis in 0..3 {
        let (low, high) = (edge(axis, at[axis]), edge(axis, at[axis] + 1));
        own.origin[axis] = low;
        own.size[axis] = high - low;
        wide.origin[axis] = low.saturating_sub(reach[axis]);
        wide.size[axis] = high.saturating_add(reach[axis]).min(space[axis]) - wide.origin[axis];
    }
    Tile { own, wide }
}

impl Cells {
    pub fn count(&self) -> u64 {
        self.size.iter().map(|size| u64::from(*size)).product()
    }

    /// The cells in both; None where there are none.
    pub fn overlap(&self, other: &Cells) -> Option<Cells> {
        let mut both = Cells {
            origin: [0; 3],
            size: [0; 3],
        };
        for axis in 0..3 {
            let end = |cells: &Cells| u64::from(cells.origin[axis]) + u64::from(cells.size[axis]);
            let low = self.origin[axis].max(other.origin[axis]);
            let high = end(self).min(end(other));
            both.origin[axis] = low;
            both.size[axis] = high.checked_sub(u64::from(low)).filter(|size| *size > 0)? as u32;
        }
        Some(both)
    }

    /// The box in an array's axes: start and shape, the last of `dimensions` axes being x.
    pub fn axes(&self, dimensions: usize) -> (Vec<u64>, Vec<u64>) {
        let reversed = |extents: [u32; 3]| {
            extents[..dimensions]
                .iter()
                .rev()
                .map(|n| u64::from(*n))
                .collect()
        };
        (reversed(self.origin), reversed(self.size))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn spaces() -> impl Strategy<Value = ([u32; 3], [u32; 3], [u32; 3])> {
        let axis = (1u32..12).prop_flat_map(|space| (Just(space), 1..=space, 0u32..4));
        [axis.clone(), axis.clone(), axis]
            .prop_map(|axes| (axes.map(|a| a.0), axes.map(|a| a.1), axes.map(|a| a.2)))
    }

    proptest! {
        #[test]
        fn tiles_cover_the_space_once_and_their_halos_stay_inside((space, grid, reach) in spaces()) {
            let index = |cell: [u32; 3]| ((cell[2] * space[1] + cell[1]) * space[0] + cell[0]) as usize;
            let mut seen = vec![0; (space[0] * space[1] * space[2]) as usize];
            for number in 0..grid.iter().product() {
                let Tile { own, wide } = tile(space, grid, reach, number);
                prop_assert!(own.count() > 0);
                for axis in 0..3 {
                    prop_assert_eq!(wide.origin[axis], own.origin[axis].saturating_sub(reach[axis]));
                    let end = (own.origin[axis] + own.size[axis] + reach[axis]).min(space[axis]);
                    prop_assert_eq!(wide.origin[axis] + wide.size[axis], end);
                }
                prop_assert_eq!(own.overlap(&wide), Some(own));
                for z in 0..own.size[2] { for y in 0..own.size[1] { for x in 0..own.size[0] {
                    seen[index([own.origin[0] + x, own.origin[1] + y, own.origin[2] + z])] += 1;
                }}}
            }
            prop_assert!(seen.iter().all(|times| *times == 1));
        }

        #[test]
        fn tiles_differ_by_a_cell_at_most((space, grid, _) in spaces()) {
            for axis in 0..3 {
                let sizes = (0..grid.iter().product()).map(|number| tile(space, grid, [0; 3], number).own.size[axis]);
                let (least, most) = sizes.fold((u32::MAX, 0), |(least, most), size| (least.min(size), most.max(size)));
                prop_assert!(most - least <= 1 && most == space[axis].div_ceil(grid[axis]));
            }
        }
    }

    #[test]
    fn the_greatest_space_does_not_overflow() {
        let last = tile(
            [u32::MAX, 1, 1],
            [1 << 20, 1, 1],
            [u32::MAX, 0, 0],
            (1 << 20) - 1,
        );
        assert_eq!(last.own.origin[0] + last.own.size[0], u32::MAX);
        assert_eq!(
            last.wide,
            Cells {
                origin: [0; 3],
                size: [u32::MAX, 1, 1]
            }
        );
        assert_eq!(
            last.own.axes(2),
            (
                vec![0, u64::from(last.own.origin[0])],
                vec![1, u64::from(last.own.size[0])]
            )
        );
    }
}
