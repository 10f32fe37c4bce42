//! A cluster of real `logic::State`s on a fake network, clock and disk. A seed replays a run exactly.
//!
//! Each seed runs a safety phase (faults, invariants checked after every event), heals everything, and then a liveness
//! phase in which every job must end. `cargo run --release --example sim -- --seeds 1000000` runs more of them.
//!
//! | file | owns |
//! |---|---|
//! | `world` | nodes, links, disks, workers and the one clock |
//! | `faults` | what goes wrong |
//! | `user` | who submits jobs and believes what is told |
//! | `check` | what must hold |
//! | `runs` | one seed, many seeds |

mod check;
mod faults;
mod runs;
mod user;
mod world;

/// A taste; `.ci/run` runs 2,000.
#[test]
fn seeds() {
    println!("{}", runs::many(0, 60));
}
