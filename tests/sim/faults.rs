//! What goes wrong, and how often: drawn anew for every seed, so that some runs know one kind of fault only.

use crate::world::{Event, World};
use nodectl::types::Time;
use rand::{RngExt, rngs::StdRng};
use std::{collections::BTreeSet, time::Duration};

/// By now the cluster has formed, and whatever was submitted to a lonely node has its copies.
const SETTLED: Time = Time(8_000_000);

#[derive(Debug, Default)]
pub struct Faults {
    pub loss: f64,
    pub duplication: f64,
    pub longest_delay_us: u64,
    pub disk_error: f64,
    pub task_failure: f64,
    crashes: bool,
    wipes: bool,
    partitions: bool,
    one_way: bool,
    pauses: bool,
    clock_jumps: bool,
    link_resets: bool,
    /// Nodes know when their time is over.
    lifetimes: bool,
    /// The first node takes no work, as a machine that only launches others.
    idle_launcher: bool,
    /// (from, to) that nothing passes.
    cut: BTreeSet<(usize, usize)>,
    wiped: bool,
    only_crashes: bool,
    nodes: usize,
}

impl Faults {
    pub fn draw(rng: &mut StdRng, nodes: usize) -> Self {
        let sometimes = |rng: &mut StdRng| rng.random_bool(0.4);
        let rate = |rng: &mut StdRng, most: f64| if rng.random_bool(0.3) { rng.random_range(0.0..most) } else { 0.0 };
        let mut faults = Self {
            loss: rate(rng, 0.1),
            duplication: rate(rng, 0.1),
            longest_delay_us: if rng.random_bool(0.3) { 60_000 } else { 3_000 },
            disk_error: rate(rng, 0.05),
            task_failure: rate(rng, 0.2),
            crashes: sometimes(rng),
            wipes: nodes > 2 && rng.random_bool(0.15),
            partitions: sometimes(rng),
            one_way: rng.random_bool(0.2),
            pauses: rng.random_bool(0.2),
            clock_jumps: rng.random_bool(0.2),
            link_resets: rng.random_bool(0.3),
            lifetimes: rng.random_bool(0.2),
            idle_launcher: nodes > 1 && rng.random_bool(0.2),
            cut: BTreeSet::new(),
            wiped: false,
            only_crashes: false,
            nodes,
        };
        if faults.wipes {
            // Two copies survive the loss of a disk only while both are where they should be.
            faults = Self {
                longest_delay_us: 3_000,
                task_failure: faults.task_failure,
                wipes: true,
                nodes,
                ..Self::default()
            };
        }
        let other = faults.partitions || faults.one_way || faults.pauses || faults.wipes || faults.link_resets;
        let slow = faults.longest_delay_us > 10_000;
        faults.only_crashes = !other && !faults.clock_jumps && !slow && faults.loss == 0.0;
        faults
    }

    /// Nothing but crashes (and what a disk keeps) goes wrong: acknowledged results must not be computed again.
    pub fn only_crashes(&self) -> bool {
        self.only_crashes
    }

    /// How long a node may live that starts now.
    pub fn lifetime(&self, seed: u64) -> Option<Duration> {
        self.lifetimes.then(|| Duration::from_millis(4_000 + seed % 30_000))
    }

    pub fn takes_work(&self, node: usize) -> bool {
        node > 0 || !self.idle_launcher
    }

    pub fn reaches(&self, from: usize, to: usize) -> bool {
        !self.cut.contains(&(from, to))
    }

    pub fn heal(&mut self) {
        let nodes = self.nodes;
        let (only_crashes, idle_launcher) = (self.only_crashes, self.idle_launcher);
        *self = Self { longest_delay_us: 3_000, only_crashes, idle_launcher, nodes, ..Self::default() };
    }
}

impl World {
    /// One fault, perhaps; and the next one planned.
    pub fn fault(&mut self) {
        let delay = Duration::from_millis(self.rng.random_range(50..3_000));
        self.after(delay, Event::Fault);
        let nodes = self.nodes.len();
        let victim = self.rng.random_range(0..nodes);
        match self.rng.random_range(0..7) {
            0 | 1 if self.faults.crashes => self.crash_for_a_while(victim),
            2 if self.faults.wipes && !self.faults.wiped && self.now > SETTLED => self.wipe(victim),
            3 if self.faults.partitions => self.partition(),
            4 if self.faults.one_way => {
                let other = self.rng.random_range(0..nodes);
                self.faults.cut.insert((victim, other));
            }
            5 if self.faults.pauses => self.pause(victim),
            5 if self.faults.clock_jumps => {
                let jump = Duration::from_millis(self.rng.random_range(0..20_000));
                self.nodes[victim].clock_skew += jump;
            }
            6 if self.faults.link_resets => {
                let other = self.rng.random_range(0..nodes);
                self.drop_link(victim, other, true);
            }
            6 => self.faults.cut.clear(),
            _ => {}
        }
    }

    fn crash_for_a_while(&mut self, victim: usize) {
        let everyone = self.rng.random_bool(0.1);
        let victims = if everyone { (0..self.nodes.len()).collect() } else { vec![victim] };
        for victim in victims {
            if self.nodes[victim].state.is_some() {
                self.crash(victim);
                let away = Duration::from_millis(self.rng.random_range(10..8_000));
                self.after(away, Event::Restart { node: victim });
            }
        }
    }

    /// A node's time is over; later it has more.
    pub fn leave_for_a_while(&mut self, node: usize) {
        self.crash(node);
        let away = Duration::from_millis(self.rng.random_range(10..8_000));
        self.after(away, Event::Restart { node });
    }

    /// A machine's disk is lost: a stranger takes its place. Once a run, since two copies of everything is the promise.
    fn wipe(&mut self, victim: usize) {
        self.faults.wiped = true;
        if self.nodes[victim].state.is_some() {
            self.crash(victim);
        }
        self.add_node(victim);
        self.after(Duration::from_secs(1), Event::Restart { node: victim });
    }

    fn partition(&mut self) {
        let sides: Vec<bool> = self.nodes.iter().map(|_| self.rng.random_bool(0.5)).collect();
        self.faults.cut.clear();
        for a in 0..sides.len() {
            for b in 0..sides.len() {
                if sides[a] != sides[b] {
                    self.faults.cut.insert((a, b));
                }
            }
        }
    }

    fn pause(&mut self, victim: usize) {
        let pause = Duration::from_millis(self.rng.random_range(100..6_000));
        self.nodes[victim].paused_until = Some(self.now + pause);
        self.after(pause, Event::Resume { node: victim });
    }
}
