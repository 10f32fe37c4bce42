//! Users' shaders: WGSL or SPIR-V in, validated SPIR-V and a description of what it needs out.
//! Touches no driver.
//!
//! WGSL is compiled with every check on: indices out of bounds read zero and write nothing (in a
//! shader with atomics on arrays they become some index within), workgroup memory begins as zeros,
//! loops are bounded, integer division by zero is defined. SPIR-V is handed on as it is, once it
//! has been understood.
//!
//! | file | owns |
//! |---|---|
//! | `parse` | text or words to a validated module, with errors that point into the text |
//! | `nesting` | how deep a text's expressions are, before it is parsed |
//! | `glsl` | GLSL to SPIR-V |
//! | `reflect` | what an entry point binds and needs |
//! | `layout` | where the numbers of uniforms and array elements lie |
//! | `compile` | values for constants; SPIR-V |

mod compile;
pub mod glsl;
mod layout;
mod nesting;
mod parse;
mod reflect;
#[cfg(test)]
mod tests;

pub use compile::{Compiled, ShaderChecks};
pub use layout::{Element, Field};
pub use parse::{Language, Shader, ShaderError};
pub use reflect::{Binding, BindingKind, EntryPoint, Feature, SpecializationConstant};
