//! Bytes that nobody reads or changes on their way: AES-256-GCM frames, whoever carries them. It
//! knows neither the swarm nor what is sent.
//!
//! | file | owns |
//! |---|---|
//! | `frames` | the frames, and whole transfers in one direction: bytes only |
//! | `duplex` | frames as a duplex stream |
//! | `halves` | its directions for threads that block |

mod duplex;
pub(super) mod frames;
pub(super) mod halves;

pub use duplex::{DirectionKeys, Sealed};
