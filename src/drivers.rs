//! The program that `nodectl` carries where it is linked statically (`packaging/build`): linked
//! dynamically, so that it can load GPUs' drivers, and with nothing but what runs beside a node. A
//! node starts it from memory in its own place (`ports::carried`).

use nodectl::{gpu::PROBE_COMMAND, ports::say::tell, types::Builtin};
use std::process::ExitCode;

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    match arguments.next().as_deref() {
        Some(nodectl::ports::carried::TRIAL) => ExitCode::SUCCESS,
        Some("supervise") => nodectl::worker::supervisor::main(),
        Some(PROBE_COMMAND) => nodectl::gpu::probe_main(&arguments.collect::<Vec<_>>()),
        command => match command.and_then(Builtin::of_subcommand) {
            Some(part) => nodectl::workloads::work_as(part),
            None => {
                tell!("nodectl: this part of it is started by nodes, not by hand");
                ExitCode::from(2)
            }
        },
    }
}
