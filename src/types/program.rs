//! The program that a node runs, and its replacement by another one.

use super::BlobHash;
use serde::{Deserialize, Serialize};

/// What a node says of the program that it runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProgramHere {
    /// The hash of the program's file; None until the node has worked it out.
    pub hash: Option<BlobHash>,
    /// As `nodectl --version` says it.
    pub version: String,
    /// The machine's architecture, as uname(2) says it.
    pub architecture: String,
    /// Where the program's file is on the node's machine.
    pub path: String,
    /// Whether the owner lets other members replace it (`node.upgrade_by_members`).
    pub by_members: bool,
    pub replacement: Replacement,
}

/// How far a node is with replacing its program. A node that has done it begins a new life.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Replacement {
    /// Nobody has asked for it in this life of the node.
    #[default]
    None,
    /// The file is being brought, checked and put into the place of the old one.
    Preparing,
    /// The program could not be replaced, and why; the node goes on with the old program.
    Failed(String),
    /// The node leaves, and comes back with the new program.
    Restarting,
}
