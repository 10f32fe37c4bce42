//! A job between its file and its submission. Knows which files it needs, not how they are stored:
//! the caller stores each upload, and gets the manifest and then the job to submit.

use nodectl_types::{After, BlobHash, FileEntry, JobDraft, Manifest, predicate::Predicate};
use std::{path::PathBuf, sync::Arc};

/// A file that travels with the job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Upload {
    /// Where tasks find it, relative to their directory; passes `manifest::safe_path`.
    pub path: String,
    pub source: UploadSource,
    /// Whether the file may be run as a program.
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
    /// Names of jobs of the same file that come first. They precede this one in what planning
    /// returns.
    pub after: Vec<String>,
    /// Jobs of the same file whose end this one waits for, however they end. They precede this one,
    /// too.
    pub follows: Vec<String>,
    /// Jobs of the same file whose open tasks count against this one's `at_once`. They precede this
    /// one, too.
    pub beside: Vec<String>,
    /// Sorted by path, each path once.
    pub uploads: Vec<Upload>,
    /// Uploads that travel only where there are other nodes: alone, a node reads files where they
    /// lie.
    pub cluster_uploads: Vec<Upload>,
    /// Where the files of its results go besides.
    pub delivery: Option<Delivery>,
    /// Where `run` puts results, relative to its working directory; None for `<name>-<job id>`.
    pub into: Option<PathBuf>,
    /// Tasks that an earlier run did already are not run again.
    pub skip_done: bool,
    /// The job asks for GPUs, and `Context::without_gpus` plans it for processors.
    pub prefers_gpus: bool,
    /// The computing mode that the job file names; `run --computing` goes before it.
    pub computing: Option<PathBuf>,
    /// What is to be submitted, but for the files that it needs and the jobs that it comes after:
    /// `complete` adds them.
    pub draft: JobDraft,
    /// What planning found out and people may want to know.
    pub note: Option<String>,
}

impl PlannedJob {
    /// A job of the user's that needs no files.
    pub fn new(draft: JobDraft) -> Self {
        Self {
            after: Vec::new(),
            follows: Vec::new(),
            beside: Vec::new(),
            uploads: Vec::new(),
            cluster_uploads: Vec::new(),
            delivery: None,
            into: None,
            skip_done: false,
            prefers_gpus: false,
            computing: None,
            draft,
            note: None,
        }
    }

    /// A step on the way to the job that the user wrote: its outputs are for the jobs after it, not
    /// for the user.
    pub fn is_step(&self) -> bool {
        self.draft.work.is_step
    }

    /// Names of all jobs of the same file that have to be submitted before this one.
    pub fn earlier(&self) -> impl Iterator<Item = &String> {
        self.after.iter().chain(&self.follows).chain(&self.beside)
    }

    pub fn name(&self) -> &str {
        &self.draft.work.name
    }

    /// Whether which GPUs there are decides if a node can run it.
    pub fn concerns_gpus(&self) -> bool {
        self.draft.work.resources.gpu_milli > 0
            || self.draft.work.has_default_needs()
            || Predicate::parse(&self.draft.place).is_ok_and(|place| place.concerns_gpus())
    }

    /// How many tasks it has when it is submitted.
    pub fn task_count(&self) -> u64 {
        match self.draft.is_open() {
            true => 0,
            false => self.draft.task_count(),
        }
    }

    /// Stores every upload with `store`, which returns a file's hash and size, and lists them. None
    /// without uploads. The caller stores the encoded manifest too, and gives its hash to
    /// `complete`.
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

    /// The job to submit: `inputs` is the hash of the encoded manifest, `after` has the job that
    /// each of `PlannedJob::after` became, the end of that of each of `follows`, and
    /// that of each of `beside`.
    pub fn complete(&self, inputs: Option<BlobHash>, after: Vec<After>) -> JobDraft {
        let mut draft = self.draft.clone();
        (draft.work.inputs, draft.work.after) = (inputs, after);
        draft
    }
}
