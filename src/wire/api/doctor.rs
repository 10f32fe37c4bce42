//! What `doctor` finds, as JSON.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// How the node and its swarm are.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Doctor {
    /// The ciphers on the wire; missing if no node runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub suite: Option<String>,
    pub findings: Vec<Finding>,
}

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Finding {
    /// What was looked at: `discovery.mdns`, `clock`, `gpu`, …
    pub check: String,
    pub severity: Severity,
    pub message: String,
    /// What to do about it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    Ok,
    /// Works, but not as well as it could.
    Warning,
    /// Does not work.
    Problem,
}

impl Finding {
    pub fn ok(check: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            check: check.into(),
            severity: Severity::Ok,
            message: message.into(),
            hint: None,
        }
    }

    pub fn warning(
        check: impl Into<String>,
        message: impl Into<String>,
        hint: impl Into<String>,
    ) -> Self {
        let (message, hint) = (message.into(), Some(hint.into()));
        Self {
            check: check.into(),
            severity: Severity::Warning,
            message,
            hint,
        }
    }

    pub fn problem(
        check: impl Into<String>,
        message: impl Into<String>,
        hint: impl Into<String>,
    ) -> Self {
        let (message, hint) = (message.into(), Some(hint.into()));
        Self {
            check: check.into(),
            severity: Severity::Problem,
            message,
            hint,
        }
    }
}
