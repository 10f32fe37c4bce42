//! What a node remembers of jobs that have ended, beside their journals.

use super::JobId;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// On a node's disk, so that its next life goes on counting.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Retention {
    /// How long the node has run, all its lives together.
    pub uptime_s: u64,
    /// Jobs that ended, and how long it had run when it learned that.
    pub ended: BTreeMap<JobId, u64>,
    /// Jobs that were removed, and when, by the clock of whoever did it (ms since 1970).
    pub removed: BTreeMap<JobId, u64>,
}
