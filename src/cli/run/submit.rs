//! Job file to submitted jobs: uploads what the node lacks, side by side, then submits in the order of dependencies.

use super::{collector::check_directory, default_directory, follow::Followed};
use crate::{
    cli::exit::CliError,
    http::Client,
    ports::wall_ms,
    types::{BlobHash, JobId, NodeId, units::format_bytes},
    wire::api::Submitted,
    workloads::{PlannedJob, Source, Submission},
};
use futures::{StreamExt, TryStreamExt, stream};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, File},
    path::{Path, PathBuf},
};

/// Files hashed and uploaded at once.
const UPLOADS_AT_ONCE: usize = 8;

/// More than this is not sent to other nodes unless the job file says so.
const MAX_UNASKED_BYTES: u64 = 16 << 30;

type Stored = BTreeMap<Source, (BlobHash, u64)>;

/// Submits the jobs, which are in an order that their dependencies allow. `into` overrides where results go: the directory
/// itself for one job, a directory in it for each of several.
pub async fn submit(client: &Client, jobs: Vec<PlannedJob>, into: Option<&Path>) -> Result<Vec<Followed>, CliError> {
    let jobs = with_cluster_uploads(client, jobs).await?;
    let several = jobs.iter().filter(|job| !job.is_step).count() > 1;
    let chosen = |job: &PlannedJob| match (into, &job.into) {
        _ if job.is_step => None,
        (Some(directory), _) if several => Some(directory.join(&job.name)),
        (Some(directory), _) => Some(directory.to_path_buf()),
        (None, chosen) => chosen.clone(),
    };
    // Before anything runs, rather than when its first result has nowhere to go.
    jobs.iter().filter_map(chosen).try_for_each(|directory| check_directory(&directory))?;
    for delivery in jobs.iter().filter_map(|job| job.delivery.as_ref()) {
        let failed = |source| CliError::file("making", &delivery.directory, source);
        fs::create_dir_all(&delivery.directory).map_err(failed)?;
    }
    jobs.iter().filter_map(|job| job.note.as_ref()).for_each(|note| eprintln!("{note}"));
    let stored = upload_all(client, &jobs).await?;
    let mut ids: BTreeMap<String, JobId> = BTreeMap::new();
    let mut submitted = Vec::with_capacity(jobs.len());
    for job in jobs {
        let id = match submit_one(client, &job, &stored, &ids).await {
            Ok(id) => id,
            Err(error) => {
                cancel(client, &submitted).await;
                return Err(error);
            }
        };
        let default = || if job.is_step { PathBuf::new() } else { default_directory(&job.name, &id.to_string()) };
        let directory = chosen(&job).unwrap_or_else(default);
        ids.insert(job.name.clone(), id);
        let tasks = u32::try_from(job.task_count()).unwrap_or(u32::MAX);
        let (id, delivery) = (id.to_string(), job.delivery);
        submitted.push(Followed { id, name: job.name, tasks, directory, is_step: job.is_step, delivery });
    }
    Ok(submitted)
}

/// With the files that other nodes, where there are some, cannot read where they lie.
async fn with_cluster_uploads(client: &Client, mut jobs: Vec<PlannedJob>) -> Result<Vec<PlannedJob>, CliError> {
    if jobs.iter().any(|job| !job.cluster_uploads.is_empty()) && client.nodes().await?.len() > 1 {
        let sources: BTreeSet<&Source> =
            jobs.iter().flat_map(|job| job.cluster_uploads.iter().map(|upload| &upload.source)).collect();
        let length = |source: &Source| match source {
            Source::File(path) => path.metadata().map_or(0, |metadata| metadata.len()),
            Source::Bytes(bytes) => bytes.len() as u64,
            Source::Stored(_, bytes) => *bytes,
        };
        let total = sources.into_iter().map(length).fold(0, u64::saturating_add);
        if total > MAX_UNASKED_BYTES {
            let hint = "input = \"shared\" if every node sees the files where they lie, input = \"upload\" if they are to travel";
            let problem = format!("{} of input would be copied to other nodes", format_bytes(total));
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
    for job in submitted {
        if let Err(error) = client.cancel(&job.id).await {
            eprintln!("warning: job {} was submitted and could not be cancelled: {error}", job.id);
        }
    }
}

async fn submit_one(
    client: &Client,
    job: &PlannedJob,
    stored: &Stored,
    ids: &BTreeMap<String, JobId>,
) -> Result<JobId, CliError> {
    let known = async |source: &Source| stored.get(source).copied().ok_or_else(|| changed(source));
    let inputs = match job.manifest(known).await? {
        None => None,
        Some(manifest) => {
            let bytes = postcard::to_stdvec(&manifest).expect("plain data always encodes");
            let hash = BlobHash::of(&bytes);
            client.put_bytes(bytes.into()).await?;
            Some(hash)
        }
    };
    let after = job.after.iter().filter_map(|name| Some((name.clone(), *ids.get(name)?))).collect();
    // The node puts itself and its clock in their place.
    let submission = Submission { inputs, after, submitter: NodeId([0; 32]), submitted_ms: wall_ms() };
    let Submitted { job: id } = client.submit(&job.spec(submission)).await?;
    id.parse().map_err(|error| CliError::Usage(format!("the node gave no usable job id: {error}")))
}

async fn upload_all(client: &Client, jobs: &[PlannedJob]) -> Result<Stored, CliError> {
    let sources: BTreeSet<Source> =
        jobs.iter().flat_map(|job| job.uploads.iter().map(|upload| upload.source.clone())).collect();
    let uploads = stream::iter(sources).map(|source| upload(client, source));
    uploads.buffer_unordered(UPLOADS_AT_ONCE).try_collect().await
}

async fn upload(client: &Client, source: Source) -> Result<(Source, (BlobHash, u64)), CliError> {
    let stored = match &source {
        Source::Bytes(bytes) => {
            client.put_bytes(bytes::Bytes::copy_from_slice(bytes)).await?;
            (BlobHash::of(bytes), bytes.len() as u64)
        }
        Source::Stored(hash, bytes) => (*hash, *bytes),
        Source::File(path) => {
            let (hash, bytes) = hash_file(path.clone()).await?;
            if !client.has_blob(hash).await? {
                client.put_file(path, Some(hash)).await?;
            }
            (hash, bytes)
        }
    };
    Ok((source, stored))
}

async fn hash_file(path: PathBuf) -> Result<(BlobHash, u64), CliError> {
    let failed = |source| CliError::file("reading", &path, source);
    let own = path.clone();
    let hashing = tokio::task::spawn_blocking(move || {
        let mut hasher = blake3::Hasher::new();
        hasher.update_reader(File::open(own)?)?;
        Ok((BlobHash(*hasher.finalize().as_bytes()), hasher.count()))
    });
    let hashed: std::io::Result<_> = hashing.await.unwrap_or_else(|_| Err(std::io::Error::other("interrupted")));
    hashed.map_err(failed)
}

fn changed(source: &Source) -> CliError {
    let path = match source {
        Source::File(path) => path.display().to_string(),
        Source::Bytes(_) | Source::Stored(..) => "a part of the job".into(),
    };
    CliError::Usage(format!("{path} was not there when the files were uploaded"))
}
