//! The parameter sets that a job runs over.

use super::{Params, RowSet, SearchSpace, Value, limits};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// Which parameter sets a job runs over.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum ParamSpace {
    /// One task without parameters.
    Single,
    /// The cartesian product; the last axis varies fastest.
    Grid(Vec<(String, Vec<Value>)>),
    /// Explicit rows. `cells` holds them one after the other, each `columns.len()` long (never
    /// zero).
    Rows {
        columns: Vec<String>,
        cells: Vec<Value>,
    },
    /// The rows of tasks of several kinds, one kind after the other.
    Parts(Vec<RowSet>),
    /// Those that are drawn while the job runs.
    Search(SearchSpace),
    /// Those that are added while the job runs, each of which gives these parameters. The job is
    /// *open*.
    Open(Vec<String>),
}

impl ParamSpace {
    /// How many parameter sets there are; of an open job, how many there can be.
    pub fn len(&self) -> u64 {
        match self {
            Self::Single => 1,
            Self::Grid(axes) => axes.iter().fold(1u64, |product, (_, values)| {
                product.saturating_mul(values.len() as u64)
            }),
            Self::Rows { columns, cells } => (cells.len() / columns.len().max(1)) as u64,
            Self::Parts(parts) => parts.iter().map(|part| u64::from(part.rows)).sum(),
            Self::Search(space) => u64::from(space.count),
            Self::Open(_) => u64::from(limits::MAX_OPEN_TASKS),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Parameter set `index`, which is less than `len()`; empty where it is drawn or added while
    /// the job runs.
    pub fn get(&self, index: u64) -> Params {
        match self {
            Self::Single | Self::Search(_) | Self::Open(_) => Vec::new(),
            Self::Grid(axes) => grid_point(axes, index),
            Self::Rows { columns, cells } => {
                let start = index as usize * columns.len();
                let row = &cells[start..start + columns.len()];
                columns.iter().cloned().zip(row.iter().cloned()).collect()
            }
            Self::Parts(parts) => {
                let mut row = index;
                let found = parts.iter().find(|part| {
                    let is_here = row < u64::from(part.rows);
                    row -= if is_here { 0 } else { u64::from(part.rows) };
                    is_here
                });
                found.map(|part| part.get(row)).unwrap_or_default()
            }
        }
    }

    /// The names of the parameters, in order.
    pub fn names(&self) -> Vec<&str> {
        match self {
            Self::Single => Vec::new(),
            Self::Grid(axes) => axes.iter().map(|(name, _)| name.as_str()).collect(),
            Self::Rows { columns, .. } | Self::Open(columns) => {
                columns.iter().map(String::as_str).collect()
            }
            Self::Parts(parts) => {
                let mut seen = BTreeSet::new();
                let names = parts.iter().flat_map(|part| &part.columns);
                names
                    .map(String::as_str)
                    .filter(|name| seen.insert(*name))
                    .collect()
            }
            Self::Search(space) => space.axes.iter().map(|(name, _)| name.as_str()).collect(),
        }
    }
}

fn grid_point(axes: &[(String, Vec<Value>)], mut index: u64) -> Params {
    let mut point: Params = Vec::with_capacity(axes.len());
    for (name, values) in axes.iter().rev() {
        let count = values.len() as u64;
        point.push((name.clone(), values[(index % count) as usize].clone()));
        index /= count;
    }
    point.reverse();
    point
}
