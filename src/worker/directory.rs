//! A task's directory: its making and removal. Removal happens beside the work, by a thread of its
//! own.

use super::{
    error::WorkerError,
    protocol::{STDERR_FILE, STDOUT_FILE},
    staging::Staged,
};
use nodectl_types::{
    Attempt, JobId, Params, TaskIndex, Value, manifest::PARAMS_FILE, spec::SPELLED,
};
use std::{
    fs::{self, OpenOptions},
    io::{self, Write},
    os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt, symlink},
    path::{Path, PathBuf},
    sync::{
        atomic::{AtomicU64, Ordering},
        mpsc,
    },
};

/// Directories that may wait for their removal; past this, who brings one removes it.
const REMOVALS: usize = 256;

/// Where programs in Python are, in the data directory: the shim of workers, and this project's
/// package.
pub const PYTHON_DIRECTORY: &str = "python";

/// Where things of jobs are below a data directory.
#[derive(Clone, Debug)]
pub struct Layout {
    pub jobs: PathBuf,
    trash: PathBuf,
}

impl Layout {
    pub fn new(data_dir: &Path) -> Self {
        Self {
            jobs: data_dir.join("jobs"),
            trash: data_dir.join("trash"),
        }
    }

    pub fn job(&self, job: JobId) -> PathBuf {
        self.jobs.join(job.to_string())
    }

    pub fn task(&self, job: JobId, task: TaskIndex, attempt: Attempt) -> PathBuf {
        let name = format!("{task}-{}", attempt.unique_name());
        self.job(job).join("tasks").join(name)
    }

    /// The directory with the results that an attempt is given.
    pub fn inputs(&self, job: JobId, task: TaskIndex, attempt: Attempt) -> PathBuf {
        let name = format!("{task}-{}", attempt.unique_name());
        self.job(job).join("inputs").join(name)
    }

    /// The directory of a persistent worker, which stays while tasks come and go.
    pub fn worker(&self, job: JobId, number: u64) -> PathBuf {
        self.job(job).join("workers").join(number.to_string())
    }
}

/// Makes an empty directory for an attempt and links its inputs into it.
pub fn make(dir: &Path, staged: &Staged, params: &Params) -> io::Result<()> {
    make_private(dir)?;
    for (name, target) in &staged.links {
        // An uploaded file of that name gives way to the task's own, which would be written through
        // the link else.
        if params.is_empty() || name != PARAMS_FILE {
            symlink(target, dir.join(name))?;
        }
    }
    if !params.is_empty() {
        fs::write(dir.join(PARAMS_FILE), params_json(params).to_string())?;
    }
    Ok(())
}

/// Whether a directory holds what `make` put there and nothing else but empty streams: then it is
/// as good as a new one.
pub fn is_as_made(dir: &Path, staged: &Staged) -> bool {
    let Ok(entries) = fs::read_dir(dir) else {
        return false;
    };
    let mut links = 0;
    for entry in entries {
        let Ok(entry) = entry else { return false };
        let name = entry.file_name();
        let is_known = match entry.file_type() {
            Ok(kind) if kind.is_file() && name == PARAMS_FILE => true,
            Ok(kind) if kind.is_file() && (name == STDOUT_FILE || name == STDERR_FILE) => entry
                .metadata()
                .is_ok_and(|metadata| metadata.len() == 0 && metadata.nlink() == 1),
            Ok(kind) if kind.is_symlink() => {
                links += 1;
                let target = fs::read_link(entry.path()).ok();
                staged
                    .links
                    .iter()
                    .any(|(link, staged)| name == link.as_str() && target.as_ref() == Some(staged))
            }
            _ => false,
        };
        if !is_known {
            return false;
        }
    }
    links == staged.links.len()
}

/// Whether what is at the top of a directory by this name was given to the task: a link as `make`
/// put it there. What the task wrote in its place is the task's.
pub fn is_given(dir: &Path, name: &str, staged: &Staged) -> bool {
    let given = staged.links.iter().find(|(link, _)| link == name);
    given.is_some_and(|(_, target)| {
        fs::read_link(dir.join(name)).is_ok_and(|found| found == *target)
    })
}

/// Gives the directory of an attempt that left it as it was made to another of the same job, for a
/// tenth of what removing one and making one cost.
pub fn pass_on(from: &Path, to: &Path, params: &Params) -> io::Result<()> {
    fs::rename(from, to)?;
    if params.is_empty() {
        return Ok(());
    }
    // In place: a file that is cut to nothing and written again is flushed by some file systems
    // when it is closed.
    let mut file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .custom_flags(libc::O_NOFOLLOW)
        .open(to.join(PARAMS_FILE))?;
    let text = params_json(params).to_string();
    file.write_all(text.as_bytes())?;
    file.set_len(text.len() as u64)
}

/// Parameters as an object, numbers as numbers.
pub fn params_json(params: &Params) -> serde_json::Value {
    params
        .iter()
        .map(|(name, value)| (name.clone(), json(&value.plain())))
        .collect::<serde_json::Map<_, _>>()
        .into()
}

/// Parameters for workers that are part of this program, which name files by their parameters as
/// the node does: a value whose spelling counts is an object with it.
pub fn spelled_json(params: &Params) -> serde_json::Value {
    let value = |value: &Value| match value {
        Value::Spelled(text) => serde_json::json!({ SPELLED: text }),
        value => json(value),
    };
    params
        .iter()
        .map(|(name, found)| (name.clone(), value(found)))
        .collect::<serde_json::Map<_, _>>()
        .into()
}

fn make_private(dir: &Path) -> io::Result<()> {
    let make = || fs::DirBuilder::new().mode(0o700).create(dir);
    match make() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let parent = dir.parent().ok_or(error)?;
            fs::DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(parent)?;
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
        Value::Text(value) | Value::Spelled(value) => value.to_string().into(),
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
            move |source| WorkerError::Io {
                doing,
                path,
                source,
            }
        };
        for dir in [&layout.jobs, &layout.trash] {
            let made = fs::DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(dir);
            made.map_err(failed("make", dir))?;
        }
        let (queue, removals) = mpsc::sync_channel::<PathBuf>(REMOVALS);
        let work = move || removals.into_iter().for_each(|path| remove_told(&path));
        let thread = std::thread::Builder::new()
            .name("remover".into())
            .spawn(work);
        let thread = thread.map_err(failed("start a thread to clear", &layout.trash))?;
        let remover = Self {
            layout,
            counter: AtomicU64::new(0),
            queue: Some(queue),
            thread: Some(thread),
        };
        let trash = remover.layout.trash.clone();
        remover.clear_trash().map_err(failed("clear", &trash))?;
        let jobs = remover.layout.jobs.clone();
        for entry in fs::read_dir(&jobs).map_err(failed("read", &jobs))? {
            let entry = entry.map_err(failed("read", &jobs))?;
            // Other names are not ours.
            if entry
                .file_name()
                .to_str()
                .is_some_and(|name| name.parse::<JobId>().is_ok())
            {
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

    /// Removes an attempt's directory. The usual one holds what we put there and nothing else,
    /// which is gone sooner than set aside; any other is as it was but for those files. Of an
    /// attempt that got no parameters, a file of that name is its own.
    pub fn remove_attempt(&self, dir: PathBuf, staged: &Staged, has_params: bool) {
        if let Some(own) = &staged.own {
            // Links, and not many.
            let _ = fs::remove_dir_all(own);
        }
        let links = staged.links.iter().map(|(name, _)| name.as_str());
        let params = has_params.then_some(PARAMS_FILE);
        let own = [STDOUT_FILE, STDERR_FILE].into_iter().chain(params);
        for name in own.chain(links) {
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
        let aside = self
            .layout
            .trash
            .join(format!("{}-{number}", std::process::id()));
        match fs::rename(path, &aside) {
            // A directory that moves is written to, as its link to the one above changes: whoever
            // is not root needs the right to. Files that travel lie in one that is read-only.
            Err(error)
                if error.kind() == io::ErrorKind::PermissionDenied
                    && fs::symlink_metadata(path)?.is_dir() =>
            {
                fs::set_permissions(path, fs::Permissions::from_mode(0o700))?;
                fs::rename(path, &aside)?;
            }
            done => done?,
        }
        Ok(aside)
    }

    fn enqueue(&self, path: PathBuf) {
        let queue = self
            .queue
            .as_ref()
            .expect("it is taken when this is dropped only");
        if let Err(mpsc::TrySendError::Full(path) | mpsc::TrySendError::Disconnected(path)) =
            queue.try_send(path)
        {
            remove_told(&path);
        }
    }

    /// Removes what the runner keeps in a job's directory, and the directory if nothing else is in
    /// it.
    pub fn remove_parts(&self, job_dir: &Path) {
        let staged = ["input", "after", "needs", "inputs", "staging"];
        for part in ["tasks", "workers"].into_iter().chain(staged) {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_task_writes_in_place_of_what_it_was_given_is_its_own() {
        let lab = tempfile::tempdir().unwrap();
        let dir = lab.path().join("1");
        let names = ["kept", "replaced", "removed", "linked"];
        let staged = Staged {
            links: names.map(|name| (name.into(), "/nowhere".into())).into(),
            own: None,
        };
        make(&dir, &staged, &Params::default()).unwrap();
        for name in &names[1..] {
            fs::remove_file(dir.join(name)).unwrap();
        }
        fs::write(dir.join("replaced"), "new").unwrap();
        symlink("replaced", dir.join("linked")).unwrap();
        fs::write(dir.join("made"), "new").unwrap();
        let given = |name: &str| is_given(&dir, name, &staged);
        assert_eq!(names.map(given), [true, false, false, false]);
        assert!(!given("made"));
    }

    #[test]
    fn a_directory_is_passed_on_only_as_it_was_made() {
        let lab = tempfile::tempdir().unwrap();
        let place = |name: &str| lab.path().join(name);
        let staged = Staged {
            links: vec![("data".into(), "/nowhere/data".into())],
            own: None,
        };
        let params = |text: &str| vec![("a".to_string(), Value::Text(text.into()))];
        make(&place("1"), &staged, &params("a long parameter")).unwrap();
        for name in [STDOUT_FILE, STDERR_FILE] {
            fs::write(place("1").join(name), "").unwrap();
        }
        assert!(is_as_made(&place("1"), &staged));
        pass_on(&place("1"), &place("2"), &params("b")).unwrap();
        assert!(!place("1").exists());
        assert_eq!(
            fs::read_to_string(place("2").join(PARAMS_FILE)).unwrap(),
            r#"{"a":"b"}"#
        );
        assert_eq!(
            fs::read_link(place("2").join("data")).unwrap(),
            Path::new("/nowhere/data")
        );
        type Change = (&'static str, fn(&Path));
        let changes: [Change; 5] = [
            ("a file", |dir| fs::write(dir.join("made"), "").unwrap()),
            ("a directory", |dir| {
                fs::create_dir(dir.join("made")).unwrap()
            }),
            ("output", |dir| {
                fs::write(dir.join(STDOUT_FILE), "hello").unwrap()
            }),
            ("a link less", |dir| {
                fs::remove_file(dir.join("data")).unwrap()
            }),
            ("another link", |dir| {
                fs::remove_file(dir.join("data")).unwrap();
                symlink("/elsewhere", dir.join("data")).unwrap();
            }),
        ];
        for (what, change) in changes {
            make(&place("3"), &staged, &params("c")).unwrap();
            assert!(is_as_made(&place("3"), &staged));
            change(&place("3"));
            assert!(!is_as_made(&place("3"), &staged), "{what}");
        }
    }
}
