//! A task's directory: its making and removal. Removal happens beside the work, by a thread of its own.

use super::{
    WorkerError,
    protocol::{STDERR_FILE, STDOUT_FILE},
    staging::Staged,
};
use crate::types::{Attempt, JobId, Params, TaskIndex, Value};
use std::{
    fs, io,
    os::unix::fs::{DirBuilderExt, PermissionsExt, symlink},
    path::{Path, PathBuf},
    sync::{
        atomic::{AtomicU64, Ordering},
        mpsc,
    },
};

/// A task's parameters, as JSON.
const PARAMS_FILE: &str = "params.json";
/// Directories that may wait for their removal; past this, who brings one removes it.
const REMOVALS: usize = 256;

/// Where things of jobs are below a data directory.
#[derive(Clone, Debug)]
pub struct Layout {
    pub jobs: PathBuf,
    trash: PathBuf,
}

impl Layout {
    pub fn new(data_dir: &Path) -> Self {
        Self { jobs: data_dir.join("jobs"), trash: data_dir.join("trash") }
    }

    pub fn job(&self, job: JobId) -> PathBuf {
        self.jobs.join(job.to_string())
    }

    pub fn task(&self, job: JobId, task: TaskIndex, attempt: Attempt) -> PathBuf {
        let name = format!("{task}-{}.{}", attempt.epoch, attempt.number);
        self.job(job).join("tasks").join(name)
    }

    /// The directory of a Python worker, which stays while tasks come and go.
    pub fn worker(&self, job: JobId, number: u64) -> PathBuf {
        self.job(job).join("workers").join(number.to_string())
    }
}

/// Makes an empty directory for an attempt and links its inputs into it.
pub fn make(dir: &Path, staged: &Staged, params: &Params) -> io::Result<()> {
    make_private(dir)?;
    for (name, target) in &staged.links {
        symlink(target, dir.join(name))?;
    }
    if !params.is_empty() {
        fs::write(dir.join(PARAMS_FILE), params_json(params).to_string())?;
    }
    Ok(())
}

/// Parameters as an object.
pub fn params_json(params: &Params) -> serde_json::Value {
    params.iter().map(|(name, value)| (name.clone(), json(value))).collect::<serde_json::Map<_, _>>().into()
}

fn make_private(dir: &Path) -> io::Result<()> {
    let make = || fs::DirBuilder::new().mode(0o700).create(dir);
    match make() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let parent = dir.parent().ok_or(error)?;
            fs::DirBuilder::new().recursive(true).mode(0o700).create(parent)?;
            make()
        }
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            remove_tree(dir)?;
            make()
        }
        made => made,
    }
}

/// JSON has no infinities and no NaN: those become text.
fn json(value: &Value) -> serde_json::Value {
    match value {
        Value::Bool(value) => (*value).into(),
        Value::Int(value) => (*value).into(),
        Value::Float(value) if value.is_finite() => (*value).into(),
        Value::Float(value) => value.to_string().into(),
        Value::Text(value) => value.to_string().into(),
    }
}

/// Removes directories in the background. Dropping it waits for those it has.
pub struct Remover {
    layout: Layout,
    counter: AtomicU64,
    queue: Option<mpsc::SyncSender<PathBuf>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Remover {
    /// Sets aside what an earlier life left of tasks and inputs, and begins to remove it.
    pub fn start(layout: Layout) -> Result<Self, WorkerError> {
        let failed = |doing: &'static str, path: &Path| {
            let path = path.to_path_buf();
            move |source| WorkerError::Io { doing, path, source }
        };
        for dir in [&layout.jobs, &layout.trash] {
            let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(dir);
            made.map_err(failed("make", dir))?;
        }
        let (queue, removals) = mpsc::sync_channel::<PathBuf>(REMOVALS);
        let work = move || removals.into_iter().for_each(|path| remove_told(&path));
        let thread = std::thread::Builder::new().name("remover".into()).spawn(work);
        let thread = thread.map_err(failed("start a thread to clear", &layout.trash))?;
        let remover = Self { layout, counter: AtomicU64::new(0), queue: Some(queue), thread: Some(thread) };
        let trash = remover.layout.trash.clone();
        remover.clear_trash().map_err(failed("clear", &trash))?;
        let jobs = remover.layout.jobs.clone();
        for entry in fs::read_dir(&jobs).map_err(failed("read", &jobs))? {
            let entry = entry.map_err(failed("read", &jobs))?;
            // Other names are not ours.
            if entry.file_name().to_str().is_some_and(|name| name.parse::<JobId>().is_ok()) {
                remover.remove_parts(&entry.path());
            }
        }
        Ok(remover)
    }

    /// Removes a directory that nobody uses any more. Its name is free at once.
    pub fn remove(&self, path: PathBuf) {
        match self.set_aside(&path) {
            Ok(aside) => self.enqueue(aside),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => {
                tracing::warn!(path = %path.display(), %error, "could not set aside");
                self.enqueue(path);
            }
        }
    }

    /// Removes an attempt's directory. The usual one holds what we put there and nothing else, which is gone sooner than
    /// set aside; any other is as it was but for those files.
    pub fn remove_attempt(&self, dir: PathBuf, staged: &Staged) {
        let links = staged.links.iter().map(|(name, _)| name.as_str());
        for name in [STDOUT_FILE, STDERR_FILE, PARAMS_FILE].into_iter().chain(links) {
            // One that is missing, or that the task made something else of, is no problem here.
            let _ = fs::remove_file(dir.join(name));
        }
        if fs::remove_dir(&dir).is_err() {
            self.remove(dir);
        }
    }

    /// Renaming is at once and cannot be seen half done.
    fn set_aside(&self, path: &Path) -> io::Result<PathBuf> {
        let number = self.counter.fetch_add(1, Ordering::Relaxed);
        let aside = self.layout.trash.join(format!("{}-{number}", std::process::id()));
        fs::rename(path, &aside).map(|()| aside)
    }

    fn enqueue(&self, path: PathBuf) {
        let queue = self.queue.as_ref().expect("it is taken when this is dropped only");
        if let Err(mpsc::TrySendError::Full(path) | mpsc::TrySendError::Disconnected(path)) = queue.try_send(path) {
            remove_told(&path);
        }
    }

    /// Removes what the runner keeps in a job's directory, and the directory if nothing else is in it.
    pub fn remove_parts(&self, job_dir: &Path) {
        for part in ["tasks", "workers", "input", "after", "staging"] {
            self.remove(job_dir.join(part));
        }
        // Fails while the journal is in it, which is as it should be.
        let _ = fs::remove_dir(job_dir);
    }

    fn clear_trash(&self) -> io::Result<()> {
        for entry in fs::read_dir(&self.layout.trash)? {
            self.enqueue(entry?.path());
        }
        Ok(())
    }
}

impl Drop for Remover {
    fn drop(&mut self) {
        self.queue = None;
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has been printed already; what it left goes at the next start.
            let _ = thread.join();
        }
    }
}

fn remove_told(path: &Path) {
    if let Err(error) = remove_tree(path) {
        tracing::warn!(path = %path.display(), %error, "could not remove; the next start of the node tries again");
    }
}

/// Like `fs::remove_dir_all`, also where a task (or we, for inputs) took away the right to write.
pub fn remove_tree(path: &Path) -> io::Result<()> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            allow(path)?;
            fs::remove_dir_all(path)
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

fn allow(dir: &Path) -> io::Result<()> {
    fs::set_permissions(dir, fs::Permissions::from_mode(0o700))?;
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            allow(&entry.path())?;
        }
    }
    Ok(())
}
