//! Tasks that are several processes: no half of one goes on for long, and nothing of one is left.

use crate::{
    plan::{Act, FaultPlan, PlanItem},
    world::{AttemptOnNode, SimMachine, SimWorld},
};
use nodectl_logic::Input;
use nodectl_types::{Attempt, BlobHash, JobId, TaskIndex, TaskRecord, Time, gang::Place};
use rand::{RngExt, rngs::StdRng};
use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

/// Processes of which another is lost are over by then: their lead is lost to them after 15 s, a
/// stalled or starved node needs longer, and so does a lead to hear of an end that it was not told.
const HALF: Duration = Duration::from_secs(60);
/// They are looked at so often.
const PERIOD: Duration = Duration::from_secs(1);

/// A process of a gang.
#[derive(Debug)]
struct GangProcess {
    node: usize,
    life: u64,
    key: AttemptOnNode,
    /// It ended well.
    done: bool,
}

/// An attempt of a gang: its job and task, the attempt of its first process, and the node of that.
type Whole = (JobId, TaskIndex, Attempt, usize);

#[derive(Default)]
pub struct GangWatch {
    running: BTreeMap<Whole, RunningGang>,
    /// Processes that have asked for the end of all, and wait for their own.
    aborting: BTreeSet<(usize, u64, AttemptOnNode)>,
    looked_at: Time,
}

#[derive(Default)]
struct RunningGang {
    processes: BTreeMap<u32, GangProcess>,
    ranks: u32,
    half_since: Option<Time>,
}

impl FaultPlan {
    /// On as many nodes as there are for certain: one may be lost for good.
    pub fn draw_gangs(&mut self, rng: &mut StdRng) {
        if self.splits.is_some() || !rng.random_bool(0.3) {
            return;
        }
        let able = |cores: u32| {
            let able = self.machines.iter().filter(|machine| machine.takes_work);
            able.filter(|machine| machine.cores >= cores).count() as u32
        };
        let able = [able(1), able(2)];
        for (_, item) in &mut self.items {
            let PlanItem::Act(Act::Submit(job)) = item else {
                continue;
            };
            let per_node = rng.random_range(1..=2);
            let most = able[per_node as usize - 1].saturating_sub(1).min(5);
            if most > 0 && job.tasks <= 60 && rng.random_bool(0.5) {
                job.gang = Some((rng.random_range(1..=most), per_node));
                job.speculate = false;
                job.elastic = job.tasks % 3;
            }
        }
    }
}

impl SimWorld {
    /// A process of a gang starts.
    pub fn note_process(&mut self, node: usize, key: AttemptOnNode, place: &Place) {
        let lead = self.index_of(place.seats[0].node).unwrap_or(usize::MAX);
        let whole = (key.0, key.1, place.attempt, lead);
        if place.seats.len() > 1 {
            self.branch("a gang runs on several nodes");
        }
        let life = self.machines[node].life;
        let gang = self.gangs.running.entry(whole).or_default();
        gang.ranks = place.seats.len() as u32 * place.per_node;
        let process = GangProcess {
            node,
            life,
            key,
            done: false,
        };
        let before = gang.processes.insert(place.rank, process);
        // A claim that was given up, and of which nobody lives who knew, may be made anew.
        let lives = |before: GangProcess| self.machines[before.node].life == before.life;
        if before.is_some_and(lives) {
            let text = format!(
                "rank {} of {} task {}",
                place.rank,
                self.job_name(key.0),
                key.1
            );
            self.fail("a process of a gang starts twice", text);
        }
    }

    /// Which gang a process is of, and which of its processes it is.
    fn place_of(&self, node: usize, key: AttemptOnNode) -> Option<(Whole, u32)> {
        let of_gang = |(whole, gang): (&Whole, &RunningGang)| {
            let mut all = gang.processes.iter();
            let (rank, _) = all.find(|(_, process)| process.node == node && process.key == key)?;
            Some((*whole, *rank))
        };
        self.gangs.running.iter().find_map(of_gang)
    }

    /// A process that fails asks its lead for the end of all, as some MPI libraries do, and goes on
    /// until it is ended. False if it cannot, or has done so: then it ends.
    pub fn aborts(&mut self, node: usize, life: u64, key: AttemptOnNode) -> bool {
        let Some(((job, task, attempt, lead), rank)) = self.place_of(node, key) else {
            return false;
        };
        let lives = |machine: &SimMachine| machine.state.is_some();
        let hears = self.machines.get(lead).is_some_and(lives)
            && (lead == node || self.connects(lead, node));
        if !hears || !self.gangs.aborting.insert((node, life, key)) {
            return false;
        }
        self.branch("a rank aborts");
        self.tell(|| format!("n{node}: rank {rank} of task {task} ({attempt}) aborts"));
        let aborted = Input::RankAborted {
            job,
            task,
            attempt,
            rank,
            status: 1,
        };
        self.give(lead, self.machines[lead].life, aborted);
        true
    }

    /// What a process but the first prints is a file of the whole's.
    pub fn print(&mut self, node: usize, key: AttemptOnNode, record: &mut TaskRecord) {
        let Some((_, rank)) = self
            .place_of(node, key)
            .filter(|(_, rank)| *rank > 0 && record.is_done())
        else {
            return;
        };
        let salt = format!("{:?} {rank} {node} {}", key, self.plan.seed);
        let hash = BlobHash::of(salt.as_bytes());
        (record.stdout.blob, record.stdout.total_bytes) = (Some(hash), 100);
        self.checker.sizes.insert(hash, 100);
        self.machines[node].disk.blobs.insert(hash, 100);
    }

    /// A process ended well.
    pub fn note_process_done(&mut self, node: usize, key: AttemptOnNode) {
        let all = self.gangs.running.values_mut();
        let mut all = all.flat_map(|gang| gang.processes.values_mut());
        if let Some(process) = all.find(|process| process.node == node && process.key == key) {
            process.done = true;
        }
    }

    /// The job's tasks are gangs.
    pub fn is_gang(&self, job: JobId) -> bool {
        let number = self.user.number(job);
        number.is_some_and(|number| self.user.wants[number].plan.gang.is_some())
    }

    /// On how many nodes all processes of an attempt of the job run.
    pub fn gang_nodes(&self, job: JobId) -> usize {
        let running = |gang: &RunningGang| {
            let all = gang.processes.values();
            let running = all.filter(|process| {
                let machine = &self.machines[process.node];
                machine.life == process.life && machine.running.contains(&process.key)
            });
            let nodes: Vec<_> = running.map(|process| process.node).collect();
            let is_whole = nodes.len() == gang.ranks as usize;
            is_whole.then(|| nodes.into_iter().collect::<BTreeSet<_>>().len())
        };
        let mut gangs = self.gangs.running.iter();
        gangs
            .find_map(|(whole, gang)| (whole.0 == job).then(|| running(gang)).flatten())
            .unwrap_or_default()
    }

    /// Where a process is lost, the others do not go on.
    pub fn check_gangs(&mut self) {
        if self.gangs.running.is_empty() || self.now - self.gangs.looked_at < PERIOD {
            return;
        }
        self.gangs.looked_at = self.now;
        let mut gangs = std::mem::take(&mut self.gangs.running);
        let mut half = None;
        gangs.retain(|whole, gang| {
            let runs = |process: &&GangProcess| {
                let machine = &self.machines[process.node];
                machine.life == process.life && machine.running.contains(&process.key)
            };
            let running = gang.processes.values().filter(runs).count();
            let done = gang.processes.values().filter(|process| process.done);
            if running + done.count() == gang.ranks as usize {
                gang.half_since = None;
                return running > 0;
            }
            let since = *gang.half_since.get_or_insert(self.now);
            // What is beyond a cut that never heals, or stands still, hears of nothing.
            let mut here = gang.processes.values().filter(runs);
            let awake = here.any(|process| {
                let machine = &self.machines[process.node];
                !machine.beyond && !machine.is_stalled(self.now)
            });
            if awake && self.now - since > HALF {
                half = Some((*whole, since));
            }
            running > 0
        });
        self.gangs.running = gangs;
        if let Some(((job, task, attempt, lead), since)) = half {
            let text = format!(
                "{} task {task} ({attempt}), led by n{lead}, since {:.3} s",
                self.job_name(job),
                (since - crate::world::START).as_secs_f64()
            );
            self.fail("half a gang goes on", text);
        }
    }
}
