//! Why a job, or one task of it, is where it is: a word for programs and a sentence for people.

use super::{Coordinator, obstacles::Obstacle};
use crate::{core::Core, lattice::Lattice};
use nodectl_types::{
    Cell, NodeId, Phase, TaskIndex,
    explain::{Reason, ReasonLine},
    python,
    query::TaskState,
    units::counted,
};

/// Nodes that are named of those that had no room for a task of several processes.
const MISSED_SHOWN: usize = 8;

fn line(reason: Reason, node: Option<NodeId>, text: impl Into<String>) -> ReasonLine {
    ReasonLine {
        reason,
        node,
        text: text.into(),
    }
}

impl Coordinator {
    /// Why the job, or one task of it, is where it is: the job first, then the task, copies of the
    /// results, and nodes.
    pub fn explain(
        &self,
        core: &Core,
        lattice: &Lattice,
        task: Option<TaskIndex>,
    ) -> Vec<ReasonLine> {
        let mut lines = vec![self.explain_job(core, lattice)];
        // A traceback, say.
        let reason = self.head(core).end_reason().into_iter();
        let more = reason.flat_map(|reason| reason.lines().skip(1));
        lines.extend(more.map(|more| line(Reason::Detail, None, more)));
        if let Some(task) = task {
            lines.push(self.explain_task(core, lattice, task));
        }
        lines.extend(self.explain_replicas(core, lattice));
        if !self.head(core).phase.is_ended() {
            lines.extend(self.explain_gang(core));
            let nodes = core.members.alive().into_iter();
            let nodes = nodes.filter(|_| !self.is_log());
            lines.extend(nodes.flat_map(|node| self.explain_node(core, node)));
        }
        lines
    }

    fn explain_job(&self, core: &Core, lattice: &Lattice) -> ReasonLine {
        let head = self.head(core);
        let who = core.members.name(head.holder);
        let cause = head.end_reason().unwrap_or_default();
        let cause = cause.lines().next().unwrap_or_default();
        let (reason, why) = match (head.phase, self.failed_prerequisite(core)) {
            (Phase::Cancelled, _) if !cause.is_empty() => {
                (Reason::JobCancelled, format!("cancelled: {cause}"))
            }
            (Phase::Failed, _) if !cause.is_empty() => {
                (Reason::JobFailed, format!("failed: {cause}"))
            }
            (Phase::Cancelled, Some(name)) => (
                Reason::JobCancelled,
                format!("cancelled, because job {name} did not succeed"),
            ),
            (Phase::Cancelled, None) => (Reason::JobCancelled, "cancelled".into()),
            (Phase::Done, _) => (Reason::JobDone, "done".into()),
            (Phase::Failed, _) => {
                let failed = lattice.failed_for_good(self.failure_limit(core));
                let why = format!("over, with {}", counted(failed, "failed task"));
                (Reason::JobFailed, why)
            }
            (Phase::Waiting | Phase::Running, _) => match self.stands_still(core) {
                Some(Obstacle { reason, text }) => (reason, format!("waiting for {text}")),
                None => (Reason::JobRuns, self.explain_running(core, lattice)),
            },
        };
        let text = format!(
            "job {} ({}) is {why}; {who} coordinates it",
            head.job.short(),
            head.name
        );
        line(reason, None, text)
    }

    fn explain_running(&self, core: &Core, lattice: &Lattice) -> String {
        let progress = self.progress(core, lattice);
        match self.head(core).workers {
            _ if self.is_log() => {
                format!("running: a log with {}", counted(progress.done, "entry"))
            }
            _ if self.head(core).open == Some(true) => format!(
                "open: {} of {} have ended, {} at work, {} waiting on nodes, and more can be added",
                progress.done + progress.failed + progress.stopped,
                counted(progress.tasks, "task"),
                progress.running,
                progress.queued
            ),
            Some(_) => format!(
                "running: a pool with {}",
                counted(progress.running, "worker")
            ),
            None => format!(
                "running: {} at work, {} waiting on nodes",
                counted(progress.running, "task"),
                progress.queued
            ),
        }
    }

    fn explain_task(&self, core: &Core, lattice: &Lattice, task: TaskIndex) -> ReasonLine {
        let found = self.line(core, lattice, task);
        let nodes = self.process_nodes(task, found.node);
        let names: Vec<_> = nodes.iter().map(|node| core.members.name(*node)).collect();
        let node = match names[..] {
            [] => "no node".into(),
            _ => names.join(", "),
        };
        let limit = self.failure_limit(core);
        if matches!(found.state, TaskState::Pending | TaskState::Failed)
            && let Some((reason, why)) = self.explain_needs(core, lattice, task)
        {
            let text = format!("task {task} (`{}`) {why}", self.name_of(task));
            return line(reason, None, text);
        }
        let (reason, text) = match found.state {
            TaskState::Done => (Reason::TaskDone, format!("task {task} is done")),
            TaskState::Failed if self.spec.work.worker.is_some() => (
                Reason::TaskFailed,
                format!(
                    "task {task} failed: its code raised an exception, or all of {} came to nothing",
                    counted(limit, "attempt")
                ),
            ),
            TaskState::Failed => {
                let failures = found.failures;
                let text = format!(
                    "task {task} failed {}, the limit being {limit}",
                    counted(failures, "time")
                );
                (Reason::TaskFailed, text)
            }
            TaskState::Cancelled if lattice.cell(task) == Cell::Cancelled => {
                (Reason::TaskCancelled, format!("task {task} was cancelled"))
            }
            TaskState::Cancelled => {
                let text = format!("task {task} was cancelled with its job");
                (Reason::TaskCancelled, text)
            }
            TaskState::Running if self.has_environment() => {
                let text = format!(
                    "task {task} runs on {node}, or waits there for its Python environment, which is made first"
                );
                (Reason::TaskRuns, text)
            }
            TaskState::Running => (Reason::TaskRuns, format!("task {task} runs on {node}")),
            TaskState::Queued if self.has_environment() => (
                Reason::TaskEnvironment,
                format!(
                    "task {task} waits on {node} for its Python environment, which is made there first, or for a free slot"
                ),
            ),
            TaskState::Queued => {
                let text = format!("task {task} waits on {node} for a free slot");
                (Reason::TaskQueued, text)
            }
            TaskState::Pending if found.failures > 0 => {
                let failures = found.failures;
                let text = format!(
                    "task {task} failed {} (last on {node}) and waits to be tried again",
                    counted(failures, "time")
                );
                (Reason::TaskRetries, text)
            }
            TaskState::Pending => {
                let text = format!("task {task} waits for a free slot on any suitable node");
                (Reason::TaskWaits, text)
            }
        };
        line(reason, found.node, text)
    }

    /// Whether nodes make something before its first task there can start.
    fn has_environment(&self) -> bool {
        let mut variables = self.spec.work.env.iter();
        variables.any(|(name, _)| name == python::VARIABLE)
    }

    fn explain_replicas(&self, core: &Core, lattice: &Lattice) -> Vec<ReasonLine> {
        let troubled = self.troubled_replicas().map(|(node, why)| {
            let text = format!(
                "{} cannot keep its copy of the results, which count once another node has them: {why}",
                core.members.name(node)
            );
            line(Reason::ReplicaFails, Some(node), text)
        });
        let behind = self.replicas_behind(lattice).map(|(node, left, parts)| {
            let name = core.members.name(node);
            let text = format!(
                "{name} is being given a copy of the results: {left} of {parts} parts are left"
            );
            line(Reason::ReplicaBehind, Some(node), text)
        });
        troubled.chain(behind).collect()
    }

    /// What the next gang waits for.
    fn explain_gang(&self, core: &Core) -> Vec<ReasonLine> {
        let (Some(gang), Some(since)) = (self.spec.work.gang, self.gangs.waiting) else {
            return Vec::new();
        };
        let waited = (core.mono() - since).as_secs();
        let text = format!(
            "the next task needs {} at the same time, and has waited {waited} s",
            counted(gang.nodes, "node")
        );
        let mut lines = vec![line(Reason::GangWaits, None, text)];
        let mut missed: Vec<_> = self.gangs.missed.iter().collect();
        missed.sort_by_key(|(_, (_, heard))| std::cmp::Reverse(*heard));
        lines.extend(
            missed
                .into_iter()
                .take(MISSED_SHOWN)
                .map(|(node, (why, _))| {
                    let text = format!("{}, when it was asked: {why}", core.members.name(*node));
                    line(Reason::GangMissed, Some(*node), text)
                }),
        );
        lines
    }

    fn explain_node(&self, core: &Core, node: NodeId) -> Vec<ReasonLine> {
        let name = core.members.name(node);
        let told = |reason, text: String| line(reason, Some(node), format!("{name}: {text}"));
        let Some(info) = core.members.info(node) else {
            let text = "it has not described itself yet";
            return vec![told(Reason::NodeUnknown, text.into())];
        };
        if !core.members.is_reachable(node) {
            return vec![told(Reason::NodeUnreachable, "not reachable now".into())];
        }
        if let Some(Obstacle { reason, text }) = self.objection(core, info) {
            let text = match reason {
                Reason::NodeFailedToPrepare => text,
                _ => format!("cannot take it: {text}"),
            };
            return vec![told(reason, text)];
        }
        let slots = self.most_slots(info);
        let (running, queued) = self
            .nodes
            .get(&node)
            .map_or((0, 0), |work| (work.running, work.queued));
        // Of gangs that others lead, too.
        let running = running.max(self.gangs.count_on(node));
        let slots = format!("{slots} slots for it; runs {running}, {queued} wait there");
        let mut lines = vec![told(Reason::NodeSuits, slots)];
        if self.startups.why_failed(node).is_some() {
            let failed = self.failed_to_prepare(node);
            lines.push(told(failed.reason, failed.text));
        }
        lines
    }
}
