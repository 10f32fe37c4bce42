//! Checkpoints that the tasks of a command make of themselves, in their job's `checkpoint_dir`: all
//! that is in that directory, packed as one file (tar) once it has changed and stands still, kept
//! on this node and another, and put into the directory of the next attempt, wherever it runs. Of a
//! gang, they are those of rank 0, and all ranks find them.
//!
//! What has a name that begins with a dot is not looked at: programs write under such a name, and
//! rename what is whole.

use super::{attempt::AttemptContext, blocking::blocking};
use nodectl_types::{StartTask, query::CheckpointOwner};
use std::{
    fs::{self, File},
    io,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, SystemTime},
};

/// How often the directory is looked at.
pub const PERIOD: Duration = Duration::from_secs(1);
/// Steps of one attempt, at most: what an earlier one kept, and this one did not find since its
/// node was away, has a lower number than what this one keeps.
const STEPS: u64 = 1 << 20;

/// The directory of one attempt, and what was kept of it.
#[derive(Clone, Debug)]
pub struct CheckpointWatch {
    of: CheckpointOwner,
    dir: PathBuf,
    /// The number of the last that was kept.
    step: u64,
    kept: Contents,
    seen: Contents,
}

/// What tells one state of a directory from another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Contents {
    files: u64,
    bytes: u64,
    newest: Option<SystemTime>,
}

/// The newest checkpoint of a task, brought here.
pub async fn newest(context: &AttemptContext, task: &StartTask) -> Option<PathBuf> {
    task.work.checkpoint_dir.as_ref()?;
    context.checkpoints.newest(owner(task)).await
}

impl CheckpointWatch {
    /// Makes the directory in an attempt's, with what was `saved`. None if the job asks for none,
    /// or if another rank is to be watched. Blocks.
    pub fn begin(
        task: &StartTask,
        attempt_dir: &Path,
        saved: Option<&Path>,
    ) -> io::Result<Option<Self>> {
        let Some(name) = &task.work.checkpoint_dir else {
            return Ok(None);
        };
        let dir = attempt_dir.join(name);
        fs::create_dir_all(&dir)?;
        if let Some(saved) = saved {
            tar::Archive::new(File::open(saved)?).unpack(&dir)?;
        }
        let is_watched = task.place.as_ref().is_none_or(|place| place.rank == 0);
        let contents = Contents::of(&dir)?;
        Ok(is_watched.then(|| Self {
            of: owner(task),
            dir,
            step: saved.and_then(step_of).map_or(0, next_attempts),
            kept: contents,
            seen: contents,
        }))
    }

    /// Keeps what is there, if it has changed and stood still since the last look.
    pub async fn look(&mut self, context: &Arc<AttemptContext>) {
        let (mut this, keeping) = (self.clone(), context.clone());
        let (step, this) = blocking(move || {
            let before = this.seen;
            this.seen = Contents::of(&this.dir).unwrap_or_default();
            let step = (this.seen == before).then(|| this.keep(&keeping)).flatten();
            (step, this)
        })
        .await;
        *self = this;
        if let Some(step) = step {
            let copied = context.checkpoints.copied(self.of, step);
            context.runtime.spawn(copied);
        }
    }

    /// Keeps what the process has left, and waits until another node has it, too: this one may be
    /// about to leave.
    pub async fn end(mut self, context: &Arc<AttemptContext>) {
        let (of, keeping) = (self.of, context.clone());
        let step = blocking(move || {
            self.seen = Contents::of(&self.dir).unwrap_or_default();
            self.keep(&keeping)
        });
        if let Some(step) = step.await {
            context.checkpoints.copied(of, step).await;
        }
    }

    /// Packs what was seen, if it is not kept yet; returns its step.
    fn keep(&mut self, context: &AttemptContext) -> Option<u64> {
        if self.seen == self.kept || self.seen.files == 0 {
            return None;
        }
        match self.pack(context) {
            Ok(true) => {
                (self.step, self.kept) = (self.step + 1, self.seen);
                Some(self.step)
            }
            Ok(false) => None,
            Err(error) => {
                let (job, task) = (self.of.job, self.of.task.unwrap_or_default());
                tracing::warn!("no checkpoint of task {task} of job {job}: {error}");
                None
            }
        }
    }

    /// False if it changed meanwhile.
    fn pack(&self, context: &AttemptContext) -> io::Result<bool> {
        let part = context.checkpoints.part(self.of.job)?;
        let packed = pack(&self.dir, &part).and_then(|()| {
            let is_whole = Contents::of(&self.dir)? == self.seen;
            if is_whole {
                context.checkpoints.keep(self.of, self.step + 1, &part)?;
            }
            Ok(is_whole)
        });
        if !matches!(packed, Ok(true)) {
            let _ = fs::remove_file(&part);
        }
        packed
    }
}

impl Contents {
    fn of(dir: &Path) -> io::Result<Self> {
        let mut all = Self::default();
        for entry in visible(dir)? {
            let metadata = fs::symlink_metadata(dir.join(entry))?;
            all.newest = all.newest.max(metadata.modified().ok());
            if !metadata.is_dir() {
                all.files += 1;
                all.bytes += metadata.len();
            }
        }
        Ok(all)
    }
}

fn owner(task: &StartTask) -> CheckpointOwner {
    CheckpointOwner {
        job: task.job,
        task: Some(task.task),
    }
}

/// What is below a checkpoint's directory and not hidden: paths from there, a directory before what
/// is in it.
fn visible(dir: &Path) -> io::Result<Vec<PathBuf>> {
    let (mut found, mut next) = (Vec::new(), vec![PathBuf::new()]);
    while let Some(below) = next.pop() {
        for entry in fs::read_dir(dir.join(&below))? {
            let entry = entry?;
            if entry.file_name().as_encoded_bytes().starts_with(b".") {
                continue;
            }
            let path = below.join(entry.file_name());
            if entry.file_type()?.is_dir() {
                next.push(path.clone());
            }
            found.push(path);
        }
    }
    Ok(found)
}

fn pack(dir: &Path, into: &Path) -> io::Result<()> {
    let mut archive = tar::Builder::new(File::create_new(into)?);
    archive.follow_symlinks(false);
    for path in visible(dir)? {
        archive.append_path_with_name(dir.join(&path), path)?;
    }
    archive.into_inner()?.sync_all()
}

/// Before the first step of an attempt that goes on from this one.
fn next_attempts(step: u64) -> u64 {
    (step / STEPS + 1) * STEPS
}

/// The number at the end of a kept file's name.
fn step_of(file: &Path) -> Option<u64> {
    let stem = file.file_stem()?.to_str()?;
    stem.rsplit_once('-')?.1.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_packed_comes_back_without_what_is_hidden() {
        let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        fs::create_dir(from.path().join("step-1")).unwrap();
        fs::write(from.path().join("step-1/weights"), [7; 5_000]).unwrap();
        fs::write(from.path().join("step-1/.weights"), "no").unwrap();
        fs::write(from.path().join("log"), "one").unwrap();
        fs::write(from.path().join(".half"), "no").unwrap();
        let packed = to.path().join("task-0-step-000000003.tar");
        pack(from.path(), &packed).unwrap();
        assert_eq!(step_of(&packed), Some(3));
        assert_eq!([0, 3, STEPS].map(next_attempts), [STEPS, STEPS, 2 * STEPS]);
        let back = to.path().join("back");
        tar::Archive::new(File::open(&packed).unwrap())
            .unpack(&back)
            .unwrap();
        assert_eq!(fs::read(back.join("step-1/weights")).unwrap(), [7; 5_000]);
        let hidden = [".half", "step-1/.weights"];
        assert!(hidden.iter().all(|path| !back.join(path).exists()));
        let (before, after) = (Contents::of(from.path()), Contents::of(&back));
        let (before, after) = (before.unwrap(), after.unwrap());
        assert_eq!((before.files, before.bytes), (2, 5_003));
        assert_eq!((after.files, after.bytes), (2, 5_003));
    }

    #[test]
    fn a_change_shows() {
        let dir = tempfile::tempdir().unwrap();
        let empty = Contents::of(dir.path()).unwrap();
        assert_eq!(empty, Contents::default());
        fs::write(dir.path().join("state"), "12").unwrap();
        let first = Contents::of(dir.path()).unwrap();
        assert_ne!(first, empty);
        assert_eq!(Contents::of(dir.path()).unwrap(), first);
        let file = File::options().write(true).open(dir.path().join("state"));
        let later = SystemTime::now() + Duration::from_secs(9);
        file.unwrap().set_modified(later).unwrap();
        assert_ne!(Contents::of(dir.path()).unwrap(), first);
    }
}
