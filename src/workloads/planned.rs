//! A job between its file and its submission. Knows which files it needs, not how they are stored:
//! the caller stores each upload, and gets the manifest and then the specification.

use nodectl_types::{
    BlobHash, FileEntry, JobId, JobSpec, Manifest, NodeId, ParamSpace, WorkSpec,
    predicate::Predicate,
};
use std::{path::PathBuf, sync::Arc};

/// A file that travels with the job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Upload {
    /// Where tasks find it, relative to their directory; passes `manifest::safe_path`.
    pub path: String,
    pub source: UploadSource,
    pub executable: bool,
}

/// Where an upload's bytes come from.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum UploadSource {
    /// A file on this machine.
    File(PathBuf),
    /// What planning made.
    Bytes(Arc<[u8]>),
    /// So many bytes that the node has stored already.
    Stored(BlobHash, u64),
}

/// A directory of the user's, on the machine of `run`, in which each file of the results gets a
/// place of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delivery {
    pub directory: PathBuf,
    /// Whether files that are there are replaced.
    pub replaces: bool,
}

/// A valid job, complete but for what only its submission decides.
#[derive(Clone, Debug)]
pub struct PlannedJob {
    pub name: String,
    /// A step on the way to the job that the user wrote: its outputs are for the jobs after it, not
    /// for the user.
    pub is_step: bool,
    /// Names of jobs of the same file that come first. They precede this one in what
    /// `job_file::load` returns.
    pub after: Vec<String>,
    /// Sorted by path, each path once.
    pub uploads: Vec<Upload>,
    /// Those that travel only where there are other nodes: alone, a node reads them where they lie.
    pub cluster_uploads: Vec<Upload>,
    /// Where the files of its results go besides.
    pub delivery: Option<Delivery>,
    /// Where `run` puts results, relative to its working directory; None for `<name>-<job id>`.
    pub into: Option<PathBuf>,
    /// The computing mode that the job file names; `run --computing` goes before it.
    pub computing: Option<PathBuf>,
    /// `inputs` and `after` are empty until `spec` fills them in.
    pub work: WorkSpec,
    pub params: ParamSpace,
    pub repeat: u32,
    pub retries: u32,
    pub min_nodes: u32,
    pub place: String,
    pub speculate: bool,
    /// The most tasks at the same time, on all nodes together.
    pub at_once: Option<u32>,
    pub wait_for_nodes: bool,
    /// What planning found out and people may want to know.
    pub note: Option<String>,
}

/// What is known only when a job is submitted.
#[derive(Clone, Debug)]
pub struct Submission {
    /// The hash of the encoded manifest; None for a job without uploads.
    pub inputs: Option<BlobHash>,
    /// For each of `PlannedJob::after`, the job that it became.
    pub after: Vec<(String, JobId)>,
    pub submitter: NodeId,
    pub submitted_ms: u64,
}

impl PlannedJob {
    /// Whether which GPUs there are decides if a node can run it.
    pub fn concerns_gpus(&self) -> bool {
        self.work.resources.gpu_milli > 0
            || self.work.has_default_needs()
            || Predicate::parse(&self.place).is_ok_and(|place| place.concerns_gpus())
    }

    pub fn task_count(&self) -> u64 {
        self.params.len().saturating_mul(u64::from(self.repeat))
    }

    /// Stores every upload with `store`, which returns a file's hash and size, and lists them. None
    /// without uploads. The caller stores the encoded manifest too, and gives its hash to `spec`.
    pub async fn manifest<E>(
        &self,
        mut store: impl AsyncFnMut(&UploadSource) -> Result<(BlobHash, u64), E>,
    ) -> Result<Option<Manifest>, E> {
        let mut files = Vec::with_capacity(self.uploads.len());
        for upload in &self.uploads {
            let (hash, bytes) = store(&upload.source).await?;
            files.push(FileEntry {
                path: upload.path.clone(),
                bytes,
                hash,
                executable: upload.executable,
            });
        }
        Ok(if files.is_empty() {
            None
        } else {
            Some(Manifest { files })
        })
    }

    /// The specification to submit.
    pub fn spec(&self, submission: Submission) -> JobSpec {
        let work = WorkSpec {
            inputs: submission.inputs,
            after: submission.after,
            ..self.work.clone()
        };
        JobSpec {
            work: Arc::new(work),
            params: self.params.clone(),
            repeat: self.repeat,
            retries: self.retries,
            min_nodes: self.min_nodes,
            place: self.place.clone(),
            speculate: self.speculate,
            at_once: self.at_once,
            wait_for_nodes: self.wait_for_nodes,
            extends: None,
            submitter: submission.submitter,
            submitted_ms: submission.submitted_ms,
        }
    }
}
