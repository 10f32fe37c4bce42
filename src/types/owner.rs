//! The word of a machine's owner: who has it, and why the machine takes no work by it. It is kept
//! apart from what other members say, and its own node enforces it, whoever sends orders.

use super::{NodeId, Policy};
use serde::{Deserialize, Serialize};
use std::{collections::BTreeSet, fmt};

/// What the owner's settings say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Terms {
    /// False for a node that only submits.
    pub takes_work: bool,
    pub policy: Policy,
}

impl Default for Terms {
    fn default() -> Self {
        Self {
            takes_work: true,
            policy: Policy::default(),
        }
    }
}

/// What people said of a node, and of others at it, while it ran. The node's disk has it, so that
/// its next life knows it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OwnerWord {
    /// `nodectl drain`, by its owner.
    #[serde(default)]
    pub drained: bool,
    /// `nodectl pause`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pause: Option<Pause>,
    /// `nodectl forget`: nodes that are dead for good, as a person said, and have not come back
    /// since. At most `limits::MAX_FORGOTTEN`.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub forgotten: BTreeSet<NodeId>,
}

/// A while during which the machine is its owner's alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pause {
    /// By the machine's clock, in milliseconds since 1970; None until somebody ends it.
    pub until_ms: Option<u64>,
    /// Running tasks go on to their ends; else they stand still.
    pub finish: bool,
}

/// Why a node takes no work, by its owner's word.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Closed {
    /// `node.takes_work` is false.
    TakesNone,
    /// `nodectl drain`, said at the node itself.
    Drained,
    /// `nodectl pause`.
    Paused(Pause),
    /// `node.policy` is to be looked at first.
    Looking,
    /// The hour is not one of `node.policy.hours`.
    Hours,
    /// Somebody types (`node.policy.only_when_idle`).
    Keyboard,
    /// Other programs keep it busy.
    Busy,
}

impl Closed {
    /// For as long as nobody changes it, and not for a while only.
    pub fn is_lasting(&self) -> bool {
        matches!(self, Self::TakesNone | Self::Drained)
    }
}

/// The rest of a sentence that begins with the node.
impl fmt::Display for Closed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TakesNone => f.write_str("takes no work (node.takes_work)"),
            Self::Drained => f.write_str("was drained by its owner"),
            Self::Paused(_) => f.write_str("was paused by its owner"),
            Self::Looking => f.write_str("looks whether somebody uses it (node.policy)"),
            Self::Hours => f.write_str("takes no work at this hour (node.policy.hours)"),
            Self::Keyboard => {
                f.write_str("is in use: somebody is at its keyboard (node.policy.only_when_idle)")
            }
            Self::Busy => {
                f.write_str("is in use: its own programs keep it busy (node.policy.only_when_idle)")
            }
        }
    }
}
