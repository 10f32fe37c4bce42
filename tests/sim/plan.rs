//! Everything that a seed draws before the run begins: the machines, the network, what users do and
//! what goes wrong, when. Faults and acts are one list, each item by itself, so that a failing run
//! can be tried again without some of them.

use crate::{disk::Damage, logs::LogPlan, pools::PoolPlan};
use rand::{RngExt, SeedableRng, rngs::StdRng};
use std::{collections::BTreeSet, fmt, time::Duration};

/// Whom a fault strikes. Some are picked when it strikes, by somebody who wishes ill.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultTarget {
    Node(usize),
    /// The coordinator of the n-th job.
    Coordinator(usize),
    /// Who holds a copy of the n-th job and does not coordinate it.
    Replica(usize),
    /// Who runs a task of it.
    Executor(usize),
}

/// A moment at which a fault strikes, if it waits for one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Moment {
    /// A node told the others that it claims a job.
    Claimed,
    /// A cancellation was confirmed to a user.
    Cancelled,
    /// A submission was confirmed.
    Submitted,
    /// A result was told.
    Told,
    /// A node was asked to become a replica.
    Recruited,
    /// A coordinator began to bring a result's files.
    Fetching,
    /// Records go to a holder that lacks them.
    Resync,
}

#[derive(Clone, Debug, PartialEq)]
pub enum SimFault {
    Crash {
        victim: FaultTarget,
        away: Duration,
    },
    /// All at once; back one after the other, within so long.
    CrashAll {
        within: Duration,
    },
    /// At the next such moment, the node it happens at dies so long after it.
    CrashAt {
        moment: Moment,
        delay: Duration,
        away: Duration,
    },
    /// The machine is lost for good with its disk; perhaps another takes its place.
    Lose {
        victim: FaultTarget,
        replaced: Option<Duration>,
    },
    /// The process is stopped and goes on.
    Stall {
        victim: FaultTarget,
        lasts: Duration,
    },
    /// Two sides; also in one direction only.
    Cut {
        sides: u64,
        one_way: bool,
        lasts: Duration,
    },
    /// A wall that answers for the machine behind it that nobody listens there.
    Wall {
        a: usize,
        b: usize,
        lasts: Duration,
    },
    Reset {
        a: usize,
        b: usize,
    },
    /// The wall clock jumps.
    Jump {
        victim: FaultTarget,
        seconds: i64,
    },
    FullDisk {
        victim: FaultTarget,
        lasts: Duration,
    },
    SlowDisk {
        victim: FaultTarget,
        slowness: u32,
        lasts: Duration,
    },
    HangingDisk {
        victim: FaultTarget,
        lasts: Duration,
    },
    /// The process ends, its disk is damaged, it starts again.
    Damage {
        victim: FaultTarget,
        damage: Damage,
        away: Duration,
    },
    /// A part of the records on the disk of a running node turns bad, which is found when they are
    /// read, or when everything is healed.
    Rot {
        victim: FaultTarget,
        salt: u32,
    },
    /// The data directory is copied as it is; the copy is started on another machine so much later.
    Copy {
        victim: FaultTarget,
        after: Duration,
    },
    /// One node after the other gets the next version, which has no protocol in common with this
    /// one: so much later than the one before it, and after a moment in which it is down.
    Upgrade {
        pause: Duration,
        away: Duration,
    },
    /// The processor is taken by others.
    Slowed {
        victim: FaultTarget,
        factor: u32,
        lasts: Duration,
    },
}

/// What users and operators do.
#[derive(Clone, Debug, PartialEq)]
pub enum Act {
    Submit(JobPlan),
    Cancel {
        job: usize,
    },
    CancelTasks {
        job: usize,
        tasks: Vec<u32>,
    },
    Drain {
        node: usize,
        lasts: Duration,
    },
    /// The node is told to leave; it comes back after a while, or never.
    Leave {
        node: usize,
        away: Option<Duration>,
    },
    Pool(PoolPlan),
    Log(LogPlan),
    /// Every node is told that those which are gone for good are.
    Forget,
}

/// A job that a user submits.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct JobPlan {
    pub tasks: u32,
    pub longest_ms: u64,
    pub retries: u32,
    pub speculate: bool,
    pub at_once: Option<u32>,
    pub priority: i32,
    pub min_nodes: u32,
    /// Bytes of text that a result has inside its record.
    pub text: u32,
    /// How many of 100 results have a file, and of how many bytes.
    pub files: u32,
    pub file_bytes: u64,
    pub inputs: bool,
    /// The specification travels as a blob.
    pub large: bool,
    /// It comes after the job submitted so many before it.
    pub after: Option<usize>,
    /// Of that one it waits for the end only, and has no results.
    pub after_end: bool,
    pub sweep: bool,
    /// A task that fails however often it is tried.
    pub hopeless: Option<u32>,
    /// How many of 1,000 attempts fail.
    pub failing: u32,
    /// Each task is processes on so many nodes, and so many on each.
    pub gang: Option<(u32, u32)>,
    /// And on up to so many nodes more.
    pub elastic: u32,
    /// Parameters are drawn while it runs.
    pub search: bool,
    /// Tasks are added while it runs.
    pub open: bool,
    /// How many of 100 tasks need others.
    pub graph: u32,
}

/// A fault or an act, and when.
#[derive(Clone, Debug, PartialEq)]
pub enum PlanItem {
    Fault(SimFault),
    Act(Act),
}

#[derive(Clone, Debug)]
pub struct MachinePlan {
    pub cores: u32,
    /// Everything takes so many times as long.
    pub slowness: u32,
    pub takes_work: bool,
    pub lifetime: Option<Duration>,
    pub wall_ahead_ms: i64,
}

#[derive(Clone, Debug)]
pub struct NetPlan {
    pub longest_delay_us: u64,
    pub bytes_per_ms: u64,
    /// Messages vanish from, or double on, open connections: no TCP does that.
    pub loss: f64,
    pub duplication: f64,
    /// Of fetched blobs.
    pub fetch_failures: f64,
    /// Messages that wait for one peer at most, where it is fewer than usual.
    pub queue: Option<usize>,
}

#[derive(Clone, Debug)]
pub struct FaultPlan {
    pub seed: u64,
    pub machines: Vec<MachinePlan>,
    pub net: NetPlan,
    pub disk_errors: f64,
    pub keep_jobs: Duration,
    /// When everything works again.
    pub heals_at: Duration,
    /// One cut stays for ever.
    pub splits: Option<u64>,
    /// After that, machines are lost one by one until one is left.
    pub decays: bool,
    pub items: Vec<(Duration, PlanItem)>,
}

pub fn ms(rng: &mut StdRng, range: std::ops::Range<u64>) -> Duration {
    Duration::from_millis(rng.random_range(range))
}

impl FaultPlan {
    /// Nothing happens by itself: for scenarios.
    pub fn quiet(nodes: usize) -> Self {
        let machine = MachinePlan {
            cores: 2,
            slowness: 1,
            takes_work: true,
            lifetime: None,
            wall_ahead_ms: 0,
        };
        let net = NetPlan {
            longest_delay_us: 3_000,
            bytes_per_ms: 200_000,
            loss: 0.0,
            duplication: 0.0,
            fetch_failures: 0.0,
            queue: None,
        };
        Self {
            seed: 1,
            machines: vec![machine; nodes],
            net,
            disk_errors: 0.0,
            keep_jobs: Duration::from_secs(24 * 3600),
            heals_at: Duration::ZERO,
            splits: None,
            decays: false,
            items: Vec::new(),
        }
    }

    pub fn draw(seed: u64) -> Self {
        let rng = &mut StdRng::seed_from_u64(seed);
        let size = rng.random_range(0..1_000);
        let nodes = match size {
            0..8 => rng.random_range(12..=40),
            8..100 => rng.random_range(7..=9),
            _ => rng.random_range(1..=6),
        };
        let slow_ones = rng.random_bool(0.15);
        let lifetimes = rng.random_bool(0.12);
        let idle_launcher = nodes > 1 && rng.random_bool(0.15);
        let machines = (0..nodes).map(|node| MachinePlan {
            cores: 1 + node as u32 % 3,
            slowness: if slow_ones && rng.random_bool(0.3) {
                rng.random_range(2..12)
            } else {
                1
            },
            takes_work: node > 0 || !idle_launcher,
            lifetime: lifetimes.then(|| ms(rng, 4_000..34_000)),
            wall_ahead_ms: rng.random_range(0..1_000),
        });
        let machines = machines.collect();
        let mut rate = |most: f64, chance: f64| {
            if rng.random_bool(chance) {
                rng.random_range(0.0..most)
            } else {
                0.0
            }
        };
        let (loss, duplication, fetch_failures, disk_errors) = (
            rate(0.1, 0.07),
            rate(0.1, 0.07),
            rate(0.3, 0.2),
            rate(0.05, 0.2),
        );
        let net = NetPlan {
            longest_delay_us: if rng.random_bool(0.25) { 60_000 } else { 3_000 },
            bytes_per_ms: if rng.random_bool(0.2) { 10_000 } else { 60_000 },
            loss,
            duplication,
            fetch_failures,
            queue: None,
        };
        let storm = Duration::from_secs(if rng.random_bool(0.1) {
            70
        } else {
            rng.random_range(12..28)
        });
        let mut plan = Self {
            seed,
            machines,
            net,
            disk_errors,
            keep_jobs: Duration::from_secs(if rng.random_bool(0.1) { 20 } else { 3_600 }),
            heals_at: storm,
            splits: (nodes > 2 && rng.random_bool(0.1)).then(|| rng.random()),
            decays: nodes > 1 && nodes < 10 && rng.random_bool(0.5),
            items: Vec::new(),
        };
        plan.draw_work(rng, storm);
        plan.draw_faults(rng, storm);
        plan.draw_more();
        plan.items.sort_by_key(|(at, _)| *at);
        plan
    }

    fn draw_work(&mut self, rng: &mut StdRng, storm: Duration) {
        let style = WorkStyle::draw(rng, self.machines.len());
        for job in 0..style.jobs {
            let plan = style.job(rng, job, self.machines.len());
            let at = if rng.random_bool(0.6) {
                ms(rng, 50..4_000)
            } else {
                ms(rng, 50..storm.as_millis() as u64)
            };
            self.items.push((at, PlanItem::Act(Act::Submit(plan))));
        }
        self.draw_orders(rng, storm, &style);
    }

    /// What users and operators say of jobs and nodes.
    fn draw_orders(&mut self, rng: &mut StdRng, storm: Duration, style: &WorkStyle) {
        let nodes = self.machines.len();
        let sometime = |rng: &mut StdRng| ms(rng, 1_000..storm.as_millis() as u64);
        if rng.random_bool(0.15) {
            let at = sometime(rng);
            let job = rng.random_range(0..style.jobs);
            self.items.push((at, PlanItem::Act(Act::Cancel { job })));
        }
        if rng.random_bool(0.2) {
            for _ in 0..rng.random_range(1..4) {
                let tasks = (0..rng.random_range(1..4))
                    .map(|_| rng.random_range(0..style.tasks))
                    .collect();
                let job = rng.random_range(0..style.jobs);
                let act = Act::CancelTasks { job, tasks };
                self.items.push((sometime(rng), PlanItem::Act(act)));
            }
        }
        if nodes > 1 && rng.random_bool(0.15) {
            let act = Act::Drain {
                node: rng.random_range(0..nodes),
                lasts: ms(rng, 500..15_000),
            };
            self.items.push((sometime(rng), PlanItem::Act(act)));
        }
        if nodes > 1 && rng.random_bool(0.15) {
            let act = Act::Leave {
                node: rng.random_range(0..nodes),
                away: Some(ms(rng, 10..8_000)),
            };
            self.items.push((sometime(rng), PlanItem::Act(act)));
        }
    }

    /// What was added later has draws of its own: seeds that have shown something go on drawing
    /// what else they drew.
    fn draw_more(&mut self) {
        let rng = &mut StdRng::seed_from_u64(!self.seed);
        for (_, item) in &mut self.items {
            if let PlanItem::Act(Act::Submit(job)) = item {
                job.after_end = rng.random_bool(0.5) && job.after.is_some();
            }
        }
        let storm_ms = self.heals_at.as_millis() as u64;
        if rng.random_bool(0.06) {
            let evil = rng.random_bool(0.5);
            let copy = SimFault::Copy {
                victim: self.draw_victim(rng, evil),
                after: ms(rng, 10..15_000),
            };
            let at = ms(rng, 500..storm_ms);
            self.items.push((at, PlanItem::Fault(copy)));
        }
        if self.machines.len() > 1 && rng.random_bool(0.04) {
            let upgrade = SimFault::Upgrade {
                pause: ms(rng, 10..8_000),
                away: ms(rng, 10..2_000),
            };
            let at = ms(rng, 500..storm_ms);
            self.items.push((at, PlanItem::Fault(upgrade)));
        }
        self.draw_gangs(rng);
        self.draw_pools(rng);
        self.draw_graphs(rng);
        self.draw_logs(rng);
        self.draw_limits(rng);
        self.draw_open(rng);
    }

    fn draw_faults(&mut self, rng: &mut StdRng, storm: Duration) {
        let evil = rng.random_bool(0.33);
        let mut kinds: Vec<u32> = (0..12)
            .filter(|kind| rng.random_bool(if *kind == 0 { 0.5 } else { 0.2 }))
            .collect();
        // Where jobs are forgotten soon, every jump would be one beyond that.
        kinds.retain(|kind| *kind != JUMP || self.keep_jobs > Duration::from_secs(60));
        let mut at = ms(rng, 50..3_000);
        while at < storm && !kinds.is_empty() {
            let fault = self.draw_fault(rng, &kinds, evil);
            self.items.push((at, PlanItem::Fault(fault)));
            at += ms(rng, 50..3_000);
        }
        if self.machines.len() > 1 && rng.random_bool(0.35) {
            self.draw_loss(rng, storm, evil);
        }
    }

    pub fn draw_victim(&self, rng: &mut StdRng, evil: bool) -> FaultTarget {
        match rng.random_range(0..4) {
            1 if evil => FaultTarget::Coordinator(rng.random_range(0..3)),
            2 if evil => FaultTarget::Replica(rng.random_range(0..3)),
            3 if evil => FaultTarget::Executor(rng.random_range(0..3)),
            _ => FaultTarget::Node(rng.random_range(0..self.machines.len())),
        }
    }

    /// A fault of one of these kinds.
    fn draw_fault(&self, rng: &mut StdRng, kinds: &[u32], evil: bool) -> SimFault {
        let nodes = self.machines.len();
        let victim = |rng: &mut StdRng| self.draw_victim(rng, evil);
        let (a, b) = (rng.random_range(0..nodes), rng.random_range(0..nodes));
        let lasts = ms(rng, 300..12_000);
        let away = if rng.random_bool(0.5) {
            ms(rng, 10..1_500)
        } else {
            ms(rng, 10..8_000)
        };
        match kinds[rng.random_range(0..kinds.len())] {
            0 if rng.random_bool(0.1) => SimFault::CrashAll { within: away },
            0 => SimFault::Crash {
                victim: victim(rng),
                away,
            },
            1 => SimFault::CrashAt {
                moment: moment(rng),
                delay: delay(rng),
                away,
            },
            2 => SimFault::Stall {
                victim: victim(rng),
                lasts: ms(rng, 100..10_000),
            },
            3 => SimFault::Cut {
                sides: rng.random(),
                one_way: false,
                lasts: ms(rng, 300..25_000),
            },
            4 => SimFault::Cut {
                sides: rng.random(),
                one_way: true,
                lasts,
            },
            5 => SimFault::Wall { a, b, lasts },
            6 => SimFault::Reset { a, b },
            JUMP => SimFault::Jump {
                victim: victim(rng),
                seconds: rng.random_range(-30..30),
            },
            8 => SimFault::FullDisk {
                victim: victim(rng),
                lasts: ms(rng, 300..25_000),
            },
            9 => SimFault::SlowDisk {
                victim: victim(rng),
                slowness: rng.random_range(5..200),
                lasts,
            },
            10 => SimFault::HangingDisk {
                victim: victim(rng),
                lasts,
            },
            _ => SimFault::Slowed {
                victim: victim(rng),
                factor: rng.random_range(10..400),
                lasts,
            },
        }
    }

    /// Copies are lost, one at a time: once a run.
    fn draw_loss(&mut self, rng: &mut StdRng, storm: Duration, evil: bool) {
        let victim = self.draw_victim(rng, evil);
        let replaced = rng.random_bool(0.4).then(|| ms(rng, 500..5_000));
        let damages = [
            Damage::First,
            Damage::Middle,
            Damage::Tail,
            Damage::Journals,
            Damage::Blobs,
        ];
        let damage = damages[rng.random_range(0..damages.len())];
        let fault = if rng.random_bool(0.6) {
            SimFault::Lose { victim, replaced }
        } else if rng.random_bool(0.15) {
            // A wall clock jumps beyond all retention.
            SimFault::Jump {
                victim,
                seconds: rng.random_range(-50_000..50_000),
            }
        } else {
            SimFault::Damage {
                victim,
                damage,
                away: ms(rng, 10..4_000),
            }
        };
        let gone = matches!(fault, SimFault::Lose { .. });
        let at = ms(rng, 1_000..storm.as_millis() as u64);
        self.items.push((at, PlanItem::Fault(fault)));
        if gone && rng.random_bool(0.3) {
            self.items
                .push((at + ms(rng, 500..10_000), PlanItem::Act(Act::Forget)));
        }
    }

    /// The same without some of the items.
    pub fn without(mut self, dropped: &BTreeSet<usize>) -> Self {
        let mut index = 0..;
        self.items
            .retain(|_| !dropped.contains(&index.next().unwrap_or_default()));
        self
    }

    /// The faults and acts in words, by number.
    pub fn story(&self) -> String {
        let numbered = self.items.iter().enumerate();
        let lines = numbered.map(|(index, (at, item))| {
            format!("  {index:>3}  {:>7.3} s  {item}\n", at.as_secs_f64())
        });
        lines.collect()
    }
}

/// What the jobs of a run have in common.
struct WorkStyle {
    jobs: usize,
    /// Of each job, but for a huge one.
    tasks: u32,
    longest_ms: u64,
    files: bool,
    texts: bool,
    chains: bool,
    sweeps: bool,
    large: bool,
    /// The first job has so many tasks, with so many bytes of text each.
    huge: Option<(u32, u32)>,
}

impl WorkStyle {
    fn draw(rng: &mut StdRng, nodes: usize) -> Self {
        let (files, texts, chains, sweeps, large) = (
            rng.random_bool(0.5),
            rng.random_bool(0.2),
            rng.random_bool(0.3),
            rng.random_bool(0.15),
            rng.random_bool(0.1),
        );
        let huge = nodes < 7 && rng.random_bool(0.002);
        let longest_ms = [50, 3_000, 12_000][rng.random_range(0..3)];
        let jobs = rng.random_range(1..=3);
        // Many small results, or fewer large ones.
        let many = if rng.random_bool(0.5) {
            (100_000, 100)
        } else {
            (40_000, 2_000)
        };
        Self {
            jobs,
            tasks: rng.random_range(1..60),
            longest_ms: if huge { 50 } else { longest_ms },
            files,
            texts,
            chains,
            sweeps,
            large,
            huge: huge.then_some(many),
        }
    }

    fn job(&self, rng: &mut StdRng, job: usize, nodes: usize) -> JobPlan {
        let often = |rng: &mut StdRng, chance: f64| rng.random_bool(chance);
        let huge = self.huge.is_some();
        let many = self.huge.filter(|_| job == 0);
        let tasks = many.map_or(self.tasks, |(tasks, _)| tasks);
        let text = if self.texts {
            rng.random_range(0..2_000)
        } else {
            0
        };
        let plan = JobPlan {
            tasks,
            longest_ms: self.longest_ms,
            retries: rng.random_range(0..4),
            speculate: often(rng, 0.5),
            at_once: often(rng, 0.2).then(|| rng.random_range(1..8)),
            priority: rng.random_range(0..3),
            min_nodes: if often(rng, 0.1) {
                rng.random_range(1..=nodes as u32)
            } else {
                0
            },
            text: self.huge.map_or(text, |(_, text)| text),
            files: if self.files && !huge {
                rng.random_range(10..100)
            } else {
                0
            },
            file_bytes: 1 << rng.random_range(8..26),
            inputs: often(rng, 0.3),
            large: self.large && often(rng, 0.6),
            after: (self.chains && job > 0).then(|| rng.random_range(1..=job)),
            after_end: false,
            gang: None,
            elastic: 0,
            search: self.sweeps
                && tasks.is_multiple_of(2)
                && tasks <= nodectl_types::limits::MAX_TRIALS,
            graph: 0,
            open: false,
            sweep: self.sweeps,
            hopeless: (!huge && often(rng, 0.15)).then(|| rng.random_range(0..tasks)),
            failing: if !huge && often(rng, 0.3) {
                rng.random_range(0..200)
            } else {
                0
            },
        };
        // Machines that are gone for good must not keep a job waiting.
        JobPlan {
            min_nodes: plan.min_nodes.min(1),
            ..plan
        }
    }
}

/// The number of one kind of fault.
const JUMP: u32 = 7;

fn moment(rng: &mut StdRng) -> Moment {
    use Moment::{Cancelled, Claimed, Fetching, Recruited, Resync, Submitted, Told};
    let all = [
        Claimed, Cancelled, Submitted, Told, Recruited, Fetching, Resync,
    ];
    all[rng.random_range(0..all.len())]
}

fn delay(rng: &mut StdRng) -> Duration {
    Duration::from_micros(if rng.random_bool(0.5) {
        rng.random_range(0..5_000)
    } else {
        rng.random_range(0..100_000)
    })
}

impl fmt::Display for PlanItem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fault(fault) => write!(f, "{fault:?}"),
            Self::Act(act) => write!(f, "{act:?}"),
        }
    }
}
