//! What the swarm is told at its start, and why a start can fail. Plain data; no IO.

use nodectl_types::limits;
use serde::{Deserialize, Serialize};
use std::{fmt, io, path::PathBuf};

/// The UDP port on which nodes announce themselves.
pub const DEFAULT_BEACON_PORT: u16 = 7337;

/// How the swarm is to run.
#[derive(Clone, Debug)]
pub struct NetConfig {
    /// Where remembered peers are kept.
    pub data_dir: PathBuf,
    /// The node's name, told in beacons.
    pub node_name: String,
    /// The build's version, told to peers and in the log of a refused one.
    pub software: String,
    /// TCP port of the swarm; 0 takes a free one.
    pub listen_port: u16,
    /// TCP port of blob transfers; 0 takes a free one.
    pub bulk_port: u16,
    /// UDP port of the beacon; 0 turns it off.
    pub beacon_port: u16,
    /// Names of the interfaces to announce on and be reached at; empty for all but virtual bridges.
    pub interfaces: Vec<String>,
    /// `HOST:PORT` of peers to try until one of them answers.
    pub peers: Vec<String>,
    pub mdns: bool,
    pub kademlia: bool,
    /// The versions spoken to peers. Anything but the default is for tests of the choice.
    pub versions: Versions,
}

/// The protocol versions that a node speaks. Two nodes use the newest that both do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Versions {
    pub oldest: u32,
    pub newest: u32,
}

impl Versions {
    pub const SPOKEN: Self = Self {
        oldest: limits::OLDEST_PROTOCOL_VERSION,
        newest: limits::PROTOCOL_VERSION,
    };

    /// The one to speak with a node of these.
    pub fn common(self, other: Self) -> Option<u32> {
        let newest = self.newest.min(other.newest);
        (newest >= self.oldest.max(other.oldest)).then_some(newest)
    }
}

impl fmt::Display for Versions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.oldest == self.newest {
            return write!(f, "version {}", self.newest);
        }
        write!(f, "versions {} to {}", self.oldest, self.newest)
    }
}

impl NetConfig {
    /// Everything on, every port but the beacon's free.
    pub fn new(data_dir: PathBuf, node_name: String) -> Self {
        Self {
            data_dir,
            node_name,
            software: env!("CARGO_PKG_VERSION").to_string(),
            listen_port: 0,
            bulk_port: 0,
            beacon_port: DEFAULT_BEACON_PORT,
            interfaces: Vec::new(),
            peers: Vec::new(),
            mdns: true,
            kademlia: true,
            versions: Versions::SPOKEN,
        }
    }
}

/// Why the swarm did not start.
#[derive(Debug, thiserror::Error)]
pub enum NetError {
    #[error(
        "cannot listen on TCP port {port}: {source}\nhint: another program has it, or it needs privileges; choose another \
         port, or 0 for any free one"
    )]
    Listen { port: u16, source: io::Error },
    #[error("no interface is named `{name}`\nhint: this machine has {have}")]
    NoInterface { name: String, have: String },
    #[error("cannot read this machine's interfaces: {0}")]
    Interfaces(io::Error),
    #[error(
        "the list of who belongs to the cluster (`membership` in the data directory) cannot be read: {0}\nhint: if it is damaged, remove \
             it: other nodes send it again; if the cluster's secret was changed meanwhile, `join` has to be given the new one"
    )]
    Membership(io::Error),
    #[error("cannot listen for other nodes: {0}")]
    Swarm(String),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_common_version_is_spoken() {
        let versions = |oldest, newest| Versions { oldest, newest };
        assert_eq!(versions(5, 5).common(versions(5, 5)), Some(5));
        assert_eq!(versions(5, 6).common(versions(5, 5)), Some(5));
        assert_eq!(versions(3, 6).common(versions(5, 9)), Some(6));
        assert_eq!(versions(6, 6).common(versions(5, 5)), None);
        // Said by somebody who makes no sense.
        assert_eq!(versions(9, 1).common(versions(5, 5)), None);
        assert_eq!(
            versions(5, 6).to_string() + "; " + &versions(5, 5).to_string(),
            "versions 5 to 6; version 5"
        );
    }
}
