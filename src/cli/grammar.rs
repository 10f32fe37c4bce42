//! The whole command line as clap knows it.

use super::{args::Cli, examples::with_examples, help};
use clap::CommandFactory;

/// The program's commands and their flags, with examples, and with help in groups.
pub fn command() -> clap::Command {
    let command = Cli::command().mut_subcommand("init", |init| init.after_help(help::kinds()));
    with_examples(command).help_template(help::template())
}
