//! What the swarm is told at its start, and why a start can fail. Plain data; no IO.

use crate::types::limits;
use std::{io, path::PathBuf};

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
    /// The version spoken to peers. Anything but the default is for tests of the refusal.
    pub protocol_version: u32,
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
            protocol_version: limits::PROTOCOL_VERSION,
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
    #[error("the swarm cannot listen: {0}")]
    Swarm(String),
}
