//! The local API from the other side: typed calls over the Unix socket. One connection a request:
//! they cost a few microseconds, and requests run side by side without waiting for each other.
//!
//! | file | owns |
//! |---|---|
//! | `transport` | a request and its answer over a fresh connection |
//! | `calls` | one method a route |
//! | `error` | why a call failed |

mod calls;
mod error;
mod transport;

pub use calls::{LogRequest, SubmissionKey};
pub use error::ClientError;
pub use transport::{ByteStream, Client};
