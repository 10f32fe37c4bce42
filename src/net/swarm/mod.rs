//! libp2p: private, authenticated connections to every member, one control channel each, and the
//! discovery that libp2p brings (mDNS, Kademlia). `driver` owns the swarm. It knows of blobs and
//! services only that peers open streams for them.
//!
//! | file | owns |
//! |---|---|
//! | `driver` | the one task that owns the swarm |
//! | `links` | connections, duplicates, which of them carries the session |
//! | `session` | the control channel with one peer |
//! | `hello` | its bytes |
//! | `streams` | opening and accepting streams on a given connection |
//! | `handshake` | who may speak at all: noise with the cluster's key |
//! | `transport` | the layers under a connection, the behaviours over it |
//! | `relays` | circuits through other nodes, where two cannot dial each other |
//! | `book` | addresses, back-off |
//! | `probe` | is the process gone? |
//! | `shared` | what the tasks share |
//! | `convert` | libp2p's addresses and errors, for people |

mod book;
pub(super) mod convert;
pub(super) mod driver;
pub(super) mod handshake;
pub(super) mod hello;
mod links;
mod probe;
mod relays;
mod session;
pub(super) mod shared;
pub(super) mod streams;
pub(super) mod transport;
