//! `kind = "kernel"`: a compute shader over an index space, cut into tiles.
//!
//! | file | owns |
//! |---|---|
//! | `plan` | what the job file becomes and workers run; the chain of jobs |
//! | `resolve` | a plan with the parameters of one set in it |
//! | `tiles` | the cutting of a space |
//! | `run/` | what runs in the worker processes |

pub mod plan;
mod resolve;
pub mod run;
pub mod tiles;

pub use plan::KernelPlan;
pub use resolve::{Number, Resolved, ResolvedArray, ResolvedContent, ResolvedSource};
