//! nodectl: one binary that turns the machines of a lab into a GPU cluster. ARCHITECTURE.md has the
//! layers.
//!
//! Each module is a crate of its own; here they have the names by which tests and benches call
//! them.

pub use nodectl_app as app;
pub use nodectl_azint as azint;
pub use nodectl_builtin as builtin;
pub use nodectl_cli as cli;
pub use nodectl_formats as formats;
pub use nodectl_gpu as gpu;
pub use nodectl_http as http;
pub use nodectl_jobfile as jobfile;
pub use nodectl_kernel as kernel;
pub use nodectl_launch as launch;
pub use nodectl_logic as logic;
pub use nodectl_net as net;
pub use nodectl_node as node;
pub use nodectl_plot as plot;
pub use nodectl_pool as pool;
pub use nodectl_pool_logic as pool_logic;
pub use nodectl_ports as ports;
pub use nodectl_pserver as pserver;
pub use nodectl_pserver_logic as pserver_logic;
pub use nodectl_store as store;
pub use nodectl_train as train;
pub use nodectl_types as types;
pub use nodectl_ui as ui;
pub use nodectl_wire as wire;
pub use nodectl_worker as worker;
pub use nodectl_workloads as workloads;
