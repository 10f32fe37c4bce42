//! The swarm: who is out there, an encrypted connection to each of them, and sealed streams for blobs. An adapter: it
//! turns `ports::Network` and `ports::BlobFetcher` calls into packets, and packets into `ports::Event`s. It decides
//! nothing about membership, jobs or trust beyond "has the secret and speaks our version".
//!
//! | file | owns |
//! |---|---|
//! | `config` | `NetConfig`, `NetError`: what the swarm is told, what can go wrong at start |
//! | `identity` | the node's ed25519 key on disk; `NodeId` and `PeerId` |
//! | `secret` | the cluster's secret: generating, judging, deriving every key from it |
//! | `interfaces` | this machine's interfaces and addresses |
//! | `offline` | a network of nobody, for a node that is its own cluster |
//! | `swarm/` | libp2p: connections, the control channel, dialing, death notices |
//! | `discovery/` | the UDP beacon, remembered peers, `--peer` |
//! | `fuzz` | the decoders of outside bytes, for fuzzing |
//! | `bulk/` | blobs over direct AES-256-GCM streams |

mod bulk;
mod config;
mod discovery;
#[doc(hidden)]
pub mod fuzz;
mod identity;
mod interfaces;
mod offline;
mod secret;
mod swarm;

pub use config::{DEFAULT_BEACON_PORT, NetConfig, NetError};
pub use identity::{Identity, IdentityError};
pub use offline::Offline;
pub use secret::{Keys, Secret, SecretError};
pub use swarm::{Net, start};

#[cfg(test)]
mod tests;
