//! The program that a node runs.

use nodectl_types::{ProgramHere, Replacement};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The program that a node runs, and how far its replacement is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ProgramView {
    /// BLAKE3 of its file; missing until the node has worked it out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hash: Option<String>,
    pub version: String,
    /// The machine's, such as `x86_64`.
    pub architecture: String,
    /// On the node's machine.
    pub path: String,
    /// The owner lets other members replace it (`node.upgrade_by_members`).
    pub by_members: bool,
    pub replacement: ReplacementName,
    /// Why the replacement failed, if it did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ReplacementName {
    /// Nobody asked for one in this life of the node.
    None,
    /// The file is being brought, checked and put in place.
    Preparing,
    /// The node goes on with the program that it has.
    Failed,
    /// The node leaves, and comes back with the new program.
    Restarting,
}

/// Another program for a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ReplaceRequest {
    /// A node by name, id or the beginning of its id; the one that answers if missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// BLAKE3 of the program, which the node that answers has as a blob.
    pub program: String,
}

impl From<ProgramHere> for ProgramView {
    fn from(here: ProgramHere) -> Self {
        let (replacement, failed) = match here.replacement {
            Replacement::None => (ReplacementName::None, None),
            Replacement::Preparing => (ReplacementName::Preparing, None),
            Replacement::Failed(why) => (ReplacementName::Failed, Some(why)),
            Replacement::Restarting => (ReplacementName::Restarting, None),
        };
        Self {
            hash: here.hash.map(|hash| hash.to_string()),
            version: here.version,
            architecture: here.architecture,
            path: here.path,
            by_members: here.by_members,
            replacement,
            failed,
        }
    }
}
