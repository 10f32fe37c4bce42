//! Keys that jobs of several kinds have.
//!
//! | file | owns |
//! |---|---|
//! | `common` | the keys that every kind has |
//! | `command` | program, environment, outputs and their placeholders |
//! | `work` | all that tasks do, put together |
//! | `params` | parameter sets written in the job file |
//! | `rows` | parameter sets in a CSV or JSONL file |
//! | `sample` | parameter sets drawn at random |
//! | `task_names` | what the results of tasks are called |
//! | `skip_done` | tasks that an earlier run did already |
//! | `python` | the Python environment that tasks run in |
//! | `sweep` | `[sweep]` |
//! | `resources` | `[resources]` |
//! | `uploads` | which files travel with the job |

pub mod command;
pub mod common;
pub mod params;
pub mod python;
pub mod resources;
mod rows;
mod sample;
pub mod skip_done;
mod sweep;
pub mod task_names;
pub mod uploads;
pub mod work;

pub use rows::read as load_rows;
