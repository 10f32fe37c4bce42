//! Azimuthal integration of frames that are in memory: what pyFAI's `integrate1d_ng` and
//! `integrate2d_ng` compute, with its conventions. Knows nothing of files of frames, jobs or
//! results.
//!
//! I = Σ c·(raw - dark) / Σ c·ω over the pixels of a bin, c being the share of the pixel in the bin
//! and ω = monitor · flat · polarization · solid angle · absorption. σ = √(Σ c²·variance) / Σ c·ω.
//!
//! | file | owns |
//! |---|---|
//! | `settings` | what users choose, as data |
//! | `poni` | `.poni` files |
//! | `geometry` | positions of pixels, and the corrections that follow from them |
//! | `parallax/` | where thick sensors see rays, and where those came in |
//! | `detectors/` | what is known of types of detectors |
//! | `units` | radial units |
//! | `images/` | masks, dark, flat, variance from files |
//! | `splitting/` | from positions to shares of pixels in bins |
//! | `matrix` | these shares, by pixels and by bins |
//! | `cache` | matrices on disk |
//! | `corrections` | which pixels count, and how much |
//! | `frames` | frames in memory, patterns |
//! | `integrator` | all of it put together |
//! | `cpu/`, `vulkan/` | the engines |
//! | `bins` | sums that need all pixels of a bin together: azimuthal errors, filters |
//! | `sort` | the order of equal values in quantiles |
//! | `errors` | what can be wrong |

mod bins;
mod cache;
mod corrections;
mod cpu;
pub mod detectors;
mod errors;
mod frames;
mod geometry;
mod images;
mod integrator;
mod matrix;
mod parallax;
mod poni;
mod settings;
mod sort;
mod splitting;
#[cfg(test)]
mod tests;
mod units;
mod vulkan;

pub use detectors::DetectorFile;
pub use errors::{ImageError, IntegrationError, IntegratorError};
pub use frames::{Axes, Frames, Patterns, Pixels};
pub use geometry::Geometry;
#[cfg(test)]
pub(super) use images::damage::damaged;
pub(super) use images::ending;
pub use images::{Image, Images, Mask};
pub use integrator::{
    ChunkDecoder, DeviceFrames, EngineChoice, Integrator, MAX_STRIPS, Options, Strips,
};
pub use parallax::Sensor;
pub use settings::{
    ErrorModel, Filter, IntegrationSettings, MAX_BINS, RangeOver, Region, Splitting,
};
pub use units::Unit;
