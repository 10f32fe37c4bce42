//! What was launched from a machine, as JSON.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Something that `nodectl up` started from the machine of the node that answers, and that has not
/// been taken down.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct LaunchView {
    pub id: String,
    pub kind: LaunchKind,
    /// The file that the user named; or `slurm`, `condor`.
    pub source: String,
    pub started_ms: u64,
    /// The process that grows and shrinks it is there; missing where none is meant to be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub is_tended: Option<bool>,
    /// How many nodes of it are members now.
    pub running: u32,
    /// What nodes of it have been there for so far, added up, as far as whoever launched it looked.
    pub node_hours: f64,
    /// What was asked for and came over time, oldest first: the newest 500 changes.
    pub looks: Vec<LaunchLook>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum LaunchKind {
    /// Hosts, by ssh.
    Hosts,
    Slurm,
    Condor,
}

/// What a launch asked for and had at a moment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct LaunchLook {
    pub at_ms: u64,
    /// Nodes that are asked for: those that run, and those that are to come.
    pub asked: u32,
    /// Of those, in a queue or starting.
    pub pending: u32,
    /// And members of the cluster.
    pub running: u32,
    /// Tasks that nobody runs, where the launch is elastic.
    pub waiting: u64,
    /// Nodes that were asked for at this moment, and given back.
    pub submitted: u32,
    pub released: u32,
    /// Why, if anything was decided.
    pub why: String,
    /// What its nodes had been there for until then, added up.
    pub node_hours: f64,
}

impl LaunchLook {
    /// The hours of its nodes at a later moment, if nothing changed since.
    pub fn node_hours_at(&self, at_ms: u64) -> f64 {
        let passed = at_ms.saturating_sub(self.at_ms) as f64 / 3_600_000.0;
        self.node_hours + f64::from(self.running) * passed
    }
}
