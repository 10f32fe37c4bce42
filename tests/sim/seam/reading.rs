//! What nodes read from their journals, for users, for other nodes, and for themselves.

use super::*;

impl SimWorld {
    /// What a user is told, which is in the journal.
    pub(super) fn read_told(
        &mut self,
        node: usize,
        job: JobId,
        tasks: &[TaskIndex],
    ) -> Vec<Arc<TaskRecord>> {
        let records = self.read(node, job, tasks);
        if records.len() != tasks.len() {
            self.fail(
                "a result is told that is not on disk",
                format!("n{node}, {}", self.job_name(job)),
            );
        }
        self.check_read(node, job, tasks);
        self.check_drawn(job, &records);
        records
    }

    /// As many as fit into a message.
    pub(super) fn send_records(
        &mut self,
        node: usize,
        to: NodeId,
        (job, epoch, chunk): (JobId, u32, u32),
        mut tasks: Vec<TaskIndex>,
    ) {
        self.moment(Moment::Resync, node);
        let more = tasks.len() > limits::RECORD_BATCH;
        tasks.truncate(limits::RECORD_BATCH);
        let error = self.lost(node, job, &tasks).err();
        let read = match error {
            Some(_) => Vec::new(),
            None => self.read(node, job, &tasks),
        };
        let batches = nodectl_logic::executor::batches(read);
        let more = error.is_none() && (more || batches.len() > 1);
        let message = Message::Pulled {
            job,
            epoch,
            chunk,
            records: batches.into_iter().next().unwrap_or_default(),
            more,
            error,
        };
        if to == self.machines[node].id {
            let (life, from) = (self.machines[node].life, to);
            return self.give(node, life, Input::Message { from, message });
        }
        self.send(node, to, &message);
    }

    /// What is told comes from the journal; what the core knows must be the same.
    pub(super) fn check_read(&mut self, node: usize, job: JobId, tasks: &[TaskIndex]) {
        let Some(copy) = self.machines[node]
            .state
            .as_ref()
            .and_then(|state| state.copy_of(job))
            .filter(|copy| !copy.lattice.is_resting())
        else {
            return;
        };
        let disk = &self.machines[node].disk;
        let differs = tasks
            .iter()
            .map(|task| (task, copy.lattice.cell(*task), disk.cell(job, *task)))
            .filter(|(task, ..)| !copy.lattice.is_unread(**task))
            .find(|(_, known, told)| *told != Cell::Unknown && known != told);
        if let Some((task, known, told)) = differs {
            let job = self.job_name(job);
            let text = format!(
                "n{node} knows of {job}'s task {task} {known:?}, its journal answers {told:?}"
            );
            self.fail("a journal answers what its node does not know", text);
        }
    }

    /// As store/ does: whoever reads records that are damaged hears it, and so does the node.
    pub(super) fn lost(
        &mut self,
        node: usize,
        job: JobId,
        tasks: &[TaskIndex],
    ) -> Result<(), String> {
        let machine = &mut self.machines[node];
        let (life, tasks) = (machine.life, machine.disk.lost(job, tasks));
        if tasks.is_empty() {
            return Ok(());
        }
        self.tell(|| format!("n{node} cannot read records of tasks {tasks:?}"));
        let input = Box::new(Input::RecordsLost { job, tasks });
        let event = SimEvent::Tell { node, life, input };
        self.after(Duration::from_micros(50), event);
        Err("a record is damaged".into())
    }

    /// As node/ and store/ do: what is in the journal of its tasks, in parts.
    pub(super) fn recall(&mut self, node: usize, job: JobId, ticket: u64) {
        self.branch("the cells of a job that rests are read again");
        self.tell(|| format!("n{node} reads a journal again"));
        let fails = self.plan.disk_errors > 0.0
            && !self.healed
            && self.disk_rng.random_bool(self.plan.disk_errors);
        let machine = &mut self.machines[node];
        machine.disk.find_rotten(job);
        let (life, journal) = (machine.life, machine.disk.cells(job).filter(|_| !fails));
        let parts = match journal {
            None => vec![Err("the disk does not answer".into())],
            Some(mut first) => {
                let second = first.split_off(first.len() / 2);
                vec![Ok(first), Ok(second)]
            }
        };
        let delay = Duration::from_micros(self.disk_rng.random_range(100..20_000));
        let disk = &self.machines[node].disk;
        let at = (self.now + delay * disk.slowness).max(disk.hangs_until);
        let last = parts.len() - 1;
        for (part, cells) in parts.into_iter().enumerate() {
            let input = Box::new(Input::Recalled {
                job,
                ticket,
                cells,
                more: part < last,
            });
            self.at(at, SimEvent::Tell { node, life, input });
        }
    }

    pub(super) fn read(
        &self,
        node: usize,
        job: JobId,
        tasks: &[TaskIndex],
    ) -> Vec<Arc<TaskRecord>> {
        tasks
            .iter()
            .filter_map(|task| self.machines[node].disk.read(job, *task))
            .map(|held| held.record.clone())
            .collect()
    }
}
