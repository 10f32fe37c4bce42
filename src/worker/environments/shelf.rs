//! Which environments there are on the disk, how large they are, and which go when there are too
//! many bytes of them: those that were used longest ago.

use super::{super::directory::Remover, exists};
use std::{
    collections::HashSet,
    fs::{self, File},
    io::{self, Write},
    os::unix::fs::{DirBuilderExt, MetadataExt},
    path::{Path, PathBuf},
    time::SystemTime,
};

/// In an environment that is whole; its content is how many bytes that has, its time when it was
/// last used.
const MADE: &str = "made";

#[derive(Clone, Debug)]
pub struct EnvironmentShelf {
    directory: PathBuf,
    limit_bytes: u64,
}

struct KeptEnvironment {
    name: String,
    bytes: u64,
    used: SystemTime,
}

impl EnvironmentShelf {
    /// Removes what is not whole.
    pub fn start(directory: PathBuf, limit_bytes: u64, remover: &Remover) -> Self {
        let shelf = Self {
            directory,
            limit_bytes,
        };
        for entry in fs::read_dir(&shelf.directory)
            .into_iter()
            .flatten()
            .flatten()
        {
            if !exists(&entry.path().join(MADE)) {
                remover.remove(entry.path());
            }
        }
        shelf
    }

    pub fn place(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// Whether one is there and whole.
    pub fn has(&self, name: &str) -> bool {
        exists(&self.place(name).join(MADE))
    }

    /// Writes down that one is whole: from now on it is used.
    pub fn keep(&self, name: &str) -> io::Result<()> {
        let root = self.place(name);
        let bytes = size(&root)?;
        let new = root.join("new");
        let mut file = File::create(&new)?;
        file.write_all(bytes.to_string().as_bytes())?;
        file.sync_all()?;
        fs::rename(&new, root.join(MADE))
    }

    /// Notes that an environment was used just now.
    pub fn used(&self, name: &str) {
        let touched = File::options()
            .write(true)
            .open(self.place(name).join(MADE))
            .and_then(|file| file.set_modified(SystemTime::now()));
        if let Err(error) = touched {
            tracing::debug!(%error, name, "cannot note that an environment was used");
        }
    }

    /// Removes those that were used longest ago and that nobody uses now, until what is left is
    /// within the limit. Gives their names.
    pub fn make_room(
        &self,
        wanted: &str,
        in_use: impl Fn(&str) -> bool,
        remover: &Remover,
    ) -> HashSet<String> {
        let mut kept = self.kept();
        let mut bytes: u64 = kept.iter().map(|kept| kept.bytes).sum();
        kept.sort_by_key(|kept| kept.used);
        let mut removed = HashSet::new();
        for old in kept {
            if bytes <= self.limit_bytes {
                break;
            }
            if old.name == wanted || in_use(&old.name) {
                continue;
            }
            tracing::info!(
                name = old.name,
                bytes = old.bytes,
                "removed a Python environment"
            );
            remover.remove(self.place(&old.name));
            bytes -= old.bytes;
            removed.insert(old.name);
        }
        if bytes > self.limit_bytes {
            tracing::warn!(
                bytes,
                limit = self.limit_bytes,
                "the Python environments in use take more than jobs.environments allows"
            );
        }
        removed
    }

    fn kept(&self) -> Vec<KeptEnvironment> {
        let kept = |entry: fs::DirEntry| {
            let made = entry.path().join(MADE);
            let text = fs::read_to_string(&made).ok()?;
            Some(KeptEnvironment {
                name: entry.file_name().into_string().ok()?,
                bytes: text.trim().parse().ok()?,
                used: made.metadata().ok()?.modified().ok()?,
            })
        };
        let entries = fs::read_dir(&self.directory)
            .into_iter()
            .flatten()
            .flatten();
        entries.filter_map(kept).collect()
    }

    /// An empty directory in the place of whatever is there.
    pub fn clear(place: &Path) -> io::Result<()> {
        super::super::directory::remove_tree(place)?;
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(place)
    }
}

/// Bytes on the disk below a directory.
fn size(directory: &Path) -> io::Result<u64> {
    let mut bytes = 0;
    let mut left = vec![directory.to_path_buf()];
    while let Some(directory) = left.pop() {
        for entry in fs::read_dir(directory)? {
            let entry = entry?;
            let metadata = entry.metadata()?;
            bytes += metadata.blocks() * 512;
            if metadata.is_dir() {
                left.push(entry.path());
            }
        }
    }
    Ok(bytes)
}
