//! The job file, whatever its kinds: TOML to planned jobs. Owns reading it, `[[job]]` and `after`,
//! the keys that several kinds have, and what a job is before it is submitted; what the table of a
//! job means is its kind's business, which gives a `PlanTable`. Every error shows file, line,
//! column and the offending text. Start reading at `tables`.
//!
//! | file | owns |
//! |---|---|
//! | `tables` | the jobs of a file, in the order in which they can be submitted |
//! | `context` | what planning knows of the file |
//! | `fields` | typed reading of TOML tables |
//! | `keys/` | keys that jobs of several kinds have |
//! | `planned` | a job before it is submitted: uploads to manifest to specification |
//! | `order` | `after`: unknown names, cycles, a good order |
//! | `fault` | a problem at a place in the text |
//! | `error` | the same with file, line and column, rendered for people |

mod context;
mod error;
mod fault;
mod fields;
pub mod keys;
mod order;
mod planned;
mod tables;

pub use context::{Context, Following, PlacedJob};
pub use error::{Diagnostic, JobFileError};
pub use fault::Fault;
pub use fields::{Fields, Item, natural_number, strings, to_i64, type_name};
pub use planned::{Delivery, PlannedJob, Upload, UploadSource};
pub use tables::{MAX_FILE_BYTES, PlanTable, in_order, parse, plan, read, table};
