//! How long ended jobs are kept, and that removed ones stay away.

use super::*;
use nodectl_types::Record;
use nodectl_types::{JobHead, Retention};

const YEARS_MS: u64 = 10 * 365 * 24 * 3600 * 1000;
const WALL_MS: u64 = 1_800_000_000_000;

/// A lone node; jobs are kept for an hour of its time.
struct Keeper {
    state: State,
    mono: Time,
    wall_ms: u64,
    /// What was written last.
    written: Retention,
    forgotten: Vec<JobId>,
}

impl Keeper {
    fn new(retention: Retention) -> Self {
        Self::restored(retention, Vec::new())
    }

    /// With heads in its journals.
    fn restored(retention: Retention, heads: Vec<JobHead>) -> Self {
        let config = config();
        let mono = Time(1);
        let mut state = State::new(
            Now {
                mono,
                wall_ms: WALL_MS,
            },
            info(1),
            config,
        );
        for head in heads {
            state.restore(head.job, Record::Head(head));
        }
        state.restore_retention(retention.clone());
        let mut keeper = Self {
            state,
            mono,
            wall_ms: WALL_MS,
            written: retention,
            forgotten: Vec::new(),
        };
        let effects = keeper.state.start();
        keeper.note(effects);
        keeper
    }

    fn note(&mut self, effects: Vec<Effect>) -> Vec<Result<Answer, QueryError>> {
        let mut answers = Vec::new();
        for effect in effects {
            match effect {
                Effect::Keep { note, then } => {
                    let Note::Retention(retention) = note else {
                        panic!("{note:?}")
                    };
                    self.written = retention;
                    answers.extend(then.map(|(_, answer)| Ok(answer)));
                }
                Effect::ForgetJob { job } => self.forgotten.push(job),
                Effect::Answer { answer, .. } => answers.push(answer),
                _ => {}
            }
        }
        answers
    }

    fn turn(&mut self, input: Input) -> Vec<Result<Answer, QueryError>> {
        let effects = self.state.handle(
            Now {
                mono: self.mono,
                wall_ms: self.wall_ms,
            },
            [input],
        );
        self.note(effects)
    }

    fn hear(&mut self, head: JobHead) {
        self.turn(Input::Message {
            from: NodeId([2; 32]),
            message: Message::Heads(vec![head]),
        });
    }

    fn pass(&mut self, minutes: u64) {
        for _ in 0..minutes {
            self.mono = self.mono + Duration::from_secs(60);
            self.turn(Input::Tick);
        }
    }

    fn ask(&mut self, query: Query) -> Result<Answer, QueryError> {
        self.turn(Input::Ask { id: 1, query }).remove(0)
    }

    fn knows(&self, job: u64) -> bool {
        self.state.core().directory.get(JobId(job)).is_some()
    }
}

fn head(job: u64, phase: Phase) -> JobHead {
    JobHead {
        job: JobId(job),
        name: "job".into(),
        spec: nodectl_types::BlobHash([0; 32]),
        submitter: NodeId([9; 32]),
        author: Default::default(),
        submitted_ms: WALL_MS,
        epoch: 1,
        holder: NodeId([9; 32]),
        version: 1,
        replicas: Vec::new(),
        cancelled: false,
        given_up: 0,
        reason: None,
        round: 0,
        phase,
        tasks: 1,
        after: Vec::new(),
        is_step: false,
        is_log: false,
        voters: None,
        open: None,
        done: 0,
        failed: 0,
        stopped: 0,
        workers: None,
        saved: None,
        ended_ms: 1,
    }
}

#[test]
fn a_job_ages_by_the_time_that_its_node_runs_and_not_by_the_wall_clock() {
    let mut keeper = Keeper::new(Retention::default());
    keeper.hear(head(1, Phase::Done));
    keeper.wall_ms += YEARS_MS;
    keeper.pass(50);
    assert!(
        keeper.knows(1),
        "neither its end long ago nor the clock counts"
    );
    // Across a restart, it goes on where it was.
    let mut keeper = Keeper::new(keeper.written);
    keeper.hear(head(1, Phase::Done));
    keeper.pass(2);
    assert!(keeper.knows(1));
    keeper.pass(20);
    assert!(!keeper.knows(1) && keeper.forgotten == [JobId(1)]);
}

#[test]
fn a_node_that_has_just_started_listens_before_it_removes() {
    let retention = Retention {
        uptime_s: 7200,
        ended: [(JobId(1), 0)].into(),
        ..Retention::default()
    };
    let mut keeper = Keeper::restored(retention.clone(), vec![head(1, Phase::Done)]);
    assert!(keeper.knows(1), "another job may come after it");
    let after = vec![JobId(1)];
    keeper.hear(JobHead {
        after,
        ..head(2, Phase::Running)
    });
    keeper.pass(3);
    assert!(keeper.knows(1));
    let mut keeper = Keeper::restored(retention, vec![head(1, Phase::Done)]);
    keeper.pass(3);
    assert!(!keeper.knows(1));
}

#[test]
fn what_an_unfinished_job_comes_after_is_kept() {
    let mut keeper = Keeper::new(Retention::default());
    let after = vec![JobId(1)];
    keeper.hear(head(1, Phase::Done));
    keeper.hear(JobHead {
        after: after.clone(),
        ..head(2, Phase::Waiting)
    });
    keeper.pass(100);
    assert!(keeper.knows(1));
    let needed = QueryError::Needed {
        job: JobId(1),
        by: JobId(2),
    };
    assert_eq!(keeper.ask(Query::Remove { job: JobId(1) }), Err(needed));
    assert_eq!(
        keeper.ask(Query::Remove { job: JobId(2) }),
        Err(QueryError::NotEnded(JobId(2)))
    );
    keeper.hear(JobHead {
        after,
        version: 2,
        ..head(2, Phase::Done)
    });
    keeper.pass(2);
    assert!(!keeper.knows(1) && keeper.knows(2));
}

#[test]
fn a_removed_job_does_not_come_back_from_a_node_that_was_away() {
    let mut keeper = Keeper::new(Retention::default());
    keeper.hear(head(1, Phase::Failed));
    assert_eq!(
        keeper.ask(Query::Remove { job: JobId(7) }),
        Err(QueryError::NoJob(JobId(7)))
    );
    assert_eq!(keeper.ask(Query::Remove { job: JobId(1) }), Ok(Answer::Ok));
    assert_eq!(
        keeper.ask(Query::Remove { job: JobId(1) }),
        Ok(Answer::Ok),
        "asked again"
    );
    keeper.hear(head(1, Phase::Failed));
    assert!(!keeper.knows(1));
    // Nor after a restart, nor in the node that was away.
    let mut reborn = Keeper::new(keeper.written.clone());
    reborn.hear(head(1, Phase::Failed));
    assert!(!reborn.knows(1));
    let mut away = Keeper::new(Retention::default());
    away.hear(head(1, Phase::Failed));
    let removed = keeper.written.removed.into_iter().collect();
    away.turn(Input::Message {
        from: NodeId([2; 32]),
        message: Message::Removed(removed),
    });
    assert!(!away.knows(1) && away.forgotten == [JobId(1)]);
    assert_eq!(
        away.state.core().directory.digests(),
        reborn.state.core().directory.digests()
    );
    // The memory ends some day.
    reborn.wall_ms += YEARS_MS;
    reborn.pass(2);
    assert!(reborn.written.removed.is_empty());
}

#[test]
fn jobs_that_were_put_aside_wait_for_somebody_to_ask() {
    let job = JobId(5);
    let restored = || {
        let mut state = node_before_start();
        state.restore(job, Record::Spec(spec()));
        let head = JobHead {
            job,
            holder: NodeId([1; 32]),
            phase: Phase::Running,
            tasks: 1,
            ..head(5, Phase::Running)
        };
        state.restore(job, Record::Head(head));
        state.put_aside();
        state.start();
        state
    };
    let later = |seconds| Now {
        mono: Time(1) + Duration::from_secs(seconds),
        wall_ms: 0,
    };
    let mut state = restored();
    for second in 0..20 {
        state.handle(later(second), [Input::Tick]);
    }
    assert_eq!(state.claim_of(job), None, "nothing of it runs");
    let ask = |id, query| Input::Ask { id, query };
    let effects = state.handle(
        later(20),
        [
            ask(1, Query::Job(job, JobQuery::Detail)),
            ask(2, Query::Aside),
        ],
    );
    assert_eq!(
        answers(&effects),
        [
            &Err(QueryError::PutAside(job)),
            &Ok(Answer::Aside(vec![job]))
        ]
    );
    state.handle(later(21), [ask(3, Query::Resume { job })]);
    assert_eq!(state.claim_of(job), Some(2));
    let mut state = restored();
    state.handle(later(20), [ask(1, Query::Job(job, JobQuery::Cancel))]);
    state.handle(later(21), [Input::Tick]);
    assert_eq!(
        state.core().directory.get(job).map(|head| head.phase),
        Some(Phase::Cancelled)
    );
}

#[test]
fn an_ended_job_is_removed_by_a_node_that_still_makes_sure_of_its_end() {
    let job = JobId(5);
    let mut state = node_before_start();
    state.restore(job, Record::Spec(spec()));
    let head = JobHead {
        job,
        holder: NodeId([1; 32]),
        ..head(5, Phase::Done)
    };
    state.restore(job, Record::Head(head));
    let (me, attempt) = (
        NodeId([1; 32]),
        Attempt {
            epoch: 1,
            claim: 0,
            number: 1,
        },
    );
    let mut record = TaskRecord::plain(0, attempt, me, Outcome::Done);
    record.accepted = 1;
    state.restore(job, Record::Task(Arc::new(record)));
    let mut effects = state.start();
    let mut mono = Time(1);
    let mut turn = |inputs: Vec<Input>| {
        mono = mono + Duration::from_millis(100);
        state.handle(Now { mono, wall_ms: 0 }, inputs)
    };
    // The disk takes its time: the node has claimed the job, and that is not written yet.
    let is_write = |effect: &Effect| matches!(effect, Effect::Disk(DiskEffect::Persist { .. }));
    for _ in 0..100 {
        if effects.iter().any(is_write) {
            break;
        }
        effects = turn(vec![Input::Tick]);
    }
    let tickets: Vec<u64> = effects.iter().filter_map(ticket).collect();
    assert!(!tickets.is_empty(), "the job is claimed");
    let query = Query::Remove { job };
    let effects = turn(vec![Input::Ask { id: 1, query }]);
    assert_eq!(answers(&effects), Vec::<&Result<_, _>>::new());
    let result = Ok(());
    let written = |ticket| Input::Persisted {
        ticket,
        result: result.clone(),
    };
    let mut effects = turn(tickets.into_iter().map(written).collect());
    for _ in 0..10 {
        effects.extend(turn(vec![Input::Tick]));
    }
    assert_eq!(answers(&effects), [] as [&Result<_, _>; 0]);
    let is_answered = |effect: &Effect| {
        matches!(
            effect,
            Effect::Keep {
                note: Note::Retention(_),
                then: Some((Asker::Local(1), Answer::Ok)),
            }
        )
    };
    assert!(effects.iter().any(is_answered), "{effects:?}");
}

fn ticket(effect: &Effect) -> Option<u64> {
    match effect {
        Effect::Disk(DiskEffect::Persist { ticket, .. }) => Some(*ticket),
        _ => None,
    }
}

fn node_before_start() -> State {
    State::new(Now::default(), info(1), config())
}
