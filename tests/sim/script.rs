//! Scenarios by hand: a quiet world in which only happens what a scenario says. What it says wrong
//! panics, and so does whatever the checks find.

use crate::{
    disk::Damage,
    plan::{Act, FaultPlan, FaultTarget, JobPlan, Moment, SimFault},
    world::SimWorld,
};
use nodectl_logic::Input;
use nodectl_types::{JobId, Phase, TaskIndex};
use std::time::Duration;

/// A named scenario.
pub type Scenario = (&'static str, fn());

pub struct ClusterScript {
    pub world: SimWorld,
}

fn seconds(seconds: f64) -> Duration {
    Duration::from_secs_f64(seconds)
}

/// Tasks that take up to `ms`.
pub fn tasks(tasks: u32, ms: u64) -> JobPlan {
    JobPlan {
        tasks,
        longest_ms: ms,
        ..JobPlan::default()
    }
}

impl ClusterScript {
    /// Nodes of two cores, which have met.
    pub fn of(nodes: usize) -> Self {
        Self::seeded(nodes, 1)
    }

    pub fn seeded(nodes: usize, seed: u64) -> Self {
        Self::planned(FaultPlan {
            seed,
            ..FaultPlan::quiet(nodes)
        })
    }

    pub fn planned(plan: FaultPlan) -> Self {
        let traced = std::env::var("SIM_TRACE").map_or(0, |level| level.parse().unwrap_or(1));
        let mut script = Self {
            world: SimWorld::new(plan, traced),
        };
        script.run(2.0);
        script
    }

    pub fn run(&mut self, time: f64) {
        self.world.run_for(seconds(time));
        self.look();
    }

    fn look(&self) {
        let findings = &self.world.verdict.findings;
        let words: Vec<_> = findings
            .iter()
            .map(|(rule, text)| format!("{rule}: {text}"))
            .collect();
        assert!(words.is_empty(), "{}", words.join("\n"));
    }

    /// Runs until it holds.
    pub fn until(&mut self, within: f64, what: &str, holds: impl Fn(&SimWorld) -> bool) {
        let deadline = self.world.now + seconds(within);
        while !holds(&self.world) {
            assert!(
                self.world.now < deadline,
                "not within {within} s: {what}\n{}",
                self.world.open_wants()
            );
            self.run(0.005);
        }
    }

    /// Submits a job; its user knows it.
    pub fn job(&mut self, plan: JobPlan) -> JobId {
        let number = self.world.want(plan);
        self.until(60.0, "a submission is confirmed", |world| {
            world.user.job_of(number).is_some()
        });
        self.world.user.job_of(number).expect("just waited for")
    }

    pub fn cancel(&mut self, job: JobId) {
        let number = self.world.user.number(job).expect("its user knows it");
        self.world.act(Act::Cancel { job: number });
    }

    pub fn cancel_tasks(&mut self, job: JobId, tasks: Vec<TaskIndex>) {
        let job = self.world.user.number(job).expect("its user knows it");
        self.world.act(Act::CancelTasks { job, tasks });
    }

    pub fn coordinator(&self, job: JobId) -> usize {
        self.world
            .coordinator(job)
            .expect("somebody coordinates it")
    }

    /// Those that hold the job and do not coordinate it.
    pub fn replicas(&self, job: JobId) -> Vec<usize> {
        let coordinator = self.coordinator(job);
        let up = self.world.up().into_iter();
        up.filter(|node| *node != coordinator && self.world.machines[*node].disk.has_spec(job))
            .collect()
    }

    /// Those that hold nothing of it.
    pub fn others(&self, job: JobId) -> Vec<usize> {
        self.world
            .up()
            .into_iter()
            .filter(|node| !self.world.machines[*node].disk.has_spec(job))
            .collect()
    }

    pub fn until_told(&mut self, job: JobId, results: usize) {
        self.until(300.0, "results are told", |world| {
            world.user.jobs[&job].done.len() >= results
        });
    }

    /// Until its user knows that it is done.
    pub fn until_done(&mut self, job: JobId) {
        self.until(300.0, "the job is done", |world| {
            world.user.jobs[&job].phase == Some(Phase::Done)
        });
    }

    pub fn kill(&mut self, node: usize) {
        self.world.crash(node);
    }

    pub fn start(&mut self, node: usize) {
        self.world.start(node);
    }

    pub fn restart(&mut self, node: usize, away: f64) {
        self.kill(node);
        self.run(away);
        self.start(node);
    }

    /// The machine is lost with its disk.
    pub fn lose(&mut self, node: usize) {
        self.world.lose(node);
    }

    /// Its data directory is copied as it is; the copy is started on another machine so much later.
    pub fn copy(&mut self, node: usize, later: f64) {
        self.world.strike(SimFault::Copy {
            victim: FaultTarget::Node(node),
            after: seconds(later),
        });
    }

    /// One node after the other gets the next version.
    pub fn upgrade(&mut self, pause: f64, away: f64) {
        self.world.strike(SimFault::Upgrade {
            pause: seconds(pause),
            away: seconds(away),
        });
    }

    pub fn stall(&mut self, node: usize, time: f64) {
        self.world.stall(node, seconds(time));
    }

    /// The node is told to go, and starts again within eight seconds.
    pub fn leave(&mut self, node: usize) {
        self.world.act(Act::Leave {
            node,
            away: Some(seconds(8.0)),
        });
    }

    /// Its wall clock is set.
    pub fn jump(&mut self, node: usize, by: i64) {
        self.world.strike(SimFault::Jump {
            victim: FaultTarget::Node(node),
            seconds: by,
        });
    }

    pub fn full(&mut self, node: usize, time: f64) {
        self.world.strike(SimFault::FullDisk {
            victim: FaultTarget::Node(node),
            lasts: seconds(time),
        });
    }

    pub fn slow_disk(&mut self, node: usize, slowness: u32, time: f64) {
        self.world.strike(SimFault::SlowDisk {
            victim: FaultTarget::Node(node),
            slowness,
            lasts: seconds(time),
        });
    }

    /// The node gets so small a part of its processor.
    pub fn starve(&mut self, node: usize, factor: u32, time: f64) {
        self.world.strike(SimFault::Slowed {
            victim: FaultTarget::Node(node),
            factor,
            lasts: seconds(time),
        });
    }

    pub fn hang(&mut self, node: usize, time: f64) {
        self.world.strike(SimFault::HangingDisk {
            victim: FaultTarget::Node(node),
            lasts: seconds(time),
        });
    }

    pub fn wall(&mut self, a: usize, b: usize, time: f64) {
        self.world.strike(SimFault::Wall {
            a,
            b,
            lasts: seconds(time),
        });
    }

    /// The given nodes on one side, the others on the other.
    pub fn cut(&mut self, side: &[usize], time: f64) {
        let sides = side.iter().map(|node| 1u64 << node).sum();
        self.world.strike(SimFault::Cut {
            sides,
            one_way: false,
            lasts: seconds(time),
        });
    }

    /// While its process is down.
    pub fn damage(&mut self, node: usize, damage: Damage) {
        assert!(
            self.world.machines[node].state.is_none(),
            "a disk is damaged while nobody uses it"
        );
        self.world.strike(SimFault::Damage {
            victim: FaultTarget::Node(node),
            damage,
            away: Duration::from_secs(3_600),
        });
    }

    /// Records of these tasks turn bad on the disk of a running node, and somebody reads them.
    pub fn rot(&mut self, node: usize, job: JobId, tasks: &[TaskIndex]) {
        let machine = &mut self.world.machines[node];
        tasks.iter().for_each(|task| machine.disk.rot(job, *task));
        let (life, tasks) = (machine.life, machine.disk.lost(job, tasks));
        self.world
            .give(node, life, Input::RecordsLost { job, tasks });
    }

    /// Whoever it happens at dies so long after the next such moment.
    pub fn kill_at(&mut self, moment: Moment, delay: f64, away: f64) {
        self.world.strike(SimFault::CrashAt {
            moment,
            delay: seconds(delay),
            away: seconds(away),
        });
    }

    /// All jobs end, copies are brought up to date, and everything is as it should be.
    pub fn settle(&mut self) {
        self.until(600.0, "all jobs end", SimWorld::is_content);
        self.run(40.0);
        self.world.check_quiet();
        self.look();
    }

    /// Machines are lost one by one, the coordinator first, until one is left.
    pub fn decay(&mut self, job: JobId) {
        while self.world.up().len() > 1 {
            let node = self.coordinator(job);
            self.lose(node);
            self.run(40.0);
            self.world.check_quiet();
            self.look();
        }
    }
}
