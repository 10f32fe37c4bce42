//! What runs in the worker processes of integrations (`nodectl integrate-worker`).
//!
//! | file | owns |
//! |---|---|
//! | `worker` | a plan and its tasks: frames, or a dataset's results |
//! | `input` | a dataset's file on this node, its monitor |
//! | `engine` | the integrator of a plan, opened once |
//! | `choice` | who integrates: the processor, a GPU or both |
//! | `pipeline` | read → decompress → integrate, side by side, bounded |
//! | `output` | a dataset's files |
//! | `kept` | finished frames of a dataset that is not finished |

mod choice;
mod engine;
mod input;
mod kept;
mod output;
mod pipeline;
mod worker;

pub(super) use choice::choose;
pub(super) use engine::{cache, device_batch, images, usual_gpu_threads};
pub use input::seen;
use std::process::ExitCode;

/// The body of the hidden `nodectl integrate-worker`.
pub fn main() -> ExitCode {
    if std::env::args().nth(2).as_deref() == Some(crate::sharing::OPTION) {
        return crate::sharing::main();
    }
    nodectl_builtin::serve::<worker::IntegrateWorker>()
}
