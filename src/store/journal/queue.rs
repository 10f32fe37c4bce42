//! What waits for the writer, and which tickets have no answer yet. Nothing here waits for the
//! disk: the node's loop appends.

use nodectl_types::{JobId, Record, TaskRecord};
use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

/// Records that may wait to be written. An append that finds more waiting is refused by its ticket.
pub const QUEUE_RECORDS: usize = 64 << 10;

/// Something for the writer to do.
pub enum QueueItem {
    Append(Append),
    /// An append that found the queue full: its ticket is answered, nothing is written.
    Refused(u64),
    Forget(JobId),
    End,
}

pub struct Append {
    pub job: JobId,
    pub records: Vec<Record>,
    pub ticket: u64,
    /// The position of this append among all of them.
    pub order: u64,
}

/// What waits for the writer. The port's methods never wait for it, since the node's loop calls
/// them: a full queue refuses records. What a refused append leaves behind is its ticket.
#[derive(Default)]
pub struct Queue {
    inner: Mutex<WaitingWrites>,
    filled: Condvar,
    /// For whoever watches that tickets are answered in time.
    watched: Condvar,
    /// Held while tickets are answered, so that no answer overtakes another.
    telling: Mutex<()>,
}

#[derive(Default)]
struct WaitingWrites {
    items: VecDeque<QueueItem>,
    records: usize,
    appends: u64,
    /// Appends that the writer has not answered.
    unanswered: HashMap<u64, Unanswered>,
    closed: bool,
}

#[derive(Clone, Copy)]
struct Unanswered {
    since: Instant,
    /// The append was answered by an error because it takes so long; the records are still on their
    /// way.
    given_up: bool,
    /// Whoever was told so has asked again.
    asked_again: bool,
}

impl Queue {
    /// Queues an append. Gives the task records that were accepted, with the append's order. One
    /// that was given up and comes again is on its way already.
    pub fn push(
        &self,
        job: JobId,
        records: Vec<Record>,
        ticket: u64,
    ) -> Vec<(u64, Arc<TaskRecord>)> {
        let mut inner = self.lock();
        if let Some(unanswered) = inner
            .unanswered
            .get_mut(&ticket)
            .filter(|unanswered| unanswered.given_up)
        {
            unanswered.asked_again = true;
            self.watched.notify_one();
            return Vec::new();
        }
        if inner.records >= QUEUE_RECORDS {
            inner.items.push_back(QueueItem::Refused(ticket));
            self.filled.notify_one();
            return Vec::new();
        }
        inner.appends += 1;
        inner.records += records.len();
        let order = inner.appends;
        let tasks = records.iter().filter_map(|record| match record {
            Record::Task(task) => Some((order, task.clone())),
            _ => None,
        });
        let tasks = tasks.collect();
        inner.items.push_back(QueueItem::Append(Append {
            job,
            records,
            ticket,
            order,
        }));
        let now = Unanswered {
            since: Instant::now(),
            given_up: false,
            asked_again: false,
        };
        inner.unanswered.insert(ticket, now);
        self.filled.notify_one();
        tasks
    }

    pub fn push_item(&self, item: QueueItem) {
        self.lock().items.push_back(item);
        self.filled.notify_one();
    }

    /// Waits for something and takes everything.
    pub fn take(&self) -> VecDeque<QueueItem> {
        let mut inner = self.lock();
        while inner.items.is_empty() {
            inner = self
                .filled
                .wait(inner)
                .unwrap_or_else(PoisonError::into_inner);
        }
        inner.records = 0;
        std::mem::take(&mut inner.items)
    }

    /// Tickets are about to be answered by `tell`; nobody answers others meanwhile.
    pub fn answer(&self, tickets: impl IntoIterator<Item = u64>, tell: impl FnOnce()) {
        let _telling = self.telling.lock().unwrap_or_else(PoisonError::into_inner);
        let mut inner = self.lock();
        for ticket in tickets {
            inner.unanswered.remove(&ticket);
        }
        drop(inner);
        tell();
    }

    /// Gives up what has waited for `limit`: gives these tickets, and those that were given up and
    /// asked again, to `tell`. Returns whether any that was given up is still on its way.
    pub fn give_up(&self, limit: Duration, tell: impl FnOnce(Vec<u64>)) -> bool {
        let _telling = self.telling.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        let mut late: Vec<u64> = Vec::new();
        let mut hangs = false;
        for (ticket, unanswered) in &mut self.lock().unanswered {
            let is_late = !unanswered.given_up && now.duration_since(unanswered.since) >= limit;
            if is_late || unanswered.asked_again {
                (unanswered.given_up, unanswered.asked_again) = (true, false);
                late.push(*ticket);
            }
            hangs |= unanswered.given_up;
        }
        late.sort_unstable();
        tell(late);
        hangs
    }

    /// Waits for a given-up ticket that is asked for again, but no longer than this. False once the
    /// journals are closed.
    pub fn watch(&self, patience: Duration) -> bool {
        let inner = self.lock();
        if inner.closed {
            return false;
        }
        let waited = self
            .watched
            .wait_timeout(inner, patience)
            .unwrap_or_else(PoisonError::into_inner);
        !waited.0.closed
    }

    /// Nothing is written any more.
    pub fn close(&self) {
        self.lock().closed = true;
        self.watched.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, WaitingWrites> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
