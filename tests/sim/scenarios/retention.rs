//! Ended jobs are forgotten, but not before their time, and not while another job needs them.

use crate::{
    plan::{JobPlan, Plan},
    script::{Scenario, Script, tasks},
};
use std::time::Duration;

pub const ALL: &[Scenario] = &[
    ("retention::a_job_goes_on_whose_prerequisite_is_old", a_job_goes_on_whose_prerequisite_is_old),
    ("retention::one_wrong_clock_deletes_nothing", one_wrong_clock_deletes_nothing),
];

pub fn a_job_goes_on_whose_prerequisite_is_old() {
    let mut script = Script::planned(Plan { keep_jobs: Duration::from_secs(5), ..Plan::quiet(3) });
    let first = script.job(tasks(4, 100));
    script.until_done(first);
    let second = script.job(JobPlan { after: Some(1), ..tasks(60, 4_000) });
    script.until_told(second, 5);
    script.run(6.0);
    for node in 0..3 {
        script.restart(node, 1.0);
        script.run(8.0);
    }
    script.until_done(second);
}

/// A node boots with a clock that is far ahead.
pub fn one_wrong_clock_deletes_nothing() {
    let mut script = Script::of(3);
    let job = script.job(tasks(20, 200));
    script.until_done(job);
    script.run(10.0);
    let node = script.coordinator(job);
    script.kill(node);
    script.world.machines[node].wall_skew_ms += 400 * 24 * 3_600 * 1_000;
    script.run(1.0);
    script.start(node);
    script.run(40.0);
    script.settle();
}
