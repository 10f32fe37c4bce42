//! The `nodectl` program.

fn main() -> std::process::ExitCode {
    // Packed, and named by `packaging/build`: what a program that is linked statically needs for
    // GPUs.
    #[cfg(feature = "carries-drivers")]
    {
        use nodectl::{gpu::PROBE_COMMAND, ports::carried, types::Builtin};
        carried::bring(include_bytes!(env!("NODECTL_CARRIED")));
        carried::go_on_as(|command| {
            command == PROBE_COMMAND || Builtin::of_subcommand(command).is_some()
        });
    }
    // Before anything else: the supervisor must stay small, and it starts with every node.
    if std::env::args_os()
        .nth(1)
        .is_some_and(|command| command == "supervise")
    {
        return nodectl::worker::supervisor::main();
    }
    nodectl::cli::main()
}
