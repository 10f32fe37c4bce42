//! A taste of the simulation.

use nodectl_sim::runs;

/// `.ci/run` runs 2,000.
#[test]
fn seeds() {
    let jobs = std::thread::available_parallelism().map_or(1, usize::from);
    assert!(runs::many(
        0,
        60,
        &runs::RunOptions {
            jobs,
            shrinks: true,
            ..runs::RunOptions::default()
        }
    ));
}

/// Each of them; one that fails does not keep the others from running. `SIM_SCENARIOS=gangs` runs
/// those with that in their names.
#[test]
fn scenarios() {
    assert!(runs::scenarios(
        &std::env::var("SIM_SCENARIOS").unwrap_or_default()
    ));
}
