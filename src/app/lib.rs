//! Wiring: the only place that names concrete adapters. What the command line may ask of it is
//! listed here.
//!
//! | file | owns |
//! |---|---|
//! | `machine` | what this machine is |
//! | `this_machine` | this machine as the settings present it |
//! | `gpus` | its GPUs, and what they were measured at |
//! | `history` | this machine's load over time |
//! | `launched` | what was launched from this machine |
//! | `settings` | what is configured, by whom |
//! | `node` | a node inside this process |
//! | `streams` | who serves streams that other nodes open |
//! | `program/` | the program that it runs, and another in its place |
//! | `surroundings` | whether somebody uses this machine, for its owner's policy |
//! | `secret` | secrets of a cluster: made, redeemed, judged |
//! | `vault` | named secrets |
//! | `remembered` | the files of what a node's next life should know |
//! | `bench` | what deciding costs |

pub mod bench;
mod gpus;
mod history;
mod launched;
pub mod machine;
mod node;
mod program;
mod remembered;
mod secret;
pub mod settings;
mod streams;
mod surroundings;
mod this_machine;
mod vault;

pub use node::{StartedNode, has_left_jobs, is_in_use, run_node, start_solo};
pub use nodectl_gpu::PROBE_COMMAND;
pub use program::{NodeEnd, damage, try_program};
pub use secret::{
    changed_secret, generate_secret, redeem, replaced_secret, secret_mistake, secret_strength,
    secret_weakness,
};

use nodectl_ports::{
    drivers::DRIVERS,
    say::{self, tell},
};
use nodectl_types::Gpu;
use nodectl_worker as worker;
use std::{
    fs, io,
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

/// Makes a directory that a node may use, with what is above it; one that is there stays as it is.
pub fn make_private_dir(path: &Path) -> io::Result<()> {
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
}

/// The GPUs of this machine, looked for in a child process as the node of this data directory does,
/// or why they are not known.
pub async fn probe_gpus(data_dir: &Path, deadline: Duration) -> Result<Vec<Gpu>, String> {
    nodectl_gpu::probe_in_child(&data_dir.join(DRIVERS), deadline)
        .await
        .map_err(|error| error.to_string())
}

/// The version of NVIDIA's kernel module, where it is loaded.
pub fn nvidia_version() -> Option<String> {
    nodectl_gpu::module_version(Path::new("/"))
}

/// What the settings say about tasks whose job says nothing.
fn isolation_policy(settings: &settings::Settings) -> worker::isolation::IsolationPolicy {
    let mut secrets: Vec<PathBuf> = settings.cluster.secret_file.iter().cloned().collect();
    // systemd's are beside those of other services, which are no business of tasks either.
    let credentials = std::env::var_os("CREDENTIALS_DIRECTORY").map(PathBuf::from);
    secrets.extend(credentials.and_then(|directory| directory.parent().map(Path::to_path_buf)));
    worker::isolation::IsolationPolicy {
        setuid: settings.isolation.setuid,
        hides_node: settings.isolation.hides_node,
        secrets,
    }
}

/// Why tasks on this machine are not kept from what is their node's alone. None: they are.
pub fn why_node_is_open(settings: &settings::Settings) -> Option<String> {
    let data_dir = &settings.node.data_dir;
    worker::isolation::why_not(
        &data_dir.canonicalize().unwrap_or_else(|_| data_dir.clone()),
        &isolation_policy(settings),
    )
}

/// The body of the hidden `nodectl kernel-interface JOB_FILE`: what its shader binds, as JSON, or
/// what is wrong with the shader.
pub fn kernel_interface(arguments: &[std::ffi::OsString]) -> ExitCode {
    let [path] = arguments else {
        tell!("error: nodectl kernel-interface JOB_FILE");
        return ExitCode::from(2);
    };
    match nodectl_workloads::interface(path.as_ref()) {
        Ok(interface) => {
            say::out(&format!(
                "{}\n",
                serde_json::to_string(&interface).expect("plain data always encodes")
            ));
            ExitCode::SUCCESS
        }
        Err(error) => {
            tell!("error: {error}");
            ExitCode::from(2)
        }
    }
}

/// The body of the hidden `nodectl gpu-probe`.
pub fn gpu_probe(arguments: &[String]) -> ExitCode {
    nodectl_gpu::probe_main(arguments)
}
