//! Submissions that are made again, that nobody confirms, and cancellations that are told too
//! early.

use super::*;
use nodectl_types::{BlobHash, JobHead, StartTask};

const KEYED: JobId = JobId(0xab);

fn submit(id: u64) -> Input {
    Input::Ask {
        id,
        query: Query::Submit {
            job: Some(KEYED),
            asked_before: 0,
            spec: spec(),
        },
    }
}

fn at(seconds: u64) -> Now {
    Now {
        mono: Time(1) + Duration::from_secs(seconds),
        wall_ms: 0,
    }
}

fn told(effects: &[Effect]) -> Vec<(u64, Result<Answer, QueryError>)> {
    let answer = |effect: &Effect| match effect {
        Effect::Answer { id, answer } => Some((*id, answer.clone())),
        _ => None,
    };
    effects.iter().filter_map(answer).collect()
}

fn writes(effects: &[Effect]) -> Vec<Input> {
    let written = |effect: &Effect| match effect {
        Effect::Disk(DiskEffect::Persist { ticket, .. }) => Some(Input::Persisted {
            ticket: *ticket,
            result: Ok(()),
        }),
        _ => None,
    };
    effects.iter().filter_map(written).collect()
}

#[test]
fn a_key_names_one_job_however_often_it_is_submitted() {
    assert_eq!(JobId::of_key("a"), JobId::of_key("a"));
    assert_ne!(JobId::of_key("a"), JobId::of_key("b"));
    let mut state = node();
    let first = state.handle(at(0), [submit(1)]);
    assert!(
        told(&state.handle(at(0), [submit(2)])).is_empty(),
        "not safe yet"
    );
    let submitted = Ok(Answer::Submitted { job: KEYED });
    let effects = state.handle(at(1), writes(&first));
    assert_eq!(
        told(&effects),
        [(1, submitted.clone()), (2, submitted.clone())]
    );
    assert_eq!(told(&state.handle(at(2), [submit(3)])), [(3, submitted)]);
    assert_eq!(state.core().directory.iter().count(), 1);
    let other = JobSpec {
        repeat: 7,
        ..(*spec()).clone()
    };
    let query = Query::Submit {
        job: Some(KEYED),
        asked_before: 0,
        spec: Arc::new(other),
    };
    let effects = state.handle(at(3), [Input::Ask { id: 4, query }]);
    assert!(
        matches!(
            told(&effects).as_slice(),
            [(4, Err(QueryError::Invalid(_)))]
        ),
        "the key is another job's"
    );
}

/// What another node began, or this one before its disk lost it, is of an earlier epoch.
#[test]
fn who_asks_again_begins_above_what_the_question_before_may_have_begun() {
    let epoch_after = |asked_before| {
        let mut state = node();
        let query = Query::Submit {
            job: Some(KEYED),
            asked_before,
            spec: spec(),
        };
        state.handle(at(0), [Input::Ask { id: 1, query }]);
        state.core().directory.get(KEYED).expect("claimed").epoch
    };
    assert_eq!(epoch_after(0), 1);
    assert_eq!(epoch_after(1), 17);
    // A cell has room for epochs up to 2,047.
    assert_eq!(epoch_after(u32::MAX), 1_009);
}

#[test]
fn what_no_node_can_run_is_refused_with_how_much_there_is() {
    let refused = |change: fn(&mut JobSpec)| {
        let mut job = (*spec()).clone();
        change(&mut job);
        let query = Query::Submit {
            job: None,
            asked_before: 0,
            spec: Arc::new(job),
        };
        let mut state = node();
        match told(&state.handle(at(0), [Input::Ask { id: 1, query }])).as_slice() {
            [(1, Err(error))] => error.to_string(),
            other => panic!("{other:?}"),
        }
    };
    let cores = refused(|job| Arc::make_mut(&mut job.work).resources.cpu_milli = 640_000);
    assert!(
        cores.ends_with("a task needs 640 cores, and no node has more than 2 cores"),
        "{cores}"
    );
    let place = refused(|job| job.place = "cores > 1000".into());
    assert!(
        place.ends_with("no node satisfies `where = \"cores > 1000\"`"),
        "{place}"
    );
}

#[test]
fn a_submission_that_nobody_confirms_has_an_answer_all_the_same() {
    let mut state = node();
    let mut effects = state.handle(at(0), [submit(1)]);
    for second in 1..=10 {
        effects.extend(state.handle(at(second), [Input::Tick]));
    }
    assert!(
        matches!(
            told(&effects).as_slice(),
            [(1, Err(QueryError::Undecided { job: KEYED, .. }))]
        ),
        "{:?}",
        told(&effects)
    );
    // It was kept after all: who asks again with the same key learns that.
    state.handle(at(11), writes(&effects));
    assert_eq!(
        told(&state.handle(at(11), [submit(2)])),
        [(2, Ok(Answer::Submitted { job: KEYED }))]
    );
}

/// A coordinator told of its claim, and died before it had written it.
#[test]
fn a_coordinator_that_lost_a_job_that_it_claimed_takes_it_anew() {
    let mut state = node();
    let effects = state.handle(at(0), [submit(1)]);
    let head = state.core().directory.get(KEYED).expect("claimed").clone();
    drop(effects);
    let mut reborn = node();
    let claimed = JobHead { version: 9, ..head };
    reborn.handle(
        at(0),
        [Input::Message {
            from: NodeId([2; 32]),
            message: Message::Heads(vec![claimed]),
        }],
    );
    let mut effects = reborn.handle(at(0), [submit(1)]);
    for second in 1..=4 {
        let written = writes(&effects);
        effects = reborn.handle(at(second), written);
        if !told(&effects).is_empty() {
            break;
        }
        effects.extend(reborn.handle(at(second), [Input::Tick]));
    }
    assert_eq!(told(&effects), [(1, Ok(Answer::Submitted { job: KEYED }))]);
    assert_eq!(reborn.claim_of(KEYED), Some(2));
}

#[test]
fn who_seems_to_be_alone_does_not_speak_for_what_another_holds() {
    let mut state = node();
    let from = NodeId([2; 32]);
    let effects = state.handle(at(0), [submit(1)]);
    let head = state.core().directory.get(KEYED).expect("claimed").clone();
    let better = JobHead {
        holder: from,
        epoch: 2,
        ..head
    };
    let mut effects_after = state.handle(
        at(0),
        [Input::Message {
            from,
            message: Message::Heads(vec![better]),
        }],
    );
    effects_after.extend(state.handle(at(1), writes(&effects)));
    assert!(
        told(&effects_after).is_empty(),
        "the only copy is elsewhere"
    );
}

#[test]
fn a_cancellation_is_confirmed_when_it_is_written() {
    let mut state = node();
    let effects = state.handle(at(0), [submit(1)]);
    state.handle(at(1), writes(&effects));
    let cancel = |id| Input::Ask {
        id,
        query: Query::Job(KEYED, JobQuery::Cancel),
    };
    let effects = state.handle(at(2), [cancel(2)]);
    assert!(told(&effects).is_empty(), "it is not on disk yet");
    assert_eq!(
        told(&state.handle(at(3), writes(&effects))),
        [(2, Ok(Answer::Ok))]
    );
    assert_eq!(
        told(&state.handle(at(4), [cancel(3)])),
        [(3, Ok(Answer::Ok))],
        "it was so before"
    );
}

#[test]
fn whoever_keeps_a_copy_of_a_job_claims_that_one_and_no_other_of_its_name() {
    let from = NodeId([2; 32]);
    let mut state = node();
    state.handle(at(0), [submit(1)]);
    let head = JobHead {
        holder: from,
        ..state.core().directory.get(KEYED).expect("claimed").clone()
    };
    let mut state = node();
    let offer = |head, spec| Input::Message {
        from,
        message: Message::Offer {
            head: Box::new(head),
            spec: Some(spec),
        },
    };
    let effects = state.handle(at(0), [Input::PeerUp(from), offer(head.clone(), spec())]);
    state.handle(at(0), writes(&effects));
    let other = Arc::new(JobSpec {
        repeat: 7,
        ..(*spec()).clone()
    });
    let claimed = JobHead {
        epoch: 0,
        version: 8,
        spec: other.hash(),
        ..head
    };
    let mut effects = state.handle(at(1), [offer(claimed.clone(), spec())]);
    assert_eq!(
        state.claim_of(KEYED),
        None,
        "the head names another specification"
    );
    effects.extend(state.handle(at(1), [offer(claimed, other)]));
    for second in 2..10 {
        let written = writes(&effects);
        effects = state.handle(at(second), written);
        effects.extend(state.handle(at(second), [Input::Tick]));
    }
    let known = state.core().directory.get(KEYED).expect("claimed");
    assert_eq!(
        (state.claim_of(KEYED), known.spec),
        (Some(9), spec().hash())
    );
}

const OTHER: NodeId = NodeId([2; 32]);

/// The head of a job that ended at once, as a claim of that node's.
fn ended(holder: NodeId, replicas: Vec<NodeId>) -> JobHead {
    JobHead {
        holder,
        replicas,
        epoch: 1,
        version: 4,
        phase: Phase::Cancelled,
        cancelled: true,
        ..JobHead::unclaimed(KEYED, &spec(), spec().hash())
    }
}

fn message(from: NodeId, message: Message) -> Input {
    Input::Message { from, message }
}

#[test]
fn that_a_job_has_ended_does_not_make_it_safe() {
    let mut state = node();
    let heads = |head| message(OTHER, Message::Heads(vec![head]));
    let told_of = [Input::PeerUp(OTHER), heads(ended(OTHER, Vec::new()))];
    state.handle(at(0), told_of);
    let early = told(&state.handle(at(0), [submit(1)]));
    assert!(early.is_empty(), "one disk has it: {early:?}");
    let third = NodeId([3; 32]);
    state.handle(at(0), [Input::PeerUp(third)]);
    let safe = JobHead {
        version: 5,
        ..ended(OTHER, vec![third])
    };
    let submitted = Ok(Answer::Submitted { job: KEYED });
    let effects = state.handle(at(1), [heads(safe)]);
    assert_eq!(told(&effects), [(1, submitted.clone())]);
    assert_eq!(told(&state.handle(at(1), [submit(2)])), [(2, submitted)]);
}

/// By the same key another user may have submitted it, where it is safe.
#[test]
fn a_submission_that_no_disk_here_takes_does_not_cancel_what_a_node_that_is_gone_holds() {
    let gone = NodeId([3; 32]);
    let head = JobHead {
        holder: gone,
        epoch: 1,
        version: 4,
        phase: Phase::Running,
        ..JobHead::unclaimed(KEYED, &spec(), spec().hash())
    };
    let heads = || message(OTHER, Message::Heads(vec![head.clone()]));
    let mut state = node();
    state.handle(at(0), [Input::PeerUp(OTHER), heads()]);
    let mut effects = state.handle(at(0), [submit(1)]);
    let mut answers = Vec::new();
    for second in 1..=10 {
        let refused = |effect: &Effect| match effect {
            Effect::Disk(DiskEffect::Persist { ticket, .. }) => Some(Input::Persisted {
                ticket: *ticket,
                result: Err("full".into()),
            }),
            Effect::Send {
                to: OTHER,
                message: Message::Offer { .. },
            } => {
                let (job, error) = (KEYED, "full".into());
                Some(self::message(OTHER, Message::Declined { job, error }))
            }
            _ => None,
        };
        let refused: Vec<_> = effects.iter().filter_map(refused).collect();
        effects = state.handle(at(second), [heads()].into_iter().chain(refused));
        effects.extend(state.handle(at(second), [Input::Tick]));
        answers.extend(told(&effects));
    }
    let [(1, Err(QueryError::Undecided { job: KEYED, .. }))] = answers.as_slice() else {
        panic!("{answers:?}");
    };
    let known = state.core().directory.get(KEYED);
    assert!(known.is_none_or(|head| !head.cancelled), "{known:?}");
}

/// Others may hold it, too, and have gone on: it looks for them, and claims the job before it
/// speaks for itself.
#[test]
fn a_lone_node_that_starts_answers_for_what_it_has_when_it_has_looked_around() {
    let mut state = State::new(Now::default(), info(1), config());
    state.restore(KEYED, Record::Spec(spec()));
    let me = state.node();
    state.restore(KEYED, Record::Head(ended(me, Vec::new())));
    state.start();
    let mut effects = state.handle(at(1), [submit(1)]);
    for second in 2..=4 {
        assert_eq!((told(&effects), state.claim_of(KEYED)), (vec![], None));
        effects = state.handle(at(second), [Input::Tick]);
    }
    let mut effects = state.handle(at(6), [Input::Tick]);
    assert_eq!(state.claim_of(KEYED), Some(2));
    effects = state.handle(at(6), writes(&effects));
    assert_eq!(told(&effects), [(1, Ok(Answer::Submitted { job: KEYED }))]);
}

/// A job whose tasks are given files that another node has.
fn with_files() -> Arc<JobSpec> {
    let mut job = (*spec()).clone();
    Arc::make_mut(&mut job.work).inputs = Some(BlobHash::of(b"a manifest"));
    Arc::new(job)
}

/// Offered to this node, which has it on its disk; its files are on their way. What came of it, and
/// their ticket.
fn claimed_without_files(state: &mut State) -> (Vec<Effect>, u64) {
    let spec = with_files();
    let head = JobHead {
        submitter: OTHER,
        ..JobHead::unclaimed(KEYED, &spec, spec.hash())
    };
    let offer = Message::Offer {
        head: Box::new(head),
        spec: Some(spec),
    };
    let effects = state.handle(at(0), [Input::PeerUp(OTHER), message(OTHER, offer)]);
    let fetch = effects.iter().find_map(|effect| match effect {
        Effect::Disk(DiskEffect::FetchTree { ticket, .. }) => Some(*ticket),
        _ => None,
    });
    let effects = state.handle(at(0), writes(&effects));
    (effects, fetch.expect("its files are asked for"))
}

fn forgets(effects: &[Effect]) -> bool {
    effects
        .iter()
        .any(|effect| matches!(effect, Effect::ForgetJob { job: KEYED }))
}

#[test]
fn nothing_counts_on_a_claim_that_may_be_given_up_for_want_of_files() {
    for came in [true, false] {
        let mut state = node();
        let (effects, ticket) = claimed_without_files(&mut state);
        let attempt = effects.iter().find_map(|effect| match effect {
            Effect::Task(TaskEffect::Start(StartTask { attempt, .. })) => Some(*attempt),
            _ => None,
        });
        let attempt = attempt.expect("others may have the files");
        let record = TaskRecord::plain(0, attempt, state.node(), Outcome::Done);
        state.handle(at(3), [Input::PeerDown(OTHER), Input::PeerRefused(OTHER)]);
        let ended = Input::TaskEnded {
            job: KEYED,
            record: Box::new(record),
        };
        let effects = state.handle(at(3), [ended]);
        state.handle(at(3), writes(&effects));
        let known = |state: &State| state.copy_of(KEYED).map(|copy| copy.lattice.done());
        assert_eq!(known(&state), Some(0), "it is written, and this node alone");
        let result = if came { Ok(()) } else { Err("gone".into()) };
        let effects = state.handle(at(4), [Input::Fetched { ticket, result }]);
        assert_eq!(known(&state), came.then_some(1));
        assert_eq!(forgets(&effects), !came);
    }
}

#[test]
fn a_claim_that_gives_way_before_its_files_have_come_is_no_copy() {
    let mut state = node();
    let (_, ticket) = claimed_without_files(&mut state);
    let claimed = JobHead {
        holder: OTHER,
        epoch: 2,
        ..state.core().directory.get(KEYED).expect("claimed").clone()
    };
    let heads = message(OTHER, Message::Heads(vec![claimed.clone()]));
    let effects = state.handle(at(1), [heads]);
    assert!(forgets(&effects) && state.copy_of(KEYED).is_none());
    let result = Err("gone".into());
    state.handle(at(1), [Input::Fetched { ticket, result }]);
    let offer = Message::Offer {
        head: Box::new(claimed),
        spec: Some(with_files()),
    };
    let effects = state.handle(at(2), [message(OTHER, offer)]);
    let is_kept = |effect: &Effect| {
        let Effect::Send { message, .. } = effect else {
            return false;
        };
        matches!(message, Message::OfferKept { .. })
    };
    assert!(!effects.iter().any(is_kept), "its files are not here");
    let fetches = |effect: &Effect| matches!(effect, Effect::Disk(DiskEffect::FetchTree { .. }));
    assert!(effects.iter().any(fetches));
}
