//! Ways to find peers that need no libp2p: our own beacon, by broadcast and by mDNS, peers
//! remembered from last time, peers named by the user. (Kademlia is a behaviour of the swarm.) All
//! at once, each on its own; whatever is found is a hint to the driver, which the handshake and the
//! control channel's hello verify. It must not connect by itself.
//!
//! | file | owns |
//! |---|---|
//! | `beacon` | the sealed packet: bytes only |
//! | `mdns` | the same as an announcement of mDNS: bytes only |
//! | `sockets` | UDP: loopback, every broadcast domain, IPv6 link-local multicast, mDNS's group |
//! | `announce` | when to send, whom to answer, counting those with another secret |
//! | `remembered` | the file of peers that were connected |
//! | `targets` | `--peer HOST:PORT` |

mod announce;
pub(super) mod beacon;
pub(super) mod mdns;
pub(super) mod remembered;
pub(super) mod sockets;
mod targets;

pub use announce::start;
pub use remembered::Remembered;
pub use targets::{resolve, start as start_targets};
