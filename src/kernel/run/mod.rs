//! What runs in the worker processes of kernel jobs (`nodectl kernel-worker`): tiles on a device,
//! parts put together.
//!
//! | file | owns |
//! |---|---|
//! | `worker` | a plan and its tasks: what is read, run and written |
//! | `kernels`, `fit` | the plan's shader, compiled for that device, if it fits |
//! | `tile` | a tile: its slabs, its arrays |
//! | `piece` | cells that are computed together: buffers, recordings, steps |
//! | `pace`, `clock` | how much is submitted at once, how long it took |
//! | `inputs` | what a task's arrays begin with |
//! | `parts`, `fold`, `assemble` | what tiles leave, and how it becomes the outputs |

mod assemble;
mod clock;
mod fit;
mod fold;
mod inputs;
mod kernels;
mod pace;
mod parts;
mod piece;
#[cfg(test)]
mod tests;
mod tile;
mod worker;

use std::process::ExitCode;

/// The body of the hidden `nodectl kernel-worker`.
pub fn main() -> ExitCode {
    nodectl_builtin::serve::<worker::KernelWorker>()
}
