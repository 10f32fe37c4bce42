//! The runner with real processes: this binary is the node, the real `nodectl` is its supervisor.
//!
//! | file | what |
//! |---|---|
//! | `harness` | a runner in a temporary directory, with a fake rest of the node |
//! | `cost` | what a task costs beyond its process |
//! | `endings` | statuses, signals, limits, programs that cannot start |
//! | `killing` | stops, timeouts, grandchildren, dead supervisors, dead nodes |
//! | `results` | streams, results, outputs |
//! | `inputs` | uploads, results of earlier jobs, environment |
//! | `python` | calls of Python workers |
//! | `pool` | workers of pools, with a pool of the test's own |

mod cost;
mod endings;
mod harness;
mod inputs;
mod killing;
mod pool;
mod python;
mod results;
