//! Bytes that leave the process: control messages between nodes, journal records on disk, JSON of
//! the local API. Each format is versioned, its decoder checks sizes before it allocates, and
//! golden tests hold its bytes.
//!
//! | file | owns |
//! |---|---|
//! | `control` | messages between nodes: encode, decode, validate |
//! | `journal` | records on disk |
//! | `former` | the same, as the version before had them |
//! | `api` | the JSON of the local HTTP API |
//! | `retention` | what is remembered of ended jobs, on disk |
//! | `beginnings` | what was said about who votes first on logs, on disk |
//! | `members` | whom a node has met, on disk |
//! | `secrets` | named secrets, on disk |
//! | `frames` | streams to Python workers and pools |
//! | `golden` | tests that hold the bytes of the binary formats |

pub mod api;
pub mod beginnings;
pub mod control;
mod former;
pub mod frames;
pub mod journal;
pub mod members;
pub mod retention;
pub mod secrets;

#[cfg(test)]
mod golden;
