//! Copies of results and of their files: as many as there should be, equal, and not lost while
//! machines are lost one by one.

use crate::{
    disk::Damage,
    script::{ClusterScript, Scenario, tasks},
};

pub const ALL: &[Scenario] = &[
    (
        "copies::what_a_coordinator_learns_reaches_its_replicas",
        what_a_coordinator_learns_reaches_its_replicas,
    ),
    (
        "copies::files_survive_a_rolling_restart",
        files_survive_a_rolling_restart,
    ),
    (
        "copies::files_survive_coordinator_and_maker",
        files_survive_coordinator_and_maker,
    ),
    (
        "copies::results_are_copied_again_after_each_loss",
        results_are_copied_again_after_each_loss,
    ),
    (
        "copies::a_finished_result_outlives_broken_connections",
        a_finished_result_outlives_broken_connections,
    ),
    (
        "copies::the_same_result_everywhere_after_takeovers",
        the_same_result_everywhere_after_takeovers,
    ),
    (
        "copies::a_job_ends_with_machines_gone_for_ever",
        a_job_ends_with_machines_gone_for_ever,
    ),
    (
        "copies::walls_that_answer_for_live_nodes",
        walls_that_answer_for_live_nodes,
    ),
    (
        "copies::a_split_heals_to_equal_copies",
        a_split_heals_to_equal_copies,
    ),
    (
        "copies::files_come_back_with_their_holders",
        files_come_back_with_their_holders,
    ),
    (
        "copies::files_that_are_gone_keep_no_others_waiting",
        files_that_are_gone_keep_no_others_waiting,
    ),
    (
        "copies::a_result_without_its_file_takes_nobodys_place",
        a_result_without_its_file_takes_nobodys_place,
    ),
    (
        "copies::an_earlier_result_counts_again_when_the_later_ones_file_is_gone",
        an_earlier_result_counts_again_when_the_later_ones_file_is_gone,
    ),
    (
        "copies::what_tasks_are_given_comes_from_any_holder",
        what_tasks_are_given_comes_from_any_holder,
    ),
    (
        "copies::what_was_written_alone_is_told_when_another_has_it",
        what_was_written_alone_is_told_when_another_has_it,
    ),
    (
        "copies::a_job_submitted_on_both_sides_of_a_split",
        a_job_submitted_on_both_sides_of_a_split,
    ),
    (
        "copies::who_left_and_comes_back_with_its_clock_set_back",
        who_left_and_comes_back_with_its_clock_set_back,
    ),
    (
        "copies::a_large_specification_comes_from_any_holder",
        a_large_specification_comes_from_any_holder,
    ),
    (
        "copies::a_large_specification_outlives_its_blobs",
        a_large_specification_outlives_its_blobs,
    ),
];

/// A stalled coordinator wakes up with results that only it has, and yields: its successor learns
/// them.
pub fn what_a_coordinator_learns_reaches_its_replicas() {
    for seed in 1..=12 {
        let mut script = ClusterScript::seeded(6, seed);
        let job = script.job(tasks(30, 4_000));
        script.until_told(job, 5);
        let first = script.coordinator(job);
        script.stall(first, 3.0 + seed as f64 / 10.0);
        script.settle();
        script.decay(job);
    }
}

/// Everyone but the coordinator is restarted, then the coordinator is lost.
pub fn files_survive_a_rolling_restart() {
    let mut script = ClusterScript::of(5);
    let job = script.job(crate::plan::JobPlan {
        files: 100,
        file_bytes: 1_000,
        ..tasks(40, 200)
    });
    script.until_done(job);
    script.run(40.0);
    for node in (0..5)
        .filter(|node| *node != script.coordinator(job))
        .collect::<Vec<_>>()
    {
        script.restart(node, 1.0);
        script.run(10.0);
    }
    script.lose(script.coordinator(job));
    script.run(40.0);
    script.settle();
}

pub fn files_survive_coordinator_and_maker() {
    let mut script = ClusterScript::of(5);
    let job = script.job(crate::plan::JobPlan {
        files: 100,
        file_bytes: 1_000,
        ..tasks(40, 200)
    });
    script.until_done(job);
    script.run(40.0);
    script.lose(script.coordinator(job));
    script.run(40.0);
    script.decay(job);
}

/// While the job runs.
pub fn results_are_copied_again_after_each_loss() {
    let mut script = ClusterScript::of(5);
    let job = script.job(tasks(400, 2_000));
    for results in [30, 120] {
        script.until_told(job, results);
        script.lose(script.coordinator(job));
        script.run(35.0);
        let replica = script.replicas(job)[0];
        script.lose(replica);
        script.run(35.0);
        if results == 30 {
            let like = script.world.add_machine(0);
            script.start(like);
        }
    }
    script.settle();
}

/// A third of all fetches fail: what a task made is fetched again, not computed again.
pub fn a_finished_result_outlives_broken_connections() {
    let mut plan = crate::plan::FaultPlan::quiet(4);
    plan.net.fetch_failures = 0.3;
    let mut script = ClusterScript::planned(plan);
    let job = script.job(crate::plan::JobPlan {
        files: 100,
        file_bytes: 1_000,
        ..tasks(60, 4_000)
    });
    script.until_done(job);
    let executions = script.world.statistics.executions;
    assert!(
        executions <= 60,
        "60 tasks were executed {executions} times"
    );
    script.settle();
}

/// Second runs of slow tasks, and coordinators that die and come back: no partition, so one result
/// a task.
pub fn the_same_result_everywhere_after_takeovers() {
    for seed in 1..=60 {
        let mut script = ClusterScript::seeded(4, seed);
        let job = script.job(crate::plan::JobPlan {
            speculate: true,
            ..tasks(24, 3_000)
        });
        for round in 0..3 {
            script.run(2.0 + (seed % 7) as f64 / 5.0);
            let node = if round == 1 {
                script.replicas(job).first().copied()
            } else {
                script.world.coordinator(job)
            };
            if let Some(node) = node {
                script.restart(node, 0.1 + (seed % 11) as f64 / 10.0);
            }
        }
        script.settle();
    }
}

pub fn a_job_ends_with_machines_gone_for_ever() {
    let mut script = ClusterScript::of(4);
    let job = script.job(tasks(120, 3_000));
    for _ in 0..3 {
        script.run(10.0);
        script.lose(script.coordinator(job));
    }
    script.settle();
}

pub fn a_split_heals_to_equal_copies() {
    for seed in 1..=6 {
        let mut script = ClusterScript::seeded(6, seed);
        let job = script.job(tasks(60, 3_000));
        script.until_told(job, 10);
        let coordinator = script.coordinator(job);
        let replica = script.replicas(job)[0];
        script.cut(&[coordinator, replica], 12.0);
        script.run(13.0);
        script.settle();
        script.decay(job);
    }
}

/// A disk has lost files, and all who have them are away for so long that hardly anybody asks for
/// them any more. Once they are back there are as many copies as before within the time that a
/// repair may take.
pub fn files_come_back_with_their_holders() {
    for away in [20.0, 100.0, 200.0, 400.0] {
        let mut script = ClusterScript::of(4);
        let job = script.job(crate::plan::JobPlan {
            files: 100,
            file_bytes: 1_000,
            ..tasks(12, 200)
        });
        script.until_done(job);
        script.run(40.0);
        let (first, replicas) = (script.coordinator(job), script.replicas(job));
        script.kill(replicas[0]);
        script.damage(replicas[0], Damage::Blobs);
        script.kill(first);
        script.kill(replicas[1]);
        script.start(replicas[0]);
        script.run(away);
        script.start(first);
        script.start(replicas[1]);
        script.run(40.0);
        script.settle();
        script.decay(job);
    }
}

/// A lone node has lost most of its files for good; another that comes gets the rest in no more
/// time than a repair may take.
pub fn files_that_are_gone_keep_no_others_waiting() {
    let mut script = ClusterScript::of(2);
    script.kill(1);
    script.run(10.0);
    let job = script.job(crate::plan::JobPlan {
        files: 100,
        file_bytes: 1_000,
        ..tasks(1_500, 20)
    });
    script.until_told(job, 1_500);
    script.kill(0);
    (0..8).for_each(|_| script.damage(0, Damage::Blobs));
    script.start(0);
    script.start(1);
    script.run(60.0);
    script.settle();
}

/// Both sides of a split do the same tasks. The later claim's results are on one machine, and
/// others can fetch none of its files before that is lost for good.
pub fn a_result_without_its_file_takes_nobodys_place() {
    for seed in 1..=8 {
        let (mut script, job, alone) = two_results_a_task(seed);
        script.world.plan.net.fetch_failures = 1.0;
        script.run(40.0);
        script.world.plan.net.fetch_failures = 0.0;
        script.lose(alone);
        script.run(40.0);
        script.settle();
        script.decay(job);
    }
}

/// The same, and the one machine loses the files, but not its journal.
pub fn an_earlier_result_counts_again_when_the_later_ones_file_is_gone() {
    for seed in 1..=8 {
        let (mut script, job, alone) = two_results_a_task(seed);
        script.kill(alone);
        script.world.machines[alone].disk.blobs.clear();
        script.run(0.5 + seed as f64);
        script.start(alone);
        script.run(60.0);
        script.settle();
        script.decay(job);
    }
}

/// A replica is cut off, claims the job and does what is left of it alone, while the others do the
/// same. The cut has just ended.
fn two_results_a_task(seed: u64) -> (ClusterScript, nodectl_types::JobId, usize) {
    let mut script = ClusterScript::seeded(4, seed);
    let job = script.job(crate::plan::JobPlan {
        files: 100,
        file_bytes: 1_000,
        ..tasks(24, 2_000)
    });
    script.until_told(job, 4);
    let alone = script.replicas(job)[0];
    script.cut(&[alone], 30.0);
    script.run(29.99);
    (script, job, alone)
}

/// One holder's disk has lost the files that tasks are given; whoever takes over, another copy is
/// made, with the other's files.
pub fn what_tasks_are_given_comes_from_any_holder() {
    for keeper in 0..2 {
        let mut script = ClusterScript::of(5);
        let job = script.job(crate::plan::JobPlan {
            inputs: true,
            ..tasks(10, 200)
        });
        script.until_done(job);
        script.run(40.0);
        let (first, keeper) = (script.coordinator(job), script.replicas(job)[keeper]);
        let others = script
            .world
            .machines
            .iter_mut()
            .enumerate()
            .filter(|(node, _)| ![first, keeper].contains(node));
        others.for_each(|(_, machine)| machine.disk.blobs.clear());
        script.lose(first);
        script.run(60.0);
        script.settle();
    }
}

/// The others come with full disks, so results are written by their coordinator and not told. It
/// starts again, and for a moment it is alone.
pub fn what_was_written_alone_is_told_when_another_has_it() {
    let mut script = ClusterScript::of(3);
    script.kill(1);
    script.kill(2);
    script.run(10.0);
    let job = script.job(tasks(40, 3_000));
    script.until_told(job, 5);
    for node in [1, 2] {
        script.full(node, 40.0);
        script.start(node);
    }
    script.run(8.0);
    (0..3).for_each(|node| script.kill(node));
    let told = script.world.user.jobs[&job].done.len();
    (0..3).for_each(|node| script.start(node));
    script.run(20.0);
    assert_eq!(
        script.world.user.jobs[&job].done.len(),
        told,
        "told with company and on one disk"
    );
    script.settle();
}

/// Its answer is lost, so it is submitted again, to whoever may be on the other side: two claims
/// with two specifications, which differ in who submitted it. Who holds copies of the one that
/// gives way keeps, and passes on, that of the other.
pub fn a_job_submitted_on_both_sides_of_a_split() {
    for seed in 1..=12 {
        let mut script = ClusterScript::seeded(6, seed);
        script.cut(&[0, 1], 8.0);
        script.run(6.0);
        let number = script.world.want(tasks(20, 2_000));
        script.run(0.02 + (seed % 5) as f64 / 100.0);
        for node in 0..6 {
            script.world.crash_for(
                node,
                std::time::Duration::from_millis(100 + 150 * (node as u64 + seed) % 6),
            );
        }
        script.run(1.0);
        script.until(60.0, "it is confirmed", |world| {
            world.user.job_of(number).is_some()
        });
        let job = script.world.user.job_of(number).expect("just waited for");
        script.settle();
        script.decay(job);
    }
}

/// What it says of itself then has a lower number than its goodbye, and counts: it keeps copies
/// again.
pub fn who_left_and_comes_back_with_its_clock_set_back() {
    let mut script = ClusterScript::of(2);
    script.job(tasks(20, 3_000));
    script.run(1.0);
    script.jump(1, -1_000);
    script.leave(1);
    script.run(20.0);
    script.job(tasks(10, 200));
    script.settle();
}

/// One that does not fit into a message, of which the coordinator's disk has lost its file.
pub fn a_large_specification_comes_from_any_holder() {
    let mut script = ClusterScript::of(4);
    let job = script.job(crate::plan::JobPlan {
        large: true,
        ..tasks(10, 200)
    });
    script.until_done(job);
    script.run(40.0);
    let first = script.coordinator(job);
    script.world.machines[first].disk.blobs.clear();
    let replica = script.replicas(job)[0];
    script.lose(replica);
    script.run(40.0);
    script.settle();
}

/// All holders' disks lose its file; their journals have it.
pub fn a_large_specification_outlives_its_blobs() {
    let mut script = ClusterScript::of(4);
    let job = script.job(crate::plan::JobPlan {
        large: true,
        ..tasks(10, 200)
    });
    script.until_done(job);
    script.run(40.0);
    let holders: Vec<_> = script
        .replicas(job)
        .into_iter()
        .chain([script.coordinator(job)])
        .collect();
    holders.iter().for_each(|node| script.kill(*node));
    for node in &holders {
        script.world.machines[*node].disk.blobs.clear();
        script.start(*node);
    }
    script.run(40.0);
    script.lose(script.coordinator(job));
    script.run(40.0);
    script.settle();
}

/// A wall says of live nodes that nobody listens there.
pub fn walls_that_answer_for_live_nodes() {
    let mut script = ClusterScript::of(4);
    let job = script.job(tasks(60, 3_000));
    script.until_told(job, 10);
    let coordinator = script.coordinator(job);
    for other in script.replicas(job) {
        script.wall(coordinator, other, 15.0);
    }
    script.run(16.0);
    script.settle();
    script.decay(job);
}
