//! Ways to find peers that need no libp2p: our own beacon, peers remembered from last time, peers named by the user. (mDNS
//! and Kademlia are behaviours of the swarm.) All at once, each on its own; whatever is found is a hint to the driver,
//! which noise and the control channel's hello verify. It must not connect by itself.
//!
//! | file | owns |
//! |---|---|
//! | `beacon` | the sealed packet: bytes only |
//! | `sockets` | UDP: loopback, every broadcast domain, IPv6 link-local multicast |
//! | `announce` | when to send, whom to answer, counting those with another secret |
//! | `remembered` | the file of peers that were connected |
//! | `targets` | `--peer HOST:PORT` |

mod announce;
pub(super) mod beacon;
mod remembered;
mod sockets;
mod targets;

pub use announce::start;
pub use remembered::Remembered;
pub use targets::start as start_targets;
