//! `kind = "kernel"`: a compute shader over an index space, cut into tiles. Owns the meaning of its
//! keys, the chain of jobs that it becomes and what runs in their workers; shaders themselves are
//! `gpu`'s. Start reading at `plan`.
//!
//! | file | owns |
//! |---|---|
//! | `plan` | what the job file becomes and workers run; the chain of jobs |
//! | `resolve` | a plan with the parameters of one set in it |
//! | `tiles` | the cutting of a space |
//! | `run/` | what runs in the worker processes |
//! | `load` | the bytes of a binding, from files or generated |
//! | `random` | counter-based random numbers |
//! | `job` | the job file's keys, put together to a plan |
//! | `program` | the shader that it names |
//! | `values` | numbers, or parameters in their place |
//! | `inputs`, `outputs`, `uniforms`, `iterate` | the tables of the same names |
//! | `check` | every parameter set, and every array's header, before anything is sent |
//! | `tiling` | how this job is cut into tiles, and what these leave for the next round |
//! | `cut` | how large tiles are |
//! | `interface` | what a job file's shader binds, for programs that write job files |
//! | `chain` | the jobs that carry a plan out |

mod chain;
mod check;
mod cut;
mod inputs;
mod interface;
mod iterate;
mod job;
pub mod load;
mod outputs;
pub mod plan;
mod program;
mod random;
mod resolve;
pub mod run;
#[cfg(test)]
mod tests;
pub mod tiles;
mod tiling;
mod uniforms;
mod values;

pub use interface::{Interface, InterfaceArray, interface};
pub use job::{KEYS, plan};
pub use plan::KernelPlan;
pub use resolve::{
    GeneratedSource, Number, Resolved, ResolvedArray, ResolvedContent, ResolvedSource,
};
