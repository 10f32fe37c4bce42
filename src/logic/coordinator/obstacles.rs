//! What keeps a job from starting, and a node from a job.

use super::Coordinator;
use crate::{core::Core, submission};
use nodectl_types::{After, NodeId, NodeInfo, Phase, explain::Reason, gang::Gang, units::counted};
use std::{borrow::Cow, collections::BTreeSet};

/// Why a job, or a node for it, stands still.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Obstacle {
    pub(super) reason: Reason,
    /// Behind "waiting for", or after a node's name.
    pub(super) text: String,
}

impl Obstacle {
    fn new(reason: Reason, text: impl Into<String>) -> Self {
        Self {
            reason,
            text: text.into(),
        }
    }

    pub(super) fn nodes(text: impl Into<String>) -> Self {
        Self::new(Reason::WaitsForNodes, text)
    }
}

impl Coordinator {
    /// What an unfinished job waits for, if it is not for the end of its tasks.
    pub(super) fn stands_still(&self, core: &Core) -> Option<Obstacle> {
        self.waits_for(core)
            .or_else(|| self.held_back(core))
            .or_else(|| self.lacks_beginning(core))
            .or_else(|| self.lacks_nodes(core))
    }

    /// What keeps the job from starting.
    pub(super) fn waits_for(&self, core: &Core) -> Option<Obstacle> {
        let members = core.members.alive().len() as u32;
        if members < self.spec.min_nodes {
            let wanted = counted(self.spec.min_nodes, "node");
            let text = format!("{wanted}; {members} are here");
            return Some(Obstacle::new(Reason::WaitsForNodes, text));
        }
        // One that was removed was done: as long as this job waited for it, it was kept. One of
        // which nobody here knows has ended, too, if this job has begun; what its results were
        // needs somebody who has them.
        let has_begun = self.head(core).phase != Phase::Waiting;
        let is_missing = |after: &&After| match (core.directory.get(after.job()), after) {
            (Some(head), After::End(_)) => !head.phase.is_ended(),
            (Some(head), After::Results { .. }) => head.phase != Phase::Done,
            (Some(_), After::Beside(_)) => false,
            (None, After::End(job)) => !has_begun && !core.directory.is_removed(*job),
            (None, _) => !core.directory.is_removed(after.job()),
        };
        let missing = self.spec.work.after.iter().find(is_missing);
        let text = match missing.or_else(|| self.crowded_by(core))? {
            After::End(job) => format!("the end of job {}", job.short()),
            After::Results { name, job } => format!("job {name} ({})", job.short()),
            After::Beside(job) => format!(
                "job {}, which has all tasks that the two may run at once",
                job.short()
            ),
        };
        Some(Obstacle::new(Reason::WaitsForJob, text))
    }

    /// The first job beside which this one runs, if those leave it no task.
    fn crowded_by(&self, core: &Core) -> Option<&After> {
        let mut beside = self.spec.work.after.iter();
        let first = beside.find(|after| after.beside().is_some())?;
        (self.most_at_once(core) == Some(0)).then_some(first)
    }

    /// Whether the recovery after a takeover, or trouble with the disk, holds orders back.
    pub(super) fn held_back(&self, core: &Core) -> Option<Obstacle> {
        if let Some(trouble) = &self.storage {
            let text = format!("its coordinator's disk: {}", trouble.error);
            return Some(Obstacle::new(Reason::WaitsForDisk, text));
        }
        if !self.kept {
            let text = "its specification to be on its coordinator's disk";
            return Some(Obstacle::new(Reason::WaitsForDisk, text));
        }
        let recovery = self.recovery.as_ref()?;
        let nodes: BTreeSet<_> = recovery
            .unheard
            .union(&recovery.uncompared)
            .copied()
            .chain(self.unheard_voters(core))
            .collect();
        let names: Vec<_> = nodes
            .into_iter()
            .map(|node| core.members.name(node))
            .collect();
        let text = format!(
            "what {} knows of it, after a change of coordinator",
            names.join(", ")
        );
        Some(Obstacle::new(Reason::WaitsForTakeover, text))
    }

    /// No node that is here could run it.
    fn lacks_nodes(&self, core: &Core) -> Option<Obstacle> {
        if !self.active.is_empty() || !self.results.is_empty() || self.is_log() {
            return None;
        }
        if let Some(gang) = self.spec.work.gang {
            return self.lacks_gang_nodes(core, gang);
        }
        let members = core.members.alive().into_iter();
        let known: Vec<_> = members.filter_map(|node| core.members.info(node)).collect();
        let objections = known.iter().map(|info| self.objection(core, info));
        let objections: Vec<_> = objections.collect::<Option<_>>()?;
        let seeking = known.iter().zip(&objections);
        let mut seeking = seeking.filter(|(_, why)| why.reason == Reason::NodeSeeksGpus);
        let text = match (seeking.next(), seeking.count()) {
            (Some((info, _)), 0) => format!("{}, which is still looking for its GPUs", info.name),
            (Some(_), more) => format!("{} nodes that are still looking for their GPUs", more + 1),
            (None, _) => {
                let infos = known.into_iter();
                let fits = submission::suits_some(&self.spec, self.place.as_ref(), infos);
                let why = fits.map_or_else(|why| format!(": {why}"), |()| String::new());
                format!("a node that can run it{why}")
            }
        };
        Some(Obstacle::new(Reason::WaitsForSuitableNode, text))
    }

    /// Why no gang can begin, whatever runs.
    fn lacks_gang_nodes(&self, core: &Core, gang: Gang) -> Option<Obstacle> {
        self.missing_of_gang(core, gang)
            .map(|text| Obstacle::new(Reason::WaitsForNodes, text))
    }

    /// Why a node does not get tasks of the job now.
    pub(super) fn objection(&self, core: &Core, info: &NodeInfo) -> Option<Obstacle> {
        let work = self.nodes.get(&info.id);
        if work.is_some_and(|work| work.is_spared(core.mono())) {
            return Some(self.failed_to_prepare(info.id));
        }
        if let Some(problem) = &info.problem {
            return Some(Obstacle::new(Reason::NodeTrouble, problem));
        }
        let refusal = || {
            let why = work?.refusal(info, core.mono())?;
            Some(Obstacle::new(Reason::NodeRefused, why))
        };
        self.unsuitability(info).or_else(refusal)
    }

    /// A task of the job could not begin on a node.
    pub(super) fn failed_to_prepare(&self, node: NodeId) -> Obstacle {
        let why = self.startups.why_failed(node);
        let why = why.map_or_else(|| " (see its log)".into(), |why| format!(": {why}"));
        let text = format!("it could not prepare a task just now{why}");
        Obstacle::new(Reason::NodeFailedToPrepare, text)
    }

    /// Why a node can never run the job as it is now, whatever it did before.
    pub(super) fn unsuitability(&self, info: &NodeInfo) -> Option<Obstacle> {
        let lacking = |text| Obstacle::new(Reason::NodeLacksResources, text);
        let best = info.at_best();
        if let Some(text) = self.lacks_for_all(&best) {
            return Some(lacking(text));
        }
        if let Some(why) = info.takes_no_work() {
            return Some(Obstacle::new(Reason::NodeTakesNoWork, format!("it {why}")));
        }
        if let Some(why) = info.admits.objection(&self.spec.work) {
            return Some(Obstacle::new(Reason::NodeExcludesJob, format!("it {why}")));
        }
        let place = self.place.as_ref();
        if place.is_some_and(|place| !place.may_hold(info)) {
            let text = format!("it does not satisfy `where = \"{}\"`", self.spec.place);
            return Some(Obstacle::new(Reason::NodeConditionUnmet, text));
        }
        let is_better = matches!(best, Cow::Owned(_));
        let lacks = is_better.then(|| self.lacks_for_all(info)).flatten();
        let is_open = info.seeks_gpus
            && (place.is_some_and(|place| !place.eval(info))
                || self.spec.work.has_default_needs()
                || lacks.is_some());
        if is_open {
            let text = "it is still looking for its GPUs";
            return Some(Obstacle::new(Reason::NodeSeeksGpus, text));
        }
        lacks.map(lacking)
    }
}
