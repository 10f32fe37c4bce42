//! What runs in the worker processes of integrations (`nodectl integrate-worker`).
//!
//! | file | owns |
//! |---|---|
//! | `worker` | a plan and its tasks: frames, or a dataset's results |
//! | `input` | a dataset's file on this node, its monitor |
//! | `engine` | the integrator of a plan, opened once |
//! | `decoder` | what decodes chunks for a GPU |
//! | `pipeline` | read → decompress → integrate, side by side, bounded |
//! | `output` | a dataset's files |
//! | `kept` | finished frames of a dataset that is not finished |

mod decoder;
mod engine;
mod input;
mod kept;
mod output;
mod pipeline;
mod worker;

pub(super) use engine::{cache, images};
pub use input::seen;
use std::process::ExitCode;

/// The body of the hidden `nodectl integrate-worker`.
pub fn main() -> ExitCode {
    nodectl_builtin::serve::<worker::IntegrateWorker>()
}
