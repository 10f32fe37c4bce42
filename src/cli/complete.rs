//! What a shell proposes when a user presses Tab: commands and flags are clap's, names come from
//! `candidates`.

use super::{
    exit::{CliError, Exit, print_bytes},
    grammar::command,
};
use clap_complete::{CompleteEnv, Shell, env::Shells};
use std::ffi::OsString;

/// The variable by which a shell's script asks this program.
const VARIABLE: &str = "NODECTL_COMPLETE";

/// Answers a shell that asks, and says whether one did. To be called while there is one thread.
pub fn answer(args: &[OsString]) -> Result<bool, clap::Error> {
    let directory = std::env::current_dir().ok();
    CompleteEnv::with_factory(command)
        .var(VARIABLE)
        .try_complete(args, directory.as_deref())
}

/// Prints the script that a shell reads once: it asks this program at each Tab.
pub fn script(shell: Shell) -> Result<Exit, CliError> {
    let shells = Shells::builtins();
    let completer = shells
        .completer(&shell.to_string())
        .expect("both lists are clap's");
    let mut script = Vec::new();
    completer
        .write_registration(VARIABLE, "nodectl", "nodectl", "nodectl", &mut script)
        .map_err(|source| CliError::File {
            doing: "writing a completion script".into(),
            source,
        })?;
    print_bytes(&script)?;
    Ok(Exit::Done)
}
