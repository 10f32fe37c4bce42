//! The process of a built-in worker: this program, started by a node to be called as a Python
//! worker is (`wire::frames`). Owns the stream to the node and the device that tasks compute on;
//! what a call means is a `BuiltinPart`'s business. Start reading at `serve`.
//!
//! | file | owns |
//! |---|---|
//! | `serve` | calls of the node, answered one after the other |
//! | `device` | which device a worker opens |

pub mod device;
mod serve;

pub use serve::{BuiltinPart, Call, CallError, serve};
