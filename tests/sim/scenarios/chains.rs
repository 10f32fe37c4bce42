//! Jobs that come after others: for their results, or for their end only.

use crate::{
    plan::JobPlan,
    script::{ClusterScript, Scenario, tasks},
};
use nodectl_types::Phase;

pub const ALL: &[Scenario] = &[
    (
        "chains::an_end_is_waited_for_however_it_comes",
        an_end_is_waited_for_however_it_comes,
    ),
    (
        "chains::results_that_never_come_end_what_waits",
        results_that_never_come_end_what_waits,
    ),
];

/// A job that fails, and one after it.
fn after_a_failure(script: &mut ClusterScript, after_end: bool) -> Option<Phase> {
    let first = script.job(JobPlan {
        hopeless: Some(0),
        ..tasks(8, 2_000)
    });
    let second = script.job(JobPlan {
        after: Some(1),
        after_end,
        ..tasks(8, 200)
    });
    script.until(300.0, "both end", |world| {
        [first, second].iter().all(|job| {
            let phase = world.user.jobs[job].phase;
            phase.is_some_and(Phase::is_ended)
        })
    });
    assert_eq!(script.world.user.jobs[&first].phase, Some(Phase::Failed));
    script.world.user.jobs[&second].phase
}

pub fn an_end_is_waited_for_however_it_comes() {
    let mut script = ClusterScript::of(3);
    assert_eq!(after_a_failure(&mut script, true), Some(Phase::Done));
}

pub fn results_that_never_come_end_what_waits() {
    let mut script = ClusterScript::of(3);
    assert_eq!(after_a_failure(&mut script, false), Some(Phase::Cancelled));
}
