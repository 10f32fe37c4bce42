//! What runs in the worker process of a training job (`nodectl train-worker`): the loop, and what
//! it leaves.
//!
//! | file | owns |
//! |---|---|
//! | `worker` | a plan and its task: what is read, trained and written |
//! | `training` | the loop over epochs and steps of a worker that trains alone |
//! | `together` | that of one of several workers |
//! | `streaming` | outer steps of fragments while a worker goes on: when, and how they are mixed |
//! | `passes` | passes over samples, which both have |
//! | `history` | what was found so far, as sums that workers share and checkpoints have |
//! | `totals` | losses and metrics summed up, the confusion matrix |
//! | `outputs` | metrics, events and lines of a run as it goes on; its files at the end |
//! | `checkpoints` | those of a worker that trains alone: when one is due, the way to the node that keeps them |
//! | `tensorboard` | event files |

mod checkpoints;
mod history;
mod outputs;
mod passes;
mod streaming;
mod tensorboard;
#[cfg(test)]
mod tests;
mod together;
mod totals;
mod training;
mod worker;

pub use outputs::FILES;
pub use streaming::{mixed, moved};
pub use worker::WORKER_FILE;

use std::process::ExitCode;

/// The body of the hidden `nodectl train-worker`.
pub fn main() -> ExitCode {
    nodectl_builtin::serve::<worker::TrainWorker>()
}
