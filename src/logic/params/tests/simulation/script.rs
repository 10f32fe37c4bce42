//! A worker's program: what it is told, what it does next, and what of it must hold of all that it reads.

use super::*;

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
            }
            Notice::Released { clock } => {
                script.clock = Some(clock);
                script.waiting = false;
                script.pushing.clear();
            }
            Notice::Pulled { number, tensor } => {
                let is_answer = script.asked && number == script.pulls;
                if is_answer && script.pulling.remove(&tensor) && script.pulling.is_empty() {
                    let (finishing, life) = (script.finishing, script.life);
                    self.check(at, worker);
                    if finishing {
                        self.nodes.get_mut(&at).unwrap().workers.remove(&worker);
                        self.finished += 1;
                        self.give(at, Input::Left { worker, life }, Bytes::None);
                    }
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
                    script.part = (share.index, share.of);
                }
                script.began = clock;
                script.waiting = false;
                script.pushing.clear();
                script.pulling = tensors;
                script.asked = false;
                self.give(at, Input::Shared { worker, number: share.number }, Bytes::None);
            }
            Notice::Share(share) => {
                script.part = (share.index, share.of);
                self.give(at, Input::Shared { worker, number: share.number }, Bytes::None);
            }
            Notice::PassedBarrier | Notice::Kept { .. } | Notice::Status(_) => {}
            Notice::Misused(why) => {
                let life = script.life;
                node.workers.remove(&worker);
                self.give(at, Input::Left { worker, life }, Bytes::None);
                if why.contains("not those of the workers on node") {
                    self.refused += 1;
                    return;
                }
                assert!(why.starts_with("several nodes were lost"), "worker {worker}: {why}");
                self.add_worker(at, worker);
            }
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
        let (Some(clock), false) = (script.clock, script.waiting || script.finishing) else { return };
        if !script.pulling.is_empty() {
            // Not asked for yet, or on their way: asking twice does no harm.
            if !script.asked {
                self.pull(at, worker);
            }
            return;
        }
        if clock >= script.began.max(script.rounds) {
            script.finishing = true;
            return self.give(at, Input::Finished { worker }, Bytes::None);
        }
        if script.pushing.is_empty() {
            // Backwards; tensor 1 is never pushed.
            script.pushing = vec![0, 2, 3, 4];
        }
        let count = script.pushing.len().saturating_sub(split);
        let tensors: Vec<u32> = script.pushing.split_off(count).into_iter().rev().collect();
        let last = script.pushing.is_empty();
        // Of another clock it is void, and it will be told where it is.
        if node.group.clock_of(worker) == Some(clock) {
            self.give(at, Input::Push { worker, tensors }, Bytes::None);
        }
        if last {
            let script = self.nodes.get_mut(&at).unwrap().workers.get_mut(&worker).unwrap();
            script.waiting = true;
            script.pulling = (0..self.layout.tensors() as u32).collect();
            if self.nodes[&at].group.clock_of(worker) == Some(clock) {
                self.give(at, Input::Clock { worker, samples: 8 }, Bytes::None);
            }
            if self.nodes[&at].workers.contains_key(&worker) {
                self.pull(at, worker);
            }
        }
    }

    /// A worker asks for all that it waits for.
    fn pull(&mut self, at: NodeId, worker: Worker) {
        let script = self.nodes.get_mut(&at).unwrap().workers.get_mut(&worker).unwrap();
        script.asked = true;
        script.pulls += 1;
        let (number, tensors) = (script.pulls, script.pulling.iter().copied().collect());
        self.give(at, Input::Pull { worker, number, tensors }, Bytes::None);
    }

    /// What a worker has read keeps the promise of the mode.
    pub(super) fn check(&mut self, at: NodeId, worker: Worker) {
        let consistency = self.settings.consistency;
        let script = &self.nodes[&at].workers[&worker];
        let clock = match script.finishing {
            // It reads the last values, wherever it was itself.
            true => self.nodes[&at].group.clock_of(worker).unwrap(),
            false => script.clock.unwrap() + u64::from(script.waiting),
        };
        assert_eq!(script.values.len() as u32, self.layout.blocks());
        for (block, content) in &script.values {
            if consistency.is_synchronous() {
                assert_eq!(content.len() as u64, clock, "a reader sees all updates below its clock and no others");
                for (k, updates) in content.iter().enumerate() {
                    let seen = self.seen.entry(k as u64).or_insert_with(|| updates.clone());
                    assert_eq!(seen, updates, "block {block}, clock {k}: all readers see the same, for ever");
                    assert!(updates.iter().all(|(_, _, clock, _)| *clock == k as u64));
                    if self.settings.divided {
                        let parts: BTreeSet<Part> = updates.iter().map(|(.., part)| *part).collect();
                        let of = updates.len() as u32;
                        let all: BTreeSet<Part> = (0..of).map(|index| (index, of)).collect();
                        assert_eq!(parts, all, "block {block}, clock {k}: every sample counts once");
                    }
                }
                if script.finishing {
                    continue;
                }
                // Who was cut off for a while did not count.
                let own = content[script.began as usize..].iter();
                assert!(
                    self.faults
                        || own.enumerate().all(|(k, updates)| updates.contains(&(
                            worker,
                            script.life,
                            script.began + k as u64,
                            script.part
                        )))
                );
                continue;
            }
            let updates: Vec<Update> = content.iter().flatten().copied().collect();
            let distinct: BTreeSet<Update> = updates.iter().copied().collect();
            // But for what was behind the clock of a checkpoint that all went on from.
            let again = self.disk.restored > 0;
            assert!(again || distinct.len() == updates.len(), "block {block}: every update counts once");
            let has = |worker, life, k| distinct.contains(&(worker, life, k, WHOLE));
            assert!((script.began..clock).all(|k| has(worker, script.life, k)), "its own are there");
            if let Consistency::Ssp { staleness } = consistency {
                let bound = clock.saturating_sub(staleness);
                for ((other, life), began) in &script.due[block] {
                    assert!((*began..bound).all(|k| has(*other, *life, k)), "the bound");
                }
            }
            let log = self.logs.entry(*block).or_default();
            let common = log.len().min(content.len());
            assert_eq!(log[..common], content[..common], "block {block}: nothing that was read is undone");
            if content.len() > log.len() {
                *log = content.clone();
            }
        }
    }
}
