//! Messages that the checks listen to as they are sent and taken.

use super::*;

impl SimWorld {
    /// What the order of messages alone shows.
    pub fn notice_message(&mut self, from: usize, to: usize, message: &Message) {
        match message {
            Message::Replicate { job, records, .. } | Message::Pulled { job, records, .. } => {
                let Some(state) = &self.machines[to].state else {
                    return;
                };
                let lacks = |copy: &nodectl_logic::copies::LocalCopy| {
                    !copy.lattice.is_resting()
                        && records.iter().any(|record| copy.lattice.lacks(record))
                };
                if state.claim_of(*job).is_some() && state.copy_of(*job).is_some_and(lacks) {
                    self.branch("results are learned from another holder");
                    let name = self.job_name(*job);
                    self.tell(|| format!("n{to} learns results of {name} from n{from}"));
                }
            }
            Message::Offer { head, .. } if head.epoch > 0 => {
                self.moment(Moment::Recruited, to);
                if head.done > 0 && !head.phase.is_ended() {
                    self.branch("a replica joins a job that runs");
                }
            }
            Message::Report {
                job,
                epoch,
                finished,
                ..
            } if finished.iter().any(|record| record.attempt.epoch < *epoch)
                && self.machines[to]
                    .state
                    .as_ref()
                    .is_some_and(|state| state.claim_of(*job) == Some(*epoch)) =>
            {
                self.branch("an attempt of an earlier epoch ends after a takeover");
            }
            Message::ReportKept { job, tasks } => self.note_kept(to, *job, tasks),
            Message::Heads(heads) => {
                heads
                    .iter()
                    .filter(|head| head.phase.is_ended())
                    .for_each(|head| self.note_over(to, head.job));
            }
            _ => {}
        }
    }

    pub(super) fn notice_sent(&mut self, node: usize, to: NodeId, message: &Message) {
        match message {
            Message::Heads(heads) => {
                let me = self.machines[node].id;
                if heads
                    .iter()
                    .any(|head| head.holder == me && head.version <= 1 && head.epoch > 0)
                {
                    self.moment(Moment::Claimed, node);
                }
            }
            Message::GangMissed { .. } => self.branch("a gang finds no room"),
            Message::AssignGang { waits: true, .. } => self.branch("a gang waits for room"),
            Message::Stop { job, tasks, .. } => {
                let name = self.job_name(*job);
                let to = self.index_of(to).unwrap_or(usize::MAX);
                self.tell(|| format!("n{node} orders n{to} to stop {name} {}", attempts(tasks)));
            }
            _ => {}
        }
    }

    fn copy_files(&mut self, from: usize, to: usize, hashes: &[BlobHash]) {
        for hash in hashes {
            let bytes = self.machines[from].disk.blobs.get(hash).copied();
            self.machines[to]
                .disk
                .blobs
                .insert(*hash, bytes.unwrap_or_default());
        }
    }

    /// Each file from whoever has it.
    fn copy_from_several(&mut self, node: usize, fetch: &PendingFetch) -> bool {
        let usable = |holder: &usize| {
            let machine = &self.machines[*holder];
            machine.state.is_some() && !machine.is_stalled(self.now) && self.connects(*holder, node)
        };
        let holders: Vec<_> = fetch.holders.iter().copied().filter(usable).collect();
        let has = |at: &usize, hash| self.machines[*at].disk.blobs.contains_key(hash);
        let of = |hash| {
            let mut all = std::iter::once(node).chain(holders.iter().copied());
            Some((all.find(|at| has(at, hash))?, *hash))
        };
        let Some(found) = fetch.hashes.iter().map(of).collect::<Option<Vec<_>>>() else {
            return false;
        };
        for (from, hash) in found {
            self.copy_files(from, node, &[hash]);
        }
        true
    }

    /// Files are here, or cannot be had: nobody of those who were named has them and can be asked.
    pub fn fetched(&mut self, node: usize, life: u64, mut fetch: PendingFetch) {
        if self.machines[node].life != life {
            return;
        }
        if !fetch.left.is_zero() {
            return self.go_on_fetching(node, Duration::ZERO, fetch);
        }
        let has = |machine: &SimMachine| {
            fetch
                .hashes
                .iter()
                .all(|hash| machine.disk.blobs.contains_key(hash))
        };
        let here = has(&self.machines[node]);
        let usable =
            |holder: &usize| self.machines[*holder].state.is_some() && self.connects(*holder, node);
        let from = fetch
            .holders
            .iter()
            .copied()
            .filter(usable)
            .find(|holder| has(&self.machines[*holder]));
        let silent = from.is_some_and(|holder| self.machines[holder].is_stalled(self.now));
        if silent && !here && fetch.tries < FETCH_TRIES {
            fetch.tries += 1;
            let fetch = Box::new(fetch);
            return self.after(
                Duration::from_millis(500),
                SimEvent::Fetched { node, life, fetch },
            );
        }
        let fails = !self.healed && self.plan.net.fetch_failures > 0.0;
        let fails = fails && self.net_rng.random_bool(self.plan.net.fetch_failures);
        let result = match from {
            _ if here => Ok(()),
            _ if fails => Err("the connection broke".to_string()),
            _ if self.machines[node].disk.full => Err("no space left on device".into()),
            Some(holder) if !silent => {
                self.copy_files(holder, node, &fetch.hashes);
                Ok(())
            }
            _ if self.copy_from_several(node, &fetch) => Ok(()),
            _ => Err("nobody who has it can be reached".into()),
        };
        self.checker.fetching.remove(&(node, life, fetch.ticket));
        self.trace(|| {
            format!(
                "n{node} fetched {:?} from {:?}: {result:?}",
                fetch.hashes, fetch.holders
            )
        });
        let input = match fetch.job {
            Some(job) if fetch.is_spec => {
                let spec = fetch
                    .hashes
                    .first()
                    .and_then(|hash| self.specs.get(hash))
                    .cloned();
                self.branch("a large specification is fetched");
                let spec = result.and_then(|()| spec.ok_or_else(|| "it is damaged".into()));
                Input::SpecLoaded { job, spec }
            }
            _ => Input::Fetched {
                ticket: fetch.ticket,
                result,
            },
        };
        self.give(node, life, input);
    }
}
