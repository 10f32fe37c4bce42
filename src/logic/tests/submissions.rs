//! Submissions that are made again, that nobody confirms, and cancellations that are told too
//! early.

use super::*;
use nodectl_types::JobHead;

const KEYED: JobId = JobId(0xab);

fn submit(id: u64) -> Input {
    Input::Ask {
        id,
        query: Query::Submit {
            job: Some(KEYED),
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
        Effect::Persist { ticket, .. } => Some(Input::Persisted {
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

#[test]
fn what_no_node_can_run_is_refused_with_how_much_there_is() {
    let refused = |change: fn(&mut JobSpec)| {
        let mut job = (*spec()).clone();
        change(&mut job);
        let query = Query::Submit {
            job: None,
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
        cores.ends_with("a task needs 640 cpus, and no node has more than 2 cpus"),
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

/// It told of its claim, and died before it had written it.
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
        query: Query::Cancel { job: KEYED },
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
            head,
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
