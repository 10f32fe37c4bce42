//! Results that a disk has lost, beside what other holders of their job have.

use super::{trio::done, *};
use nodectl_types::{JobHead, Needs};

/// The only disk that had a result lost it, and its coordinator's job has come to another end of
/// the task: who keeps a replica takes that, too.
#[test]
fn a_replica_keeps_what_can_be_read_elsewhere_in_place_of_what_its_disk_lost() {
    let other = NodeId([2; 32]);
    let job = JobId(7);
    let mut state = State::new(Now::default(), info(1), config());
    let spec = JobSpec {
        repeat: 2,
        ..(*spec()).clone()
    };
    state.restore(job, Record::Spec(Arc::new(spec)));
    for task in [0, 1] {
        let record = Arc::new(done(task, other));
        state.restore(job, Record::Task(record));
    }
    state.records_lost(job, vec![0]);
    let cancelled = |task| {
        Arc::new(TaskRecord {
            outcome: Outcome::Cancelled,
            outputs: Vec::new(),
            ..done(task, other)
        })
    };
    state.learn(other, job, None, [0, 1].map(cancelled).into());
    let written: Vec<_> = state
        .handle(Now::default(), [])
        .into_iter()
        .filter_map(|effect| match effect {
            Effect::Disk(DiskEffect::Persist {
                ticket, records, ..
            }) => Some((ticket, records)),
            _ => None,
        })
        .collect();
    let [(ticket, records)] = written.as_slice() else {
        panic!("{written:?}");
    };
    assert_eq!(records, &[Record::Task(cancelled(0))]);
    let (ticket, result) = (*ticket, Ok(()));
    state.handle(Now::default(), [Input::Persisted { ticket, result }]);
    let lattice = &state.copy_of(job).expect("restored").lattice;
    assert_eq!(
        [0, 1].map(|task| lattice.cell(task)),
        [cancelled(0).cell(), done(1, other).cell()]
    );
    assert!(lattice.is_sound());
}

/// The only disk that had three results of a cancelled job lost them. Whoever reads the job is told
/// of the others, and of those three when a disk is back that has them.
#[test]
fn what_no_disk_has_of_a_cancelled_job_is_not_told_of() {
    let mut solo = Solo::with(8, 0);
    let mut records = Vec::new();
    for _ in 0..6 {
        let record = solo.record(Outcome::Done);
        records.push(record.clone());
        let (job, record) = (solo.job, Box::new(record));
        solo.turn(vec![Input::TaskEnded { job, record }]);
    }
    let query = Query::Job(solo.job, JobQuery::Cancel);
    solo.turn(vec![Input::Ask { id: 2, query }]);
    let (told, half) = solo.page(Cursor::default());
    assert_eq!((told.len(), half.position), (6, 6));
    let [lost, left] = [&told[..3], &told[3..]];
    let (job, tasks) = (solo.job, lost.to_vec());
    solo.turn(vec![Input::RecordsLost { job, tasks }]);
    for _ in 0..30 {
        solo.mono = solo.mono + Duration::from_secs(1);
        solo.turn(vec![Input::Tick]);
        // Somebody asks: the job does not rest.
        solo.page(half);
    }
    let (again, behind) = solo.page(Cursor::default());
    assert_eq!((again.as_slice(), behind.position), (left, 6));
    assert_eq!((solo.head().phase, solo.head().done), (Phase::Cancelled, 3));
    assert!(solo.running.is_empty());
    let come = records
        .into_iter()
        .filter(|record| lost.contains(&record.task));
    let come = come.map(|record| {
        Arc::new(TaskRecord {
            accepted: 1,
            ..record
        })
    });
    solo.state.learn(NodeId([2; 32]), job, None, come.collect());
    solo.turn(vec![Input::Tick]);
    let mut back = solo.page(behind).0;
    back.sort_unstable();
    assert_eq!(
        (back.as_slice(), solo.head().phase),
        (lost, Phase::Cancelled)
    );
}

/// A job was done when its cancellation came from another side of a cut; then a result is lost that
/// nobody else has. The job was cancelled before all was done.
#[test]
fn what_no_disk_has_of_a_job_that_was_cancelled_after_its_end_is_not_done() {
    let mut solo = Solo::with(3, 0);
    (0..3).for_each(|_| solo.end(Outcome::Done));
    let head = JobHead {
        cancelled: true,
        ..solo.head().clone()
    };
    let (from, message) = (NodeId([2; 32]), Message::Heads(vec![head]));
    solo.turn(vec![Input::Message { from, message }]);
    assert_eq!((solo.head().phase, solo.head().done), (Phase::Done, 3));
    let (job, tasks) = (solo.job, vec![1]);
    solo.turn(vec![Input::RecordsLost { job, tasks }]);
    for _ in 0..30 {
        solo.mono = solo.mono + Duration::from_secs(1);
        solo.turn(vec![Input::Tick]);
    }
    assert_eq!((solo.head().phase, solo.head().done), (Phase::Cancelled, 2));
    assert!(solo.running.is_empty());
}

/// A result is lost that a task needs beside another's, and is done again. The other's is waited
/// for all the same.
#[test]
fn what_needs_a_lost_result_waits_for_all_that_it_needs() {
    let spec = JobSpec {
        repeat: 3,
        needs: Needs::of_rows([vec![], vec![], vec![0, 1]]),
        ..(*spec()).clone()
    };
    let mut solo = Solo::on(node(), spec);
    let first = solo.running[0].0;
    solo.end(Outcome::Done);
    let (job, tasks) = (solo.job, vec![first]);
    solo.turn(vec![Input::RecordsLost { job, tasks }]);
    for _ in 0..30 {
        solo.mono = solo.mono + Duration::from_secs(1);
        solo.turn(vec![Input::Tick]);
    }
    let again = solo.running.iter().position(|running| running.0 == first);
    solo.running.swap(0, again.expect("it is done again"));
    solo.end(Outcome::Done);
    assert!(solo.running.iter().all(|running| running.0 != 2));
    solo.end(Outcome::Done);
    assert_eq!(solo.running[0].0, 2);
}

/// What a replica's disk has lost it gives up once its coordinator shows all the rest, and nobody
/// else's word counts. A disk that still has it brings it back.
#[test]
fn a_replica_gives_up_what_its_coordinator_has_given_up() {
    let [coordinator, other] = [NodeId([2; 32]), NodeId([3; 32])];
    let job = JobId(7);
    let mut state = State::new(Now::default(), info(1), config());
    let spec = JobSpec {
        repeat: 2,
        ..(*spec()).clone()
    };
    let head = JobHead {
        epoch: 3,
        version: 1,
        holder: coordinator,
        phase: Phase::Cancelled,
        cancelled: true,
        ..JobHead::unclaimed(job, &spec, spec.hash())
    };
    state.restore(job, Record::Spec(Arc::new(spec)));
    state.restore(job, Record::Head(head));
    let records = [0, 1].map(|task| Arc::new(done(task, other)));
    let mut rest = lattice::Lattice::new(2);
    rest.merge(&records[1]);
    for record in &records {
        state.restore(job, Record::Task(record.clone()));
    }
    let whole = state.copy_of(job).expect("restored").lattice.shown();
    state.records_lost(job, vec![0]);
    let mut shown = |from, epoch, shown| {
        let (mark, reply) = (1, false);
        let message = Message::Digests {
            job,
            epoch,
            mark,
            reply,
            shown,
        };
        state.handle(Now::default(), [Input::Message { from, message }]);
        let lattice = &state.copy_of(job).expect("restored").lattice;
        assert!(lattice.is_done(1));
        (lattice.is_done(0), lattice.is_sound())
    };
    assert_eq!(
        shown(coordinator, 3, whole),
        (true, false),
        "it is known there"
    );
    assert_eq!(
        shown(other, 3, rest.shown()),
        (true, false),
        "no coordinator"
    );
    assert_eq!(
        shown(coordinator, 2, rest.shown()),
        (true, false),
        "of before"
    );
    let nothing = lattice::Lattice::new(2).shown();
    assert_eq!(
        shown(coordinator, 3, nothing),
        (true, false),
        "it lacks more"
    );
    assert_eq!(shown(coordinator, 3, rest.shown()), (false, true));
    state.learn(coordinator, job, None, vec![records[0].clone()]);
    let written = state.handle(Now::default(), []).into_iter();
    let comes = written.filter_map(|effect| match effect {
        Effect::Disk(DiskEffect::FetchBlobs { ticket, .. }) => Some(ticket),
        _ => None,
    });
    assert_eq!(comes.count(), 1);
}

/// A result is on the coordinator's disk and on no other yet when its record turns bad there: it is
/// written again before it counts.
#[test]
fn what_is_lost_before_it_counts_is_written_again() {
    let mut trio = trio::Trio::new();
    let job = holders::held_by_all(&mut trio);
    trio.hanging.extend([1, 2]);
    let of_first = |running: &&(usize, JobId, TaskIndex, Attempt)| running.0 == 0;
    let tasks: Vec<_> = trio
        .running
        .iter()
        .filter(of_first)
        .map(|it| it.2)
        .collect();
    trio.end_all_on(0);
    trio.hanging.insert(0);
    trio.give(vec![(0, Input::RecordsLost { job, tasks })]);
    let is_written =
        |(node, input): &(usize, Input)| *node == 0 && matches!(input, Input::Persisted { .. });
    assert!(trio.owed.iter().any(is_written) && trio.done(0, job).is_empty());
}
