//! A disk that hangs: a network file system without its server, a drive in trouble. Its writes
//! neither fail nor end, so whoever waits for them is told that they are late; should they end
//! after all, that is told too.

use super::queue::Queue;
use nodectl_ports::{Event, NodeHandle, StoreEvent};
use std::time::Duration;

/// What a write may take before it is given up: longer than a slow disk under load needs.
pub const LIMIT: Duration = Duration::from_secs(10);

/// Tells of late tickets until the journals are closed.
pub fn watch(queue: &Queue, node: &NodeHandle, limit: Duration) {
    let mut was_late = false;
    while queue.watch(limit / 2) {
        let is_late = queue.give_up(limit, |tickets| {
            for ticket in tickets {
                let result = Err(late(limit));
                node.blocking_tell(Event::Store(StoreEvent::Persisted { ticket, result }));
            }
        });
        match (was_late, is_late) {
            (false, true) => tracing::error!("{}", late(limit)),
            (true, false) => tracing::info!("the disk answers again: journals are written"),
            _ => {}
        }
        was_late = is_late;
    }
}

fn late(limit: Duration) -> String {
    let seconds = limit.as_secs_f64();
    format!(
        "the disk hangs: a write of journals has not ended for {seconds} s\nhint: look at the disk, or at the server that it is on"
    )
}
