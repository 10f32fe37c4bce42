//! What comes of a dataset: one NeXus file with a pattern a frame and their mean, a picture of all
//! patterns, a table and a plot of the mean.
//!
//! | file | owns |
//! |---|---|
//! | `nexus` | the HDF5 file |
//! | `finished` | patterns read again from such a file |
//! | `total` | sums over all frames, and the mean pattern |
//! | `heatmap` | frames × radial position as an image |
//! | `plot` | the mean as SVG |
//! | `calibrant` | where the rings of known powders are |
//! | `peaks` | the peaks of a pattern |

pub mod calibrant;
mod finished;
mod heatmap;
pub mod nexus;
mod peaks;
mod plot;
#[cfg(test)]
mod tests;
mod total;

pub use calibrant::Calibrant;
pub use finished::finished;
pub use heatmap::HeatMap;
pub use nexus::{About, NexusFile};
pub use peaks::{Peak, peaks, table};
pub use plot::svg;
pub use total::Total;

use super::engine::Patterns;
use serde::{Deserialize, Serialize};

/// Patterns of consecutive frames in every region: what a task leaves and what files are written
/// from.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Part {
    pub first: u64,
    pub frames: u64,
    /// In the order of the settings' regions.
    pub regions: Vec<RegionPart>,
}

/// Those in one region. `intensity` and `sigma` are [frames, bins]; the sums are over the frames.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RegionPart {
    pub intensity: Vec<f32>,
    pub sigma: Option<Vec<f32>>,
    pub total: Total,
}

impl RegionPart {
    pub fn of(patterns: Patterns) -> Self {
        let mut total = Total::default();
        total.add(
            patterns.bins,
            &patterns.signal,
            &patterns.norm,
            patterns.variance.as_deref(),
        );
        Self {
            intensity: patterns.intensity,
            sigma: patterns.sigma,
            total,
        }
    }
}
