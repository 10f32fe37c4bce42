//! A worker's program: what it is told, and what it does next.

use super::*;
use crate::Share;

impl Simulation {
    /// A worker hears the next of what it was told.
    fn hear(&mut self, at: NodeId, worker: Worker, notice: Notice) {
        let tensors: BTreeSet<u32> = (0..self.layout.tensors() as u32).collect();
        let node = self.nodes.get_mut(&at).unwrap();
        let script = node.workers.get_mut(&worker).unwrap();
        match notice {
            Notice::Started { clock } => {
                script.clock = Some(clock);
                script.began = clock;
                script.waiting = false;
                script.pulling = tensors;
                if self.barriers.is_some() {
                    self.come_to_barrier(at, worker);
                }
            }
            Notice::Released { clock } => {
                script.clock = Some(clock);
                script.waiting = false;
                script.pushing.clear();
            }
            Notice::Pulled { number, tensor } => {
                let is_answer = script.asked && number == script.pulls;
                if is_answer && script.pulling.remove(&tensor) && script.pulling.is_empty() {
                    self.read(at, worker);
                }
            }
            Notice::AllFinished => {
                script.pulling = tensors;
                script.asked = false;
                script.reads_last = true;
            }
            Notice::Moved { clock, share } => {
                script.clock = Some(clock);
                if self.settings.divided {
                    script.part = part_of(share);
                }
                script.began = clock;
                script.waiting = false;
                script.pushing.clear();
                script.pulling = tensors;
                script.asked = false;
                (script.at_barrier, script.passed) = (false, None);
                let number = share.number;
                self.give(at, GroupInput::Shared { worker, number }, Bytes::None);
            }
            Notice::Share(share) => {
                script.part = part_of(share);
                let number = share.number;
                self.give(at, GroupInput::Shared { worker, number }, Bytes::None);
            }
            Notice::PassedBarrier => script.at_barrier = false,
            Notice::Kept { .. } | Notice::Status(_) => {}
            Notice::Misused(why) => {
                let life = script.life;
                self.end_worker(at, worker, life);
                self.refuse_worker(at, worker, &why);
            }
        }
    }

    /// A worker has all values that it asked for. One that has done its part leaves with them.
    fn read(&mut self, at: NodeId, worker: Worker) {
        let script = &self.nodes[&at].workers[&worker];
        let (finishing, life) = (script.finishing, script.life);
        self.check(at, worker);
        if finishing {
            self.finished += 1;
            self.succeeded.insert(worker);
            self.end_worker(at, worker, life);
        }
    }

    /// A worker was ended by its node: it begins again, unless its tensors are wrong.
    fn refuse_worker(&mut self, at: NodeId, worker: Worker, why: &str) {
        if why.contains("not those of the workers on node") {
            self.refused += 1;
            return;
        }
        let begins_anew = ["several nodes were lost", "another process had taken"];
        assert!(
            begins_anew.iter().any(|begin| why.starts_with(begin)),
            "worker {worker}: {why}"
        );
        let is_lost = why.starts_with("several nodes were lost");
        if is_lost {
            self.promises.heard_of_the_loss(at);
        }
        // The one in its place may have done its part.
        if is_lost || !self.succeeded.contains(&worker) {
            self.add_worker(at, worker);
        }
    }

    /// A worker takes its next step, if it waits for nothing.
    pub(super) fn act(&mut self, at: NodeId, worker: Worker) {
        let split = self.random.random_range(1..4);
        let listens = self.random.random_range(0..3) > 0;
        if self.hung == Some(at) {
            return;
        }
        let node = self.nodes.get_mut(&at).unwrap();
        let script = node.workers.get_mut(&worker).unwrap();
        // While it computes it hears nothing.
        let computes = !script.pushing.is_empty();
        if listens
            && !computes
            && let Some(notice) = script.told.pop_front()
        {
            return self.hear(at, worker, notice);
        }
        if std::mem::take(&mut script.reads_last) {
            return self.pull(at, worker);
        }
        let (Some(clock), false) = (
            script.clock,
            script.waiting || script.finishing || script.at_barrier,
        ) else {
            return;
        };
        if !script.pulling.is_empty() {
            // Not asked for yet, or on their way: asking twice does no harm.
            if !script.asked {
                self.pull(at, worker);
            }
            return;
        }
        if clock >= script.began.max(script.rounds) {
            script.finishing = true;
            let life = script.life;
            if node.group.clock_of(worker).is_none() {
                // What it did last was given up, and it has not heard of that.
                self.promises.exempt(vec![(worker, life)]);
            }
            return self.give(at, GroupInput::Finished { worker }, Bytes::None);
        }
        let is_barrier = self
            .barriers
            .is_some_and(|often| clock.is_multiple_of(often));
        if script.pushing.is_empty() && is_barrier && script.passed != Some(clock) {
            return self.come_to_barrier(at, worker);
        }
        let is_merged = self.settings.consistency.merge().is_some();
        let begins = script.pushing.is_empty();
        if begins {
            // Backwards; tensor 1 is never pushed.
            script.pushing = vec![0, 2, 3, 4];
        }
        if begins && is_merged && split == 1 && node.group.clock_of(worker) == Some(clock) {
            // Fragments go out as soon as they are whole.
            self.give(at, GroupInput::Samples { worker, samples: 8 }, Bytes::None);
        }
        let node = self.nodes.get_mut(&at).unwrap();
        let script = node.workers.get_mut(&worker).unwrap();
        let count = script.pushing.len().saturating_sub(split);
        let tensors: Vec<u32> = script.pushing.split_off(count).into_iter().rev().collect();
        let last = script.pushing.is_empty();
        // Of another clock it is void, and it will be told where it is.
        if node.group.clock_of(worker) == Some(clock) {
            self.give(at, GroupInput::Push { worker, tensors }, Bytes::None);
        }
        if last {
            self.end_clock(at, worker, clock);
        }
    }

    /// All is pushed: the worker waits for the values of the next clock.
    fn end_clock(&mut self, at: NodeId, worker: Worker, clock: Clock) {
        self.promises.reached(worker, clock + 1);
        let node = self.nodes.get_mut(&at).unwrap();
        let script = node.workers.get_mut(&worker).unwrap();
        script.waiting = true;
        script.pulling = (0..self.layout.tensors() as u32).collect();
        if self.nodes[&at].group.clock_of(worker) == Some(clock) {
            let computed_us = self.computes_for(at, worker, clock);
            let clock = GroupInput::Clock {
                worker,
                samples: 8,
                computed_us,
            };
            self.give(at, clock, Bytes::None);
        }
        if self.nodes[&at].workers.contains_key(&worker) {
            self.pull(at, worker);
        }
    }

    /// Each node's pace is its own, and another one after a while.
    fn computes_for(&self, at: NodeId, worker: Worker, clock: Clock) -> u64 {
        let phase = clock / 5;
        1000 * (1 + (u64::from(at.0[0]) + u64::from(worker) + 3 * phase) % 7)
    }

    fn come_to_barrier(&mut self, at: NodeId, worker: Worker) {
        let node = self.nodes.get_mut(&at).unwrap();
        let script = node.workers.get_mut(&worker).unwrap();
        script.barrier_with = node
            .group
            .view()
            .workers
            .iter()
            .map(|(life, _)| *life)
            .collect();
        script.at_barrier = true;
        script.passed = script.clock;
        self.promises.reached(worker, script.clock.unwrap_or(0));
        self.give(at, GroupInput::Barrier { worker }, Bytes::None);
    }

    /// A worker asks for all that it waits for.
    fn pull(&mut self, at: NodeId, worker: Worker) {
        let script = self
            .nodes
            .get_mut(&at)
            .unwrap()
            .workers
            .get_mut(&worker)
            .unwrap();
        script.asked = true;
        script.pulls += 1;
        let (number, tensors) = (script.pulls, script.pulling.iter().copied().collect());
        self.give(
            at,
            GroupInput::Pull {
                worker,
                number,
                tensors,
            },
            Bytes::None,
        );
    }
}

fn part_of(share: Share) -> ValueRange {
    (share.part.begin, share.part.end, share.part.total)
}
