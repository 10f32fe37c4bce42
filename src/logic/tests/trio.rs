//! Three nodes that talk to each other, without a network, disks or clocks.

use super::*;
use nodectl_types::{BlobHash, StartTask, record::OutputFile};
use std::collections::BTreeSet;

/// Three members whose disks answer at once; tasks run until they are ended.
pub(super) struct Trio {
    pub(super) nodes: Vec<State>,
    mono: Time,
    /// Pairs between which nothing goes.
    pub(super) cut: BTreeSet<(usize, usize)>,
    pub(super) running: Vec<(usize, JobId, TaskIndex, Attempt)>,
    /// Nodes whose disks do not answer, those that get no files, and what they owe.
    pub(super) hanging: BTreeSet<usize>,
    pub(super) waiting: BTreeSet<usize>,
    /// Nodes that cannot have what tasks are given.
    pub(super) without_inputs: BTreeSet<usize>,
    pub(super) owed: Vec<(usize, Input)>,
    /// Orders: from whom, to whom, of which task.
    pub(super) orders: Vec<(usize, usize, TaskIndex)>,
    /// What users were answered, and by whom.
    pub(super) answers: Vec<(usize, Result<Answer, QueryError>)>,
}

impl Trio {
    pub(super) fn new() -> Self {
        let state = |number: u8| {
            let mut state = State::new(
                Now::default(),
                NodeInfo {
                    id: NodeId([number; 32]),
                    ..info(1)
                },
                config(),
            );
            state.start();
            state
        };
        let nodes = vec![state(1), state(2), state(3)];
        let mut trio = Self {
            nodes,
            mono: Time(1),
            cut: BTreeSet::new(),
            running: Vec::new(),
            hanging: BTreeSet::new(),
            waiting: BTreeSet::new(),
            without_inputs: BTreeSet::new(),
            owed: Default::default(),
            orders: Default::default(),
            answers: Vec::new(),
        };
        for (one, other) in [(0, 1), (0, 2), (1, 2)] {
            trio.connect(one, other);
        }
        trio.wait(2_000);
        trio
    }

    pub(super) fn id(&self, node: usize) -> NodeId {
        self.nodes[node].node()
    }

    fn is_cut(&self, one: usize, other: usize) -> bool {
        self.cut.contains(&(one.min(other), one.max(other)))
    }

    pub(super) fn connect(&mut self, one: usize, other: usize) {
        self.cut.remove(&(one, other));
        self.give(vec![
            (one, Input::PeerUp(self.id(other))),
            (other, Input::PeerUp(self.id(one))),
        ]);
    }

    pub(super) fn give(&mut self, mut inputs: Vec<(usize, Input)>) {
        while !inputs.is_empty() {
            let (node, input) = inputs.remove(0);
            self.mono = self.mono + Duration::from_micros(10);
            let now = Now {
                mono: self.mono,
                wall_ms: 0,
            };
            for effect in self.nodes[node].handle(now, [input]) {
                match effect {
                    Effect::Send { to, message } => inputs.extend(self.send(node, to, message)),
                    Effect::KeepThenSend { to, message, .. } => {
                        inputs.extend(self.send(node, to, *message));
                    }
                    Effect::Answer { answer, .. } => self.answers.push((node, answer)),
                    Effect::Disk(DiskEffect::Persist { ticket, .. }) => {
                        let hangs = self.hanging.contains(&node);
                        let result = Ok(());
                        let written = (node, Input::Persisted { ticket, result });
                        if hangs { &mut self.owed } else { &mut inputs }.push(written);
                    }
                    Effect::Disk(DiskEffect::FetchBlobs { ticket, .. }) => {
                        let waits = self.waiting.contains(&node);
                        let result = Ok(());
                        let fetched = (node, Input::Fetched { ticket, result });
                        if waits { &mut self.owed } else { &mut inputs }.push(fetched);
                    }
                    Effect::Disk(DiskEffect::FetchTree { ticket, .. }) => {
                        let fails = self.without_inputs.contains(&node);
                        let result = if fails { Err("gone".into()) } else { Ok(()) };
                        let fetched = (node, Input::Fetched { ticket, result });
                        if fails { &mut self.owed } else { &mut inputs }.push(fetched);
                    }
                    Effect::Disk(DiskEffect::SendRecords {
                        to,
                        job,
                        epoch,
                        chunk,
                        tasks,
                    }) => {
                        let records = tasks
                            .iter()
                            .map(|task| Arc::new(done(*task, self.id(node))))
                            .collect();
                        let message = Message::Pulled {
                            job,
                            epoch,
                            chunk,
                            records,
                            more: false,
                            error: None,
                        };
                        inputs.push(self.arrival(node, to, message));
                    }
                    Effect::Task(effect) => inputs.extend(self.follow(node, effect)),
                    _ => {}
                }
            }
        }
    }

    /// A task runs, or runs no more.
    fn follow(&mut self, node: usize, effect: TaskEffect) -> Option<(usize, Input)> {
        let input = match effect {
            TaskEffect::Start(StartTask {
                job, task, attempt, ..
            }) => {
                self.running.push((node, job, task, attempt));
                Input::TaskStarted { job, task, attempt }
            }
            TaskEffect::Stop {
                job, task, attempt, ..
            } => {
                let key = (node, job, task, attempt);
                self.running.retain(|running| *running != key);
                Input::TaskStopped { job, task, attempt }
            }
            _ => return None,
        };
        Some((node, input))
    }

    pub(super) fn arrival(&self, node: usize, to: NodeId, message: Message) -> (usize, Input) {
        let mut states = self.nodes.iter();
        let other = states.position(|state| state.node() == to);
        let from = self.id(node);
        (
            other.expect("one of three"),
            Input::Message { from, message },
        )
    }

    fn send(&mut self, node: usize, to: NodeId, message: Message) -> Option<(usize, Input)> {
        let orders: Vec<_> = match &message {
            Message::Assign { tasks, .. } => tasks.iter().map(|order| order.task).collect(),
            _ => Vec::new(),
        };
        let (other, input) = self.arrival(node, to, message);
        if self.is_cut(node, other) {
            return None;
        }
        self.orders
            .extend(orders.into_iter().map(|task| (node, other, task)));
        Some((other, input))
    }

    pub(super) fn wait(&mut self, ms: u64) {
        for _ in 0..ms.div_ceil(50) {
            self.mono = self.mono + Duration::from_millis(50);
            self.give((0..3).map(|node| (node, Input::Tick)).collect());
        }
    }

    /// What runs there ends well.
    pub(super) fn end_all_on(&mut self, node: usize) {
        for (_, job, task, attempt) in self
            .running
            .extract_if(.., |running| running.0 == node)
            .collect::<Vec<_>>()
        {
            let record = TaskRecord {
                attempt,
                ..done(task, self.id(node))
            };
            self.give(vec![(
                node,
                Input::TaskEnded {
                    job,
                    record: Box::new(record),
                },
            )]);
        }
    }

    pub(super) fn done(&self, node: usize, job: JobId) -> BTreeSet<TaskIndex> {
        let lattice = &self.nodes[node].copy_of(job).expect("all hold it").lattice;
        (0..lattice.tasks())
            .filter(|task| lattice.is_done(*task))
            .collect()
    }
}

pub(super) fn done(task: TaskIndex, node: NodeId) -> TaskRecord {
    let record = TaskRecord::plain(
        task,
        Attempt {
            epoch: 1,
            claim: 0,
            number: 1,
        },
        node,
        Outcome::Done,
    );
    let output = OutputFile {
        path: "out".into(),
        bytes: 1,
        hash: BlobHash([task as u8; 32]),
        executable: false,
    };
    TaskRecord {
        accepted: 1,
        duration_us: 1_000,
        outputs: vec![output],
        ..record
    }
}
