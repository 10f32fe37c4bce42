//! What users ask the cluster to compute: the job file and its kinds.
//!
//! | file | owns |
//! |---|---|
//! | `arrays` | arrays in files: `.npy`, `.npz`, raw, PNG, HDF5 |
//! | `builtin` | the process of a worker that is a part of this program |
//! | `files` | files that users name, of which only plain ones are opened |
//! | `job_file` | a TOML file to planned jobs, with errors that show the place |
//! | `map` | `kind = "map"`: a command over parameter sets |
//! | `integrate` | `kind = "integrate"`: detector frames to diffraction patterns |
//! | `kernel` | `kind = "kernel"`: a compute shader over an index space |
//! | `planned` | a job before it is submitted: uploads to manifest to specification |
//! | `templates` | the job files that `nodectl init` writes |
//! | `train` | `kind = "train"`: a model, trained on data |

pub mod arrays;
pub mod builtin;
mod files;
pub mod integrate;
pub mod job_file;
pub mod kernel;
mod map;
mod planned;
pub mod templates;
pub mod train;

pub use map::load_rows;
pub use planned::{Delivery, PlannedJob, Submission, Upload, UploadSource};
