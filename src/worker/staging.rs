//! What a job's tasks share: its uploaded files and the results of earlier jobs, brought to this
//! node once a job and linked into every task's directory; and what a task alone needs (`needs`).
//! Tasks that come meanwhile wait for the one that stages; a failure is that task's alone, and the
//! next one tries again.

use super::{after, directory::Layout, needs};
use futures::{StreamExt, TryStreamExt, stream};
use nodectl_ports::{BlobFetcher, Blobs, NodeHandle, specs};
use nodectl_types::{
    After, BlobHash, FileEntry, JobId, NodeId, StartTask, TaskIndex, manifest::safe_path,
};
use std::{
    collections::{BTreeSet, HashMap},
    fs, io,
    os::unix::fs::{DirBuilderExt, PermissionsExt},
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};
use tokio::sync::OnceCell;

/// Blobs fetched at once for one job.
const FETCHES: usize = 8;

/// What to link into each task's directory: (name, target).
#[derive(Debug, Default)]
pub struct Staged {
    pub links: Vec<(String, PathBuf)>,
    /// A directory of links for this attempt alone, which goes with it.
    pub own: Option<PathBuf>,
}

/// Where the results of a job's tasks are, as far as they were brought here.
type TaskResults = HashMap<TaskIndex, Arc<OnceCell<PathBuf>>>;

pub struct Stager {
    pub layout: Layout,
    pub blobs: Arc<dyn Blobs>,
    pub fetcher: Arc<dyn BlobFetcher>,
    pub node: NodeHandle,
    jobs: Mutex<HashMap<JobId, Arc<OnceCell<Arc<Staged>>>>>,
    results: Mutex<HashMap<JobId, TaskResults>>,
    counter: AtomicU64,
    nothing: Arc<Staged>,
}

impl Stager {
    pub fn new(
        layout: Layout,
        blobs: Arc<dyn Blobs>,
        fetcher: Arc<dyn BlobFetcher>,
        node: NodeHandle,
    ) -> Self {
        let (jobs, results, counter) = (Mutex::default(), Mutex::default(), AtomicU64::new(0));
        Self {
            layout,
            blobs,
            fetcher,
            node,
            jobs,
            results,
            counter,
            nothing: Arc::default(),
        }
    }

    /// Has everything in place that the task is given. The error is a sentence for the user.
    pub async fn stage(&self, task: &StartTask) -> Result<Arc<Staged>, String> {
        let shared = self.stage_shared(task).await?;
        if task.needs.is_empty() {
            return Ok(shared);
        }
        let own = needs::stage(self, task).await?;
        let mut links = shared.links.clone();
        links.retain(|(name, _)| name != needs::INPUTS);
        links.push((needs::INPUTS.into(), own.clone()));
        let own = Some(own);
        Ok(Arc::new(Staged { links, own }))
    }

    /// Where the results of a task of a job are, which are brought here the first time.
    pub async fn result_of(
        &self,
        job: JobId,
        task: TaskIndex,
        holders: &[NodeId],
    ) -> Result<PathBuf, String> {
        let cell = {
            let mut results = self.results.lock().unwrap_or_else(PoisonError::into_inner);
            let of_job = results.entry(job).or_default();
            of_job.entry(task).or_default().clone()
        };
        let bring = || async {
            let staging = self
                .staging_dir(job)
                .map_err(|error| format!("no staging directory: {error}"))?;
            let found = needs::stage_result(self, (job, task), holders, &staging).await?;
            // Many tasks leave nothing but that they are done: one directory is enough for those.
            let name = if found {
                task.to_string()
            } else {
                "none".into()
            };
            let target = self.layout.job(job).join("needs").join(name);
            publish(&staging, &target)
                .map_err(|error| format!("could not place {}: {error}", target.display()))?;
            Ok(target)
        };
        cell.get_or_try_init(bring).await.cloned()
    }

    async fn stage_shared(&self, task: &StartTask) -> Result<Arc<Staged>, String> {
        if task.work.inputs.is_none() && task.work.after.is_empty() {
            return Ok(self.nothing.clone());
        }
        let cell = self.jobs().entry(task.job).or_default().clone();
        cell.get_or_try_init(|| self.stage_now(task)).await.cloned()
    }

    /// Forgets that a job was staged. Its files are the caller's to remove.
    pub fn forget(&self, job: JobId) {
        self.jobs().remove(&job);
        let mut results = self.results.lock().unwrap_or_else(PoisonError::into_inner);
        results.remove(&job);
    }

    async fn stage_now(&self, task: &StartTask) -> Result<Arc<Staged>, String> {
        let mut links = Vec::new();
        if let Some(manifest) = task.work.inputs {
            links.extend(self.stage_inputs(task.job, manifest, &task.holders).await?);
        }
        for (name, job) in task.work.after.iter().filter_map(After::results) {
            if !safe_path(name) || name.contains('/') {
                return Err(format!(
                    "`{name}` cannot name the results of job {job} in a task's directory"
                ));
            }
            let staging = self
                .staging_dir(task.job)
                .map_err(|error| format!("no staging directory: {error}"))?;
            let target = self
                .layout
                .job(task.job)
                .join("after")
                .join(job.to_string());
            after::stage(self, job, &staging)
                .await
                .map_err(|why| format!("results of job {job} (`{name}`): {why}"))?;
            publish(&staging, &target)
                .map_err(|error| format!("could not place {}: {error}", target.display()))?;
            links.push((name.to_string(), target));
        }
        Ok(Arc::new(Staged { links, own: None }))
    }

    async fn stage_inputs(
        &self,
        job: JobId,
        manifest: BlobHash,
        holders: &[NodeId],
    ) -> Result<Vec<(String, PathBuf)>, String> {
        self.fetch(manifest, holders)
            .await
            .map_err(|why| format!("the list of uploaded files: {why}"))?;
        let blobs = self.blobs.clone();
        let reading = tokio::task::spawn_blocking(move || {
            specs::manifest(&*blobs, manifest)
                .map_err(|why| format!("the list of uploaded files (blob {manifest}): {why}"))
        });
        let manifest = reading.await.map_err(|error| error.to_string())??;
        let fetch = |(path, hash)| async move {
            self.fetch(hash, holders)
                .await
                .map_err(|why| format!("uploaded file `{path}`: {why}"))
        };
        // Owned, since closures over borrowed entries would tie the future to one lifetime.
        let wanted: Vec<(String, BlobHash)> = manifest
            .files
            .iter()
            .map(|f| (f.path.clone(), f.hash))
            .collect();
        stream::iter(wanted)
            .map(fetch)
            .buffer_unordered(FETCHES)
            .try_collect::<Vec<()>>()
            .await?;
        let staging = self
            .staging_dir(job)
            .map_err(|error| format!("no staging directory: {error}"))?;
        let target = self.layout.job(job).join("input");
        let names: BTreeSet<String> = manifest
            .files
            .iter()
            .filter_map(|file| file.path.split('/').next())
            .map(str::to_string)
            .collect();
        let (blobs, place) = (self.blobs.clone(), target.clone());
        let build = move || {
            build_tree(&*blobs, &manifest.files, &staging).and_then(|()| {
                publish(&staging, &place)
                    .map_err(|error| format!("could not place {}: {error}", place.display()))
            })
        };
        tokio::task::spawn_blocking(build)
            .await
            .map_err(|error| error.to_string())??;
        Ok(names
            .into_iter()
            .map(|name| (name.clone(), target.join(name)))
            .collect())
    }

    /// Makes sure that a blob is here.
    pub async fn fetch(&self, hash: BlobHash, holders: &[NodeId]) -> Result<(), String> {
        let blobs = self.blobs.clone();
        if tokio::task::spawn_blocking(move || blobs.has(hash))
            .await
            .unwrap_or(false)
        {
            return Ok(());
        }
        self.fetcher.fetch(hash, holders.to_vec()).await
    }

    /// A new directory: a staging that was given up may still be writing to an older one.
    fn staging_dir(&self, job: JobId) -> io::Result<PathBuf> {
        let number = self.counter.fetch_add(1, Ordering::Relaxed);
        let dir = self
            .layout
            .job(job)
            .join("staging")
            .join(number.to_string());
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&dir)?;
        Ok(dir)
    }

    fn jobs(&self) -> std::sync::MutexGuard<'_, HashMap<JobId, Arc<OnceCell<Arc<Staged>>>>> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Copies files out of the blob store: copies, since a task that runs as this user could change a
/// hard link's content.
pub fn build_tree(blobs: &dyn Blobs, files: &[FileEntry], dir: &Path) -> Result<(), String> {
    for file in files {
        let told = |error: io::Error| format!("could not write `{}`: {error}", file.path);
        let blob = blobs
            .open(file.hash)
            .map_err(|error| format!("`{}`: its blob cannot be read: {error}", file.path))?;
        let mut blob =
            blob.ok_or_else(|| format!("`{}`: its blob was removed, or is damaged", file.path))?;
        let path = dir.join(&file.path);
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent).map_err(told)?;
        }
        copy(
            &mut blob,
            &path,
            if file.executable { 0o555 } else { 0o444 },
        )
        .map_err(told)?;
    }
    Ok(())
}

/// Where the file system can, the copy shares the blob's blocks.
fn copy(blob: &mut fs::File, path: &Path, mode: u32) -> io::Result<()> {
    let mut file = fs::File::create_new(path)?;
    if rustix::fs::ioctl_ficlone(&file, &*blob).is_err() {
        io::copy(blob, &mut file)?;
    }
    file.set_permissions(fs::Permissions::from_mode(mode))
}

/// Gives a staged directory its place, read-only. If another staging was quicker, its result is as
/// good.
fn publish(staging: &Path, target: &Path) -> io::Result<()> {
    if let Some(parent) = target.parent() {
        fs::create_dir_all(parent)?;
    }
    match fs::rename(staging, target) {
        Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => {}
        renamed => renamed?,
    }
    forbid_writing(target)
}

fn forbid_writing(dir: &Path) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            forbid_writing(&entry.path())?;
        }
    }
    fs::set_permissions(dir, fs::Permissions::from_mode(0o555))
}
