//! What planning knows of a job file, and what comes of it.

use super::PlannedJob;
use std::{
    ops::Range,
    path::{Path, PathBuf},
};

/// Files that take the place of a job's own datasets: `run --follow` gives them as they appear.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Following {
    pub files: Vec<PathBuf>,
    /// The directory below which they are.
    pub root: PathBuf,
}

/// What the parts of planning know of the file.
pub struct Context<'t> {
    pub text: &'t str,
    /// The directory of the job file, to which its paths are relative.
    pub base: PathBuf,
    /// The file's name without its ending: the name of a job that gives none.
    pub stem: String,
    /// Files in place of a job's own datasets.
    pub following: Option<&'t Following>,
    /// No node has a GPU: a job that only prefers one (`PlannedJob::prefers_gpus`) is planned for
    /// processors.
    pub without_gpus: bool,
}

impl<'t> Context<'t> {
    pub fn new(text: &'t str, path: &Path) -> Self {
        let parent = path
            .parent()
            .filter(|parent| !parent.as_os_str().is_empty())
            .unwrap_or(Path::new("."));
        let stem = path
            .file_stem()
            .map(|stem| stem.to_string_lossy().into_owned())
            .unwrap_or_default();
        Self {
            text,
            base: parent.to_path_buf(),
            stem,
            following: None,
            without_gpus: false,
        }
    }
}

/// A job and where its name and its `after` stand.
pub struct PlacedJob {
    pub job: PlannedJob,
    /// Where the job file has the name.
    pub name_span: Range<usize>,
    pub after_spans: Vec<Range<usize>>,
}
