//! What comes of a dataset: one NeXus file with a pattern a frame and their mean, a picture of all
//! patterns, a table and a plot of the mean, its peaks.
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
//! | `preview` | all this in a few numbers, for whoever watches |

pub mod calibrant;
mod finished;
mod heatmap;
pub mod nexus;
mod peaks;
mod plot;
mod preview;
#[cfg(test)]
mod tests;
mod total;

pub use calibrant::Calibrant;
pub use finished::finished;
pub use heatmap::HeatMap;
pub use nexus::{FileMetadata, NexusFile};
pub use peaks::{Peak, peaks, table};
pub use plot::svg;
pub use preview::Preview;
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
    /// Frames that have no patterns: theirs are NaN.
    pub bad: Vec<BadFrames>,
}

/// Frames that follow each other, and why they have no patterns.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BadFrames {
    pub first: u64,
    pub frames: u64,
    pub why: String,
}

impl BadFrames {
    /// In order, those that follow each other for the same reason as one.
    pub fn joined(mut all: Vec<Self>) -> Vec<Self> {
        all.sort_by_key(|bad| bad.first);
        let mut joined: Vec<Self> = Vec::new();
        for bad in all {
            match joined.last_mut() {
                Some(last) if last.first + last.frames == bad.first && last.why == bad.why => {
                    last.frames += bad.frames;
                }
                _ => joined.push(bad),
            }
        }
        joined
    }

    /// Which frames, for people.
    pub fn listed(all: &[Self]) -> String {
        const LISTED: usize = 8;
        let one = |bad: &Self| match bad.frames {
            1 => bad.first.to_string(),
            frames => format!("{}-{}", bad.first, bad.first + frames - 1),
        };
        let mut listed: Vec<String> = all.iter().take(LISTED).map(one).collect();
        if all.len() > LISTED {
            listed.push("…".into());
        }
        format!("bad frames: {}", listed.join(", "))
    }
}

/// Patterns of consecutive frames in one region. `intensity` and `sigma` are [frames, bins]; the
/// sums are over the frames.
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
