//! Sides of a cut, of which one only may go on.

use super::{MODES, seeds, simulation::Simulation};
use nodectl_types::NodeId;

/// Of two nodes one goes on without the other, together with a third that the other never met; then
/// it dies. A person's word that it is dead, which is true, is no word for the third.
#[test]
fn whom_a_dead_node_may_have_gone_on_with_is_waited_for() {
    seeds(24, |seed| {
        let mut simulation = Simulation::new(seed, MODES[seed as usize % 4], 2, 40);
        simulation.step_until("all are settled", Simulation::is_settled);
        let first = simulation.first();
        let mut nodes = simulation.nodes.keys().copied();
        let waits = nodes.find(|node| *node != first).expect("there are two");
        simulation.faults = true;
        simulation.part(&[waits]);
        let third = simulation.join();
        simulation.part(&[waits]);
        simulation.step_until("two go on", |simulation| {
            let goes_on =
                |node: NodeId| simulation.goes_on(node, 2) && simulation.is_in_place(node);
            goes_on(first) && goes_on(third)
        });
        simulation.die_and_leave_to(first, third);
        simulation.step_until("the third goes on", |simulation| {
            simulation.goes_on(third, 1)
        });
        simulation.forget(first);
        (0..2_000).for_each(|_| simulation.step());
        let told = format!("nodectl forget {}", third.short());
        let status = simulation.status(waits);
        assert!(
            status.starts_with("waiting: node ") && status.ends_with(&told),
            "{status}"
        );
        simulation.heal();
        simulation.run(false);
    });
}

/// Of three nodes that are apart the third is dead, and a person says so.
#[test]
fn whoever_waits_for_a_third_goes_on_once_it_is_told_that_it_is_dead() {
    seeds(12, |seed| {
        let mut simulation = Simulation::new(seed, MODES[seed as usize % 4], 2, 20);
        simulation.step_until("all are settled", Simulation::is_settled);
        let first = simulation.first();
        let mut nodes = simulation.nodes.keys().copied();
        let waits = nodes.find(|node| *node != first).expect("there are two");
        let third = simulation.join();
        simulation.step_until("all are settled", Simulation::is_settled);
        simulation.faults = true;
        simulation.part(&[waits]);
        [first, third]
            .into_iter()
            .for_each(|node| simulation.fall_silent(node));
        simulation.forget(first);
        (0..1_000).for_each(|_| simulation.step());
        assert!(!simulation.goes_on(waits, 1));
        simulation.forget(third);
        simulation.step_until("it goes on", |simulation| simulation.goes_on(waits, 1));
        simulation.run(false);
    });
}

/// Where a view goes on at one node, others may be cut off before they hear of it.
#[test]
fn all_nodes_have_confirmed_a_view_when_the_first_goes_on() {
    seeds(24, |seed| {
        let mut simulation = Simulation::new(seed, MODES[seed as usize % 4], 4, 30);
        simulation.step_until("all are settled", Simulation::is_settled);
        for _ in 0..8 {
            let before = simulation.newest_going();
            simulation.break_any();
            simulation.step_until("a node goes on", |simulation| {
                simulation.newest_going() > before
            });
            let going = simulation.newest_going();
            assert!(
                simulation.have_confirmed(going),
                "all have confirmed view {}",
                going.number
            );
        }
        simulation.run(false);
    });
}

/// Of two nodes one dies and is back without memory, and both workers begin there, too: it has not
/// met the other, which goes on.
#[test]
fn who_has_no_memory_does_not_begin_anew_before_it_has_asked_the_others() {
    seeds(12, |seed| {
        let mode = MODES[seed as usize % 4];
        let mut simulation = Simulation::keeping(seed, mode, 2, 20, None);
        simulation.step_until("all are settled", Simulation::is_settled);
        let [back, other] = [0, 1].map(|at| *simulation.nodes.keys().nth(at).unwrap());
        simulation.faults = true;
        simulation.die_and_leave_to(back, other);
        simulation.step_until("one goes on", |simulation| simulation.goes_on(other, 1));
        simulation.is_back(back);
        let lives = [0, 1].map(|worker| simulation.begin_second(worker, back));
        assert!(!simulation.goes_on(back, 1));
        simulation.step_until("it has met the other", |simulation| {
            simulation.goes_on(back, 2)
        });
        for (worker, life) in (0..).zip(lives) {
            simulation.end_worker(back, worker, life);
        }
        simulation.run(false);
    });
}

/// A node has just joined when it is cut off from all that train, and all workers begin there, too:
/// what the others have come to is not given up.
#[test]
fn who_has_met_one_that_trains_does_not_begin_anew_without_it() {
    seeds(12, |seed| {
        let mode = MODES[seed as usize % 4];
        let mut simulation = Simulation::keeping(seed, mode, 2, 20, None);
        simulation.step_until("all are settled", Simulation::is_settled);
        let new = simulation.join();
        simulation.step_until("it has met one that trains", |simulation| {
            simulation.has_met_one_that_trains(new)
        });
        simulation.faults = true;
        simulation.part(&[new]);
        let lives = [0, 1].map(|worker| simulation.begin_second(worker, new));
        (0..1_000).for_each(|_| simulation.step());
        assert!(!simulation.goes_on(new, 1));
        let status = simulation.status(new);
        assert!(status.contains("may be going on without"), "{status}");
        for (worker, life) in (0..).zip(lives) {
            simulation.end_worker(new, worker, life);
        }
        simulation.heal();
        simulation.run(false);
    });
}
