//! What commands print: a table for people, JSON for programs, ids for pipes. Pure: data in, text
//! out.
//!
//! | file | owns |
//! |---|---|
//! | `cells` | what a cell of a table says |
//! | `columns` | tables that fit the terminal |
//! | `model` | what is printed, beyond the types of the API; the ways to print |
//! | `table` | what is in tables |
//! | `tasks` | what is in that of a job's tasks |
//! | `progress` | how far a job is |
//! | `failures` | why tasks failed |
//! | `json` | the API's own types, one document a command |
//! | `quiet` | ids, one a line |

mod cells;
mod columns;
mod failures;
mod json;
mod model;
mod progress;
mod quiet;
pub mod table;
mod tasks;
#[cfg(test)]
mod tests;

use super::args::ListArgs;
use std::sync::LazyLock;

pub use cells::short_id;
pub use columns::{Look, TableColumn, layout};
pub use failures::{failure_text, failures_text, indented};
pub use json::document;
pub use model::{ClusterStatus, ComputeRate, FailureGroup, Output, RunSummary};
pub use progress::{compute_line, progress_line};
pub use table::columns;
pub use tasks::{ListedTask, TaskEnd};

static ON_STDOUT: LazyLock<table::Table> = LazyLock::new(|| table::Table {
    look: Look::of(&std::io::stdout()),
});

/// The way that the flags ask for.
pub fn choose(list: ListArgs) -> &'static dyn Output {
    match list {
        ListArgs { json: true, .. } => &json::Json,
        ListArgs { quiet: true, .. } => &quiet::Quiet,
        ListArgs { .. } => &*ON_STDOUT,
    }
}
