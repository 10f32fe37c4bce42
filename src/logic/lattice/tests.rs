//! The laws that make quorums needless.

use super::*;
use nodectl_types::{Failure, NodeId, Outcome};
use proptest::prelude::*;

#[derive(Clone, Copy, Debug, PartialEq)]
enum CellEnd {
    Done,
    Failed,
    Cancelled,
}

fn record(
    task: u32,
    end: CellEnd,
    accepted: u32,
    (epoch, number): (u32, u32),
    failures: u32,
) -> TaskRecord {
    let outcome = match end {
        CellEnd::Done => Outcome::Done,
        CellEnd::Failed => Outcome::Failed(Failure::Exit(1)),
        CellEnd::Cancelled => Outcome::Cancelled,
    };
    let failures = if end == CellEnd::Failed { failures } else { 0 };
    let (attempt, node) = (
        Attempt {
            epoch,
            // Two claims of an epoch.
            claim: number % 2,
            number,
        },
        NodeId([number as u8; 32]),
    );
    TaskRecord {
        accepted,
        failures,
        ..TaskRecord::plain(task, attempt, node, outcome)
    }
}

const TASKS: u32 = 8;

prop_compose! {
    fn any_record()(
        task in 0..TASKS + 2,
        end in prop::sample::select(vec![CellEnd::Done, CellEnd::Failed, CellEnd::Cancelled]),
        // Some that do not fit into 8 bytes, too.
        accepted in prop::sample::select(vec![1, 2, 3, 2047, 2048]),
        epoch in prop::sample::select(vec![1, 2, 3, 2047, 2048]),
        number in prop::sample::select(vec![1, 2, 3, 255, 256]),
        failures in 1..5u32,
    ) -> TaskRecord {
        record(task, end, accepted, (epoch, number), failures)
    }
}

fn merged(records: &[TaskRecord]) -> Lattice {
    let mut lattice = Lattice::new(TASKS);
    for record in records {
        lattice.merge(record);
    }
    lattice
}

/// The cells of two lattices are equal, however many unknown ones trail behind.
fn same(a: &Lattice, b: &Lattice) -> bool {
    (0..TASKS).all(|task| a.cell(task) == b.cell(task) && a.failures(task) == b.failures(task))
        && (a.done(), a.cancelled()) == (b.done(), b.cancelled())
}

proptest! {
    #[test]
    fn any_order_and_any_repetition_gives_the_same_state(
        records in prop::collection::vec(any_record(), 0..40),
        order in any::<prop::sample::Index>(),
    ) {
        let expected = merged(&records);
        let mut shuffled = records.clone();
        shuffled.reverse();
        if !shuffled.is_empty() {
            let middle = order.index(shuffled.len());
            shuffled.rotate_left(middle);
        }
        shuffled.extend(records);
        prop_assert!(same(&merged(&shuffled), &expected));
    }

    #[test]
    fn the_join_of_cells_is_commutative_associative_and_idempotent(a in any_record(), b in any_record(), c in any_record()) {
        let (a, b, c) = (Cell::of(&a), Cell::of(&b), Cell::of(&c));
        prop_assert_eq!(a.join(b), b.join(a));
        prop_assert_eq!(a.join(b).join(c), a.join(b.join(c)));
        prop_assert_eq!(a.join(a), a);
    }

    #[test]
    fn what_is_done_stays_done_and_counts_agree(records in prop::collection::vec(any_record(), 0..40), limit in 1..5u32) {
        let mut lattice = Lattice::new(TASKS);
        for record in &records {
            let before: Vec<_> = (0..TASKS).filter(|task| lattice.is_done(*task)).collect();
            let news = lattice.lacks(record);
            prop_assert_eq!(lattice.merge(record), news);
            prop_assert!(before.iter().all(|task| lattice.is_done(*task)));
        }
        prop_assert_eq!(lattice.done() as usize, (0..TASKS).filter(|task| lattice.is_done(*task)).count());
        let cancelled = (0..TASKS).filter(|task| lattice.cell(*task) == Cell::Cancelled).count();
        prop_assert_eq!(lattice.cancelled() as usize, cancelled);
        let failed = (0..TASKS).filter(|task| lattice.failures(*task) >= limit).count();
        prop_assert_eq!(lattice.failed_for_good(limit) as usize, failed);
    }

    /// Two replicas that pull from each other what differs end up equal, whatever they held, and
    /// their digests say so.
    #[test]
    fn one_exchange_makes_replicas_equal(
        here in prop::collection::vec(any_record(), 0..30),
        there in prop::collection::vec(any_record(), 0..30),
    ) {
        let (mut a, mut b) = (merged(&here), merged(&there));
        let differing = a.differing(b.digests());
        prop_assert_eq!(&differing, &b.differing(a.digests()));
        prop_assert_eq!(differing.is_empty(), same(&a, &b));
        for chunk in differing {
            let cells = |lattice: &Lattice| lattice.chunk(chunk).map(|task| lattice.cell(task)).collect::<Vec<_>>();
            let (cells_a, cells_b) = (cells(&a), cells(&b));
            for task in b.ahead_of(chunk, &cells_a) {
                a.join_cell(task, cells_b[task as usize]);
            }
            for task in a.ahead_of(chunk, &cells_b) {
                b.join_cell(task, cells_a[task as usize]);
            }
        }
        prop_assert!(same(&a, &b), "{:?} {:?}", a, b);
        prop_assert!(a.differing(b.digests()).is_empty());
    }

    /// One that rests knows the counts and compares like before; what is read again, in whatever
    /// order, is what it was.
    #[test]
    fn what_rests_is_told_from_others_and_recalled(
        here in prop::collection::vec(any_record(), 0..30),
        there in prop::collection::vec(any_record(), 0..30),
        limit in 1..5_u32,
    ) {
        let (before, other) = (merged(&here), merged(&there));
        let mut resting = before.clone();
        resting.rest();
        prop_assert_eq!((resting.done(), resting.cancelled()), (before.done(), before.cancelled()));
        prop_assert_eq!(resting.failed_for_good(limit), before.failed_for_good(limit));
        for shown in [other.shown(), CopyDigest::Whole(other.digest())] {
            prop_assert_eq!(resting.equals(&shown), same(&before, &other));
        }
        let mut recalled = Lattice::new(TASKS);
        for record in here.iter().rev().chain(&here) {
            recalled.recall(record.task, Cell::of(record));
        }
        prop_assert_eq!(recalled.digest(), resting.digest());
        prop_assert!(same(&recalled, &before));
    }

    #[test]
    fn what_is_kept_in_8_bytes_comes_out_as_it_went_in(record in any_record()) {
        let mut lattice = Lattice::new(TASKS);
        lattice.merge(&record);
        let expected = if record.task < TASKS { Cell::of(&record) } else { Cell::Unknown };
        prop_assert_eq!(lattice.cell(record.task), expected);
    }
}

#[test]
fn a_result_that_a_later_coordinator_accepted_counts_more() {
    let (first, second) = (
        record(0, CellEnd::Done, 1, (1, 1), 0),
        record(0, CellEnd::Done, 2, (1, 2), 0),
    );
    assert_eq!(Cell::of(&first).join(Cell::of(&second)), Cell::of(&second));
}

#[test]
fn what_rests_costs_the_same_however_many_tasks_there_are() {
    let mut lattice = Lattice::new(100_000);
    for task in 0..100_000 {
        lattice.merge(&record(task, CellEnd::Done, 1, (1, 1), 0));
    }
    assert!(lattice.memory_bytes() > 800_000);
    lattice.rest();
    assert_eq!(lattice.done(), 100_000);
    assert!(
        lattice.memory_bytes() + size_of::<Lattice>() < 512,
        "{} + {}",
        lattice.memory_bytes(),
        size_of::<Lattice>()
    );
}

#[test]
fn a_task_beyond_the_job_is_never_news() {
    let mut lattice = Lattice::new(TASKS);
    assert!(!lattice.merge(&record(TASKS, CellEnd::Done, 1, (1, 1), 0)));
    assert_eq!(lattice.done(), 0);
}

#[test]
fn a_result_that_cannot_be_read_gives_way_to_another_and_to_nothing_less() {
    let mut lattice = Lattice::new(4);
    let attempt = |epoch| Attempt {
        epoch,
        claim: 0,
        number: 1,
    };
    let record = |epoch, outcome| TaskRecord {
        accepted: epoch,
        ..TaskRecord::plain(1, attempt(epoch), NodeId([1; 32]), outcome)
    };
    let (older, newer) = (record(1, Outcome::Done), record(2, Outcome::Done));
    let failed = TaskRecord {
        failures: 1,
        ..record(1, Outcome::Failed(Failure::Exit(1)))
    };
    lattice.merge(&newer);
    assert!(!lattice.lacks(&older) && lattice.is_whole(1));
    lattice.note_unread(1);
    assert!(!lattice.lacks(&failed) && lattice.lacks(&older) && lattice.lacks(&newer));
    assert!(!lattice.is_whole(1) && !lattice.merge(&failed));
    assert!(lattice.is_unread(1) && lattice.cell(1) == newer.cell());
    assert!(lattice.merge(&older));
    assert!(!lattice.is_unread(1) && lattice.cell(1) == older.cell());
    assert_eq!((lattice.done(), lattice.lacks(&newer)), (1, true));
    let mut other = Lattice::new(4);
    other.merge(&older);
    assert_eq!(lattice.digests(), other.digests());
    lattice.note_unread(1);
    assert_eq!(lattice.forget_unread(|task| task != 1), [].into());
    assert_eq!(lattice.forget_unread(|_| true), [1].into());
    assert_eq!(
        (lattice.done(), lattice.digest()),
        (0, Lattice::new(4).digest())
    );
}

#[test]
fn results_of_more_claims_than_have_a_place_are_known_too() {
    let claims = PackedCell::CLAIMS as u32 + 2;
    let record = |task| {
        let attempt = Attempt {
            epoch: 1,
            claim: task,
            number: 1,
        };
        TaskRecord {
            accepted: 1,
            ..TaskRecord::plain(task, attempt, NodeId([1; 32]), Outcome::Done)
        }
    };
    let mut lattice = Lattice::new(claims);
    for task in 0..claims {
        lattice.merge(&record(task));
    }
    assert!((0..claims).all(|task| lattice.cell(task) == record(task).cell()));
    assert_eq!(lattice.known.wide.len(), 2);
}
