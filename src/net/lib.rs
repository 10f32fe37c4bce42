//! The swarm: who is out there, an encrypted connection to each of them, and sealed streams for
//! blobs. An adapter: it turns `ports::Network` and `ports::BlobFetcher` calls into packets, and
//! packets into `ports::Event`s. It decides nothing about membership, jobs or trust beyond "has the
//! secret and speaks our version".
//!
//! | file | owns |
//! |---|---|
//! | `config` | `NetConfig`, `NetError`: what the swarm is told, what can go wrong at start |
//! | `identity` | the node's ed25519 key on disk; `NodeId` and `PeerId` |
//! | `place` | where its file lies: copies told from the original |
//! | `secret` | the cluster's secret: generating, deriving every key from it |
//! | `strength` | how much guessing a secret withstands |
//! | `access` | who may connect, with which key |
//! | `kept` | what of that is on disk |
//! | `invite` | a code in place of the secret, for one node |
//! | `attack` | the handshake as a stranger tries it, for tests |
//! | `gate` | room for connections of strangers |
//! | `interfaces` | this machine's interfaces and addresses |
//! | `offline` | a network of nobody, for a node that is its own cluster |
//! | `start` | opening the swarm with all around it; `Net`, which implements the ports |
//! | `swarm/` | libp2p: connections, the control channel, dialing, death notices |
//! | `discovery/` | the UDP beacon, remembered peers, `--peer` |
//! | `fuzz` | the decoders of outside bytes, for fuzzing |
//! | `bulk/` | blobs, and streams to services, on direct connections |
//! | `sealed/` | AES-256-GCM frames |
//! | `route` | the way that bulk bytes took to a peer last |

mod access;
#[doc(hidden)]
pub mod attack;
mod bulk;
mod config;
mod discovery;
#[doc(hidden)]
pub mod fuzz;
mod gate;
mod identity;
mod interfaces;
mod invite;
mod kept;
mod offline;
mod place;
mod route;
mod sealed;
mod secret;
mod start;
mod strength;
mod swarm;

pub use config::{DEFAULT_BEACON_PORT, NetConfig, NetError, Versions};
pub use identity::{Claim, Identity, IdentityError};
pub use invite::{InviteError, redeem};
pub use kept::{changed_secret, replacement};
pub use offline::Offline;
pub use secret::{Keys, Secret, SecretError};
pub use start::{KeptFetcher, Net, NetBlobs, start};

#[cfg(test)]
mod tests;
