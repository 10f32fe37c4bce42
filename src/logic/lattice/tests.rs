//! The laws that make quorums needless.

use super::*;
use crate::types::{Failure, NodeId, Outcome};
use proptest::prelude::*;

#[derive(Clone, Copy, Debug, PartialEq)]
enum End {
    Done,
    Failed,
    Cancelled,
}

fn record(task: u32, end: End, epoch: u32, number: u32, failures: u32) -> TaskRecord {
    let outcome = match end {
        End::Done => Outcome::Done,
        End::Failed => Outcome::Failed(Failure::Exit(1)),
        End::Cancelled => Outcome::Cancelled,
    };
    let failures = if end == End::Failed { failures } else { 0 };
    let (attempt, node) = (Attempt { epoch, number }, NodeId([number as u8; 32]));
    TaskRecord { failures, ..TaskRecord::plain(task, attempt, node, outcome) }
}

const TASKS: u32 = 8;

prop_compose! {
    fn any_record()(
        task in 0..TASKS + 2,
        end in prop::sample::select(vec![End::Done, End::Failed, End::Cancelled]),
        epoch in 1..4u32,
        number in 1..4u32,
        failures in 1..5u32,
    ) -> TaskRecord {
        record(task, end, epoch, number, failures)
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

    /// Two replicas that exchange what their summaries say the other lacks end up equal, whatever they held.
    #[test]
    fn one_exchange_of_summaries_makes_replicas_equal(
        here in prop::collection::vec(any_record(), 0..30),
        there in prop::collection::vec(any_record(), 0..30),
    ) {
        let (mut a, mut b) = (merged(&here), merged(&there));
        // Divergent results show only once both sides know the same tasks: that takes a second exchange.
        for _ in 0..2 {
            let (to_a, to_b) = (b.ahead_of(&a.summary()), a.ahead_of(&b.summary()));
            let (cells_a, cells_b) = (a.clone(), b.clone());
            for task in to_a {
                a.join_cell(task, cells_b.cell(task));
            }
            for task in to_b {
                b.join_cell(task, cells_a.cell(task));
            }
        }
        prop_assert!(same(&a, &b), "{:?} {:?}", a, b);
    }
}

#[test]
fn a_task_beyond_the_job_is_never_news() {
    let mut lattice = Lattice::new(TASKS);
    assert!(!lattice.merge(&record(TASKS, End::Done, 1, 1, 0)));
    assert_eq!(lattice.done(), 0);
}
