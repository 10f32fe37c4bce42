//! What runs in the worker process of a training job (`nodectl train-worker`): the loop, and what it leaves.
//!
//! | file | owns |
//! |---|---|
//! | `worker` | a plan and its task: what is read, trained and written |
//! | `training` | the loop over epochs and steps of a worker that trains alone |
//! | `together` | that of one of several workers |
//! | `passes` | passes over samples, which both have |
//! | `history` | what all workers found, as sums that they share |
//! | `totals` | losses and metrics summed up, the confusion matrix |
//! | `outputs` | metrics, events and lines of a run as it goes on; its files at the end |
//! | `checkpoints` | when one is due, which stay |
//! | `tensorboard` | event files |
//! | `plots` | pictures |

mod checkpoints;
mod history;
mod outputs;
mod passes;
mod plots;
mod tensorboard;
#[cfg(test)]
mod tests;
mod together;
mod totals;
mod training;
mod worker;

pub use outputs::FILES;
pub use worker::{CHECKPOINTS, WORKER_FILE};

use std::process::ExitCode;

/// The body of the hidden `nodectl train-worker`.
pub fn main() -> ExitCode {
    crate::workloads::builtin::serve::<worker::TrainWorker>()
}
