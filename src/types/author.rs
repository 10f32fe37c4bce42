//! Who submitted a job.

use serde::{Deserialize, Serialize};
use std::fmt;

/// A user whose name is not known.
pub const UNKNOWN: &str = "unknown";

/// A user of a node, as that node says: what a peer's kernel told of whoever spoke to its socket.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Author {
    /// The name of the account; `UNKNOWN` where nobody could tell.
    pub user: String,
    pub uid: Option<u32>,
    /// The name of the node.
    pub node: String,
}

impl Default for Author {
    fn default() -> Self {
        Self {
            user: UNKNOWN.into(),
            uid: None,
            node: String::new(),
        }
    }
}

impl Author {
    /// Whether a user of this name is the one: one person has one name on all machines of a lab,
    /// but not one number.
    pub fn is(&self, user: &str) -> bool {
        self.user == user && user != UNKNOWN
    }
}

impl fmt::Display for Author {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.node.as_str() {
            "" => f.write_str(&self.user),
            node => write!(f, "{}@{node}", self.user),
        }
    }
}
