//! A job with more results than tests have the time to compute: they are written into the journal
//! of its node while that is down.

use crate::common::{cluster::Cluster, job::write_job};
use nodectl::{
    ports::{Event, Journals, NodeHandle, StoreEvent},
    types::{Attempt, Captured, JobId, NodeId, Outcome, Record, TaskRecord},
};
use std::sync::Arc;
use tokio::sync::mpsc;

/// Records that are written together.
const BATCH: u32 = 10_000;
const STARTED_MS: u64 = 1_767_225_600_000;

/// A cluster of one node, and the id of a job of so many tasks that are all done.
pub fn job_of_results(count: u32) -> (Cluster, String) {
    let mut cluster = Cluster::of(1);
    let text = format!(
        "name = \"many\"\ncommand = [\"true\"]\nwait = true\nwhere = \"labels.never == 'here'\"\n\
         params = {{ x = {{ range = [0, {count}] }} }}\n"
    );
    let file = write_job(cluster.dir.path(), "many", &text);
    let id = cluster.submit(0, &file);
    cluster.kill9(0);
    write_results(&cluster, id.parse().expect("an id"), count);
    cluster.restart(0);
    assert_eq!(cluster.wait_end(0, &id), "done");
    (cluster, id)
}

fn write_results(cluster: &Cluster, job: JobId, count: u32) {
    let (sender, mut events) = mpsc::channel(16);
    let store = nodectl::store::open(cluster.data_dir(0)).expect("the node is down");
    let journals = store
        .journals(NodeHandle::new(sender))
        .expect("a thread starts");
    let mut holder = None;
    let note = &mut |found: JobId, record: Record| {
        if let (true, Record::Head(head)) = (found == job, record) {
            holder = Some((head.holder, head.epoch));
        }
    };
    journals.replay(note).expect("readable");
    let (node, epoch) = holder.expect("the job's head is in its journal");
    for first in (0..count).step_by(BATCH as usize) {
        let tasks = first..count.min(first + BATCH);
        let records = tasks.map(|task| Record::Task(Arc::new(result(task, node, epoch))));
        journals.append(job, records.collect(), u64::from(first));
        loop {
            let event = events.blocking_recv().expect("the store tells");
            if let Event::Store(StoreEvent::Persisted { ticket, result }) = event {
                assert_eq!((ticket, result), (u64::from(first), Ok(())));
                break;
            }
        }
    }
}

/// One that wrote a line and gave two numbers.
fn result(task: u32, node: NodeId, epoch: u32) -> TaskRecord {
    let line = format!("nodectl-result: {{\"y\": {}}}\n", task % 977).into_bytes();
    TaskRecord {
        accepted: epoch,
        started_ms: STARTED_MS + u64::from(task),
        duration_us: 1_000 + u64::from(task % 500),
        cpu_us: 800,
        max_rss_bytes: 9_000_000,
        stdout: Captured {
            total_bytes: line.len() as u64,
            tail: line,
            blob: None,
        },
        value: Some(format!("{{\"y\": {}, \"z\": 0.{}}}", task % 977, task % 83)),
        ..TaskRecord::plain(task, Attempt { epoch, number: 1 }, node, Outcome::Done)
    }
}
