//! The runner with real processes: this binary is the node, the real `nodectl` is its supervisor.
//!
//! | file | what |
//! |---|---|
//! | `harness` | a runner in a temporary directory, with a fake rest of the node |
//! | `cost` | what a task costs beyond its process |
//! | `endings` | statuses, signals, limits, programs that cannot start |
//! | `killing` | stops, timeouts, grandchildren, dead supervisors, dead nodes |
//! | `suspension` | tasks that stand still |
//! | `disks` | disks that are full |
//! | `results` | streams, results, outputs |
//! | `environments` | Python environments that jobs bring |
//! | `inputs` | uploads, results of earlier jobs, environment |
//! | `isolation` | what tasks are kept from |
//! | `python` | calls of Python workers |
//! | `pool` | workers of pools, with a pool of the test's own |
//! | `kept` | results of calls that stay on a node |

mod cost;
#[path = "../common/disk.rs"]
mod disk;
mod disks;
mod endings;
mod environments;
mod harness;
mod inputs;
mod isolation;
mod kept;
mod killing;
#[path = "../common/podman.rs"]
mod podman;
mod pool;
mod python;
mod results;
mod suspension;
