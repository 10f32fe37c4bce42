//! Parts: what the tiles of a stage leave for the stage after it. Found by their task's number, put
//! together by their cells.

use crate::{
    KernelPlan,
    plan::part_file,
    tiles::{self, Cells},
};
use nodectl_formats::{Array, ArrayError, ArrayLocation, Info, copy_box};
use std::path::PathBuf;

/// The parts of one binding, of one parameter set.
pub struct BindingParts<'a> {
    pub plan: &'a KernelPlan,
    pub space: [u32; 3],
    /// The directory with the results of the stage before.
    pub from: PathBuf,
    /// The number of the parameter set.
    pub set: u64,
    pub binding: &'a str,
}

/// Why parts do not make an array.
#[derive(Debug, thiserror::Error)]
pub enum PartsError {
    #[error(transparent)]
    Array(#[from] ArrayError),
    #[error("the part of tile {tile} is {found:?}, and its cells are {expected:?}")]
    Shape {
        tile: u32,
        found: Vec<u64>,
        expected: Vec<u64>,
    },
    #[error("parts of {0:?} are too many to be put together here")]
    TooLarge(Vec<u64>),
}

impl BindingParts<'_> {
    pub fn location(&self, tile: u32) -> ArrayLocation {
        let task = self.set * u64::from(self.plan.tile_count()) + u64::from(tile);
        ArrayLocation::new(
            self.from
                .join(task.to_string())
                .join(part_file(self.binding)),
        )
    }

    /// Type and axes of the whole array, as the first part tells them.
    pub fn info(&self) -> Result<Info, PartsError> {
        let first = self.location(0).inspect()?;
        let whole = Cells {
            origin: [0; 3],
            size: self.space,
        };
        let (_, mut shape) = whole.axes(self.plan.dimensions);
        shape.extend(first.shape.get(self.plan.dimensions..).unwrap_or_default());
        Ok(Info {
            scalar: first.scalar,
            shape,
        })
    }

    /// What the parts hold of `cells`.
    pub fn put_together(&self, cells: &Cells) -> Result<Array, PartsError> {
        let whole = self.info()?;
        let dimensions = self.plan.dimensions;
        let per_cell = &whole.shape[dimensions..];
        let over = |cells: &Cells| [&cells.axes(dimensions).1, per_cell].concat();
        let info = Info {
            scalar: whole.scalar,
            shape: over(cells),
        };
        let mut array = Array::zeros(info.clone()).ok_or(PartsError::TooLarge(info.shape))?;
        for tile in 0..self.plan.tile_count() {
            let own = tiles::tile(self.space, self.plan.grid, [0; 3], tile).own;
            let Some(both) = own.overlap(cells) else {
                continue;
            };
            let location = self.location(tile);
            let found = location.inspect()?.shape;
            if found != over(&own) {
                return Err(PartsError::Shape {
                    tile,
                    found,
                    expected: over(&own),
                });
            }
            let start = |of: &Cells| {
                let starts = both
                    .axes(dimensions)
                    .0
                    .into_iter()
                    .zip(of.axes(dimensions).0);
                let starts: Vec<u64> = starts.map(|(at, base)| at - base).collect();
                [&starts[..], &vec![0; per_cell.len()]].concat()
            };
            let block = location.read_block(&start(&own), &over(&both))?;
            copy_box(
                &block,
                &vec![0; block.info.shape.len()],
                &mut array,
                &start(cells),
                &over(&both),
            );
        }
        Ok(array)
    }
}
