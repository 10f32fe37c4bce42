//! Why the runner could not begin.

use std::{io, path::PathBuf};

/// Why the runner could not begin.
#[derive(Debug, thiserror::Error)]
pub enum WorkerError {
    #[error(
        "could not {doing} {path}: {source}\nhint: the data directory must be writable by this user and not full"
    )]
    Io {
        doing: &'static str,
        path: PathBuf,
        source: io::Error,
    },
    #[error("could not start the supervisor of tasks ({program}): {source}")]
    Supervisor { program: String, source: io::Error },
}
