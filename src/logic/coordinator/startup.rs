//! Workers that cannot be started. One such node is avoided and costs its tasks no retry. Where no
//! worker at all comes up, on different nodes if there are several, the fault is the job's: it is
//! given up with what they said, instead of failing task by task.

use super::{Coordinator, results::MOST_FORGIVEN};
use crate::{core::Core, lattice::Lattice};
use nodectl_types::{
    ErrorReport, Failure, JobHead, NodeId, Outcome, Phase, TaskRecord, limits::MAX_REASON_BYTES,
    text,
};
use std::{collections::BTreeMap, sync::Arc, time::Duration};

/// So many workers, on so many nodes, have to agree, or as many as there is room for.
const AGREEMENT: u32 = 3;
/// A node on which a worker could not be started gets none for this long, and twice as long each
/// time.
const SPARED: Duration = Duration::from_secs(5);
const MOST_DOUBLINGS: u32 = 4;
/// What is kept of the error of one that could not be started.
const MOST_CHARS: usize = 500;

/// What a coordinator knows of its job's workers; its successor learns it again.
#[derive(Debug, Default)]
pub struct Startups {
    failed: BTreeMap<NodeId, NodeFailedStarts>,
    /// A task ended in a way that needs a worker.
    came_up: bool,
}

/// Of one node.
#[derive(Debug, Default)]
struct NodeFailedStarts {
    count: u32,
    /// What the last one said, unless one came up since.
    why: Option<String>,
}

impl Startups {
    pub fn note(&mut self, record: &TaskRecord) {
        let fails_before =
            |failure: &Failure| matches!(failure, Failure::Init(_)) || failure.is_of_the_node();
        if !matches!(&record.outcome, Outcome::Failed(failure) if fails_before(failure)) {
            self.came_up = true;
            if let Some(failed) = self.failed.get_mut(&record.node) {
                failed.why = None;
            }
        }
    }

    /// What the last worker said that could not be started on a node, if none came up since.
    pub fn why_failed(&self, node: NodeId) -> Option<&str> {
        self.failed.get(&node)?.why.as_deref()
    }
}

impl Coordinator {
    /// A worker could not be started for this task: true if that is dealt with, false if it counts
    /// as a failure after all.
    pub(super) fn worker_failed(
        &mut self,
        core: &mut Core,
        lattice: &Lattice,
        from: NodeId,
        record: &Arc<TaskRecord>,
    ) -> bool {
        let Outcome::Failed(Failure::Init(error)) = &record.outcome else {
            return false;
        };
        let failures = self.startups.failed.entry(from).or_default();
        failures.count += 1;
        let said = error.to_string();
        failures.why = said
            .lines()
            .next()
            .map(|line| text::shortened(line, MOST_CHARS).into());
        let doublings = (failures.count - 1).min(MOST_DOUBLINGS);
        if self.workers_agree(core, lattice) {
            self.give_up(core, lattice, error);
            return true;
        }
        // Where every node has failed, waiting would help nobody.
        if self
            .able_nodes(core)
            .any(|(node, _)| !self.startups.failed.contains_key(&node))
        {
            let work = self.nodes.entry(from).or_default();
            work.spared_until = Some(core.mono() + SPARED * 2u32.pow(doublings));
            let name = core.members.name(from);
            core.notice(format!(
                "job {}: {name} gets no tasks for a while: the worker could not start: {error}",
                self.job
            ));
        }
        let forgiven = self.forgiven.entry(record.task).or_default();
        *forgiven += 1;
        *forgiven <= MOST_FORGIVEN
    }

    /// Enough workers could not be started, and none could.
    fn workers_agree(&self, core: &Core, lattice: &Lattice) -> bool {
        let runs_elsewhere = || {
            // A pool's worker runs once it has connected.
            let is_pool = self.spec.work.pool().is_some();
            is_pool
                && self
                    .active
                    .values()
                    .flatten()
                    .any(|active| active.started.is_some())
        };
        if self.startups.came_up
            || lattice.done() > 0
            || lattice.failed().next().is_some()
            || runs_elsewhere()
        {
            return false;
        }
        let (nodes, slots) = self
            .able_nodes(core)
            .fold((0u32, 0u32), |(nodes, slots), (_, more)| {
                (nodes + 1, slots.saturating_add(more))
            });
        let workers: u32 = self
            .startups
            .failed
            .values()
            .map(|failed| failed.count)
            .sum();
        workers >= slots.clamp(1, AGREEMENT)
            && self.startups.failed.len() as u32 >= nodes.clamp(1, AGREEMENT)
    }

    /// Nodes that could run the job, spared ones too, and how many of its tasks each.
    fn able_nodes<'a>(&'a self, core: &'a Core) -> impl Iterator<Item = (NodeId, u32)> + 'a {
        let reachable = core
            .members
            .alive()
            .into_iter()
            .filter(|node| core.members.is_reachable(*node));
        let known = reachable.filter_map(|node| Some((node, core.members.info(node)?)));
        let able = known.filter(|(_, info)| self.unsuitability(info).is_none());
        able.map(|(node, info)| (node, self.most_slots(info)))
    }

    fn give_up(&mut self, core: &mut Core, lattice: &Lattice, error: &ErrorReport) {
        let reason = format!("no worker could start: {error}\n{}", error.traceback);
        core.notice(format!("job {}: {reason}", self.job));
        let reason = shortened(reason.trim_end(), MAX_REASON_BYTES);
        let head = self.head(core);
        let head = JobHead {
            given_up: head.round + 1,
            reason: Some(reason),
            phase: Phase::Failed,
            ..head.clone()
        };
        self.end_job(core, lattice, head);
    }
}

/// The first half of a text and its last: an error's message is in front, the line that raised it
/// at the end.
fn shortened(text: &str, bytes: usize) -> String {
    if text.len() <= bytes {
        return text.to_string();
    }
    let half = bytes / 2 - 8;
    let start = (0..=half)
        .rev()
        .find(|at| text.is_char_boundary(*at))
        .unwrap_or(0);
    let end = (text.len() - half..text.len())
        .find(|at| text.is_char_boundary(*at))
        .unwrap_or(text.len());
    format!("{}\n…\n{}", &text[..start], &text[end..])
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_reason_of_any_length_fits(text in "\\PC{0,9000}") {
            let short = shortened(&text, MAX_REASON_BYTES);
            prop_assert!(short.len() <= MAX_REASON_BYTES);
            prop_assert!(text.starts_with(short.lines().next().unwrap_or_default()));
        }
    }
}
