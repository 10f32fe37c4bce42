//! Who belongs to the cluster, as JSON.

use nodectl_types::roster::SecretText;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// What is decided.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "act", rename_all = "snake_case", deny_unknown_fields)]
pub enum MembershipRequest {
    /// The node's key is refused everywhere.
    Ban {
        /// A node's name, id, or the unique beginning of its id.
        node: String,
    },
    /// As if it had never been banned, or admitted.
    Unban { node: String },
    /// It need not wait any more.
    Admit { node: String },
    /// Whether nodes have to be admitted. All that are members now are.
    Admission { approve: bool },
    /// The cluster gets this secret. Nodes that are known take it over; the one before is worth
    /// nothing once all have.
    Rotate {
        #[schema(value_type = String)]
        secret: SecretText,
    },
    /// The secret before is worth nothing from now on, whoever has not changed.
    Finish,
}

/// What was decided. The secret is not in it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Membership {
    /// Nodes have to be admitted.
    pub approve: bool,
    /// Nodes that are banned, or admitted.
    pub nodes: Vec<StandingView>,
    /// Nodes that came lately, and wait to be admitted.
    pub waiting: Vec<WaitingNode>,
    /// The newest change of the secret.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rotation: Option<RotationView>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct StandingView {
    pub id: String,
    /// What it was called then.
    pub name: String,
    pub banned: bool,
    pub at_ms: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct WaitingNode {
    pub id: String,
    /// From where it came, if not through another node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RotationView {
    /// 1 for the cluster's first.
    pub number: u32,
    pub at_ms: u64,
    /// The secret before is still good, for `missing`.
    pub under_way: bool,
    /// How many nodes keep the new one.
    pub changed: u32,
    /// Nodes that were members when it began, and do not.
    pub missing: Vec<NamedNode>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NamedNode {
    pub id: String,
    pub name: String,
}

/// A code in place of the secret, for one node.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Invitation {
    pub code: String,
}

impl std::fmt::Debug for Invitation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Invitation(..)")
    }
}
