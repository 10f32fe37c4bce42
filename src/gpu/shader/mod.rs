//! Users' shaders: WGSL or SPIR-V in, validated SPIR-V and a description of what it needs out. Touches no driver.
//!
//! | file | owns |
//! |---|---|
//! | `reflect` | what an entry point binds and needs |

mod reflect;

pub use reflect::{Element, Language};
