//! What nodes tell of ends of attempts: whether it is news, and whether it is taken in at once.
//!
//! Whoever has done a task keeps its end, and tells of it every 2 s, until its coordinator has it
//! safe. Where that cannot take it in yet, it knows at least that there is one: nothing is to be
//! done again meanwhile.

use super::*;

/// Ends that were told and could not be taken in yet: by whom, and when last.
#[derive(Debug, Default)]
pub(super) struct ToldEnds(BTreeMap<TaskIndex, BTreeMap<NodeId, Time>>);

impl ToldEnds {
    fn note(&mut self, task: TaskIndex, node: NodeId, now: Time) {
        self.0.entry(task).or_default().insert(node, now);
    }

    /// An end that a node told of is taken in: a result stands for all that others may have, a
    /// failure for its own alone.
    pub(super) fn taken_in(&mut self, record: &TaskRecord, from: NodeId) {
        let Some(nodes) = self.0.get_mut(&record.task) else {
            return;
        };
        nodes.remove(&from);
        if record.is_done() || nodes.is_empty() {
            self.0.remove(&record.task);
        }
    }

    fn has(&self, task: TaskIndex) -> bool {
        self.0.contains_key(&task)
    }

    fn nodes(&self) -> BTreeSet<NodeId> {
        let nodes = self.0.values().flat_map(BTreeMap::keys);
        nodes.copied().collect()
    }

    /// Forgets the nodes that have theirs no longer. The tasks whose ends nobody has.
    fn review(&mut self, has: impl Fn(NodeId, Time) -> bool) -> Vec<TaskIndex> {
        self.0.values_mut().for_each(|nodes| {
            nodes.retain(|node, at| has(*node, *at));
        });
        let lost = self.0.extract_if(.., |_, nodes| nodes.is_empty());
        lost.map(|(task, _)| task).collect()
    }
}

impl ResultPipeline {
    /// An end of the task is on its way, or a node has one that will be.
    pub fn is_coming(&self, task: TaskIndex) -> bool {
        self.is_settling(task) || self.told.has(task)
    }
}

impl Coordinator {
    /// An end of the task is on its way to the disks, or a node has one that will be.
    pub fn is_end_coming(&self, task: TaskIndex) -> bool {
        self.results.is_coming(task)
    }

    /// News from a node.
    pub fn report(
        &mut self,
        core: &mut Core,
        lattice: &Lattice,
        from: NodeId,
        finished: Vec<Arc<TaskRecord>>,
        free: u32,
    ) {
        let now = core.mono();
        if let Some(work) = self.nodes.get_mut(&from) {
            work.free = Some((free, now));
        }
        let mut known: Vec<Try> = Vec::new();
        for record in finished {
            let key = (record.task, record.attempt);
            // In place of a result that is lost another one will do.
            let is_wanted = record.is_done() && lattice.is_unread(record.task);
            let is_over =
                matches!(lattice.cell(record.task), Cell::Done(_) | Cell::Cancelled) && !is_wanted;
            if record.task >= lattice.tasks() || is_over {
                self.drop_active(from, key.0, key.1);
                // What only this node has beside the one that tells of it is not safe yet: that one
                // will tell of it again.
                if self.is_confirmed(core) || !matches!(lattice.cell(record.task), Cell::Done(_)) {
                    known.push(key);
                }
            } else if self.results.decides(&record) {
                self.results.note_told(from, record, now);
            } else {
                self.take_end(core, lattice, from, record);
            }
        }
        if !known.is_empty() {
            let job = self.job;
            core.send(from, Message::ReportKept { job, tasks: known });
        }
    }

    /// Takes in the end of an attempt, or remembers who told of it, if that cannot be done yet.
    /// After a takeover another result of the task may have been told, which a holder has and this
    /// one would count more than, since it is accepted later.
    pub(super) fn take_end(
        &mut self,
        core: &mut Core,
        lattice: &Lattice,
        from: NodeId,
        record: Arc<TaskRecord>,
    ) {
        if self.is_recovering() {
            self.note_end(core, from, &record);
        } else {
            self.take_in(core, lattice, from, record);
        }
    }

    /// As `take_end`, of a task of which the holders have been heard.
    pub(super) fn take_in(
        &mut self,
        core: &mut Core,
        lattice: &Lattice,
        from: NodeId,
        record: Arc<TaskRecord>,
    ) {
        if self.results.is_full() || !self.has_order() {
            self.note_end(core, from, &record);
        } else {
            self.accept(core, lattice, from, record);
        }
    }

    /// Remembers an end that cannot be taken in yet. Where the task is done, none that waits on a
    /// node is to begin with it.
    fn note_end(&mut self, core: &mut Core, from: NodeId, record: &TaskRecord) {
        self.results.told.note(record.task, from, core.mono());
        if record.is_done() {
            self.drop_waiting(core, record.task);
        }
    }

    /// Whoever told of an end that can be taken in by now tells of it at once.
    pub(in super::super) fn ask_tellers(&mut self, core: &mut Core) {
        for node in self.results.told.nodes() {
            self.ask_node(core, node);
        }
    }

    /// Who is gone, or has told of nothing for long, has nothing any more: what it had done is done
    /// again.
    pub(in super::super) fn review_told(&mut self, core: &Core, lattice: &Lattice) {
        let now = core.mono();
        let has = |node: NodeId, at: Time| now - at < FORGOTTEN && core.members.is_in_reach(node);
        let limit = self.failure_limit(core);
        for task in self.results.told.review(has) {
            if !lattice.has_ended(task, limit) {
                self.reopen(task);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nodectl_types::Failure;

    #[test]
    fn a_failure_stands_for_no_result_that_another_node_has() {
        let [one, other] = [1, 2].map(|number| NodeId([number; 32]));
        let record = |node, outcome| {
            let attempt = Attempt {
                epoch: 1,
                claim: 0,
                number: 1,
            };
            TaskRecord::plain(9, attempt, node, outcome)
        };
        let mut told = ToldEnds::default();
        told.note(9, one, Time(1));
        told.note(9, other, Time(2));
        told.taken_in(&record(one, Outcome::Failed(Failure::Exit(1))), one);
        assert!(told.has(9));
        told.taken_in(&record(other, Outcome::Done), other);
        assert!(!told.has(9));
    }
}
