//! Single decisions that the simulation does not look at: what users are told, what outlasts what.

mod beginnings;
mod beside;
mod copies;
mod holders;
mod kept;
mod lost_gpus;
mod news;
mod open;
mod orphans;
mod owner;
mod pools;
mod rest;
mod restart;
mod retention;
mod roster;
mod seeking_gpus;
mod submissions;
mod trio;
mod unread;

use super::*;
use nodectl_types::{
    Answer, Attempt, ErrorReport, Failure, JobQuery, JobSpec, NodeInfo, NodeQuery, Outcome, Phase,
    Query, QueryError, Record, Resources, StartTask, TaskIndex, TaskRecord, Terms, WorkSpec,
    query::{Cursor, Location},
};
use std::sync::Arc;

fn info(version: u64) -> NodeInfo {
    NodeInfo {
        id: NodeId([1; 32]),
        version,
        name: "alpha".into(),
        software: "0.1.0".into(),
        model: String::new(),
        addrs: Vec::new(),
        resources: Resources {
            cpu_milli: 2_000,
            memory_bytes: 1 << 30,
            ..Resources::default()
        },
        gpus: Vec::new(),
        labels: BTreeMap::new(),
        draining: false,
        closed: None,
        admits: Default::default(),
        leaving: false,
        returning: false,
        problem: None,
        seeks_gpus: false,
    }
}

fn node() -> State {
    node_for(None)
}

/// A node that has so long to live.
fn node_for(lifetime: Option<Duration>) -> State {
    node_with(Config {
        lifetime,
        ..config()
    })
}

fn config() -> Config {
    let (keep_jobs, terms) = (Duration::from_secs(3600), Terms::default());
    Config {
        seed: 1,
        generation: 1,
        keep_jobs,
        lifetime: None,
        terms,
        alone: false,
    }
}

fn node_with(config: Config) -> State {
    let mut state = State::new(Now::default(), info(1), config);
    state.start();
    state
}

fn spec() -> Arc<JobSpec> {
    Arc::new(JobSpec::plain(
        WorkSpec::plain("squares", &["true"]),
        NodeId([1; 32]),
    ))
}

/// A node that has taken a job of `tasks` tasks, and whose disk and runner answer at once.
struct Solo {
    state: State,
    job: JobId,
    mono: nodectl_types::Time,
    /// What runs.
    running: Vec<(TaskIndex, Attempt)>,
    /// How many attempts there were.
    started: u32,
    /// The first bytes of the GPUs that they were given.
    gpus: Vec<u8>,
    /// What users were answered.
    answers: Vec<Result<Answer, QueryError>>,
    /// What becomes of files that are fetched.
    files: Result<(), String>,
}

impl Solo {
    fn with(tasks: u32, retries: u32) -> Self {
        Self::on(
            node(),
            JobSpec {
                repeat: tasks,
                retries,
                ..(*spec()).clone()
            },
        )
    }

    fn on(state: State, spec: JobSpec) -> Self {
        let mono = nodectl_types::Time(1);
        let mut solo = Self {
            state,
            job: JobId(0),
            mono,
            running: Vec::new(),
            started: 0,
            gpus: Vec::new(),
            answers: Vec::new(),
            files: Ok(()),
        };
        solo.turn(vec![Input::Ask {
            id: 1,
            query: Query::Submit {
                job: None,
                asked_before: 0,
                spec: Arc::new(spec),
            },
        }]);
        solo
    }

    /// Handles the inputs and all that follows from them, up to what takes time.
    fn turn(&mut self, mut inputs: Vec<Input>) {
        while !inputs.is_empty() {
            self.mono = self.mono + Duration::from_millis(1);
            let effects = self.state.handle(
                Now {
                    mono: self.mono,
                    wall_ms: 0,
                },
                inputs,
            );
            inputs = Vec::new();
            for effect in effects {
                match effect {
                    Effect::Disk(DiskEffect::Persist { job, ticket, .. }) => {
                        self.job = job;
                        inputs.push(Input::Persisted {
                            ticket,
                            result: Ok(()),
                        });
                    }
                    Effect::Disk(DiskEffect::FetchBlobs { ticket, .. }) => {
                        let result = self.files.clone();
                        inputs.push(Input::Fetched { ticket, result });
                    }
                    Effect::Task(TaskEffect::Start(StartTask {
                        job,
                        task,
                        attempt,
                        gpus,
                        ..
                    })) => {
                        self.running.push((task, attempt));
                        self.gpus.extend(gpus.iter().map(|uuid| uuid[0]));
                        self.started += 1;
                        inputs.push(Input::TaskStarted { job, task, attempt });
                    }
                    Effect::Task(TaskEffect::Stop {
                        job, task, attempt, ..
                    }) => {
                        self.running.retain(|key| *key != (task, attempt));
                        inputs.push(Input::TaskStopped { job, task, attempt });
                    }
                    Effect::KeepThenSend { to, message, .. } if to == self.state.node() => {
                        let message = *message;
                        inputs.push(Input::Message { from: to, message });
                    }
                    Effect::Answer { answer, .. } => self.answers.push(answer),
                    _ => {}
                }
            }
        }
    }

    /// The attempt that runs longest ends.
    fn end(&mut self, outcome: Outcome) {
        let record = self.record(outcome);
        self.turn(vec![Input::TaskEnded {
            job: self.job,
            record: Box::new(record),
        }]);
    }

    fn record(&mut self, outcome: Outcome) -> TaskRecord {
        let (task, attempt) = self.running.remove(0);
        TaskRecord {
            duration_us: 1_000,
            ..TaskRecord::plain(task, attempt, self.state.node(), outcome)
        }
    }

    /// What a reader is told of the job from a cursor on, and the cursor after it.
    fn page(&mut self, cursor: Cursor) -> (Vec<TaskIndex>, Cursor) {
        let query = Query::Job(
            self.job,
            JobQuery::Watch {
                cursor,
                wait_ms: 0,
                limit: 512,
            },
        );
        let now = Now {
            mono: self.mono,
            wall_ms: 0,
        };
        let effects = self.state.handle(now, [Input::Ask { id: 3, query }]);
        let page = effects.into_iter().find_map(|effect| match effect {
            Effect::LookUp {
                lookup: Lookup::Watch { tasks, cursor, .. },
                ..
            } => Some((tasks, cursor)),
            _ => None,
        });
        page.expect("the job is coordinated here")
    }

    fn head(&self) -> &nodectl_types::JobHead {
        self.state
            .core()
            .directory
            .get(self.job)
            .expect("the job was taken")
    }
}

fn init_failed(message: &str) -> Outcome {
    Outcome::Failed(Failure::Init(ErrorReport::without_exception(message)))
}

#[test]
fn a_node_that_knows_its_end_starts_nothing_that_would_not_end_before() {
    let spec = JobSpec {
        repeat: 100,
        ..(*spec()).clone()
    };
    let mut solo = Solo::on(node_for(Some(Duration::from_secs(60))), spec);
    assert_eq!(solo.running.len(), 2);
    for _ in 0..4 {
        solo.mono = solo.mono + Duration::from_secs(12);
        solo.end(Outcome::Done);
    }
    assert_eq!(
        (solo.started, solo.running.len()),
        (5, 1),
        "each took longer than what was left at the fourth end"
    );
    let told = solo.state.handle(
        Now {
            mono: solo.mono,
            wall_ms: 0,
        },
        [Input::Ask {
            id: 9,
            query: Query::Job(solo.job, JobQuery::Explain { task: None }),
        }],
    );
    assert!(
        format!("{told:?}").contains("its time ends before"),
        "{told:?}"
    );
    assert_eq!(solo.head().phase, Phase::Running);
}

#[test]
fn before_a_task_was_done_its_timeout_says_how_long_it_may_take() {
    let spec_with = |timeout_ms| {
        let mut spec = (*spec()).clone();
        spec.work = Arc::new(WorkSpec {
            timeout_ms: Some(timeout_ms),
            ..(*spec.work).clone()
        });
        spec
    };
    let lifetime = Some(Duration::from_secs(60));
    let late = |timeout_ms| {
        let mut state = node_for(lifetime);
        state.handle(
            Now {
                mono: nodectl_types::Time(1) + Duration::from_secs(30),
                wall_ms: 0,
            },
            [Input::Tick],
        );
        let mut solo = Solo {
            state,
            job: JobId(0),
            mono: nodectl_types::Time(1) + Duration::from_secs(30),
            running: Vec::new(),
            started: 0,
            gpus: Vec::new(),
            answers: Vec::new(),
            files: Ok(()),
        };
        solo.turn(vec![Input::Ask {
            id: 1,
            query: Query::Submit {
                job: None,
                asked_before: 0,
                spec: Arc::new(spec_with(timeout_ms)),
            },
        }]);
        solo.started
    };
    assert_eq!(late(20_000), 1);
    assert_eq!(late(40_000), 0, "it might be cut off");
    assert_eq!(late(90_000), 1, "no node of this kind could promise that");
}

#[test]
fn a_job_whose_workers_all_fail_to_start_is_given_up_with_what_they_said() {
    let mut solo = Solo::with(100, 3);
    assert_eq!(solo.running.len(), 2, "as many as there are cores");
    solo.end(init_failed("no module torch"));
    assert_eq!(
        solo.head().phase,
        Phase::Running,
        "one alone proves nothing where two can start"
    );
    let query = Query::Job(solo.job, JobQuery::Explain { task: None });
    solo.turn(vec![Input::Ask { id: 5, query }]);
    let told = format!("{:?}", solo.answers.last());
    let why = "it could not prepare a task just now: no module torch";
    assert!(told.contains(why), "{told}");
    solo.end(init_failed("no module torch"));
    assert_eq!(
        (solo.head().phase, solo.head().is_given_up()),
        (Phase::Failed, true)
    );
    assert!(
        solo.head()
            .end_reason()
            .is_some_and(|reason| reason.contains("no module torch"))
    );
}

#[test]
fn a_job_that_was_given_up_goes_on_when_it_is_retried() {
    let mut solo = Solo::with(100, 3);
    for _ in 0..2 {
        solo.end(init_failed("no module torch"));
        solo.end(init_failed("no module torch"));
        assert_eq!((solo.head().phase, solo.running.len()), (Phase::Failed, 0));
        solo.turn(vec![Input::Ask {
            id: 2,
            query: Query::Job(solo.job, JobQuery::Retry),
        }]);
        assert_eq!((solo.head().phase, solo.running.len()), (Phase::Running, 2));
        assert_eq!(solo.head().end_reason(), None);
    }
    while solo.head().phase == Phase::Running {
        solo.end(Outcome::Done);
    }
    assert_eq!((solo.head().phase, solo.head().done), (Phase::Done, 100));
}

#[test]
fn workers_that_fail_to_start_beside_others_cost_no_retry_but_not_for_ever() {
    let mut solo = Solo::with(2, 0);
    solo.end(Outcome::Done);
    for _ in 0..5 {
        solo.end(init_failed("busy"));
        assert_eq!(solo.head().phase, Phase::Running);
    }
    solo.end(init_failed("busy"));
    assert_eq!(
        (solo.head().phase, solo.head().done, solo.head().failed),
        (Phase::Failed, 1, 1)
    );
    assert_eq!(solo.head().reason, None);
}

/// Of each of them a timer was once set for the next, which waits for its room, and stayed for 5 s.
#[test]
fn timers_do_not_pile_up_where_many_short_tasks_run() {
    let mut solo = Solo::with(2000, 0);
    while solo.head().phase == Phase::Running {
        solo.end(Outcome::Done);
    }
    assert_eq!(solo.head().done, 2000);
    let timers = solo.state.core.timers.len();
    assert!(timers < 30, "{timers} timers");
}

#[test]
fn an_exception_is_final_and_a_retry_gives_its_task_another_attempt() {
    let mut solo = Solo::with(1, 3);
    let raised = || Outcome::Failed(Failure::Raised(ErrorReport::without_exception("bad")));
    solo.end(raised());
    assert_eq!((solo.head().phase, solo.started), (Phase::Failed, 1));
    solo.turn(vec![Input::Ask {
        id: 2,
        query: Query::Job(solo.job, JobQuery::Retry),
    }]);
    assert_eq!((solo.head().phase, solo.started), (Phase::Running, 2));
    solo.end(raised());
    assert_eq!((solo.head().phase, solo.started), (Phase::Failed, 2));
}

#[test]
fn a_task_that_ends_anew_is_told_once_to_who_reads_from_the_beginning() {
    let mut solo = Solo::with(2, 0);
    solo.end(Outcome::Failed(Failure::Exit(1)));
    solo.end(Outcome::Done);
    solo.turn(vec![Input::Ask {
        id: 2,
        query: Query::Job(solo.job, JobQuery::Retry),
    }]);
    solo.end(Outcome::Done);
    let (first, cursor) = solo.page(Cursor::default());
    assert_eq!(first, [1, 0]);
    assert_eq!(solo.page(cursor), (Vec::new(), cursor));
}

#[test]
fn an_attempt_that_has_ended_is_still_found_before_its_record_is_on_disk() {
    let mut solo = Solo::with(1, 0);
    let record = solo.record(Outcome::Done);
    let (now, job, attempt) = (
        Now {
            mono: solo.mono,
            wall_ms: 0,
        },
        solo.job,
        record.attempt,
    );
    let effects = solo.state.handle(
        now,
        [Input::TaskEnded {
            job,
            record: Box::new(record),
        }],
    );
    assert!(
        effects
            .iter()
            .any(|effect| matches!(effect, Effect::Disk(DiskEffect::Persist { .. }))),
        "{effects:?}"
    );
    let told = solo.state.handle(
        now,
        [Input::Ask {
            id: 9,
            query: Query::Job(job, JobQuery::Locate { task: 0, rank: 0 }),
        }],
    );
    let at_its_node = Location::Running {
        node: solo.state.node(),
        attempt,
    };
    assert_eq!(
        format!("{:?}", answers(&told)),
        format!("{:?}", [Ok::<_, QueryError>(Answer::Where(at_its_node))])
    );
}

fn answers(effects: &[Effect]) -> Vec<&Result<Answer, QueryError>> {
    let answers = effects.iter().filter_map(|effect| match effect {
        Effect::Answer { answer, .. } => Some(answer),
        _ => None,
    });
    answers.collect()
}

#[test]
fn a_drained_node_stays_so_when_it_is_described_anew() {
    let mut state = node();
    let me = state.node();
    state.handle(
        Now::default(),
        [Input::Ask {
            id: 1,
            query: Query::Node(me, NodeQuery::Drain { on: true }),
        }],
    );
    let drained = state.core().members.my_info().version;
    state.handle(Now::default(), [Input::Info(Box::new(info(1)))]);
    let after = state.core().members.my_info();
    assert!(after.is_drained() && after.version > drained, "{after:?}");
    state.handle(
        Now::default(),
        [Input::Ask {
            id: 2,
            query: Query::Node(me, NodeQuery::Drain { on: false }),
        }],
    );
    assert!(!state.core().members.my_info().is_drained());
}

#[test]
fn a_node_in_trouble_with_its_disk_starts_nothing_and_fails_nothing() {
    let mut solo = Solo::with(4, 0);
    assert_eq!(solo.running.len(), 2);
    let full = NodeInfo {
        problem: Some("its disk is full".into()),
        ..info(2)
    };
    solo.turn(vec![Input::Info(Box::new(full))]);
    solo.end(Outcome::Failed(Failure::Storage(
        "no room for its output".into(),
    )));
    solo.end(Outcome::Done);
    assert_eq!(
        (solo.started, solo.running.len()),
        (2, 0),
        "the others wait"
    );
    assert_eq!((solo.head().failed, solo.head().phase), (0, Phase::Running));
    solo.turn(vec![Input::Info(Box::new(info(3)))]);
    assert_eq!(solo.running.len(), 2);
    while !solo.running.is_empty() {
        solo.end(Outcome::Done);
    }
    assert_eq!((solo.started, solo.head().phase), (5, Phase::Done));
}

#[test]
fn a_job_that_finds_no_room_on_disk_is_refused_with_the_reason() {
    let mut state = node();
    let effects = state.handle(
        Now::default(),
        [Input::Ask {
            id: 1,
            query: Query::Submit {
                job: None,
                asked_before: 0,
                spec: spec(),
            },
        }],
    );
    assert!(
        answers(&effects).is_empty(),
        "nothing is promised before it is on disk"
    );
    let writes = effects.iter().filter_map(|effect| match effect {
        Effect::Disk(DiskEffect::Persist {
            job,
            records,
            ticket,
        }) => Some((*job, records, *ticket)),
        _ => None,
    });
    let (job, records, ticket) = writes
        .into_iter()
        .next()
        .expect("the specification is written");
    assert!(
        matches!(records.as_slice(), [Record::Spec(_), Record::Head(_)]),
        "in one piece, the specification first"
    );
    let full = Input::Persisted {
        ticket,
        result: Err("No space left on device".into()),
    };
    let effects = state.handle(Now::default(), [full]);
    let expected = Err(QueryError::Storage("No space left on device".into()));
    assert_eq!(answers(&effects), [&expected]);
    assert!(
        !effects
            .iter()
            .any(|effect| matches!(effect, Effect::Task(TaskEffect::Start(StartTask { .. }))))
    );
    assert_eq!(
        state.core().directory.get(job),
        None,
        "it may be submitted again"
    );
}

#[test]
fn a_node_that_is_reached_is_not_forgotten_and_one_that_was_may_come_back() {
    let other = NodeId([2; 32]);
    let mut state = node();
    let mut time = Time(1);
    let mut turn = |state: &mut State, input: Input| {
        time = time + Duration::from_millis(1);
        let (mono, wall_ms) = (time, 0);
        state.handle(Now { mono, wall_ms }, [input])
    };
    let forget = |sure: bool| Input::Ask {
        id: 1,
        query: Query::Node(NodeId([1; 32]), NodeQuery::Forget { lost: other, sure }),
    };
    let answer = |effects: Vec<Effect>| {
        effects.into_iter().find_map(|effect| match effect {
            Effect::Answer { answer, .. } => Some(answer),
            Effect::Keep { then, .. } => then.map(|(_, answer)| Ok(answer)),
            _ => None,
        })
    };
    let looks_for = |state: &State| {
        let lost = state.core.members.lost();
        lost.iter().any(|(node, _)| *node == other)
    };
    let described = || Input::Message {
        from: other,
        message: Message::Info(Box::new(NodeInfo {
            id: other,
            name: "beta".into(),
            ..info(1)
        })),
    };
    turn(&mut state, Input::PeerUp(other));
    turn(&mut state, described());
    let refused = QueryError::Reachable {
        node: "beta".into(),
        by: "alpha".into(),
    };
    assert_eq!(answer(turn(&mut state, forget(true))), Some(Err(refused)));
    turn(&mut state, Input::PeerDown(other));
    assert_eq!(
        answer(turn(&mut state, forget(false))),
        Some(Ok(Answer::Ok))
    );
    assert!(
        looks_for(&state) && state.core.members.info(other).is_some(),
        "nobody was sure"
    );
    assert_eq!(answer(turn(&mut state, forget(true))), Some(Ok(Answer::Ok)));
    assert!(!looks_for(&state) && state.core.members.peers().count() == 0);
    turn(&mut state, Input::PeerUp(other));
    turn(&mut state, described());
    assert!(state.core.members.may_be_alive(other) && state.core.members.info(other).is_some());
    // A connection that nobody has ended outlasts the word, and nothing else does.
    turn(&mut state, Input::PeerRefused(other));
    assert!(state.core.members.forget(other) && state.core.members.info(other).is_none());
    turn(&mut state, Input::PeerDown(other));
    assert!(!looks_for(&state) && state.core.members.peers().count() == 0);
}
