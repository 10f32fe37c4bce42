//! What a job file's shader binds, for programs that write job files: the Python package.

use super::program::{KernelProgram, TILE};
use nodectl_gpu::shader::BindingKind;
use nodectl_jobfile::{Fault, Fields};
use nodectl_types::Scalar;
use serde::Serialize;

/// The entry point that a job file names.
#[derive(Debug, Serialize)]
pub struct Interface {
    pub entry: String,
    /// Whether it declares `tile`.
    pub tiled: bool,
    /// The storage buffers, by set and binding.
    pub arrays: Vec<InterfaceArray>,
}

#[derive(Debug, Serialize)]
pub struct InterfaceArray {
    pub name: String,
    /// As in job files, e.g. `f32`.
    #[serde(rename = "type")]
    pub scalar: &'static str,
    /// Numbers of an element.
    pub components: u32,
    /// Whether the shader writes into the array.
    pub written: bool,
}

/// Of `shader` and `entry`; other keys are not looked at.
pub fn interface(fields: &Fields<'_, '_>) -> Result<Interface, Fault> {
    let program = KernelProgram::load(fields)?;
    let arrays = program
        .entry
        .bindings
        .iter()
        .filter_map(|binding| match &binding.kind {
            BindingKind::Storage {
                element,
                is_written,
                ..
            } => Some(InterfaceArray {
                name: binding.name.clone(),
                scalar: Scalar::name(element.scalar),
                components: element.components,
                written: *is_written,
            }),
            _ => None,
        });
    let tiled = program.binding(TILE).is_some();
    Ok(Interface {
        entry: program.entry.name.clone(),
        tiled,
        arrays: arrays.collect(),
    })
}
