//! A tree of files, by content.

use super::BlobHash;
use serde::{Deserialize, Serialize};

/// One file of a tree.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileEntry {
    /// Relative, `/`-separated; see `safe_path`.
    pub path: String,
    pub bytes: u64,
    pub hash: BlobHash,
    pub executable: bool,
}

/// A list of files; itself stored as a blob (postcard).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    pub files: Vec<FileEntry>,
}

/// A task's parameters as JSON, in its directory.
pub const PARAMS_FILE: &str = "params.json";
/// What a task that leaves it there has for a result.
pub const RESULT_FILE: &str = "result.json";

/// Whether a path from outside stays inside the directory it is joined to: relative, no empty, `.`
/// or `..` parts, no NUL or backslash, at most 1,024 bytes.
pub fn safe_path(path: &str) -> bool {
    let part_is_safe = |part: &str| !part.is_empty() && part != "." && part != "..";
    path.len() <= 1024 && !path.contains(['\0', '\\']) && path.split('/').all(part_is_safe)
}
