//! nodectl: one binary that turns the machines of a lab into a GPU cluster. ARCHITECTURE.md has the layers.

pub mod app;
pub mod cli;
pub mod gpu;
pub mod http;
pub mod logic;
pub mod net;
pub mod node;
pub mod params;
pub mod pool;
pub mod ports;
pub mod store;
pub mod types;
pub mod wire;
pub mod worker;
pub mod workloads;
