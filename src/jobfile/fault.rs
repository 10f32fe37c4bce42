//! A problem at a place in the text: what every part of planning returns. Knows nothing of files.

use super::{Diagnostic, JobFileError};
use nodectl_types::suggest::nearest;
use std::{
    ops::Range,
    path::{Path, PathBuf},
};

/// Names in a hint.
const LISTED: usize = 60;

/// What is wrong at which bytes of the job file, and what to do about it.
#[derive(Debug)]
pub struct Fault {
    /// Where the job file is wrong, in bytes.
    pub span: Range<usize>,
    pub message: String,
    /// What to do about it.
    pub hint: Option<String>,
    /// The file and its text, if the place is not in the job file itself.
    elsewhere: Option<(PathBuf, String)>,
}

impl Fault {
    /// Of a message that says what to do in a line of its own, that becomes the hint.
    pub fn new(span: Range<usize>, message: impl Into<String>) -> Self {
        let mut message: String = message.into();
        let hint = ["\nhint: ", "; hint: "].into_iter().find_map(|mark| {
            let at = message.find(mark)?;
            let hint = message.split_off(at);
            Some(hint[mark.len()..].to_string())
        });
        Self {
            span,
            message,
            hint,
            elsewhere: None,
        }
    }

    pub fn hint(self, hint: impl Into<String>) -> Self {
        Self {
            hint: Some(hint.into()),
            ..self
        }
    }

    /// With the nearest of `known` as the hint, or all of them where none is near.
    pub fn suggest(self, text: &str, known: &[&str]) -> Self {
        match nearest(text, known.iter().copied()) {
            Some(name) => self.hint(format!("did you mean `{name}`?")),
            None if known.is_empty() => self,
            None => {
                let listed: Vec<String> = known
                    .iter()
                    .take(LISTED)
                    .map(|name| format!("`{name}`"))
                    .collect();
                let more = if known.len() > LISTED {
                    format!(" and {} more", known.len() - LISTED)
                } else {
                    String::new()
                };
                self.hint(format!("there are {}{more}", listed.join(", ")))
            }
        }
    }

    /// The fault with its place in another file.
    pub fn elsewhere(self, path: &Path, text: &str) -> Self {
        Self {
            elsewhere: Some((path.to_path_buf(), text.to_string())),
            ..self
        }
    }

    /// The fault of a job whose parameters have these values.
    pub fn within(self, parameters: &str) -> Self {
        Self {
            message: format!("with {parameters}: {}", self.message),
            ..self
        }
    }

    pub fn in_file(mut self, path: &Path, text: &str) -> JobFileError {
        if let Some((path, text)) = self.elsewhere.take() {
            return JobFileError::Invalid(Box::new(Diagnostic::new(&path, &text, self)));
        }
        JobFileError::Invalid(Box::new(Diagnostic::new(path, text, self)))
    }
}
