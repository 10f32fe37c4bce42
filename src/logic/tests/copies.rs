//! What a holder does to have the results that another shows it.

use super::{trio::done, *};
use nodectl_types::membership::{Body, Packet};
use nodectl_types::{BlobHash, Cell, JobHead};

const OTHER: NodeId = NodeId([2; 32]);
const JOB: JobId = JobId(7);

/// The result of a task, whose file makes it a part of its own.
fn large(task: TaskIndex) -> Arc<TaskRecord> {
    let mut record = done(task, OTHER);
    record.outputs[0].bytes = 1 << 30;
    Arc::new(record)
}

/// A node that keeps a job of so many tasks for the other one, which coordinates it.
fn replica(tasks: u32) -> State {
    let mut state = node();
    let spec = JobSpec {
        repeat: tasks,
        ..(*spec()).clone()
    };
    let head = JobHead {
        epoch: 1,
        version: 1,
        holder: OTHER,
        ..JobHead::unclaimed(JOB, &spec, spec.hash())
    };
    state.restore(JOB, Record::Spec(Arc::new(spec)));
    state.restore(JOB, Record::Head(head));
    state
}

/// Which files are fetched.
fn fetched(effects: &[Effect]) -> Vec<(u64, BlobHash)> {
    let fetch = |effect: &Effect| match effect {
        Effect::Disk(DiskEffect::FetchBlobs { ticket, hashes, .. }) => Some((*ticket, hashes[0])),
        _ => None,
    };
    effects.iter().filter_map(fetch).collect()
}

/// A connection is lost while large files are on their way, and what was pulled is pulled again.
#[test]
fn what_is_pulled_twice_is_not_all_fetched_twice() {
    let mut state = node();
    let spec = JobSpec {
        repeat: 4,
        ..(*spec()).clone()
    };
    state.restore(JOB, Record::Spec(Arc::new(spec)));
    for _ in 0..2 {
        state.learn(OTHER, JOB, None, (0..4).map(large).collect());
    }
    let mut effects = state.handle(Now::default(), []);
    let mut files = Vec::new();
    while !effects.is_empty() {
        let coming = fetched(&effects);
        files.extend(coming.iter().map(|(_, hash)| hash.0[0]));
        let come = coming.into_iter().map(|(ticket, _)| Input::Fetched {
            ticket,
            result: Ok(()),
        });
        let written = effects.iter().filter_map(|effect| match effect {
            Effect::Disk(DiskEffect::Persist { ticket, .. }) => Some(Input::Persisted {
                ticket: *ticket,
                result: Ok(()),
            }),
            _ => None,
        });
        let inputs: Vec<_> = come.chain(written).collect();
        effects = state.handle(Now::default(), inputs);
    }
    // Whoever has nothing else left to do waits for no other.
    assert_eq!(files, [0, 1, 2, 3, 3]);
    let lattice = &state.copy_of(JOB).expect("restored").lattice;
    assert!((0..4).all(|task| lattice.cell(task) == large(task).cell()));
}

/// A disk has lost the files of many results, and nobody else has them. Those of the first are
/// asked for as often as may be, those of each of the others once.
#[test]
fn files_that_cannot_be_had_are_waited_for_once() {
    const RESULTS: TaskIndex = 40;
    let mut state = replica(RESULTS);
    // Nobody claims it.
    state.put_aside();
    state.learn(OTHER, JOB, None, (0..RESULTS).map(large).collect());
    let (mut asked, mut now) = (0, Now::default());
    let mut inputs = Vec::new();
    for _ in 0..40 {
        now.mono = now.mono + Duration::from_millis(500);
        inputs.push(Input::Tick);
        while !inputs.is_empty() {
            let effects = state.handle(now, std::mem::take(&mut inputs));
            let coming = fetched(&effects).into_iter();
            let failed = coming.map(|(ticket, _)| Input::Fetched {
                ticket,
                result: Err("nobody has it".into()),
            });
            inputs.extend(failed.inspect(|_| asked += 1));
            inputs.extend(effects.iter().filter_map(|effect| match effect {
                Effect::Disk(DiskEffect::Persist { ticket, .. }) => Some(Input::Persisted {
                    ticket: *ticket,
                    result: Ok(()),
                }),
                _ => None,
            }));
        }
    }
    let lattice = &state.copy_of(JOB).expect("restored").lattice;
    assert_eq!((lattice.done(), asked), (RESULTS, 6 + RESULTS - 1));
    assert!((0..RESULTS).all(|task| lattice.lacks_files(task, large(task).cell())));
}

/// The disk of a job's coordinator has lost what tasks are given, and so has everybody else's: its
/// replica keeps what is known of the job all the same, and says so. When the files are there
/// again, it says that, too.
#[test]
fn a_replica_does_without_what_tasks_are_given() {
    let mut state = node();
    let mut given = (*spec()).clone();
    Arc::make_mut(&mut given.work).inputs = Some(BlobHash([9; 32]));
    let spec = Arc::new(given);
    let head = Box::new(JobHead {
        epoch: 1,
        version: 1,
        holder: OTHER,
        ..JobHead::unclaimed(JOB, &spec, spec.hash())
    });
    let spec = Some(spec);
    let message = Message::Offer { head, spec };
    let from = OTHER;
    let mut inputs = vec![Input::PeerUp(OTHER), Input::Message { from, message }];
    let (mut asked, mut kept_after, mut is_whole) = (0, None, false);
    let mut now = Now::default();
    for _ in 0..80 {
        now.mono = now.mono + Duration::from_millis(500);
        inputs.push(Input::Tick);
        while !inputs.is_empty() {
            for effect in state.handle(now, std::mem::take(&mut inputs)) {
                match effect {
                    Effect::Disk(DiskEffect::FetchTree { ticket, .. }) => {
                        asked += 1;
                        let result = match kept_after {
                            None => Err("nobody has it".into()),
                            Some(_) => Ok(()),
                        };
                        inputs.push(Input::Fetched { ticket, result });
                    }
                    Effect::Disk(DiskEffect::Persist { ticket, .. }) => {
                        let result = Ok(());
                        inputs.push(Input::Persisted { ticket, result });
                    }
                    Effect::Send {
                        message:
                            Message::OfferKept {
                                job: JOB,
                                lacks_inputs,
                            },
                        ..
                    } => {
                        kept_after = kept_after.or(Some(asked));
                        is_whole = !lacks_inputs;
                        assert!(lacks_inputs || asked > 7);
                    }
                    Effect::Send {
                        message: Message::Swim(packet),
                        ..
                    } => {
                        let body = match packet.body {
                            Body::Ping { number } => Body::Ack { number },
                            _ => Body::Gossip,
                        };
                        let message = Message::Swim(Packet { body, ..packet });
                        inputs.push(Input::Message { from, message });
                    }
                    _ => {}
                }
            }
        }
    }
    // Six times for the job, and once more because they are missing here.
    assert_eq!((kept_after, is_whole), (Some(7), true));
}

/// A holder of before shows a result of which nobody has the files any more. Here the task runs,
/// and ends while they are looked for.
#[test]
fn a_result_without_its_files_gives_way_to_one_that_was_reported_meanwhile() {
    let mut solo = Solo::with(1, 0);
    solo.files = Err("nobody has it".into());
    let mut of_before = done(0, OTHER);
    (of_before.accepted, of_before.attempt.epoch) = (0, 0);
    solo.state
        .learn(OTHER, solo.job, None, vec![Arc::new(of_before)]);
    solo.turn(vec![Input::PeerUp(OTHER)]);
    let own = solo.record(Outcome::Done);
    let ended = Input::TaskEnded {
        job: solo.job,
        record: Box::new(own.clone()),
    };
    solo.turn(vec![ended]);
    let known = |solo: &Solo| {
        solo.state
            .copy_of(solo.job)
            .expect("its own")
            .lattice
            .cell(0)
    };
    for _ in 0..60 {
        if known(&solo).is_done() {
            break;
        }
        solo.mono = solo.mono + Duration::from_millis(500);
        solo.turn(vec![Input::Tick]);
    }
    let Cell::Done(result) = known(&solo) else {
        panic!("the task is not done: {:?}", known(&solo));
    };
    assert_eq!((result.attempt, solo.started), (own.attempt, 1));
}

/// A coordinator took a result whose files nobody had that it could reach: its replicas keep it
/// without, too, but not in the place of one with its files.
#[test]
fn a_replica_keeps_what_its_coordinator_has_without_files() {
    let mut state = replica(2);
    let mut whole = done(1, OTHER);
    (whole.accepted, whole.attempt.number) = (0, 0);
    state.restore(JOB, Record::Task(Arc::new(whole.clone())));
    let mut answers = Vec::new();
    for (ticket, task) in [(11, 0), (12, 1)] {
        let message = Message::Replicate {
            job: JOB,
            epoch: 1,
            ticket,
            head: None,
            records: vec![large(task)],
            without_files: true,
        };
        let from = OTHER;
        let mut inputs = vec![Input::Message { from, message }];
        while !inputs.is_empty() {
            for effect in state.handle(Now::default(), std::mem::take(&mut inputs)) {
                match effect {
                    Effect::Disk(DiskEffect::Persist { ticket, .. }) => {
                        let result = Ok(());
                        inputs.push(Input::Persisted { ticket, result });
                    }
                    Effect::Send { to, message } if to == OTHER => match message {
                        Message::ReplicateKept { ticket, .. } => answers.push(Some(ticket)),
                        Message::Declined { .. } => answers.push(None),
                        _ => {}
                    },
                    _ => {}
                }
            }
        }
    }
    assert_eq!(answers, [Some(11), None]);
    let lattice = &state.copy_of(JOB).expect("restored").lattice;
    assert!(lattice.lacks_files(0, large(0).cell()));
    assert_eq!(lattice.cell(1), whole.cell());
}
