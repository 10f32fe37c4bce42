//! What can go wrong, as people see it: what was being done, what the other side said, what to do.

use super::process::ProcessError;
use std::path::PathBuf;

#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    #[error("cannot read {}: {source}", path.display())]
    Unreadable {
        path: PathBuf,
        source: std::io::Error,
    },
    #[error("cannot write {}: {source}", path.display())]
    Unwritable {
        path: PathBuf,
        source: std::io::Error,
    },
    /// A file that does not say what it should. `place` is `FILE:LINE` or `FILE`.
    #[error("{place}: {problem}{}", hint(hint_text))]
    BadFile {
        place: String,
        problem: String,
        hint_text: Option<String>,
    },
    #[error("{doing}: {source}")]
    Call { doing: String, source: ProcessError },
    /// The program ran and said no. Its own words are shown.
    #[error("{doing}: {said}")]
    Refused { doing: String, said: String },
    /// The program's answer is not what its manual promises.
    #[error(
        "{program} printed what this version does not understand: {text}\nhint: is it another version of {program}?"
    )]
    Unparsable { program: &'static str, text: String },
}

fn hint(text: &Option<String>) -> String {
    text.as_ref()
        .map(|text| format!("\nhint: {text}"))
        .unwrap_or_default()
}

impl LaunchError {
    pub fn bad_file(
        place: impl Into<String>,
        problem: impl Into<String>,
        hint: impl Into<Option<String>>,
    ) -> Self {
        Self::BadFile {
            place: place.into(),
            problem: problem.into(),
            hint_text: hint.into(),
        }
    }

    /// This machine has no such scheduler: its programs are missing, or belong to no site.
    pub fn is_absence(&self) -> bool {
        match self {
            Self::Call { source, .. } => matches!(source, ProcessError::Missing(_)),
            // Of SLURM's and HTCondor's programs without a configuration.
            Self::Refused { said, .. } => [
                "Could not establish a configuration source",
                "condor_config source",
            ]
            .iter()
            .any(|words| said.contains(words)),
            _ => false,
        }
    }

    /// The user's file or flags are at fault, rather than the world.
    pub fn is_usage(&self) -> bool {
        matches!(self, Self::BadFile { .. } | Self::Unreadable { .. })
    }
}
