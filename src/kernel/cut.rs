//! How large tiles are: several for each GPU that may be there, none larger than devices take.

use super::tiles;

/// What every Vulkan device binds as one storage buffer (`maxStorageBufferRange`).
pub(super) const STORAGE_BYTES: u64 = 128 << 20;
/// The most that a tile's own cells take on a device. Whole arrays come on top.
pub(super) const TILE_TOTAL_BYTES: u64 = 512 << 20;
/// What every device dispatches along an axis (`maxComputeWorkGroupCount`).
pub(super) const MAX_GROUPS: u32 = 65_535;
/// So many tasks keep a few dozen GPUs of different speeds busy to the end.
const WANTED_TASKS: u64 = 64;
/// Smaller tiles cost more in their task than in their cells.
const LEAST_CELLS: u64 = 1 << 18;
/// The part of a tile's extent that its halo may be, on either side, when rounds are chosen.
const HALO_SHARE: u32 = 8;
/// The most rounds of an iteration, since each is a job.
pub(super) const MAX_ROUNDS: u32 = 1000;

/// What is to be cut.
#[derive(Clone, Debug)]
pub(super) struct Demand {
    /// The greatest and the least extents of the space of any parameter set.
    pub(super) most: [u32; 3],
    pub(super) least: [u32; 3],
    /// Of each array that is cut, the bytes of a cell on the device.
    pub(super) cell_bytes: Vec<u64>,
    pub(super) parameter_sets: u64,
    pub(super) workgroup: [u32; 3],
    pub(super) halo: [u32; 3],
    /// How many steps there are, and at once where the job file says so.
    pub(super) steps: u32,
    pub(super) steps_per_round: Option<u32>,
}

/// How a space is cut, and how many steps a tile does by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cut {
    pub(super) grid: [u32; 3],
    pub(super) steps_per_round: u32,
}

impl Demand {
    /// The cut that the job file asks for by its largest tile. None where a space is too small for
    /// it.
    pub(super) fn by_tile(&self, tile: [u32; 3]) -> Option<Cut> {
        let grid: [u32; 3] = std::array::from_fn(|axis| self.most[axis].div_ceil(tile[axis]));
        (0..3)
            .all(|axis| grid[axis] <= self.least[axis])
            .then(|| self.cut(grid))
    }

    /// The cut that nobody chose: halves the longest extent until tiles are small enough. None if
    /// that cannot be.
    pub(super) fn choose(&self) -> Option<Cut> {
        let mut grid = [1u32; 3];
        loop {
            let fits = self.fits(self.cut(grid));
            let tasks = grid
                .iter()
                .map(|cuts| u64::from(*cuts))
                .product::<u64>()
                .saturating_mul(self.parameter_sets);
            let cells = self
                .size(grid)
                .iter()
                .map(|extent| u64::from(*extent))
                .product::<u64>();
            if fits && (tasks >= WANTED_TASKS || cells < 2 * LEAST_CELLS) {
                return Some(self.cut(grid));
            }
            let size = self.size(grid);
            // Of equal extents the slowest axis: rows stay whole, and files are read in longer
            // runs.
            let can_be_cut = |axis: &usize| size[*axis] > 1 && grid[*axis] < self.least[*axis];
            match (0..3)
                .filter(can_be_cut)
                .max_by_key(|axis| (size[*axis], *axis))
            {
                Some(axis) => grid[axis] = grid[axis].saturating_mul(2).min(self.least[axis]),
                None => return fits.then(|| self.cut(grid)),
            }
        }
    }

    /// The greatest extents of a tile's own cells.
    fn size(&self, grid: [u32; 3]) -> [u32; 3] {
        std::array::from_fn(|axis| self.most[axis].div_ceil(grid[axis]))
    }

    fn cut(&self, grid: [u32; 3]) -> Cut {
        let is_one = grid == [1; 3];
        let has_halo = (0..3).any(|axis| self.halo[axis] > 0 && grid[axis] > 1);
        let steps_per_round = match self.steps_per_round {
            _ if is_one || self.steps == 1 => self.steps,
            Some(steps) => steps.min(self.steps),
            None if !has_halo => self.steps,
            None => {
                let size = self.size(grid);
                let share = |axis: usize| size[axis] / HALO_SHARE / self.halo[axis];
                let reaching = (0..3).filter(|axis| self.halo[*axis] > 0 && grid[*axis] > 1);
                let share = reaching.map(share).min().unwrap_or(self.steps);
                share
                    .max(self.steps.div_ceil(MAX_ROUNDS))
                    .clamp(1, self.steps)
            }
        };
        Cut {
            grid,
            steps_per_round,
        }
    }

    /// Whether the largest tile is within what every device takes.
    pub(super) fn fits(&self, cut: Cut) -> bool {
        let reach = reach(self.halo, cut.steps_per_round);
        let middle: u32 = {
            let at: [u32; 3] = std::array::from_fn(|axis| cut.grid[axis] / 2);
            at[0] + cut.grid[0] * (at[1] + cut.grid[1] * at[2])
        };
        let wide = tiles::tile(self.most, cut.grid, reach, middle).wide;
        // One cell more along each axis: others may be larger by that.
        let extents: [u64; 3] = std::array::from_fn(|axis| {
            (u64::from(wide.size[axis]) + 1).min(u64::from(self.most[axis]))
        });
        let cells = extents
            .iter()
            .fold(1u64, |product, extent| product.saturating_mul(*extent));
        let groups = (0..3).all(|axis| {
            extents[axis].div_ceil(u64::from(self.workgroup[axis].max(1))) <= u64::from(MAX_GROUPS)
        });
        let each = self
            .cell_bytes
            .iter()
            .all(|bytes| bytes.saturating_mul(cells) <= STORAGE_BYTES);
        let total = self
            .cell_bytes
            .iter()
            .fold(0u64, |sum, bytes| sum.saturating_add(*bytes))
            .saturating_mul(cells);
        groups && each && total <= TILE_TOTAL_BYTES
    }
}

/// How far the cells of a tile look in all its steps.
pub(super) fn reach(halo: [u32; 3], steps: u32) -> [u32; 3] {
    halo.map(|cells| cells.saturating_mul(steps))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn demand() -> impl Strategy<Value = Demand> {
        let extents = prop::collection::vec(1u32..200_000, 3);
        let cells = prop::collection::vec(prop::sample::select(vec![4u64, 16, 64]), 1..4);
        (
            extents,
            cells,
            1u64..5000,
            0u32..3,
            1u32..5000,
            prop::option::of(1u32..8),
        )
            .prop_map(
                |(extents, cell_bytes, parameter_sets, halo, steps, steps_per_round)| {
                    let most = [extents[0], extents[1].min(5000), extents[2].min(300)];
                    let halo = [halo; 3];
                    Demand {
                        most,
                        least: most,
                        cell_bytes,
                        parameter_sets,
                        workgroup: [8, 8, 1],
                        halo,
                        steps,
                        steps_per_round,
                    }
                },
            )
    }

    proptest! {
        #[test]
        fn every_tile_is_within_the_budget(demand in demand(), picks in prop::collection::vec(any::<prop::sample::Index>(), 8)) {
            let Some(cut) = demand.choose() else { return Ok(()) };
            let count = cut.grid.iter().product::<u32>();
            for pick in picks {
                let index = pick.index(count as usize) as u32;
                let tile = tiles::tile(demand.most, cut.grid, reach(demand.halo, cut.steps_per_round), index);
                let total: u64 = demand.cell_bytes.iter().map(|bytes| bytes * tile.wide.count()).sum();
                prop_assert!(demand.cell_bytes.iter().all(|bytes| bytes * tile.wide.count() <= STORAGE_BYTES));
                prop_assert!(total <= TILE_TOTAL_BYTES);
                for axis in 0..3 {
                    prop_assert!(tile.wide.size[axis].div_ceil(demand.workgroup[axis]) <= MAX_GROUPS);
                }
            }
            prop_assert!(cut.steps_per_round >= 1 && cut.steps_per_round <= demand.steps);
        }

        #[test]
        fn a_wish_is_met((most, tile) in ([1u32..500, 1u32..500, 1u32..9], [1u32..600, 1u32..600, 1u32..9])) {
            let demand = Demand { most, least: most, cell_bytes: vec![4], parameter_sets: 1, workgroup: [8, 8, 1], halo: [0; 3], steps: 1, steps_per_round: None };
            let cut = demand.by_tile(tile).unwrap();
            for index in 0..cut.grid.iter().product::<u32>().min(50) {
                let size = tiles::tile(most, cut.grid, [0; 3], index).own.size;
                prop_assert!((0..3).all(|axis| size[axis] <= tile[axis]));
            }
        }
    }

    #[test]
    fn there_are_several_tiles_for_each_gpu_but_no_crumbs() {
        let demand = |most, parameter_sets| Demand {
            most,
            least: most,
            cell_bytes: vec![4],
            parameter_sets,
            workgroup: [8, 8, 1],
            halo: [0; 3],
            steps: 1,
            steps_per_round: None,
        };
        assert_eq!(demand([100, 100, 1], 1).choose().unwrap().grid, [1, 1, 1]);
        assert_eq!(demand([4096, 4096, 1], 1).choose().unwrap().grid, [8, 8, 1]);
        assert_eq!(
            demand([4096, 4096, 1], 64).choose().unwrap().grid,
            [1, 1, 1]
        );
        assert_eq!(demand([1024, 1024, 1], 1).choose().unwrap().grid, [2, 2, 1]);
        let iterated = Demand {
            halo: [1; 3],
            steps: 1000,
            ..demand([4096, 4096, 1], 1)
        };
        assert_eq!(
            iterated.choose().unwrap(),
            Cut {
                grid: [8, 8, 1],
                steps_per_round: 64
            }
        );
    }
}
