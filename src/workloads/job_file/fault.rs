//! A problem at a place in the text: what every part of planning returns. Knows nothing of files.

use super::{Diagnostic, JobFileError};
use crate::types::suggest::nearest;
use std::{ops::Range, path::Path};

/// What is wrong at which bytes of the job file, and what to do about it.
#[derive(Debug)]
pub(crate) struct Fault {
    pub(super) span: Range<usize>,
    pub(super) message: String,
    pub(super) hint: Option<String>,
}

impl Fault {
    pub(crate) fn new(span: Range<usize>, message: impl Into<String>) -> Self {
        Self { span, message: message.into(), hint: None }
    }

    pub(crate) fn hint(self, hint: impl Into<String>) -> Self {
        Self { hint: Some(hint.into()), ..self }
    }

    /// With the nearest of `known` as the hint, or all of them where none is near.
    pub(crate) fn suggest(self, text: &str, known: &[&str]) -> Self {
        match nearest(text, known.iter().copied()) {
            Some(name) => self.hint(format!("did you mean `{name}`?")),
            None if known.is_empty() => self,
            None => {
                let listed: Vec<String> = known.iter().map(|name| format!("`{name}`")).collect();
                self.hint(format!("there are {}", listed.join(", ")))
            }
        }
    }

    pub(super) fn in_file(self, path: &Path, text: &str) -> JobFileError {
        JobFileError::Invalid(Box::new(Diagnostic::new(path, text, self)))
    }
}
