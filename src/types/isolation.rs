//! How far a job's tasks are kept from the node that runs them and from its machine, as the job says. What it does not say, the
//! node's settings do.

use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Isolation {
    /// Whether programs such as sudo may gain rights that the node's user lacks. Where they may, nothing can be hidden from them.
    pub setuid: Option<bool>,
    /// Whether what is the node's alone is out of reach: its secret, its identity, other jobs, its API.
    pub hides_node: Option<bool>,
    /// Whether a program that crashes may leave a core dump.
    pub core_dumps: bool,
    /// Whether there is no network but one of its own, with nothing in it but loopback.
    pub offline: bool,
    /// Whether nothing can be changed but a task's own directory and what is temporary.
    pub read_only: bool,
    /// The file of a container that its command runs in (Apptainer).
    pub image: Option<String>,
}
