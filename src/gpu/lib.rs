//! The machine's GPUs, found through Vulkan. Owns the only calls into Vulkan drivers; never makes
//! them inside the node's own process, because a driver may crash or hang.
//!
//! | file | owns |
//! |---|---|
//! | `probe` | which devices the drivers of this process offer, and why there are none |
//! | `child` | the same, and measuring, from a child process, with a deadline |
//! | `presence` | whether there may be one, before any driver has answered |
//! | `nvidia` | NVIDIA's driver where the Vulkan loader does not know of it |
//! | `measure` | how fast a GPU copies and multiplies |
//! | `shader/` | users' shaders, checked and described |
//! | `device` | one GPU: buffers, kernels, recordings, transfers; for worker processes |
//! | `ops` | library operations on the CPU and, through `device`, on GPUs |

mod child;
pub mod device;
mod measure;
mod nvidia;
pub mod ops;
mod presence;
mod probe;
pub mod shader;

pub use child::{
    PROBE_COMMAND, ask_in_child, main as probe_main, measure_in_child, probe_in_child,
};
pub use nvidia::module_version;
pub use presence::may_have_gpus;
pub use probe::{ProbeError, probe};
