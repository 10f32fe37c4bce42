//! What happened in a cluster, as one node noticed it: for people who ask later. Nothing is decided
//! by it. Of what several nodes noticed, `joined` makes one.

use super::{JobId, NodeId};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// What several nodes notice of one thing is noticed within this time, their clocks' differences
/// included.
const NOTICED_WITHIN_MS: u64 = 60_000;

/// Something that happened to a node or to a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterEvent {
    /// Wall clock of the node that noticed it, or of whoever the event is known from.
    pub at_ms: u64,
    pub kind: EventKind,
    pub subject: EventSubject,
    /// The subject's name.
    pub name: String,
    /// The rest of a sentence that begins with the name. At most `limits::EVENT_TEXT_BYTES`.
    pub text: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum EventSubject {
    Node(NodeId),
    Job(JobId),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum EventKind {
    /// A node came for the first time.
    Joined,
    /// A node died, or cannot be reached.
    Died,
    /// A node went of its own will.
    Left,
    /// A node that was lost is a member again.
    Returned,
    /// A node takes no work any more.
    Closed,
    /// A node takes work again.
    Opened,
    /// A node has a problem that keeps it from running tasks.
    Trouble,
    Submitted,
    /// Another node coordinates a job.
    Takeover,
    /// Tasks of a job have failed for good.
    TaskFailed,
    /// Tasks of a job run again.
    Retried,
    Ended,
}

/// An event, and the nodes that noticed it, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NoticedEvent {
    pub event: ClusterEvent,
    pub by: Vec<NodeId>,
}

/// What the nodes noticed as one list, oldest first: of what several noticed, the first word.
pub fn joined(noticed: impl IntoIterator<Item = (NodeId, Vec<ClusterEvent>)>) -> Vec<NoticedEvent> {
    let mut all: Vec<(NodeId, ClusterEvent)> = noticed
        .into_iter()
        .flat_map(|(node, events)| events.into_iter().map(move |event| (node, event)))
        .collect();
    all.sort_by(|(a_by, a), (b_by, b)| (a.at_ms, a_by).cmp(&(b.at_ms, b_by)));
    let mut events: Vec<NoticedEvent> = Vec::new();
    let mut newest: BTreeMap<(EventKind, EventSubject), usize> = BTreeMap::new();
    for (node, event) in all {
        let key = (event.kind, event.subject);
        let same = newest.get(&key).map(|index| &mut events[*index]);
        let is_told = |known: &&mut NoticedEvent| {
            let is_near = event.at_ms - known.event.at_ms < NOTICED_WITHIN_MS;
            // What one node noticed twice happened twice.
            is_near && !known.by.contains(&node)
        };
        match same.filter(is_told) {
            Some(known) => {
                known.by.push(node);
                known.by.sort_unstable();
            }
            None => {
                newest.insert(key, events.len());
                let by = vec![node];
                events.push(NoticedEvent { event, by });
            }
        }
    }
    events
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: NodeId = NodeId([1; 32]);
    const B: NodeId = NodeId([2; 32]);
    const C: NodeId = NodeId([3; 32]);

    fn event(at_ms: u64, kind: EventKind, node: NodeId) -> ClusterEvent {
        ClusterEvent {
            at_ms,
            kind,
            subject: EventSubject::Node(node),
            name: "n".into(),
            text: String::new(),
        }
    }

    fn told(noticed: Vec<(NodeId, Vec<ClusterEvent>)>) -> Vec<(u64, EventKind, usize)> {
        let all = joined(noticed);
        all.iter()
            .map(|one| (one.event.at_ms, one.event.kind, one.by.len()))
            .collect()
    }

    #[test]
    fn what_several_noticed_happened_once_and_what_one_noticed_twice_happened_twice() {
        let died = |at_ms| event(at_ms, EventKind::Died, C);
        let by_a = vec![died(1000), event(5000, EventKind::Returned, C), died(9000)];
        let by_b = vec![died(1700), died(9100)];
        let expected = [
            (1000, EventKind::Died, 2),
            (5000, EventKind::Returned, 1),
            (9000, EventKind::Died, 2),
        ];
        assert_eq!(told(vec![(A, by_a.clone()), (B, by_b.clone())]), expected);
        assert_eq!(told(vec![(B, by_b), (A, by_a)]), expected);
    }

    #[test]
    fn what_is_far_apart_or_of_others_is_not_one() {
        let by_a = vec![event(0, EventKind::Died, C), event(1, EventKind::Died, B)];
        let by_b = vec![event(60_000, EventKind::Died, C)];
        assert_eq!(told(vec![(A, by_a), (B, by_b)]).len(), 3);
    }
}
