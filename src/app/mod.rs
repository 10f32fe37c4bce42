//! Wiring: the only place that names concrete adapters. What the command line may ask of it is listed here.
//!
//! | file | owns |
//! |---|---|
//! | `machine` | what this machine is |
//! | `gpus` | its GPUs, and what they were measured at |
//! | `settings` | what is configured, by whom |
//! | `node` | a node inside this process |
//! | `bench` | what deciding costs |

pub mod bench;
mod gpus;
pub mod machine;
mod node;
pub mod settings;

pub use node::{StartedNode, cluster_tag, generate_secret, run_node, secret_weakness, start_solo};

use crate::types::Gpu;
use std::{process::ExitCode, time::Duration};

/// The GPUs of this machine, looked for in a child process, or why they are not known.
pub async fn probe_gpus(deadline: Duration) -> Result<Vec<Gpu>, String> {
    crate::gpu::probe_in_child(deadline).await.map_err(|error| error.to_string())
}

/// The body of the hidden `nodectl kernel-worker`.
pub fn kernel_worker() -> ExitCode {
    crate::workloads::kernel::run::main()
}

/// The body of the hidden `nodectl train-worker`.
pub fn train_worker() -> ExitCode {
    crate::workloads::train::run::main()
}

/// The body of the hidden `nodectl kernel-interface JOB_FILE`: what its shader binds, as JSON, or what is wrong with the shader.
pub fn kernel_interface(arguments: &[std::ffi::OsString]) -> ExitCode {
    let [path] = arguments else {
        eprintln!("error: nodectl kernel-interface JOB_FILE");
        return ExitCode::from(2);
    };
    match crate::workloads::job_file::interface(path.as_ref()) {
        Ok(interface) => {
            println!("{}", serde_json::to_string(&interface).expect("plain data always encodes"));
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(2)
        }
    }
}

/// The body of the hidden `nodectl integrate-worker`.
pub fn integrate_worker() -> ExitCode {
    crate::workloads::integrate::run::main()
}

/// The body of the hidden `nodectl gpu-probe`.
pub fn gpu_probe(arguments: &[String]) -> ExitCode {
    crate::gpu::probe_main(arguments)
}
