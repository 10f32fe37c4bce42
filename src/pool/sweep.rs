//! Jobs of pools that this node does not serve any more, or never did: a submission that was
//! refused and lived on, a cancellation that nobody could take, a node that died and came back.
//! Their workers look for them here in vain, upon which this node cancels them; and now and then it
//! looks for those of which no worker starts. No clock and no life of a node is compared with
//! another.

use super::PoolShared;
use nodectl_types::{Answer, JobHead, JobId, JobQuery, Query};
use std::{
    sync::{Arc, Weak, atomic::Ordering},
    time::Duration,
};

/// How often jobs are looked at without any other reason.
const PERIOD: Duration = Duration::from_secs(30);

/// Looks after jobs for as long as the pools are there.
pub(super) async fn now_and_then(pools: Weak<PoolShared>) {
    loop {
        tokio::time::sleep(PERIOD).await;
        let Some(pools) = pools.upgrade() else {
            return;
        };
        pools.sweep_soon();
    }
}

impl PoolShared {
    /// A worker has looked for a pool that is not served here.
    pub(super) fn sweep_soon(self: &Arc<Self>) {
        if !self.is_sweeping.swap(true, Ordering::Relaxed) {
            tokio::spawn(self.clone().sweep());
        }
    }

    /// Cancels the jobs of all such pools. Where that fails, the next worker comes.
    async fn sweep(self: Arc<Self>) {
        if let Ok(Answer::Jobs(heads)) = self.node.ask(Query::Jobs).await {
            for head in heads.iter().filter(|head| self.is_stray(head)) {
                let job = head.job;
                tracing::info!("job {job} is of a pool that is closed: it is cancelled");
                if let Err(error) = self.node.ask(Query::Job(job, JobQuery::Cancel)).await {
                    tracing::info!("job {job} is not cancelled yet: {error}");
                }
            }
        }
        self.is_sweeping.store(false, Ordering::Relaxed);
    }

    /// The job is a pool's that was opened at this node, and is not served by it.
    fn is_stray(&self, head: &JobHead) -> bool {
        let is_pool = head.workers.is_some() && head.submitter == self.me;
        is_pool && !head.phase.is_ended() && !self.serves(head.job)
    }

    fn serves(&self, job: JobId) -> bool {
        self.entries().values().any(|entry| entry.job == job)
    }
}
