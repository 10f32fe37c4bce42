//! Holders of a job that come back to a coordinator that took over without them.

use super::{
    trio::{Trio, done},
    *,
};
use nodectl_types::{
    BlobHash, Cell, JobHead,
    event::{ClusterEvent, EventKind},
};
use std::collections::BTreeSet;

/// A job of twenty tasks that the first coordinates, and which the others hold.
pub(super) fn held_by_all(trio: &mut Trio) -> JobId {
    held(
        trio,
        Arc::new(JobSpec {
            repeat: 20,
            ..(*spec()).clone()
        }),
    )
}

/// A job that the first coordinates.
fn held(trio: &mut Trio, spec: Arc<JobSpec>) -> JobId {
    let ids: Vec<_> = (0..3).map(|node| trio.id(node)).collect();
    let job = (1..)
        .map(JobId)
        .find(|job| rank::ranked(*job, ids.clone())[0] == ids[0])
        .expect("one in three");
    trio.give(vec![(
        0,
        Input::Ask {
            id: 1,
            query: Query::Submit {
                job: Some(job),
                asked_before: 0,
                spec,
            },
        },
    )]);
    trio.wait(3_000);
    job
}

/// The first two do much of the job, and the third hears nothing of it.
fn done_without_third(trio: &mut Trio) {
    trio.cut.extend([(0, 2), (1, 2)]);
    (0..3).for_each(|_| (0..2).for_each(|node| trio.end_all_on(node)));
}

/// As the third sees it: the second is alive, and its connection has broken.
fn first_dies_and_second_is_not_reached(trio: &mut Trio) {
    let [first, second] = [trio.id(0), trio.id(1)];
    trio.give(vec![
        (2, Input::PeerDown(second)),
        (2, Input::PeerDown(first)),
        (2, Input::PeerRefused(first)),
    ]);
}

/// The third is told that the others are dead, and takes over.
fn third_takes_over(trio: &mut Trio, job: JobId) {
    trio.cut.extend([(0, 2), (1, 2)]);
    for lost in [trio.id(0), trio.id(1)] {
        trio.give(vec![
            (2, Input::PeerDown(lost)),
            (2, Input::PeerRefused(lost)),
        ]);
    }
    trio.wait(300);
    assert_eq!(trio.nodes[2].claim_of(job), Some(2));
}

/// What it was still writing for its predecessor is on its way to it as their coordinator, and is
/// not done again.
#[test]
fn what_is_being_written_at_a_takeover_is_not_ordered_again() {
    let mut trio = Trio::new();
    let job = held_by_all(&mut trio);
    trio.hanging.insert(2);
    (0..3).for_each(|_| (0..2).for_each(|node| trio.end_all_on(node)));
    let told = trio.done(0, job);
    assert!(told.len() >= 10 && trio.done(2, job).is_empty(), "{told:?}");
    third_takes_over(&mut trio, job);
    for _ in 0..20 {
        let again = trio
            .running
            .iter()
            .find(|(node, _, task, _)| *node == 2 && told.contains(task));
        assert_eq!((again, &told), (None, &told));
        trio.end_all_on(2);
        trio.wait(300);
    }
    trio.hanging.clear();
    let owed = std::mem::take(&mut trio.owed);
    trio.give(owed);
    trio.wait(3_000);
    assert!(
        trio.done(2, job).is_superset(&told),
        "{:?}",
        trio.done(2, job)
    );
}

/// One takes over while the other waits for the files of results that the first alone had: when
/// these are there, it hears of them at once.
#[test]
fn what_a_holder_writes_after_a_takeover_is_shown_to_who_took_over() {
    let mut trio = Trio::new();
    let job = held_by_all(&mut trio);
    trio.waiting.extend([1, 2]);
    trio.end_all_on(0);
    let first = trio.id(0);
    trio.cut.extend([(0, 1), (0, 2)]);
    for node in [1, 2] {
        trio.give(vec![
            (node, Input::PeerDown(first)),
            (node, Input::PeerRefused(first)),
        ]);
    }
    trio.wait(1_000);
    let claims = |node: &usize| trio.nodes[*node].claim_of(job).is_some();
    let taker = [1, 2].into_iter().find(claims).expect("one of them");
    let other = 3 - taker;
    assert!(trio.done(taker, job).is_empty() && trio.done(other, job).is_empty());
    trio.waiting.clear();
    let owed = std::mem::take(&mut trio.owed);
    let come = owed.into_iter().filter(|(node, _)| *node == other);
    trio.give(come.collect());
    trio.wait(50);
    assert!(!trio.done(other, job).is_empty());
    assert_eq!(trio.done(taker, job), trio.done(other, job));
}

/// The first coordinates, the second has all results; the third lacks some when it takes both for
/// dead and takes over, with nobody there to ask. When the second is back it is ordered nothing
/// that it has done, or keeps.
#[test]
fn a_former_holder_that_comes_back_is_heard_before_anything_is_ordered() {
    let mut trio = Trio::new();
    let job = held_by_all(&mut trio);
    done_without_third(&mut trio);
    let told = trio.done(0, job);
    assert!(
        told.len() >= 10 && trio.done(1, job) == told && trio.done(2, job).is_empty(),
        "{told:?}"
    );
    third_takes_over(&mut trio, job);
    trio.orders.clear();
    trio.give(vec![(1, Input::PeerDown(trio.id(2)))]);
    trio.connect(1, 2);
    trio.wait(300);
    let again = trio
        .orders
        .iter()
        .find(|(from, _, task)| *from == 2 && told.contains(task));
    assert_eq!((again, trio.done(2, job)), (None, told));
    assert!(
        trio.orders
            .iter()
            .any(|(from, to, _)| (*from, *to) == (2, 1)),
        "it goes on with both"
    );
}

/// The second holder is alive all the time, but its connection broke in the moment at which the
/// first died.
#[test]
fn a_former_holder_whose_connection_broke_is_waited_for() {
    let mut trio = Trio::new();
    let job = held_by_all(&mut trio);
    done_without_third(&mut trio);
    let told = trio.done(1, job);
    trio.orders.clear();
    first_dies_and_second_is_not_reached(&mut trio);
    trio.wait(900);
    assert!(trio.nodes[2].core.members.is_alive(trio.id(1)));
    assert_eq!(trio.nodes[2].claim_of(job), Some(2));
    let orders = |trio: &Trio| trio.orders.iter().filter(|(from, ..)| *from == 2).count();
    assert_eq!((orders(&trio), told.len() >= 10), (0, true));
    trio.give(vec![(1, Input::PeerDown(trio.id(2)))]);
    trio.connect(1, 2);
    trio.wait(300);
    let again = trio
        .orders
        .iter()
        .find(|(from, _, task)| *from == 2 && told.contains(task));
    assert_eq!((again, trio.done(2, job)), (None, told));
    assert!(orders(&trio) > 0, "it goes on");
}

/// A second attempt of a task ends on the third, which has taken over and does not know the result
/// of the first: that waits until the second node, which knows it, is heard.
#[test]
fn a_result_does_not_count_more_than_one_that_was_told_before_the_takeover() {
    let mut trio = Trio::new();
    let job = held_by_all(&mut trio);
    done_without_third(&mut trio);
    let told = *trio.done(1, job).first().expect("some are done");
    first_dies_and_second_is_not_reached(&mut trio);
    trio.wait(300);
    assert_eq!(trio.nodes[2].claim_of(job), Some(2));
    let third = trio.id(2);
    let attempt = Attempt {
        epoch: 1,
        claim: 0,
        number: 2,
    };
    let record = TaskRecord {
        attempt,
        ..done(told, third)
    };
    let message = Message::Report {
        job,
        epoch: 2,
        started: Vec::new(),
        finished: vec![Arc::new(record)],
        returned: Vec::new(),
        free: 0,
        refuses: None,
    };
    let from = third;
    trio.give(vec![(2, Input::Message { from, message })]);
    trio.wait(300);
    trio.give(vec![(1, Input::PeerDown(third))]);
    trio.connect(1, 2);
    trio.wait(3_000);
    let lattice = &trio.nodes[2].copy_of(job).expect("all hold it").lattice;
    let cell = lattice.cell(told);
    assert!(
        matches!(cell, Cell::Done(key) if key.accepted == 1),
        "{cell:?}"
    );
}

/// Both holders show the same results; the one that was to bring them dies before their files are
/// here. The other is heard once more.
#[test]
fn what_a_dead_holder_was_to_bring_comes_from_another() {
    let mut trio = Trio::new();
    let job = held_by_all(&mut trio);
    done_without_third(&mut trio);
    let told = trio.done(1, job);
    third_takes_over(&mut trio, job);
    trio.waiting.insert(2);
    trio.give(
        [0, 1]
            .map(|node| (node, Input::PeerDown(trio.id(2))))
            .into(),
    );
    trio.connect(0, 2);
    trio.wait(300);
    trio.connect(1, 2);
    trio.wait(300);
    trio.orders.clear();
    trio.cut.insert((0, 2));
    trio.give(vec![
        (2, Input::PeerDown(trio.id(0))),
        (2, Input::PeerRefused(trio.id(0))),
    ]);
    trio.wait(300);
    trio.waiting.clear();
    let owed = std::mem::take(&mut trio.owed);
    trio.give(owed);
    trio.wait(1_000);
    let again = trio
        .orders
        .iter()
        .find(|(from, _, task)| *from == 2 && told.contains(task));
    assert_eq!(
        (again, trio.done(2, job).is_superset(&told)),
        (None, true),
        "{:?} of {told:?}",
        trio.done(2, job)
    );
}

/// The first cannot read two results any more, and writes those that another holder brings. They
/// count when others have them on their disks, too, which take their time; nothing is done again
/// meanwhile.
#[test]
fn a_lost_result_that_another_holder_brings_is_not_done_again() {
    let mut trio = Trio::new();
    let job = held_by_all(&mut trio);
    (0..20).for_each(|_| (0..3).for_each(|node| trio.end_all_on(node)));
    let all: BTreeSet<_> = (0..20).collect();
    assert_eq!((trio.done(0, job), trio.done(1, job)), (all.clone(), all));
    trio.orders.clear();
    trio.hanging.extend([1, 2]);
    let tasks = vec![4, 7];
    trio.give(vec![(0, Input::RecordsLost { job, tasks })]);
    trio.wait(120_000);
    let unread = |trio: &Trio| {
        let copy = trio.nodes[0].copy_of(job).expect("all hold it");
        [4, 7].map(|task| copy.lattice.is_unread(task))
    };
    assert_eq!((&trio.orders, unread(&trio)), (&vec![], [true, true]));
    trio.hanging.clear();
    let owed = std::mem::take(&mut trio.owed);
    trio.give(owed);
    trio.wait(3_000);
    assert_eq!((&trio.orders, unread(&trio)), (&vec![], [false, false]));
}

/// The first cancels the job and dies before anybody has written that; the third has heard of it,
/// and takes over.
#[test]
fn a_cancellation_that_was_only_heard_of_is_confirmed_when_it_is_durable() {
    let mut trio = Trio::new();
    let job = held_by_all(&mut trio);
    trio.hanging.extend([0, 1, 2]);
    trio.give(vec![(
        0,
        Input::Ask {
            id: 2,
            query: Query::Job(job, JobQuery::Cancel),
        },
    )]);
    third_takes_over(&mut trio, job);
    trio.answers.clear();
    trio.give(vec![(
        2,
        Input::Ask {
            id: 3,
            query: Query::Job(job, JobQuery::Cancel),
        },
    )]);
    assert_eq!(trio.answers, []);
    trio.hanging.clear();
    let owed = std::mem::take(&mut trio.owed);
    trio.give(owed);
    trio.wait(300);
    assert!(trio.answers.contains(&(2, Ok(Answer::Ok))));
}

/// Whoever took over names those who held a job before, and has not heard yet whether they still
/// do: what is submitted again is not safe with them.
#[test]
fn a_holder_of_before_does_not_make_a_submission_safe() {
    let mut trio = Trio::new();
    let (job, spec) = (JobId(0xab), spec());
    let taken_over = JobHead {
        epoch: 3,
        version: 1,
        holder: trio.id(1),
        replicas: vec![trio.id(0)],
        ..JobHead::unclaimed(job, &spec, spec.hash())
    };
    let heads = Message::Heads(vec![taken_over]);
    let heard = trio.arrival(1, trio.id(2), heads);
    trio.give(vec![heard]);
    let query = Query::Submit {
        job: Some(job),
        asked_before: 0,
        spec,
    };
    trio.give(vec![(2, Input::Ask { id: 1, query })]);
    assert_eq!(trio.answers, [], "nobody has it");
    trio.wait(9_000);
    let has_it = |state: &&State| state.copy_of(job).is_some();
    assert!(trio.nodes.iter().filter(has_it).count() >= 2);
    assert_eq!(trio.answers, [(2, Ok(Answer::Submitted { job }))]);
}

/// What a node noticed, told by itself.
fn noticed(trio: &mut Trio, node: usize) -> Vec<String> {
    let asked = trio.id(node);
    let query = Query::Node(asked, NodeQuery::Events { within_ms: None });
    trio.answers.clear();
    trio.give(vec![(node, Input::Ask { id: 2, query })]);
    let Some((_, Ok(Answer::Events(events)))) = trio.answers.pop() else {
        panic!("it answers for itself");
    };
    let sentence = |event: ClusterEvent| format!("{:?}: {} {}", event.kind, event.name, event.text);
    events.into_iter().map(sentence).collect()
}

#[test]
fn nodes_remember_who_came_and_died_who_took_over_and_what_ran_again() {
    let mut trio = Trio::new();
    assert_eq!(noticed(&mut trio, 1).len(), 3, "all three joined");
    let job = held_by_all(&mut trio);
    let submitted = "Submitted: squares was submitted by unknown at ";
    for node in 0..3 {
        let all = noticed(&mut trio, node);
        let of_job: Vec<_> = all.iter().filter(|line| line.contains("squares")).collect();
        assert!(
            of_job.len() == 1 && of_job[0].starts_with(submitted),
            "{of_job:?}"
        );
    }
    third_takes_over(&mut trio, job);
    let by_third = noticed(&mut trio, 2);
    for line in [
        "Died: alpha died: its process has ended",
        "Takeover: squares is coordinated by alpha now",
    ] {
        assert!(by_third.iter().any(|said| said == line), "{by_third:?}");
    }
    trio.wait(60_000);
    let by_first = noticed(&mut trio, 0);
    let again = |line: &String| line.starts_with("Retried: squares runs ");
    assert!(by_first.iter().any(again), "{by_first:?}");
}

/// A job was submitted twice by one key, since an answer was late. The second claim is the later
/// one and counts, but what tasks are given cannot be brought to the node that makes it.
#[test]
fn a_claim_that_comes_to_nothing_leaves_the_job_to_those_who_hold_it() {
    let mut trio = Trio::new();
    trio.cut.extend([(0, 2), (1, 2)]);
    trio.without_inputs.insert(2);
    let mut given = (*spec()).clone();
    Arc::make_mut(&mut given.work).inputs = Some(BlobHash([9; 32]));
    let job = held(&mut trio, Arc::new(given.clone()));
    assert_eq!(trio.nodes[0].claim_of(job), Some(1));
    trio.cut.clear();
    let (submitter, holder) = (trio.id(1), trio.id(2));
    let spec = Arc::new(JobSpec { submitter, ..given });
    let first = trio.nodes[0]
        .core()
        .directory
        .get(job)
        .expect("it is claimed");
    let head = Box::new(JobHead {
        epoch: 0,
        version: 1,
        holder,
        submitter,
        spec: spec.hash(),
        ..first.clone()
    });
    let spec = Some(spec);
    let message = Message::Offer { head, spec };
    let from = trio.id(0);
    trio.give(vec![(2, Input::Message { from, message })]);
    for _ in 0..10 {
        trio.wait(3_000);
        let owed = std::mem::take(&mut trio.owed);
        trio.give(owed);
    }
    trio.wait(60_000);
    let claims = trio.nodes.iter().map(|node| node.claim_of(job));
    assert_eq!(claims.flatten().collect::<Vec<_>>(), [3]);
}

/// A claim asks what a node holds, and the node claims the job itself before it hears of that
/// claim: what it orders until it gives way was not in its answer.
#[test]
fn a_better_claim_is_told_what_is_here_once_it_is_known() {
    let mut solo = Solo::with(8, 0);
    let holder = NodeId([2; 32]);
    let head = JobHead {
        epoch: 2,
        holder,
        ..solo.head().clone()
    };
    let mono = solo.mono + Duration::from_millis(10);
    let message = Message::Heads(vec![head]);
    let inputs = [
        Input::PeerUp(holder),
        Input::Message {
            from: holder,
            message,
        },
    ];
    let effects = solo.state.handle(Now { mono, wall_ms: 0 }, inputs);
    let told = effects.into_iter().find_map(|effect| match effect {
        Effect::Send {
            to,
            message: Message::Holding { inventory, .. },
        } if to == holder => Some(inventory),
        _ => None,
    });
    assert_eq!(told.expect("it is told").running, solo.running);
}

/// A node gives back what waits there, unless it has begun it when it hears that it is to.
#[test]
fn what_began_when_it_was_to_be_given_back_is_not_ordered_again() {
    let mut trio = Trio::new();
    let job = held_by_all(&mut trio);
    let ordered = |trio: &Trio| trio.orders.iter().filter(|order| order.2 == 19).count();
    let before = ordered(&trio);
    let attempt = Attempt {
        epoch: 1,
        claim: 0,
        number: 9,
    };
    let message = Message::Report {
        job,
        epoch: 1,
        started: vec![(19, attempt)],
        finished: Vec::new(),
        returned: Vec::new(),
        free: 0,
        refuses: None,
    };
    let from = trio.id(1);
    trio.give(vec![(0, Input::Message { from, message })]);
    for _ in 0..8 {
        (0..3).for_each(|node| trio.end_all_on(node));
        trio.wait(50);
    }
    assert_eq!(
        (ordered(&trio), before, trio.done(0, job).len()),
        (0, 0, 19)
    );
}

#[test]
fn what_a_node_ran_that_leaves_is_said_to_run_again() {
    let mut trio = Trio::new();
    held_by_all(&mut trio);
    let at_work = trio.running.iter().filter(|running| running.0 == 1);
    assert!(at_work.count() > 1, "each is given back as it ends");
    trio.give(vec![(1, Input::Leave)]);
    trio.wait(1_000);
    let events = trio.nodes[0].core.chronicle.since(0);
    let again = events
        .iter()
        .filter(|event| event.kind == EventKind::Retried);
    let said: Vec<_> = again.map(|event| event.text.as_str()).collect();
    assert_eq!(said, ["runs again what alpha has given back"]);
}

/// The first cannot write, and its replicas leave and wait for their results: it keeps the job,
/// since none of them would take it.
#[test]
fn a_job_is_not_handed_over_to_those_who_leave() {
    let mut trio = Trio::new();
    let job = held_by_all(&mut trio);
    trio.hanging.insert(0);
    (1..3).for_each(|node| trio.end_all_on(node));
    trio.give([1, 2].map(|node| (node, Input::Leave)).into());
    trio.wait(12_000);
    let claims = [0, 1, 2].map(|node| trio.nodes[node].claim_of(job));
    assert_eq!(claims, [Some(1), None, None]);
    trio.hanging.clear();
    let owed = std::mem::take(&mut trio.owed);
    trio.give(owed);
    trio.wait(500);
    assert!(!trio.done(0, job).is_empty());
}
