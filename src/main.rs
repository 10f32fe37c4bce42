//! The `nodectl` program.

fn main() -> std::process::ExitCode {
    // Before anything else: the supervisor must stay small, and it starts with every node.
    if std::env::args_os()
        .nth(1)
        .is_some_and(|command| command == "supervise")
    {
        return nodectl::worker::supervisor::main();
    }
    nodectl::cli::main()
}
