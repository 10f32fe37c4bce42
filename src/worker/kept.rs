//! Blobs that are here for calls of pools: large results, values that their clients give to calls,
//! and what calls were given that other nodes have. Each goes when its client needs it no more, and
//! all of a pool's when its job has ended, be it because its client was killed. They are apart from
//! the blobs that jobs and journals name, which nobody may take away while the node runs, though
//! they have the same names; and none outlives the node.

use futures::future::{BoxFuture, FutureExt};
use nodectl_ports::{BlobFetcher, BlobWriter, Blobs, KeptBlobs, NodeHandle};
use nodectl_types::{Answer, BlobHash, JobId, NodeId, Query};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs::File,
    io,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::Duration,
};
use tokio::task::spawn_blocking;

/// How often it is looked whether jobs of pools have ended.
const PERIOD: Duration = Duration::from_secs(10);
/// What is brought may be let go of by another call before it is opened: so often it is brought.
const TRIES: u32 = 3;

/// The blobs of a node's calls.
pub struct KeptShelf {
    /// What jobs and journals name: a blob that is there need not be brought.
    lasting: Arc<dyn Blobs>,
    kept: Arc<dyn Blobs>,
    fetcher: Arc<dyn BlobFetcher>,
    /// Held while a file is given its name or removed.
    holds: Mutex<Holds>,
    /// For work that goes on in threads that may block.
    this: Weak<Self>,
}

/// Who needs which blob. One of which this says nothing is not here, or on its way.
type Holds = BTreeMap<BlobHash, BTreeMap<JobId, JobHold>>;

/// What a pool has of a blob.
#[derive(Debug, Default)]
struct JobHold {
    /// Results of its calls, and values of its client, that are this.
    finished: u32,
    /// Calls were given it.
    is_brought: bool,
}

impl KeptShelf {
    /// `fetcher` brings blobs to `kept`. Called inside the runtime that runs the node.
    pub fn new(
        lasting: Arc<dyn Blobs>,
        kept: Arc<dyn Blobs>,
        fetcher: Arc<dyn BlobFetcher>,
        node: NodeHandle,
    ) -> Arc<Self> {
        let shelf = Arc::new_cyclic(|this| Self {
            lasting,
            kept,
            fetcher,
            holds: Mutex::default(),
            this: this.clone(),
        });
        tokio::spawn(sweep_now_and_then(Arc::downgrade(&shelf), node));
        shelf
    }

    /// A blob for a call of a pool, which is brought here first if need be, and stays for other
    /// calls.
    pub async fn bring(
        self: &Arc<Self>,
        job: JobId,
        hash: BlobHash,
        holders: &[NodeId],
    ) -> Result<File, String> {
        self.open(hash, holders, Some(job)).await
    }

    /// Fails with what the holders answered, or how the disk does.
    async fn open(
        self: &Arc<Self>,
        hash: BlobHash,
        holders: &[NodeId],
        for_job: Option<JobId>,
    ) -> Result<File, String> {
        for _ in 0..TRIES {
            let shelf = self.clone();
            let look = move || shelf.open_here(hash, for_job);
            let found = spawn_blocking(look)
                .await
                .map_err(|error| error.to_string())?;
            if let Some(file) = found.map_err(|error| error.to_string())? {
                return Ok(file);
            }
            self.fetcher.fetch(hash, holders.to_vec()).await?;
        }
        Err("it was removed again".into())
    }

    fn open_here(&self, hash: BlobHash, for_job: Option<JobId>) -> io::Result<Option<File>> {
        if let Some(file) = self.lasting.open(hash)? {
            return Ok(Some(file));
        }
        let mut holds = self.holds();
        let Some(file) = self.kept.open(hash)? else {
            return Ok(None);
        };
        match for_job {
            Some(job) => {
                let hold = holds.entry(hash).or_default().entry(job).or_default();
                hold.is_brought = true;
            }
            // Whoever has it open reads it to its end all the same.
            None if !holds.contains_key(&hash) => drop(self.kept.remove(hash)?),
            None => {}
        }
        Ok(Some(file))
    }

    /// The job has ended: nothing of its pool is needed any more.
    pub fn end(&self, job: JobId) {
        let mut holds = self.holds();
        let of_job = |(hash, jobs): (&BlobHash, &BTreeMap<JobId, JobHold>)| {
            jobs.contains_key(&job).then_some(*hash)
        };
        let hashes: Vec<BlobHash> = holds.iter().filter_map(of_job).collect();
        for hash in hashes {
            self.change(&mut holds, hash, job, |hold| *hold = JobHold::default());
        }
    }

    /// Changes what a pool has of a blob, which goes when nobody has any of it.
    fn change(
        &self,
        holds: &mut Holds,
        hash: BlobHash,
        job: JobId,
        change: impl FnOnce(&mut JobHold),
    ) {
        let Some(jobs) = holds.get_mut(&hash) else {
            return;
        };
        let Some(hold) = jobs.get_mut(&job) else {
            return;
        };
        change(hold);
        if hold.finished == 0 && !hold.is_brought {
            jobs.remove(&job);
        }
        if jobs.is_empty() {
            holds.remove(&hash);
            if let Err(error) = self.kept.remove(hash) {
                tracing::warn!("the blob {hash} of a pool cannot be removed: {error}");
            }
        }
    }

    fn jobs(&self) -> BTreeSet<JobId> {
        let holds = self.holds();
        holds.values().flat_map(BTreeMap::keys).copied().collect()
    }

    fn holds(&self) -> MutexGuard<'_, Holds> {
        self.holds.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl KeptBlobs for KeptShelf {
    fn read(
        &self,
        hash: BlobHash,
        holders: Vec<NodeId>,
    ) -> BoxFuture<'static, Result<File, String>> {
        let shelf = self.this.clone();
        async move {
            let shelf = shelf.upgrade().ok_or("the node has ended")?;
            shelf.open(hash, &holders, None).await
        }
        .boxed()
    }

    fn writer(&self) -> io::Result<Box<dyn BlobWriter>> {
        self.kept.writer()
    }

    fn finish(
        &self,
        pool: JobId,
        writer: Box<dyn BlobWriter>,
        expected: Option<BlobHash>,
    ) -> io::Result<BlobHash> {
        let mut holds = self.holds();
        let hash = writer.finish(expected)?;
        let hold = holds.entry(hash).or_default().entry(pool).or_default();
        hold.finished += 1;
        Ok(hash)
    }

    fn release(&self, pool: JobId, finished: &[BlobHash], brought: &[BlobHash]) {
        let mut holds = self.holds();
        for hash in finished {
            self.change(&mut holds, *hash, pool, |hold| {
                hold.finished = hold.finished.saturating_sub(1);
            });
        }
        for hash in brought {
            self.change(&mut holds, *hash, pool, |hold| hold.is_brought = false);
        }
    }
}

/// Lets go of what pools have that are over, for as long as the node runs. A job that is not known
/// the first time may be so new that this node has yet to hear of it.
async fn sweep_now_and_then(shelf: Weak<KeptShelf>, node: NodeHandle) {
    let mut unknown = BTreeSet::new();
    loop {
        tokio::time::sleep(PERIOD).await;
        let Some(shelf) = shelf.upgrade() else {
            return;
        };
        let jobs = shelf.jobs();
        if jobs.is_empty() {
            continue;
        }
        let Ok(Answer::Jobs(heads)) = node.ask(Query::Jobs).await else {
            continue;
        };
        let before = std::mem::take(&mut unknown);
        for job in jobs {
            let is_over = match heads.iter().find(|head| head.job == job) {
                Some(head) => head.phase.is_ended(),
                None => !unknown.insert(job) || before.contains(&job),
            };
            if is_over {
                let shelf = shelf.clone();
                // Files are removed.
                let _ = spawn_blocking(move || shelf.end(job)).await;
            }
        }
    }
}
