//! What an ended job costs, and how its tasks are known again.

use super::*;
use nodectl_types::{BlobHash, Cell, JobHead, ParamSpace, Value};

const JOB: JobId = JobId(7);
const TASKS: u32 = 100_000;

/// A node alone, started anew with a job that is done on its disk.
struct Restarted {
    state: State,
    at: Time,
    asked_for_spec: Option<BlobHash>,
}

fn record(task: TaskIndex) -> TaskRecord {
    let attempt = Attempt {
        epoch: 1,
        claim: 0,
        number: 1,
    };
    TaskRecord {
        accepted: 1,
        ..TaskRecord::plain(task, attempt, NodeId([1; 32]), Outcome::Done)
    }
}

/// Each task has parameters of its own.
fn with_table() -> JobSpec {
    let cells = (0..TASKS).flat_map(|task| [Value::Int(task.into()), Value::Int(7)]);
    JobSpec {
        params: ParamSpace::Rows {
            columns: vec!["x".into(), "y".into()],
            cells: cells.collect(),
        },
        ..(*spec()).clone()
    }
}

impl Restarted {
    fn new() -> Self {
        Self::with(JobSpec {
            repeat: TASKS,
            ..(*spec()).clone()
        })
    }

    fn with(spec: JobSpec) -> Self {
        Self::with_results(spec, TASKS)
    }

    /// So many of its results are on the disk.
    fn with_results(spec: JobSpec, results: u32) -> Self {
        let config = Config {
            alone: true,
            ..config()
        };
        let mut state = State::new(Now::default(), info(1), config);
        let head = JobHead {
            epoch: 1,
            phase: Phase::Done,
            done: TASKS,
            ..JobHead::unclaimed(JOB, &spec, spec.hash())
        };
        state.restore(JOB, Record::Spec(Arc::new(spec)));
        state.restore(JOB, Record::Head(head));
        for task in 0..results {
            state.restore(JOB, Record::Task(Arc::new(record(task))));
        }
        state.start();
        Self {
            state,
            at: Time(1),
            asked_for_spec: None,
        }
    }

    /// What follows from an input, on a disk that takes everything at once.
    fn turn(&mut self, input: Input) -> Vec<Effect> {
        let (mut inputs, mut effects) = (vec![input], Vec::new());
        while !inputs.is_empty() {
            let now = Now {
                mono: self.at,
                wall_ms: 0,
            };
            let all = self.state.handle(now, std::mem::take(&mut inputs));
            for effect in all {
                if let Effect::Disk(DiskEffect::Persist { ticket, .. }) = effect {
                    let result = Ok(());
                    inputs.push(Input::Persisted { ticket, result });
                } else {
                    effects.push(effect);
                }
            }
        }
        effects
    }

    fn until_it_rests(&mut self) {
        for _ in 0..1_000 {
            self.at = self.state.next_deadline().unwrap_or(self.at);
            let effects = self.turn(Input::Tick);
            let rests = |effect: &Effect| matches!(effect, Effect::Disk(DiskEffect::Rest { .. }));
            if effects.iter().any(rests) {
                return;
            }
        }
        panic!("the job does not rest");
    }

    /// The ticket under which its journal is to be read.
    fn ask(&mut self) -> u64 {
        let query = Query::Job(JOB, JobQuery::Detail);
        let effects = self.turn(Input::Ask { id: 1, query });
        self.asked_for_spec = effects.iter().find_map(|effect| match effect {
            Effect::Disk(DiskEffect::LoadSpec { job: JOB, hash, .. }) => Some(*hash),
            _ => None,
        });
        let asked = effects.iter().find_map(|effect| match effect {
            Effect::Disk(DiskEffect::Recall { job: JOB, ticket }) => Some(*ticket),
            _ => None,
        });
        asked.expect("its journal is read")
    }

    fn recalled(
        &mut self,
        ticket: u64,
        cells: Result<Vec<(TaskIndex, Cell)>, String>,
        more: bool,
    ) -> Option<Result<Answer, QueryError>> {
        let effects = self.turn(Input::Recalled {
            job: JOB,
            ticket,
            cells,
            more,
        });
        effects.into_iter().find_map(|effect| match effect {
            Effect::Answer { id: 1, answer } => Some(answer),
            _ => None,
        })
    }

    fn memory_bytes(&self) -> usize {
        let heap = self.state.copies[&JOB].lattice.memory_bytes();
        let coordinator = self.state.coordinators.get(&JOB);
        heap + coordinator.map_or(0, |coordinator| coordinator.task_bytes())
    }

    /// What is in memory of the specification, encoded.
    fn spec_bytes(&self) -> usize {
        let spec = &*self.state.copies[&JOB].spec;
        postcard::to_stdvec(spec).expect("plain data").len()
    }
}

fn cells(tasks: std::ops::Range<TaskIndex>) -> Vec<(TaskIndex, Cell)> {
    tasks.map(|task| (task, Cell::of(&record(task)))).collect()
}

#[test]
fn an_ended_job_costs_no_more_the_more_tasks_it_has() {
    let mut node = Restarted::new();
    let before = node.state.copies[&JOB].lattice.memory_bytes();
    assert!(before >= 8 * TASKS as usize, "{before}");
    node.until_it_rests();
    assert!(node.memory_bytes() < 256, "{}", node.memory_bytes());
}

#[test]
fn an_ended_job_costs_no_more_the_larger_its_table_is() {
    let spec = with_table();
    let mut node = Restarted::with(spec.clone());
    assert!(node.spec_bytes() > 4 * TASKS as usize);
    for _ in 0..2 {
        node.until_it_rests();
        assert!(node.spec_bytes() < 256, "{}", node.spec_bytes());
        assert!(node.memory_bytes() < 256, "{}", node.memory_bytes());
        assert_eq!(node.state.copies[&JOB].spec.tasks(), TASKS);
        let ticket = node.ask();
        assert_eq!(node.asked_for_spec, Some(spec.hash()));
        // Whichever comes first.
        let loaded = |spec| Input::SpecLoaded { job: JOB, spec };
        let early = node.turn(loaded(Ok(Arc::new(spec.clone()))));
        assert_eq!(answers(&early), [] as [&Result<_, _>; 0]);
        let answer = node.recalled(ticket, Ok(cells(0..TASKS)), false);
        let Some(Ok(Answer::Job(detail))) = answer else {
            panic!("{answer:?}");
        };
        assert_eq!((detail.head.done, &*detail.spec), (TASKS, &spec));
    }
}

#[test]
fn a_table_that_cannot_be_read_is_an_error_for_who_asks() {
    let spec = with_table();
    let mut node = Restarted::with(spec.clone());
    node.until_it_rests();
    let loaded = |spec| Input::SpecLoaded { job: JOB, spec };
    node.ask();
    let effects = node.turn(loaded(Err("nobody has it".into())));
    let why = "its specification cannot be read: nobody has it";
    assert_eq!(
        answers(&effects),
        [&Err(QueryError::Storage(why.to_string()))]
    );
    let ticket = node.ask();
    assert!(node.recalled(ticket, Ok(cells(0..TASKS)), false).is_none());
    let effects = node.turn(loaded(Ok(Arc::new(spec))));
    assert!(matches!(answers(&effects)[..], [Ok(Answer::Job(_))]));
}

#[test]
fn who_asks_waits_until_its_journal_is_read() {
    let mut node = Restarted::new();
    for _ in 0..2 {
        node.until_it_rests();
        let ticket = node.ask();
        assert!(node.recalled(ticket, Ok(cells(0..1_000)), true).is_none());
        let of_another = node.recalled(ticket + 1, Ok(Vec::new()), false);
        assert!(of_another.is_none(), "of a read that was not asked for");
        let answer = node.recalled(ticket, Ok(cells(1_000..TASKS)), false);
        let Some(Ok(Answer::Job(detail))) = answer else {
            panic!("{answer:?}");
        };
        assert_eq!((detail.head.phase, detail.head.done), (Phase::Done, TASKS));
    }
}

#[test]
fn a_journal_that_cannot_be_read_is_an_error_for_who_asks() {
    let mut node = Restarted::new();
    node.until_it_rests();
    let ticket = node.ask();
    let answer = node.recalled(ticket, Err("a broken disk".into()), false);
    assert_eq!(
        answer,
        Some(Err(QueryError::Storage(
            "its journal cannot be read: a broken disk".into()
        )))
    );
    let ticket = node.ask();
    let answer = node.recalled(ticket, Ok(cells(0..TASKS)), false);
    assert!(matches!(answer, Some(Ok(Answer::Job(_)))), "{answer:?}");
}

/// Who has gone need not be answered: the node has enough to do for those who are there.
#[test]
fn what_nobody_waits_for_any_more_is_not_worked_out() {
    let mut node = Restarted::new();
    node.until_it_rests();
    let ticket = node.ask();
    node.at = node.at + limits::QUERY_TIMEOUT;
    let query = Query::Job(JOB, JobQuery::Detail);
    node.turn(Input::Ask { id: 2, query });
    let input = Input::Recalled {
        job: JOB,
        ticket,
        cells: Ok(cells(0..TASKS)),
        more: false,
    };
    let answers = node
        .turn(input)
        .into_iter()
        .filter_map(|effect| match effect {
            Effect::Answer { id, answer } => Some((id, answer.is_ok())),
            _ => None,
        });
    assert_eq!(answers.collect::<Vec<_>>(), [(2, true)]);
}

/// Alone, nobody else can have what the disk has lost.
#[test]
fn what_the_disk_has_lost_is_done_again() {
    let mut node = Restarted::new();
    node.until_it_rests();
    let ticket = node.ask();
    node.recalled(ticket, Ok(cells(1..TASKS)), false);
    for _ in 0..100 {
        let head = node.state.core().directory.get(JOB);
        let head = head.expect("it is known");
        if head.phase == Phase::Running {
            assert_eq!(head.done, TASKS - 1);
            return;
        }
        node.at = node.state.next_deadline().unwrap_or(node.at);
        node.turn(Input::Tick);
    }
    panic!("nothing is done again");
}

/// Nobody is there to keep copies with, and what is known of the job says that it is over.
#[test]
fn an_ended_job_is_claimed_anew_when_somebody_asks() {
    let mut node = Restarted::new();
    node.until_it_rests();
    assert_eq!(node.state.claim_of(JOB), None);
    let ticket = node.ask();
    assert_eq!(node.state.claim_of(JOB), Some(2));
    let answer = node.recalled(ticket, Ok(cells(0..TASKS)), false);
    assert!(matches!(answer, Some(Ok(Answer::Job(_)))), "{answer:?}");
}

/// The node's disk has one result fewer than the job's head says.
#[test]
fn an_ended_job_that_has_lost_a_result_is_claimed_at_once() {
    let mut node = Restarted::with_results(
        JobSpec {
            repeat: TASKS,
            ..(*spec()).clone()
        },
        TASKS - 1,
    );
    node.turn(Input::Tick);
    assert_eq!(node.state.claim_of(JOB), Some(2));
}

#[test]
fn who_waits_hears_that_the_job_was_removed() {
    let mut node = Restarted::new();
    node.until_it_rests();
    let ticket = node.ask();
    node.recalled(ticket, Ok(cells(0..TASKS)), false);
    node.until_it_rests();
    let ticket = node.ask();
    let query = Query::Remove { job: JOB };
    let effects = node.turn(Input::Ask { id: 2, query });
    let is_told = |id: u64| {
        effects.iter().find_map(|effect| match effect {
            Effect::Answer { id: of, answer } if *of == id => Some(answer.clone()),
            Effect::Keep {
                then: Some((Asker::Local(of), answer)),
                ..
            } if *of == id => Some(Ok(answer.clone())),
            _ => None,
        })
    };
    assert_eq!(is_told(1), Some(Err(QueryError::NoJob(JOB))));
    assert_eq!(is_told(2), Some(Ok(Answer::Ok)));
    let late = node.recalled(ticket, Ok(cells(0..TASKS)), false);
    assert!(late.is_none() && node.state.copy_of(JOB).is_none());
}

/// What is kept of each ended job beside its specification, its names and what tasks left; heads
/// and maps come to some hundred bytes more.
#[test]
fn what_a_job_at_rest_needs_has_bounds() {
    let coordinator = size_of::<crate::coordinator::Coordinator>();
    let copy = size_of::<crate::copies::LocalCopy>();
    assert!(coordinator <= 1_400 && copy <= 420, "{coordinator} {copy}");
}
