//! Large arguments on their way from the client to a worker: asked for with `SEND`, passed on chunk
//! by chunk. Chunks whose worker died are thrown away, and the arguments asked for anew when they
//! have ended.

use super::outbox::PoolOutbox;
use nodectl_pool_logic::WorkerKey;
use std::{collections::BTreeMap, sync::Arc};

struct Pull {
    worker: Option<(WorkerKey, Arc<PoolOutbox>)>,
    begun: bool,
    /// Who gets them after the chunks that come now.
    next: Option<(WorkerKey, Arc<PoolOutbox>)>,
}

#[derive(Default)]
pub struct Pulls {
    pulls: BTreeMap<u64, Pull>,
}

impl Pulls {
    /// A worker is there for a task's arguments. True if they are to be asked for now.
    pub fn begin(&mut self, task: u64, worker: (WorkerKey, Arc<PoolOutbox>)) -> bool {
        if let Some(pull) = self.pulls.get_mut(&task) {
            pull.next = Some(worker);
            return false;
        }
        self.pulls.insert(
            task,
            Pull {
                worker: Some(worker),
                begun: false,
                next: None,
            },
        );
        true
    }

    /// A chunk has come: where it goes. None if nobody asked for it.
    pub fn chunk(&mut self, task: u64) -> Option<Option<(WorkerKey, Arc<PoolOutbox>)>> {
        let pull = self.pulls.get_mut(&task)?;
        pull.begun = true;
        Some(pull.worker.clone())
    }

    /// The last chunk has come. True if the arguments are to be asked for again.
    pub fn end(&mut self, task: u64) -> bool {
        let next = self.pulls.remove(&task).and_then(|pull| pull.next);
        next.is_some_and(|next| self.begin(task, next))
    }

    /// The task is cancelled: its worker, if nothing has come for it yet.
    pub fn cancel(&mut self, task: u64) -> Option<WorkerKey> {
        let pull = self.pulls.get(&task)?;
        let (worker, _) = pull.worker.as_ref().filter(|_| !pull.begun)?;
        let worker = *worker;
        self.pulls.remove(&task);
        Some(worker)
    }

    /// A worker is gone.
    pub fn worker_gone(&mut self, key: WorkerKey) {
        let is_it = |worker: &mut (WorkerKey, Arc<PoolOutbox>)| worker.0 == key;
        for pull in self.pulls.values_mut() {
            pull.worker.take_if(is_it);
            pull.next.take_if(is_it);
        }
    }

    pub fn is_empty(&self) -> bool {
        self.pulls.is_empty()
    }

    /// A worker that does not take its arguments as fast as they come.
    pub fn behind(&self) -> Option<Arc<PoolOutbox>> {
        let workers = self.pulls.values().filter_map(|pull| pull.worker.as_ref());
        workers
            .map(|(_, outbox)| outbox)
            .find(|outbox| outbox.is_full())
            .cloned()
    }
}
