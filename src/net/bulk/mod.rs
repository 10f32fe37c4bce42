//! Blobs between nodes. The swarm's connection is shared by all streams of a pair, so bulk bytes do
//! not ride it: over it the requester asks, and the holder answers with a one-time ticket, a fresh
//! key and a TCP port. The requester connects there directly, shows the ticket, and gets the blob
//! as AES-256-GCM frames (`sealed/`). Where a firewall forbids that, the holder connects to the
//! requester, or the same frames come over the swarm. Nothing is sent in clear, no ticket works
//! twice.
//!
//! | file | owns |
//! |---|---|
//! | `offer` | question and answer over the swarm: bytes only |
//! | `tickets` | what was promised to whom, for how long |
//! | `reach` | who connects to whom |
//! | `serve` | the holder's side |
//! | `fetch` | the requester's side: holders in turn, resuming, one transfer a blob |
//! | `streams` | streams to other nodes' pools, on the same way |
//! | `blocking` | a swarm's stream as a blocking reader and writer |

mod blocking;
mod fetch;
pub(super) mod offer;
mod reach;
pub(super) mod serve;
pub(super) mod streams;
mod tickets;

pub use fetch::Fetcher;
pub use serve::Server;
