//! The files that a task was asked for: found by pattern, checked, taken into the blob store.
//! Called when no process of the task is left, so that nothing changes under it.

use super::collect::unkept;
use globset::{GlobBuilder, GlobSet, GlobSetBuilder};
use nodectl_ports::{Blobs, DiskHealth};
use nodectl_types::{
    Failure, OutputFile, glob, limits,
    text::{message, shown},
};
use std::{
    fs,
    os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt},
    path::{Path, PathBuf},
};

/// Deeper than any sensible tree, shallower than the stack.
const MAX_DEPTH: usize = 64;

/// Where files are taken to.
#[derive(Clone, Copy)]
pub struct OutputStore<'a> {
    pub blobs: &'a dyn Blobs,
    pub disk: &'a dyn DiskHealth,
}

/// A file to take.
struct FoundFile {
    path: String,
    full: PathBuf,
    bytes: u64,
    executable: bool,
}

struct OutputSearch<'a> {
    root: PathBuf,
    patterns: GlobSet,
    /// For each glob of the set, which of the caller's patterns it comes from.
    origins: Vec<usize>,
    matched: Vec<bool>,
    /// Names at the top that are not the task's: what it was given, our own files.
    skip: &'a dyn Fn(&str) -> bool,
    limit_bytes: u64,
    total_bytes: u64,
    found: Vec<FoundFile>,
    store: OutputStore<'a>,
}

/// Takes the files of `dir` that match `patterns` into the store. Every pattern must match
/// something where it `needs_all`. A pattern without wildcards may name a directory: all that is in
/// it counts.
pub fn take(
    dir: &Path,
    patterns: &[String],
    skip: &dyn Fn(&str) -> bool,
    limit_bytes: u64,
    needs_all: bool,
    store: OutputStore<'_>,
) -> Result<Vec<OutputFile>, Failure> {
    if patterns.is_empty() {
        return Ok(Vec::new());
    }
    let (set, origins) = compile(patterns)?;
    let root = dir
        .canonicalize()
        .map_err(|error| store.unreadable(dir, &error, 0))?;
    let matched = vec![false; patterns.len()];
    let mut search = OutputSearch {
        root,
        patterns: set,
        origins,
        matched,
        skip,
        limit_bytes,
        total_bytes: 0,
        found: Vec::new(),
        store,
    };
    let root = search.root.clone();
    search.walk(&root, "", 0)?;
    let missing = search.matched.iter().position(|matched| !matched);
    if let Some(missing) = missing.filter(|_| needs_all) {
        return Err(Failure::OutputMissing(patterns[missing].clone()));
    }
    search
        .found
        .into_iter()
        .map(|found| store.keep(found))
        .collect()
}

fn compile(patterns: &[String]) -> Result<(GlobSet, Vec<usize>), Failure> {
    let bad = |error: globset::Error| Failure::OutputUnreadable(message(&error.to_string()));
    let (mut set, mut origins) = (GlobSetBuilder::new(), Vec::new());
    for (index, pattern) in patterns.iter().enumerate() {
        let pattern = pattern.trim_start_matches("./").trim_end_matches('/');
        // Its parameters are in their places only now, and compiling what they may be could end
        // this process.
        let unfit = |error| {
            Failure::OutputUnreadable(format!(
                "the output `{}` is not a pattern: {error}",
                shown(pattern)
            ))
        };
        glob::check(pattern).map_err(unfit)?;
        let mut add = |glob: &str| -> Result<(), Failure> {
            set.add(
                GlobBuilder::new(glob)
                    .literal_separator(true)
                    .build()
                    .map_err(bad)?,
            );
            origins.push(index);
            Ok(())
        };
        add(pattern)?;
        if !pattern.contains(['*', '?', '[', '{']) {
            add(&format!("{pattern}/**"))?;
        }
    }
    Ok((set.build().map_err(bad)?, origins))
}

impl OutputSearch<'_> {
    fn walk(&mut self, dir: &Path, prefix: &str, depth: usize) -> Result<(), Failure> {
        if depth > MAX_DEPTH {
            return Err(Failure::OutputUnreadable(format!(
                "`{prefix}` is nested more than {MAX_DEPTH} deep"
            )));
        }
        let entries = fs::read_dir(dir).map_err(|error| self.store.unreadable(dir, &error, 0))?;
        let mut entries: Vec<_> = entries
            .collect::<Result<_, _>>()
            .map_err(|error| self.store.unreadable(dir, &error, 0))?;
        entries.sort_by_key(|entry| entry.file_name());
        for entry in entries {
            let name = entry.file_name().to_string_lossy().into_owned();
            if prefix.is_empty() && (self.skip)(&name) {
                continue;
            }
            let path = if prefix.is_empty() {
                name
            } else {
                format!("{prefix}/{name}")
            };
            let kind = entry
                .file_type()
                .map_err(|error| self.store.unreadable(&entry.path(), &error, 0))?;
            if kind.is_dir() {
                self.walk(&entry.path(), &path, depth + 1)?;
            } else {
                self.consider(path, entry.path(), kind)?;
            }
        }
        Ok(())
    }

    fn consider(&mut self, path: String, full: PathBuf, kind: fs::FileType) -> Result<(), Failure> {
        let matches = self.patterns.matches(&path);
        if matches.is_empty() {
            return Ok(());
        }
        if full.file_name().is_none_or(|name| name.to_str().is_none()) {
            return Err(Failure::OutputUnreadable(format!(
                "the name of `{path}` is not UTF-8"
            )));
        }
        let full = if kind.is_symlink() {
            self.follow(&path, &full)?
        } else {
            full
        };
        let metadata =
            fs::symlink_metadata(&full).map_err(|error| self.store.unreadable(&full, &error, 0))?;
        if !metadata.is_file() {
            let what = describe(metadata.file_type());
            return Err(Failure::OutputUnreadable(format!(
                "`{path}` is {what}, not a file"
            )));
        }
        for index in matches {
            self.matched[self.origins[index]] = true;
        }
        self.total_bytes = self.total_bytes.saturating_add(metadata.len());
        if self.total_bytes > self.limit_bytes {
            return Err(Failure::OutputTooLarge {
                name: path,
                limit_bytes: self.limit_bytes,
            });
        }
        if self.found.len() == limits::MAX_OUTPUT_FILES {
            let why = format!(
                "more than {} files match `outputs`",
                limits::MAX_OUTPUT_FILES
            );
            return Err(Failure::OutputUnreadable(why));
        }
        let executable = metadata.permissions().mode() & 0o111 != 0;
        self.found.push(FoundFile {
            path,
            full,
            bytes: metadata.len(),
            executable,
        });
        Ok(())
    }

    /// Where a link leads, if that is inside the task's directory.
    fn follow(&self, path: &str, link: &Path) -> Result<PathBuf, Failure> {
        let target = link
            .canonicalize()
            .map_err(|error| self.store.unreadable(link, &error, 0))?;
        if target.starts_with(&self.root) {
            return Ok(target);
        }
        let why = format!(
            "`{path}` is a link to {}, outside the task's directory",
            target.display()
        );
        Err(Failure::OutputUnreadable(why))
    }
}

impl OutputStore<'_> {
    fn keep(self, found: FoundFile) -> Result<OutputFile, Failure> {
        let kept = self.blobs.put_file(&found.full);
        let (hash, bytes) =
            kept.map_err(|error| self.unreadable(&found.full, &error, found.bytes))?;
        debug_assert_eq!(
            bytes, found.bytes,
            "no process is left that could change it"
        );
        Ok(OutputFile {
            path: found.path,
            bytes,
            hash,
            executable: found.executable,
        })
    }

    fn unreadable(self, path: &Path, error: &std::io::Error, bytes: u64) -> Failure {
        unkept(
            self.disk,
            error,
            bytes,
            format!("{}: {error}", path.display()),
        )
    }
}

fn describe(kind: fs::FileType) -> &'static str {
    match kind {
        kind if kind.is_dir() => "a directory",
        kind if kind.is_fifo() => "a FIFO",
        kind if kind.is_socket() => "a socket",
        _ => "a device",
    }
}

/// The first file below `dir` that has grown to `limit_bytes`, by its relative path. For tasks that
/// failed: a program may ignore SIGXFSZ and fail in its own way.
pub fn grown_to(dir: &Path, limit_bytes: u64) -> Option<String> {
    let mut grown = None;
    walk_files(dir, &mut |path, metadata| {
        if metadata.len() >= limit_bytes.max(1) {
            grown = Some(relative(dir, path));
        }
        grown.is_none()
    });
    grown
}

/// The file below `dir` that was changed last.
pub fn last_written(dir: &Path) -> Option<String> {
    let mut last = None;
    walk_files(dir, &mut |path, metadata| {
        let time = (metadata.mtime(), metadata.mtime_nsec());
        if last.as_ref().is_none_or(|(before, _)| time >= *before) {
            last = Some((time, relative(dir, path)));
        }
        true
    });
    last.map(|(_, path)| path)
}

/// What is below `dir` takes so much of the disk that it is on. `None` if that is half of it, or
/// more.
pub fn taken_by(dir: &Path) -> Option<u64> {
    let disk = rustix::fs::statvfs(dir).ok()?;
    let half = disk.f_blocks.saturating_mul(disk.f_frsize) / 2;
    let mut taken = 0u64;
    walk_files(dir, &mut |_, metadata| {
        taken = taken.saturating_add(metadata.blocks().saturating_mul(512));
        taken < half
    });
    (taken < half).then_some(taken)
}

/// Shows each file below `dir` to `each`, until that says no. What cannot be looked at is passed
/// over.
fn walk_files(dir: &Path, each: &mut dyn FnMut(&Path, &fs::Metadata) -> bool) {
    let mut waiting = vec![(dir.to_path_buf(), 0)];
    while let Some((next, depth)) = waiting.pop() {
        for entry in fs::read_dir(&next).into_iter().flatten().flatten() {
            let Ok(metadata) = fs::symlink_metadata(entry.path()) else {
                continue;
            };
            if metadata.is_dir() && depth < MAX_DEPTH {
                waiting.push((entry.path(), depth + 1));
            } else if metadata.is_file() && !each(&entry.path(), &metadata) {
                return;
            }
        }
    }
}

fn relative(dir: &Path, path: &Path) -> String {
    path.strip_prefix(dir)
        .unwrap_or(path)
        .to_string_lossy()
        .into_owned()
}
