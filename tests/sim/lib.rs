//! Clusters of real `logic::State`s on a fake network, clock and disk. A seed replays a run
//! exactly.
//!
//! Each seed draws machines, users' work and faults (`plan`), rages for a while, heals everything
//! but what is lost for good, and waits until every job has ended; then it is quiet for a while,
//! and at last machines are lost one by one. `cargo run --release -p nodectl-sim -- --seeds 1000000`
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
//! | `command_line` | the program, and its options |

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
pub mod runs;
mod scenarios;
mod script;
mod seam;
mod searches;
mod told;
mod user;
mod verdict;
mod world;
