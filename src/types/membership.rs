//! The packets of the membership protocol (`logic/members/swim.rs`). They ride the control channel,
//! so whoever sent one is known.

use super::NodeId;
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, net::SocketAddr};

/// What a member says to another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Packet {
    /// The sender's own. It rises with every start of a node, and whenever the node has to object
    /// to its death: what is said of a node counts for its incarnation and earlier ones.
    pub incarnation: u64,
    /// How slow the sender finds itself to be: 0 is well.
    pub slowness: u8,
    pub census: Census,
    pub body: Body,
    pub news: Vec<News>,
}

/// Who is alive, as the sender knows it, itself included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Census {
    pub members: u32,
    /// Of their ids and incarnations: equal for equal ones.
    pub digest: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Body {
    /// Only news.
    Gossip,
    /// Answered with `Ack` of the same number.
    Ping { number: u64 },
    /// Whoever was asked about, or who was pinged, lives.
    Ack { number: u64 },
    /// Asks the receiver to ping another member: `Ack` follows, or `Nack`.
    PingFor { number: u64, target: NodeId },
    /// The sender of a `PingFor` is heard, but its target is silent.
    Nack { number: u64 },
    /// The sender introduces itself. `answer`: the receiver is to do so, too.
    Join {
        addrs: Vec<SocketAddr>,
        answer: bool,
    },
    /// Asks for all live members, as news.
    Feed,
}

/// Something about one member. The greater incarnation counts; of one incarnation, `Suspect` counts
/// more than `Alive`, and `Down` more than both.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum News {
    Alive {
        node: NodeId,
        incarnation: u64,
        addrs: Vec<SocketAddr>,
    },
    /// The node did not answer `by`.
    Suspect {
        node: NodeId,
        incarnation: u64,
        by: NodeId,
    },
    Down {
        node: NodeId,
        incarnation: u64,
    },
}

impl News {
    pub fn node(&self) -> NodeId {
        match self {
            Self::Alive { node, .. } | Self::Suspect { node, .. } | Self::Down { node, .. } => {
                *node
            }
        }
    }
}

/// What a node remembers of one that it has met, in this life or in an earlier one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberRecord {
    /// How it was called last; empty if it never said.
    pub name: String,
    /// The latest incarnation that is known of.
    pub incarnation: u64,
    /// In that incarnation it said goodbye. One that was killed may be back at any time.
    pub left: bool,
}

/// What a node remembers of all that it has met, at most `limits::MAX_ELECTORS`.
pub type MemberRecords = BTreeMap<NodeId, MemberRecord>;

impl MemberRecord {
    /// Takes in what is known elsewhere: the later incarnation counts, and of one the goodbye.
    pub fn merge(&mut self, other: Self) {
        let key = |record: &Self| (record.incarnation, record.left);
        if key(&other) > key(self) {
            *self = other;
        }
    }
}
