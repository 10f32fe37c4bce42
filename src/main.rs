//! The `nodectl` program.

fn main() -> std::process::ExitCode {
    nodectl::cli::main()
}
