//! What must always hold, and what must hold in the end.

use crate::world::World;
use nodectl::types::{Attempt, JobId, Phase, TaskIndex};
use std::collections::BTreeMap;

/// Most timers that a node of these small clusters should ever have.
const MOST_TIMERS: usize = 2_000;

#[derive(Debug, Default)]
pub struct Checker {
    /// In which epoch a result was told to the user.
    acknowledged: BTreeMap<(JobId, TaskIndex), u32>,
    /// Starts ordered by a later coordinator than the one that told the result.
    pub repeated: u32,
    /// Two machines were away at once: the copies of a result may have been.
    pub crashed_together: bool,
    /// How many tasks each node knew to be done, in its present life.
    done: BTreeMap<(usize, u64, JobId), u32>,
}

impl Checker {
    pub fn acknowledged(&mut self, job: JobId, task: TaskIndex, epoch: u32) {
        self.acknowledged.insert((job, task), epoch);
    }

    pub fn started(&mut self, job: JobId, task: TaskIndex, attempt: Attempt) {
        if self.acknowledged.get(&(job, task)).is_some_and(|epoch| attempt.epoch > *epoch) {
            self.repeated += 1;
        }
    }

    /// After an event at a node: what it knows to be done stays done, and its memory is bounded.
    pub fn after_event(world: &mut World, index: usize) {
        let node = &world.nodes[index];
        let Some(state) = &node.state else { return };
        assert!(state.core().timers.len() < MOST_TIMERS, "seed {}: timers pile up on n{index}", world.seed);
        for job in world.user.jobs.keys() {
            let Some(copy) = state.copy_of(*job) else { continue };
            let known = world.checker.done.entry((index, node.life, *job)).or_default();
            assert!(copy.lattice.done() >= *known, "seed {}: done tasks of {job} are undone on n{index}", world.seed);
            *known = copy.lattice.done();
        }
        if world.faults.only_crashes() && !world.checker.crashed_together {
            assert_eq!(world.checker.repeated, 0, "seed {}: an acknowledged result was computed again", world.seed);
        }
    }

    /// What is not yet right in the healed cluster: every job has one coordinator, and it knows every result that was
    /// ever told. `None` must come in bounded time.
    pub fn disagreement(world: &World) -> Option<String> {
        world.user.jobs.iter().find_map(|(job, watched)| {
            let claims = claims(world, *job);
            let [(holder, _)] = claims[..] else { return Some(format!("claims of {job}: {claims:?}")) };
            let state = world.nodes[holder].state.as_ref()?;
            let lattice = &state.copy_of(*job)?.lattice;
            let lost: Vec<_> = watched.done.iter().filter(|task| !lattice.is_done(**task)).collect();
            let is_over = |task: &&TaskIndex| lattice.has_ended(**task, 1);
            let revived: Vec<_> = watched.cancelled.iter().filter(|task| !is_over(task)).collect();
            if !revived.is_empty() && state.core().directory.get(*job)?.phase != Phase::Cancelled {
                return Some(format!("tasks {revived:?} of {job} were cancelled and are open again"));
            }
            (!lost.is_empty()).then(|| format!("results {lost:?} of {job} were told and are lost"))
        })
    }
}

/// Which nodes claim a job, and in which epoch.
fn claims(world: &World, job: JobId) -> Vec<(usize, u32)> {
    let claim = |index: usize| Some((index, world.nodes[index].state.as_ref()?.claim_of(job)?));
    (0..world.nodes.len()).filter_map(claim).collect()
}
