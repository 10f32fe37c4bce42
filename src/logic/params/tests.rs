//! Each mode's promise, under delays, deaths, joins and partitions, and the same from every seed.

mod disk;
mod simulation;

use crate::types::{NodeId, params::Every, servers::Consistency};
use simulation::{Simulation, pair, pick};

/// Runs seeds; the panic of one that fails is preceded by its number.
fn seeds(count: u64, run: impl Fn(u64)) {
    for seed in 0..count {
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| run(seed)));
        if let Err(panic) = result {
            eprintln!("seed {seed}");
            std::panic::resume_unwind(panic);
        }
    }
}

const MODES: [Consistency; 4] =
    [Consistency::Bsp, Consistency::Ssp { staleness: 0 }, Consistency::Ssp { staleness: 2 }, Consistency::Async];

#[test]
fn every_mode_keeps_its_promise_on_a_slow_network() {
    seeds(12, |seed| {
        for nodes in [1, 2, 3] {
            let simulation = Simulation::new(seed, MODES[seed as usize % 4], nodes, 6).run(false);
            assert_eq!(simulation.finished, nodes);
        }
    });
}

#[test]
fn every_mode_keeps_its_promise_while_nodes_and_workers_die_and_join() {
    seeds(40, |seed| drop(Simulation::new(seed, MODES[seed as usize % 4], 3, 15).run(true)));
}

#[test]
fn a_clock_that_is_divided_counts_every_part_once_whoever_dies_and_joins() {
    seeds(30, |seed| drop(Simulation::divided(seed, 3, 15).run(true)));
    seeds(4, |seed| assert_eq!(Simulation::divided(seed, 3, 6).run(false).finished, 3));
}

#[test]
fn only_the_side_of_a_partition_that_reaches_all_blocks_goes_on() {
    seeds(12, |seed| {
        let mut simulation = Simulation::new(seed, MODES[seed as usize % 4], 3, 40);
        while !simulation.is_settled() {
            simulation.step();
        }
        let nodes: Vec<NodeId> = simulation.nodes.keys().copied().collect();
        let alone = pick(&mut simulation.random, &nodes).unwrap();
        simulation.faults = true;
        simulation.cut.insert(alone);
        for other in nodes.iter().filter(|node| **node != alone) {
            simulation.break_link(pair(alone, *other));
        }
        let clocks = |simulation: &Simulation, alone: bool, node: NodeId| {
            let nodes = simulation.nodes.iter().filter(|(id, _)| (**id == node) == alone);
            nodes.flat_map(|(_, node)| node.workers.values().filter_map(|script| script.clock)).max()
        };
        for _ in 0..3_000 {
            simulation.step();
        }
        let (one, two) = (clocks(&simulation, true, alone), clocks(&simulation, false, alone));
        assert!(two > one, "those who reach all blocks go on: {two:?} and {one:?}");
        simulation.cut.clear();
        simulation.run(false);
    });
}

#[test]
fn what_was_kept_is_gone_on_from_when_several_nodes_die_at_once_or_all() {
    seeds(16, |seed| {
        let every = [Every::Steps(3), Every::Millis(1)][seed as usize % 2];
        let mode = MODES[seed as usize / 2 % 4];
        let mut simulation = Simulation::keeping(seed, mode, 4, 30, Some(every));
        simulation.faults = true;
        let mut before = None;
        for count in [4, 3, 4] {
            while simulation.disk.newest().map(|kept| kept.clock) <= before && !simulation.has_ended() {
                simulation.step();
            }
            before = simulation.disk.newest().map(|kept| kept.clock);
            simulation.catastrophe(count);
        }
        let simulation = simulation.run(false);
        assert!(simulation.disk.restored >= 3, "it went on from a checkpoint each time");
    });
}

#[test]
fn without_checkpoints_all_begin_anew() {
    seeds(8, |seed| {
        let mut simulation = Simulation::keeping(seed, MODES[seed as usize % 4], 4, 20, None);
        simulation.faults = true;
        for count in [3, 4] {
            (0..2_000).for_each(|_| simulation.step());
            simulation.catastrophe(count);
        }
        simulation.run(false);
    });
}

#[test]
fn the_last_checkpoint_is_what_all_workers_came_to() {
    seeds(12, |seed| {
        let simulation = Simulation::keeping(seed, MODES[seed as usize % 4], 3, 7, Some(Every::Steps(100))).run(false);
        assert_eq!(simulation.finished, 3);
        assert_eq!(simulation.disk.checkpoints.len(), 1);
        let (&clock, _) = simulation.disk.checkpoints.first_key_value().unwrap();
        assert_eq!(clock, 7);
        let lives = simulation.lives();
        assert!(lives.iter().all(|(worker, life)| {
            (0..7).all(|k| simulation.disk.all_have(7, &(*worker, *life, k, simulation::WHOLE)))
        }));
    });
}

/// Two nodes whose connection breaks again and again.
#[test]
fn two_nodes_go_on_however_often_they_lose_each_other() {
    seeds(24, |seed| {
        let mut simulation = Simulation::new(seed, MODES[seed as usize % 4], 2, 25);
        simulation.faults = true;
        for _ in 0..60 {
            (0..40 + seed * 3).for_each(|_| simulation.step());
            simulation.break_any();
        }
        simulation.run(false);
    });
}
