//! Exit codes, and errors as people see them.

use nodectl_app::settings::SettingsError;
use nodectl_http::ClientError;
use nodectl_jobfile::JobFileError;
use nodectl_launch::LaunchError;
use nodectl_ports::say;
use nodectl_types::{JobId, text};
use std::{
    io::{self, IsTerminal},
    path::Path,
    process::ExitCode,
};

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    Done = 0,
    /// A job failed, or the command could not do what it was asked.
    Failed = 1,
    /// Usage, or an invalid job file.
    Usage = 2,
    Unreachable = 3,
    /// As shells say of SIGINT: 128 + 2.
    Interrupted = 130,
}

/// Why a command did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum CliError {
    #[error(transparent)]
    Client(#[from] ClientError),
    #[error(transparent)]
    JobFile(#[from] JobFileError),
    #[error(transparent)]
    Settings(#[from] SettingsError),
    #[error(transparent)]
    Launch(#[from] LaunchError),
    #[error("{0}")]
    Usage(String),
    #[error("{doing}: {source}")]
    File { doing: String, source: io::Error },
    /// Nobody knows whether the job was accepted.
    #[error(
        "{error}\nhint: job {job} may still have been accepted: `nodectl job {job}` shows it once a node answers, and the \
         same `nodectl run` with `--key {key}` submits it only if it was not"
    )]
    Unconfirmed {
        error: Box<ClientError>,
        job: JobId,
        key: String,
    },
    /// The node in this process could not be started, or ended in an error.
    #[error("{}", with_causes(.0))]
    Node(anyhow::Error),
}

impl CliError {
    pub fn file(doing: &str, path: &Path, source: io::Error) -> Self {
        Self::File {
            doing: format!("{doing} {}", path.display()),
            source,
        }
    }

    pub fn exit(&self) -> Exit {
        match self {
            Self::Client(error) if error.is_unreachable() => Exit::Unreachable,
            Self::Unconfirmed { .. } => Exit::Unreachable,
            // Asked well, and not the asker's to ask.
            Self::Client(ClientError::Refused { status: 403, .. }) => Exit::Failed,
            Self::Client(ClientError::Refused {
                status: 400..=499, ..
            }) => Exit::Usage,
            Self::Launch(error) if error.is_usage() => Exit::Usage,
            Self::JobFile(_) | Self::Settings(_) | Self::Usage(_) => Exit::Usage,
            Self::Client(_) | Self::Launch(_) | Self::File { .. } | Self::Node(_) => Exit::Failed,
        }
    }

    /// Says it on stderr.
    pub fn tell(&self) {
        // A reader of our output that has gone is no error worth a word.
        if !matches!(self, Self::File { source, .. } if source.kind() == io::ErrorKind::BrokenPipe)
        {
            let words = without_numbers(&self.to_string());
            say::marked(&emphasis("error:"), format_args!("{words}"));
        }
    }
}

/// An error and what caused it, but for causes that it quotes itself. A hint stays at the end.
fn with_causes(error: &anyhow::Error) -> String {
    let mut text = String::new();
    let mut hint = None;
    for cause in error.chain().map(ToString::to_string) {
        let (message, own) = text::split_hint(&cause);
        if text.is_empty() {
            text = message.into();
        } else if !text.contains(message) {
            text += &format!(": {message}");
        }
        hint = hint.or(own.map(str::to_string));
    }
    match hint {
        Some(hint) => format!("{text}\nhint: {hint}"),
        None => text,
    }
}

/// Without the numbers that the system has for its errors: the words before them say the same.
fn without_numbers(text: &str) -> String {
    let mut parts = text.split(" (os error ");
    let mut out = parts.next().unwrap_or_default().to_string();
    for part in parts {
        match part.split_once(')') {
            Some((number, rest)) if number.chars().all(|c| c.is_ascii_digit()) => out += rest,
            _ => out += &format!(" (os error {part}"),
        }
    }
    out
}

/// Red on a terminal that wants colours.
fn emphasis(word: &str) -> String {
    let colours = io::stderr().is_terminal()
        && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    if colours {
        format!("\x1b[1;31m{word}\x1b[0m")
    } else {
        word.to_string()
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

/// Writes data to stdout.
pub fn print(text: &str) -> Result<(), CliError> {
    print_bytes(text.as_bytes())
}

/// Prints bytes, which need not be text.
pub fn print_bytes(bytes: &[u8]) -> Result<(), CliError> {
    use io::Write;
    let mut stdout = io::stdout().lock();
    let written = stdout.write_all(bytes).and_then(|()| stdout.flush());
    written.map_err(|source| CliError::File {
        doing: "writing to stdout".into(),
        source,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_says_each_thing_once_and_no_number_of_the_system() {
        let cause = io::Error::from_raw_os_error(17);
        let quoting = anyhow::anyhow!("could not make /d: {cause}\nhint: another --data-dir");
        let inner = anyhow::Error::new(cause).context(quoting.to_string());
        let error = CliError::Node(inner.context("starting the node"));
        assert_eq!(
            without_numbers(&error.to_string()),
            "starting the node: could not make /d: File exists\nhint: another --data-dir"
        );
        assert_eq!(without_numbers("a (os error x) b"), "a (os error x) b");
        assert_eq!(without_numbers("a (os error 2): b (os error 13)"), "a: b");
    }
}
