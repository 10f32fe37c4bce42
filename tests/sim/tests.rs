//! Clusters of real `logic::State`s on a fake network, clock and disk. A seed replays a run
//! exactly.
//!
//! Each seed draws machines, users' work and faults (`plan`), rages for a while, heals everything
//! but what is lost for good, and waits until every job has ended; then it is quiet for a while,
//! and at last machines are lost one by one. `cargo run --release -p nodectl-logic --example sim -- --seeds 1000000`
//! runs more of them.
//!
//! | file | owns |
//! |---|---|
//! | `plan` | what a seed draws: machines, faults, work; a list whose items can be left out |
//! | `world` | machines, the one clock, what is to happen |
//! | `seam` | inputs and effects of `State`, and what a turn costs: the one place that knows them |
//! | `net` | connections: in order, bounded, held up by cuts |
//! | `disk` | journals, blobs, and what happens to disks |
//! | `runner` | tasks |
//! | `pools` | pools: clients and hubs; workers, which are tasks, and their streams |
//! | `rows` | tasks that are added while their job runs |
//! | `searches` | parameters that are drawn while their job runs |
//! | `logs` | logs: who appends to them, who reads them |
//! | `faults` | what goes wrong, carried out |
//! | `user` | who submits jobs and believes what is told |
//! | `check` | what must hold at every moment |
//! | `quiet` | what must hold once nothing is wrong |
//! | `verdict` | findings, statistics, the branches that must be reached |
//! | `runs` | one seed, many seeds, shrinking |
//! | `script`, `scenarios/` | small worlds in which only happens what a scenario says |

mod check;
mod disk;
mod farewells;
mod faults;
mod gangs;
mod graphs;
mod logs;
mod net;
mod plan;
mod pools;
mod quiet;
mod rows;
mod runner;
mod runs;
mod scenarios;
mod script;
mod seam;
mod searches;
mod told;
mod user;
mod verdict;
mod world;

/// A taste; `.ci/run` runs 2,000.
#[test]
fn seeds() {
    let jobs = std::thread::available_parallelism().map_or(1, usize::from);
    assert!(runs::many(
        0,
        60,
        &runs::Options {
            jobs,
            shrinks: true,
            ..runs::Options::default()
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
