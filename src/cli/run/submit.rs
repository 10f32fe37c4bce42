//! Job file to submitted jobs: uploads what the node lacks, side by side, then submits in the order
//! of dependencies.

use super::{
    collector::check_directory,
    earlier::{self, TakenOver},
    followed::{Followed, default_directory},
    identity,
    patience::telling,
};
use crate::{args::RunArgs, exit::CliError};
use futures::{StreamExt, TryStreamExt, stream};
use nodectl_http::{Client, ClientError, client::SubmissionKey};
use nodectl_jobfile::{PlannedJob, UploadSource};
use nodectl_types::{After, BlobHash, JobDraft, JobId, Manifest, text, units::format_bytes};
use nodectl_wire::api::Submitted;
use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, File},
    io::{self, Read},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};
use tokio::time::{Instant, timeout_at};

/// Files hashed and uploaded at once.
const UPLOADS_AT_ONCE: usize = 8;

/// A job whose files are copied to other nodes may not be safe for a while.
const UNDECIDED: Duration = Duration::from_secs(600);
/// A node that went away may be started again.
const NODE_AWAY: Duration = Duration::from_secs(10);
const ASK_AGAIN: Duration = Duration::from_millis(500);

/// More than this is not sent to other nodes unless the job file says so.
const MAX_UNASKED_BYTES: u64 = 16 << 30;

type StoredUploads = BTreeMap<UploadSource, (BlobHash, u64)>;

/// Submits the jobs, which are in an order that their dependencies allow. `into` overrides where
/// results go: the directory itself for one job, a directory in it for each of several. What is not
/// submitted by the `deadline` takes back what was.
pub async fn submit(
    client: &Client,
    jobs: Vec<PlannedJob>,
    into: Option<&Path>,
    key: &CommandKey,
    deadline: Option<Instant>,
) -> Result<Vec<Followed>, CliError> {
    let jobs = with_cluster_uploads(client, jobs).await?;
    let directories = directories(&jobs, into)?;
    jobs.iter()
        .filter_map(|job| job.note.as_ref())
        .for_each(|note| tell!("{}", text::message(note)));
    let uploading = upload_all(client, &jobs);
    let stored = match deadline {
        None => uploading.await?,
        Some(deadline) => timeout_at(deadline, uploading)
            .await
            .map_err(|_| too_late("its files were still on their way"))??,
    };
    let awaited = jobs.iter().flat_map(|job| job.after.clone()).collect();
    let submission = Submission {
        client,
        stored,
        awaited,
        key,
        deadline,
    };
    let (count, done) = (jobs.len(), AtomicU64::new(0));
    let mut submitted = Vec::with_capacity(count);
    let each = submission.each(jobs.into_iter().zip(directories), &mut submitted, &done);
    let how_far = || {
        let done = done.load(Ordering::Relaxed);
        format!("{done} of {count} jobs are submitted")
    };
    match telling(each, how_far).await {
        Ok(()) => Ok(submitted),
        // It may have been accepted, and then the whole file can be submitted again.
        Err(error @ CliError::Unconfirmed { .. }) => Err(error),
        Err(error) => {
            cancel(client, &submitted).await;
            Err(error)
        }
    }
}

/// Where the results of each job go, if somebody has said so. Fails before anything runs, rather
/// than when the first result has nowhere to go.
fn directories(jobs: &[PlannedJob], into: Option<&Path>) -> Result<Vec<Option<PathBuf>>, CliError> {
    let several = jobs.iter().filter(|job| !job.is_step()).count() > 1;
    let chosen = |job: &PlannedJob| match (into, &job.into) {
        _ if job.is_step() => None,
        (Some(directory), _) if several => Some(directory.join(job.name())),
        (Some(directory), _) => Some(directory.to_path_buf()),
        (None, chosen) => chosen.clone(),
    };
    let chosen: Vec<_> = jobs.iter().map(chosen).collect();
    chosen
        .iter()
        .flatten()
        .try_for_each(|directory| check_directory(directory))?;
    for delivery in jobs.iter().filter_map(|job| job.delivery.as_ref()) {
        if delivery.directory.is_file() {
            return Err(CliError::Usage(format!(
                "results go into a directory, and {} is a file\nhint: name another place with `output` \
                 ([output] location in a configuration of integrator's)",
                delivery.directory.display()
            )));
        }
        let failed = |source| CliError::file("making", &delivery.directory, source);
        fs::create_dir_all(&delivery.directory).map_err(failed)?;
    }
    Ok(chosen)
}

/// Jobs that are submitted together, once their files are stored.
struct Submission<'a> {
    client: &'a Client,
    stored: StoredUploads,
    /// Names of jobs that others come after.
    awaited: BTreeSet<String>,
    key: &'a CommandKey,
    deadline: Option<Instant>,
}

impl Submission<'_> {
    /// Submits one job after the other, each with its directory. `done` counts them.
    async fn each(
        &self,
        jobs: impl ExactSizeIterator<Item = (PlannedJob, Option<PathBuf>)>,
        submitted: &mut Vec<Followed>,
        done: &AtomicU64,
    ) -> Result<(), CliError> {
        let count = jobs.len();
        let mut ids: BTreeMap<String, JobId> = BTreeMap::new();
        for (index, (job, directory)) in jobs.enumerate() {
            let is_late = self.deadline.is_some_and(|at| Instant::now() >= at);
            // Between jobs: of one that is on its way, nobody knows whether it has arrived.
            if is_late {
                return Err(too_late(&format!(
                    "{} of {count} jobs were submitted, and are cancelled",
                    submitted.len()
                )));
            }
            let (id, taken) = self.one(&job, index, &ids).await?;
            ids.insert(job.name().to_string(), id);
            let default = || match job.is_step() {
                true => PathBuf::new(),
                false => default_directory(job.name(), &id.to_string()),
            };
            let tasks = u32::try_from(job.task_count()).unwrap_or(u32::MAX);
            let directory = directory.unwrap_or_else(default);
            submitted.push(Followed {
                is_step: job.is_step(),
                taken,
                delivery: job.delivery.clone(),
                ..Followed::new(id.to_string(), job.name().to_string(), tasks, directory)
            });
            done.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Submits what earlier jobs have not done. Where that is nothing, the id is that of the newest
    /// of them.
    async fn one(
        &self,
        job: &PlannedJob,
        index: usize,
        ids: &BTreeMap<String, JobId>,
    ) -> Result<(JobId, TakenOver), CliError> {
        let known = async |source: &UploadSource| {
            let stored = self.stored.get(source).copied();
            stored.ok_or_else(|| changed(source))
        };
        let manifest = job.manifest(known).await?;
        let after = job
            .after
            .iter()
            .filter_map(|name| Some(After::named(name.clone(), *ids.get(name)?)))
            .chain(
                job.follows
                    .iter()
                    .filter_map(|name| Some(After::End(*ids.get(name)?))),
            )
            .chain(
                job.beside
                    .iter()
                    .filter_map(|name| Some(After::Beside(*ids.get(name)?))),
            )
            .collect();
        let draft = job.complete(None, after);
        let taken = self.taken(job, &draft, manifest.as_ref()).await?;
        if let Some(newest) = taken.jobs.first().filter(|_| taken.is_all()) {
            return Ok((id_of(&newest.id)?, taken));
        }
        let mut left = taken.left_of(&draft);
        if let Some(manifest) = manifest {
            let manifest = match taken.jobs.is_empty() {
                true => manifest,
                false => identity::files_left(&draft, &left, &manifest),
            };
            let bytes = postcard::to_stdvec(&manifest).expect("plain data always encodes");
            left.work.inputs = Some(BlobHash::of(&bytes));
            self.client.put_bytes(bytes.into()).await?;
        }
        let id = submit_job(self.client, &left, (self.key, index), self.deadline).await?;
        Ok((id, taken))
    }

    /// What earlier jobs did of a job, if that is wanted.
    async fn taken(
        &self,
        job: &PlannedJob,
        draft: &JobDraft,
        manifest: Option<&Manifest>,
    ) -> Result<TakenOver, CliError> {
        if !job.skip_done {
            return Ok(TakenOver::default());
        }
        let (none, whole) = (Manifest::default(), self.is_awaited(job));
        let files = manifest.unwrap_or(&none);
        let taken = earlier::find(self.client, draft, files, whole).await?;
        earlier::tell(job.name(), draft.task_count(), &taken);
        Ok(taken)
    }

    fn is_awaited(&self, job: &PlannedJob) -> bool {
        self.awaited.contains(job.name())
    }
}

fn id_of(job: &str) -> Result<JobId, CliError> {
    job.parse()
        .map_err(|error| CliError::Usage(format!("the node gave no usable job id: {error}")))
}

fn too_late(what: &str) -> CliError {
    let source = io::Error::new(
        io::ErrorKind::TimedOut,
        format!("--timeout has passed: {what}"),
    );
    CliError::File {
        doing: "submitting".into(),
        source,
    }
}

/// With the files that other nodes, where there are some, cannot read where they lie.
async fn with_cluster_uploads(
    client: &Client,
    mut jobs: Vec<PlannedJob>,
) -> Result<Vec<PlannedJob>, CliError> {
    if jobs.iter().any(|job| !job.cluster_uploads.is_empty()) && client.nodes().await?.len() > 1 {
        let sources: BTreeSet<&UploadSource> = jobs
            .iter()
            .flat_map(|job| job.cluster_uploads.iter().map(|upload| &upload.source))
            .collect();
        let total = sources.into_iter().map(length).fold(0, u64::saturating_add);
        if total > MAX_UNASKED_BYTES {
            let hint = "input = \"shared\" if every node sees the files where they lie, input = \"upload\" if they are to travel";
            let problem = format!(
                "{} of input would be copied to other nodes",
                format_bytes(total)
            );
            return Err(CliError::Usage(format!("{problem}\nhint: {hint}")));
        }
        for job in &mut jobs {
            job.uploads.append(&mut job.cluster_uploads);
            job.uploads.sort_by(|one, other| one.path.cmp(&other.path));
        }
    }
    Ok(jobs)
}

/// Half of a job file is of no use to anybody.
async fn cancel(client: &Client, submitted: &[Followed]) {
    for job in submitted.iter().filter(|job| !job.taken.is_all()) {
        if let Err(error) = client.cancel(&job.id).await {
            tell!(
                "warning: job {} was submitted and could not be cancelled: {error}",
                job.id
            );
        }
    }
}

/// Names what one command submits. It is kept while the command tries, and shown when it gives up:
/// with the same key another command submits the same jobs.
pub struct CommandKey(String);

impl CommandKey {
    pub fn of(args: &RunArgs) -> Self {
        args.key.clone().map_or_else(Self::draw, Self)
    }

    pub fn draw() -> Self {
        Self(format!("{:032x}", rand::random::<u128>()))
    }
}

/// Submits until the answer is clear: one that is lost, or says that nothing is known yet, is asked
/// for again, though not past the `deadline`.
pub async fn submit_job(
    client: &Client,
    job: &JobDraft,
    (key, index): (&CommandKey, usize),
    deadline: Option<Instant>,
) -> Result<JobId, CliError> {
    let name = &job.work.name;
    let own = SubmissionKey::new(&key.0, index, name);
    let begin = Instant::now();
    let mut lost = false;
    let mut told = false;
    let mut asked_before = 0;
    loop {
        let error = match client.submit(job, &own, asked_before).await {
            Ok(Submitted { job }) => return id_of(&job),
            Err(error) => error,
        };
        lost |= matches!(error, ClientError::Lost { .. });
        let patience = match &error {
            ClientError::Refused { status: 504, .. } => UNDECIDED,
            ClientError::Lost { .. } => NODE_AWAY,
            ClientError::Unreachable { .. } if lost => NODE_AWAY,
            _ if lost || told => return Err(unconfirmed(error, own.job(), key)),
            _ => return Err(error.into()),
        };
        let is_late = deadline.is_some_and(|deadline| Instant::now() >= deadline);
        if is_late || begin.elapsed() > patience {
            return Err(unconfirmed(error, own.job(), key));
        }
        if !std::mem::replace(&mut told, true) {
            // Without its hint, which is what happens now.
            let why = error.to_string();
            tell!(
                "job {name}: {}; asking again, with the same key",
                why.lines().next().unwrap_or_default()
            );
        }
        asked_before += 1;
        tokio::time::sleep(ASK_AGAIN).await;
    }
}

fn unconfirmed(error: ClientError, job: JobId, key: &CommandKey) -> CliError {
    CliError::Unconfirmed {
        error: Box::new(error),
        job,
        key: key.0.clone(),
    }
}

async fn upload_all(client: &Client, jobs: &[PlannedJob]) -> Result<StoredUploads, CliError> {
    let sources: BTreeSet<UploadSource> = jobs
        .iter()
        .flat_map(|job| job.uploads.iter().map(|upload| upload.source.clone()))
        .collect();
    let total = sources.iter().map(length).fold(0, u64::saturating_add);
    let read = Arc::new(AtomicU64::new(0));
    let uploads = stream::iter(sources).map(|source| upload(client, source, read.clone()));
    let all = uploads.buffer_unordered(UPLOADS_AT_ONCE).try_collect();
    let how_far = || {
        let read = read.load(Ordering::Relaxed);
        format!(
            "{} of {} of files are read, and sent where the node lacks them",
            format_bytes(read),
            format_bytes(total)
        )
    };
    telling(all, how_far).await
}

fn length(source: &UploadSource) -> u64 {
    match source {
        UploadSource::File(path) => path.metadata().map_or(0, |metadata| metadata.len()),
        UploadSource::Bytes(bytes) => bytes.len() as u64,
        UploadSource::Stored(_, bytes) => *bytes,
    }
}

/// `read` counts the bytes that were looked at.
async fn upload(
    client: &Client,
    source: UploadSource,
    read: Arc<AtomicU64>,
) -> Result<(UploadSource, (BlobHash, u64)), CliError> {
    let stored = match &source {
        UploadSource::Bytes(bytes) => {
            client
                .put_bytes(bytes::Bytes::copy_from_slice(bytes))
                .await?;
            read.fetch_add(bytes.len() as u64, Ordering::Relaxed);
            (BlobHash::of(bytes), bytes.len() as u64)
        }
        UploadSource::Stored(hash, bytes) => (*hash, *bytes),
        UploadSource::File(path) => {
            let (hash, bytes) = hash_file(path.clone(), read).await?;
            if !client.has_blob(hash).await? {
                client.put_file(path, Some(hash)).await?;
            }
            (hash, bytes)
        }
    };
    Ok((source, stored))
}

/// A file of which every byte that is read is counted.
struct Counted {
    file: File,
    read: Arc<AtomicU64>,
}

impl Read for Counted {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.file.read(buffer)?;
        self.read.fetch_add(count as u64, Ordering::Relaxed);
        Ok(count)
    }
}

async fn hash_file(path: PathBuf, read: Arc<AtomicU64>) -> Result<(BlobHash, u64), CliError> {
    let failed = |source| CliError::file("reading", &path, source);
    let own = path.clone();
    let hashing = tokio::task::spawn_blocking(move || {
        let mut hasher = blake3::Hasher::new();
        hasher.update_reader(Counted {
            file: File::open(own)?,
            read,
        })?;
        Ok((BlobHash(*hasher.finalize().as_bytes()), hasher.count()))
    });
    let hashed: io::Result<_> = hashing
        .await
        .unwrap_or_else(|_| Err(io::Error::other("interrupted")));
    hashed.map_err(failed)
}

fn changed(source: &UploadSource) -> CliError {
    let path = match source {
        UploadSource::File(path) => path.display().to_string(),
        UploadSource::Bytes(_) | UploadSource::Stored(..) => "a part of the job".into(),
    };
    CliError::Usage(format!("{path} was not there when the files were uploaded"))
}
