//! `kind = "integrate"`: stacks of detector frames to diffraction patterns. Owns the meaning of its
//! keys, detectors and geometry, reading and decoding of frames, their integration, and the files
//! that come of it. Start reading at `plan`; the numbers are in `engine`.
//!
//! | file | owns |
//! |---|---|
//! | `engine/` | geometry, sparse matrices and the integration of frames that are in memory |
//! | `decode/` | chunks of HDF5 datasets back to bytes |
//! | `frames/` | where the frames of a dataset lie; reading and decoding them |
//! | `arrays` | masks and monitors from files |
//! | `integrators` | the processor's and a GPU's, which share matrices and threads |
//! | `batch` | stored frames to patterns, strip by strip |
//! | `results/` | the files that come of a dataset |
//! | `plan` | what the job file becomes and workers run; the chain of jobs |
//! | `run/` | what runs in the worker processes |
//! | `job` | the job file's keys |
//! | `settings` | those that say how frames are integrated |
//! | `pyfai` | what pyFAI-integrate saves, as these |
//! | `datasets` | which files are integrated |
//! | `config` | the integrator's own configuration files |
//! | `counts` | how many threads a worker has and how many workers share a GPU: given or measured |
//! | `measure` | how many threads a worker should have |
//! | `sharing` | how many workers should share a GPU |
//! | `chain` | the jobs that carry a plan out |

mod arrays;
pub mod batch;
mod chain;
pub mod config;
mod counts;
mod datasets;
pub mod decode;
pub mod engine;
pub mod frames;
mod integrators;
mod job;
mod measure;
pub mod plan;
mod pyfai;
pub mod results;
pub mod run;
mod settings;
mod sharing;
#[cfg(test)]
mod tests;

pub use datasets::{files_below, is_data_file};
pub use job::{KEYS, plan};
pub use run::seen;
