//! The local API: HTTP and JSON on a Unix socket that its owner may open, and others where its
//! owner says so, and the client that the command line uses. It turns requests into `Query`s for
//! the node's loop and answers into `wire::api` types; it decides nothing and keeps no state but a
//! small cache of specifications and of rankings. Every stream is pulled by its reader: nothing
//! piles up here.
//!
//! | file | owns |
//! |---|---|
//! | `server` | the socket, serving until told to stop |
//! | `state` | what the API needs of its node, what handlers share |
//! | `routes` | which path goes to which handler |
//! | `caller` | who asks, and what of others' they may touch |
//! | `audit` | notes of what users did |
//! | `error` | what refusals look like |
//! | `extract` | reading path, query string and body |
//! | `resolve` | jobs and nodes as people name them |
//! | `cluster` | nodes, devices, drain, leave |
//! | `events` | what happened in the cluster |
//! | `history` | a node's load over time |
//! | `launches` | what was launched from this machine |
//! | `metrics/` | the node as Prometheus is told of it |
//! | `jobs` | jobs and tasks: list, submit, cancel, retry, explain |
//! | `extend` | more parameter sets of a job |
//! | `entries` | entries that users append to logs |
//! | `rows` | tasks that users add to open jobs |
//! | `results` | pages and streams of results, and single ones |
//! | `ranking` | results sorted by what they hold |
//! | `specs` | the specifications of jobs lately read, for the parameters of their tasks |
//! | `logs` | what tasks write |
//! | `pools` | handing a client's stream to its pool |
//! | `blobs` | files in and out |
//! | `program` | the program that a node runs, and another in its place |
//! | `secrets` | named secrets |
//! | `doctor` | findings about the swarm |
//! | `openapi` | the description of all this |
//! | `client` | the same from the other side |

mod audit;
mod blobs;
mod caller;
pub mod client;
mod cluster;
mod doctor;
mod entries;
mod error;
mod events;
mod extend;
mod extract;
mod history;
mod jobs;
mod launches;
mod logs;
mod membership;
mod metrics;
pub mod openapi;
mod pools;
mod program;
mod ranking;
mod resolve;
mod results;
mod routes;
mod rows;
mod secrets;
mod server;
mod specs;
mod state;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;

// For `testing`, which names the crate from outside.
#[cfg(test)]
extern crate self as nodectl_http;

pub use caller::UserAccess;
pub use client::{Client, ClientError};
pub use server::{ServeError, bind, bind_shared, serve, socket_path};
pub use state::{Api, KeepsOut, NodeFacts};
