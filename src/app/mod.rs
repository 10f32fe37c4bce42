//! Wiring: the only place that names concrete adapters. What the command line may ask of it is listed here.
//!
//! | file | owns |
//! |---|---|
//! | `machine` | what this machine is |

pub mod machine;

use crate::types::Gpu;
use std::{path::PathBuf, process::ExitCode, time::Duration};

/// A node inside this process.
pub struct StartedNode {
    /// Where its local API answers.
    pub socket: PathBuf,
}

/// The GPUs of this machine, looked for in a child process, or why they are not known.
pub async fn probe_gpus(deadline: Duration) -> Result<Vec<Gpu>, String> {
    crate::gpu::probe_in_child(deadline).await.map_err(|error| error.to_string())
}

/// The body of the hidden `nodectl gpu-probe`.
pub fn gpu_probe() -> ExitCode {
    crate::gpu::probe_main()
}
