//! Errors of a job file as people see them: file, line, column, the source line and what to do.

use super::Fault;
use nodectl_types::{
    text::{escaped, is_unsafe, message},
    units::format_bytes,
};
use std::{
    fmt, io,
    path::{Path, PathBuf},
};

/// The most characters of a source line that are shown.
const SHOWN_CHARS: usize = 100;

#[derive(Debug, thiserror::Error)]
pub enum JobFileError {
    #[error(
        "cannot read the job file {}: {source}{}",
        named(path),
        unreadable_hint(source)
    )]
    Unreadable { path: PathBuf, source: io::Error },
    #[error(
        "the job file {} is larger than {}\nhint: put the parameters into a CSV or JSONL file: params = \"FILE.csv\"",
        named(path), format_bytes(*limit_bytes)
    )]
    TooLarge { path: PathBuf, limit_bytes: u64 },
    #[error("{0}")]
    Invalid(Box<Diagnostic>),
}

fn named(path: &Path) -> String {
    escaped(&path.to_string_lossy()).into_owned()
}

fn unreadable_hint(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::NotFound => "\nhint: `nodectl init` writes one that runs as it is",
        io::ErrorKind::IsADirectory => "\nhint: name a file, e.g. job.toml",
        _ => "",
    }
}

/// A problem at a place of the job file. Displayed over several lines, as compilers do, so that
/// nothing of what the file says acts on a terminal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnostic {
    pub file: PathBuf,
    /// From 1.
    pub line: usize,
    /// From 1, in characters.
    pub column: usize,
    pub source_line: String,
    /// How many characters of the line are meant, at least 1.
    pub width: usize,
    pub message: String,
    pub hint: Option<String>,
}

impl Diagnostic {
    pub fn new(path: &Path, text: &str, fault: Fault) -> Self {
        let start = floor_char(text, fault.span.start);
        let line_start = text[..start].rfind('\n').map_or(0, |newline| newline + 1);
        let line_end = text[start..]
            .find('\n')
            .map_or(text.len(), |newline| start + newline);
        let end = floor_char(text, fault.span.end).clamp(start, line_end);
        Self {
            file: path.to_path_buf(),
            line: text[..start].matches('\n').count() + 1,
            column: text[line_start..start].chars().count() + 1,
            source_line: text[line_start..line_end].trim_end().to_string(),
            width: text[start..end].chars().count().max(1),
            message: message(&fault.message),
            hint: fault.hint.as_deref().map(message),
        }
    }

    /// The part of the source line around the place, without tabs and control characters, and the
    /// column in it.
    fn window(&self) -> (String, usize) {
        let skipped = if self.column > SHOWN_CHARS {
            self.column - SHOWN_CHARS / 2
        } else {
            0
        };
        let shown = self.source_line.chars().skip(skipped).take(SHOWN_CHARS);
        (
            shown.map(|c| if is_unsafe(c) { ' ' } else { c }).collect(),
            self.column - skipped,
        )
    }
}

/// The greatest character boundary of `text` that is at most `offset`.
fn floor_char(text: &str, offset: usize) -> usize {
    (0..=offset.min(text.len()))
        .rev()
        .find(|at| text.is_char_boundary(*at))
        .unwrap_or(0)
}

impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let number = self.line.to_string();
        let margin = " ".repeat(number.len());
        let (line, column) = self.window();
        let carets = "^".repeat(
            self.width
                .min((SHOWN_CHARS + 1).saturating_sub(column))
                .max(1),
        );
        writeln!(f, "{}", self.message)?;
        writeln!(
            f,
            "{margin}--> {}:{}:{}",
            named(&self.file),
            self.line,
            self.column
        )?;
        writeln!(f, "{margin} |")?;
        writeln!(f, "{number} | {line}")?;
        write!(f, "{margin} | {}{carets}", " ".repeat(column - 1))?;
        match &self.hint {
            Some(hint) => write!(f, "\nhint: {hint}"),
            None => Ok(()),
        }
    }
}
