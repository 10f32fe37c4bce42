//! Asking a person at the terminal before something that cannot be taken back.

use super::exit::CliError;
use nodectl_ports::say::tell;
use std::io::{self, IsTerminal};

/// Whether the person at the terminal answers `warning`, which ends with a question, with yes.
/// Without a terminal it is an error that says `what` has to be confirmed, and the `hint`.
pub fn confirm(what: &str, warning: &str, hint: &str) -> Result<bool, CliError> {
    if !io::stdin().is_terminal() || !io::stderr().is_terminal() {
        return Err(CliError::Usage(format!(
            "{what} has to be confirmed, and there is no terminal\nhint: {hint}"
        )));
    }
    tell!("{warning} [y/N]");
    let mut answer = String::new();
    let read = io::stdin().read_line(&mut answer);
    read.map_err(|source| CliError::File {
        doing: "reading the answer from the terminal".into(),
        source,
    })?;
    let answer = answer.trim().to_ascii_lowercase();
    Ok(matches!(answer.as_str(), "y" | "yes"))
}
