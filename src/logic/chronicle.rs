//! What this node noticed of the cluster, for people who ask later: of members and of jobs the
//! newest events each, so that many jobs do not hide a node's death. In memory only; others have
//! noticed the same, and of jobs their heads tell.

use super::{State, core::Core};
use nodectl_types::{
    JobHead, NodeId, NodeInfo, Phase,
    event::{ClusterEvent, EventKind, EventSubject},
    limits, text,
};
use std::collections::{BTreeSet, VecDeque};

/// What happens to tasks of a job within this time, in the same way, is one event.
const SAME_EVENT_MS: u64 = 10_000;

/// The events so far, oldest first.
#[derive(Debug, Default)]
pub struct Chronicle {
    of_nodes: VecDeque<Noted>,
    of_jobs: VecDeque<Noted>,
    /// Nodes that have been members.
    met: BTreeSet<NodeId>,
}

#[derive(Debug)]
struct Noted {
    /// By this node's clock.
    at_ms: u64,
    event: ClusterEvent,
}

impl Chronicle {
    /// What was noted since then.
    pub fn since(&self, at_ms: u64) -> Vec<ClusterEvent> {
        let all = self.of_nodes.iter().chain(&self.of_jobs);
        let recent = all.filter(|noted| noted.at_ms >= at_ms);
        recent.map(|noted| noted.event.clone()).collect()
    }

    fn note(&mut self, now_ms: u64, mut event: ClusterEvent) {
        event.name = text::one_line(&event.name).into_owned();
        let most = event.text.floor_char_boundary(limits::EVENT_TEXT_BYTES);
        event.text.truncate(most);
        let ring = match event.subject {
            EventSubject::Node(_) => &mut self.of_nodes,
            EventSubject::Job(_) => &mut self.of_jobs,
        };
        // What is heard of late happened earlier.
        let place = ring.partition_point(|known| known.event.at_ms <= event.at_ms);
        let at_ms = now_ms;
        ring.insert(place, Noted { at_ms, event });
        if ring.len() > limits::EVENTS {
            ring.pop_front();
        }
    }

    /// The job's newest event, if it is of this kind and not older.
    fn recent(
        &mut self,
        subject: EventSubject,
        kind: EventKind,
        since_ms: u64,
    ) -> Option<&mut Noted> {
        let mut newest = self.of_jobs.iter_mut().rev();
        let found = newest.find(|noted| noted.event.subject == subject)?;
        (found.event.kind == kind && found.event.at_ms >= since_ms).then_some(found)
    }
}

impl Core {
    fn note_node(&mut self, node: NodeId, at_ms: u64, kind: EventKind, text: impl Into<String>) {
        let event = ClusterEvent {
            at_ms,
            kind,
            subject: EventSubject::Node(node),
            name: self.members.name(node),
            text: text.into(),
        };
        self.chronicle.note(self.now.wall_ms, event);
    }

    /// A node is a member, and has told its name.
    pub(super) fn note_member(&mut self, node: NodeId) {
        let now = self.now.wall_ms;
        if !self.chronicle.met.insert(node) {
            return self.note_node(node, now, EventKind::Returned, "is back");
        }
        // Who comes late meets nodes that have been there for long.
        let begun = self
            .members
            .generation(node)
            .map_or(now, |begun| begun.min(now));
        self.note_node(node, begun, EventKind::Joined, "joined the cluster");
    }

    pub(super) fn note_lost_member(&mut self, node: NodeId) {
        let peer = self.members.peers().find(|(id, _)| **id == node);
        let (kind, text) = match peer {
            Some((_, peer)) if peer.left => (EventKind::Left, "left the cluster"),
            Some((_, peer)) if peer.gone => (EventKind::Died, "died: its process has ended"),
            _ => (EventKind::Died, "died, or cannot be reached"),
        };
        self.note_node(node, self.now.wall_ms, kind, text);
    }

    /// A node says something else of itself than before.
    pub(super) fn note_description(&mut self, before: &NodeInfo, after: &NodeInfo) {
        let (node, now) = (after.id, self.now.wall_ms);
        let is_new = |before: &Option<String>, after: &Option<String>| before != after;
        let [was_shut, is_shut] = [before, after].map(NodeInfo::takes_no_work);
        match &is_shut {
            // It says goodbye next.
            _ if after.leaving => {}
            Some(why) if is_new(&was_shut, &is_shut) => {
                self.note_node(node, now, EventKind::Closed, why.as_str());
            }
            None if was_shut.is_some() => {
                self.note_node(node, now, EventKind::Opened, "takes work again");
            }
            _ => {}
        }
        match &after.problem {
            Some(why) if is_new(&before.problem, &after.problem) => {
                let why = text::one_line(why).into_owned();
                self.note_node(
                    node,
                    now,
                    EventKind::Trouble,
                    format!("runs no tasks: {why}"),
                );
            }
            None if before.problem.is_some() => {
                self.note_node(node, now, EventKind::Opened, "runs tasks again");
            }
            _ => {}
        }
    }

    fn note_job(&mut self, head: &JobHead, at_ms: u64, kind: EventKind, text: String) {
        let event = ClusterEvent {
            at_ms,
            kind,
            subject: EventSubject::Job(head.job),
            name: head.name.clone(),
            text,
        };
        self.chronicle.note(self.now.wall_ms, event);
    }

    /// Takes in a head, whoever it is from, and notes what it tells: `Some(previous)` if it is
    /// news, as `Directory::merge`.
    pub(super) fn learn(&mut self, head: JobHead) -> Option<Option<JobHead>> {
        let job = head.job;
        let before = self.directory.merge(head)?;
        let after = self.directory.get(job).expect("just merged").clone();
        self.note_head(before.as_ref(), &after);
        Some(before)
    }

    fn note_head(&mut self, before: Option<&JobHead>, after: &JobHead) {
        let now = self.now.wall_ms;
        let Some(before) = before else {
            let text = format!(
                "was submitted by {} at {}",
                after.author.user, after.author.node
            );
            self.note_job(
                after,
                after.submitted_ms.min(now),
                EventKind::Submitted,
                text,
            );
            return self.note_end(after);
        };
        if before.epoch > 0 && after.epoch > before.epoch {
            let who = self.members.name(after.holder);
            let text = format!("is coordinated by {who} now");
            self.note_job(after, now, EventKind::Takeover, text);
        }
        if after.round > before.round {
            let text = "runs its failed tasks again".to_string();
            self.note_job(after, now, EventKind::Retried, text);
        } else if after.failed > before.failed {
            self.note_failures(after);
        }
        if before.ended_ms == 0 {
            self.note_end(after);
        }
    }

    fn note_failures(&mut self, head: &JobHead) {
        let now = self.now.wall_ms;
        let count = counted(u64::from(head.failed), "task");
        let verb = if head.failed == 1 { "has" } else { "have" };
        let text = format!("has failures: {count} {verb} failed in all attempts");
        let since = now.saturating_sub(SAME_EVENT_MS);
        let subject = EventSubject::Job(head.job);
        match self.chronicle.recent(subject, EventKind::TaskFailed, since) {
            Some(known) => (known.at_ms, known.event.text) = (now, text),
            None => self.note_job(head, now, EventKind::TaskFailed, text),
        }
    }

    fn note_end(&mut self, head: &JobHead) {
        if head.ended_ms == 0 {
            return;
        }
        let text = match (head.phase, head.end_reason()) {
            (Phase::Failed, Some(why)) => format!("failed: {}", text::one_line(why)),
            (Phase::Failed, None) => {
                format!(
                    "ended with {}",
                    counted(u64::from(head.failed), "failed task")
                )
            }
            (Phase::Cancelled, _) => "is cancelled".to_string(),
            _ => "is done".to_string(),
        };
        self.note_job(
            head,
            head.ended_ms.min(self.now.wall_ms),
            EventKind::Ended,
            text,
        );
    }

    /// A node is lost, and with it what it ran of a job.
    pub(super) fn note_rerun(&mut self, head: &JobHead, tasks: usize, node: NodeId) {
        let text = format!(
            "runs {} again: {} is gone",
            counted(tasks as u64, "task"),
            self.members.name(node)
        );
        self.note_job(head, self.now.wall_ms, EventKind::Retried, text);
    }

    /// A node has given back what it ran of a job, as one does that leaves: each task as it ends.
    pub(super) fn note_given_back(&mut self, head: &JobHead, node: NodeId) {
        let now = self.now.wall_ms;
        let text = format!("runs again what {} has given back", self.members.name(node));
        let subject = EventSubject::Job(head.job);
        let since = now.saturating_sub(SAME_EVENT_MS);
        match self.chronicle.recent(subject, EventKind::Retried, since) {
            Some(known) if known.event.text == text => known.at_ms = now,
            _ => self.note_job(head, now, EventKind::Retried, text),
        }
    }
}

impl State {
    /// This node begins, with what its disk remembers.
    pub(super) fn note_begin(&mut self) {
        let (me, now) = (self.core.me, self.core.now.wall_ms);
        self.core.chronicle.met.insert(me);
        let begun = self.config.generation.min(now);
        self.core
            .note_node(me, begun, EventKind::Joined, "joined the cluster");
        let heads: Vec<_> = self.core.directory.iter().cloned().collect();
        for head in &heads {
            self.core.note_head(None, head);
        }
    }
}

fn counted(count: u64, noun: &str) -> String {
    let ending = if count == 1 { "" } else { "s" };
    format!("{count} {noun}{ending}")
}
