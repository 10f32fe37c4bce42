//! Parts put together into outputs: side by side, folded on the CPU, or folded by a user's shader
//! on a device.

use super::{
    clock::{PATIENCE, SubmissionClock},
    fit,
    fold::{Fold, fold},
    inputs::KernelInputs,
    kernels::DeviceKernels,
    parts::BindingParts,
};
use crate::{
    KernelPlan, load,
    plan::{Combine, Content, Extent, OutputPlan},
    tiles::Cells,
};
use bytes::Bytes;
use nodectl_builtin::{
    CallError,
    device::{self, failed},
};
use nodectl_formats::Array;
use nodectl_gpu::{
    device::{BufferBinding, Device, RecordingStep},
    shader::{BindingKind, Element},
};
use std::{collections::BTreeMap, sync::Arc, time::Duration};

pub struct Assembler {
    plan: Arc<KernelPlan>,
    /// By output, for those that a shader folds.
    shaders: BTreeMap<usize, ShaderFold>,
}

/// A user's shader that folds one part into another.
struct ShaderFold {
    device: Device,
    kernels: DeviceKernels,
    clock: SubmissionClock,
}

impl Assembler {
    pub fn new(plan: Arc<KernelPlan>) -> Result<Self, CallError> {
        let mut opened: Option<Device> = None;
        let mut shaders = BTreeMap::new();
        for (index, output) in plan.outputs.iter().enumerate() {
            if let Combine::Shader(shader) = &output.combine {
                let device = opened.take().map_or_else(device::open, Ok)?;
                let kernels = DeviceKernels::new(shader)?;
                shaders.insert(
                    index,
                    ShaderFold {
                        device: device.clone(),
                        kernels,
                        clock: SubmissionClock::start(),
                    },
                );
                opened = Some(device);
            }
        }
        Ok(Self { plan, shaders })
    }

    /// The outputs of a parameter set, in the plan's order, and how long a device was busy with
    /// them.
    pub fn run(
        &mut self,
        inputs: &KernelInputs<'_>,
        from: &str,
    ) -> Result<(Vec<Array>, Duration), CallError> {
        let plan = self.plan.clone();
        let from = inputs.dir.join(from);
        let (mut arrays, mut busy) = (Vec::with_capacity(plan.outputs.len()), Duration::ZERO);
        for (index, output) in plan.outputs.iter().enumerate() {
            let space = inputs.resolved.space;
            let parts = BindingParts {
                plan: &plan,
                space,
                from: from.clone(),
                set: inputs.set,
                binding: &output.binding,
            };
            arrays.push(match &output.combine {
                Combine::Concat => side_by_side(&plan, output, &parts)?,
                Combine::Sum => folded(Fold::Sum, &plan, &parts)?,
                Combine::Min => folded(Fold::Min, &plan, &parts)?,
                Combine::Max => folded(Fold::Max, &plan, &parts)?,
                Combine::Shader(_) => {
                    let shader = self
                        .shaders
                        .get_mut(&index)
                        .expect("`new` made one for each");
                    let array = shader.fold(plan.tile_count(), &parts)?;
                    busy += shader.clock.take_total();
                    array
                }
            });
        }
        Ok((arrays, busy))
    }
}

fn side_by_side(
    plan: &KernelPlan,
    output: &OutputPlan,
    parts: &BindingParts<'_>,
) -> Result<Array, CallError> {
    let over_cells = plan
        .binding(&output.binding)
        .is_some_and(|binding| match &binding.content {
            Content::Array(array) => matches!(array.extent, Extent::Cells { .. }),
            Content::Tile | Content::Uniform { .. } => false,
        });
    if over_cells {
        return parts
            .put_together(&Cells {
                origin: [0; 3],
                size: parts.space,
            })
            .map_err(|error| of(parts, &error));
    }
    if plan.tile_count() == 1 {
        return part(parts, 0);
    }
    Err(of(
        parts,
        &"an array that is not over the cells cannot be put together from the parts of tiles",
    ))
}

fn folded(how: Fold, plan: &KernelPlan, parts: &BindingParts<'_>) -> Result<Array, CallError> {
    let mut whole = part(parts, 0)?;
    for tile in 1..plan.tile_count() {
        let next = part(parts, tile)?;
        if next.info != whole.info {
            return Err(unlike(parts, tile, &whole, &next));
        }
        fold(how, whole.info.scalar, &mut whole.bytes, &next.bytes);
    }
    Ok(whole)
}

impl ShaderFold {
    fn fold(&mut self, tiles: u32, parts: &BindingParts<'_>) -> Result<Array, CallError> {
        let prepared = self.kernels.get(&self.device, &[])?;
        let element = |number: u32| -> Result<Element, CallError> {
            let found = prepared
                .entry
                .bindings
                .iter()
                .find(|binding| (binding.set, binding.binding) == (0, number));
            match found.map(|binding| &binding.kind) {
                Some(BindingKind::Storage { element, .. }) => Ok(*element),
                _ => Err(of(
                    parts,
                    &format!(
                        "the shader that combines its parts binds no storage at (0, {number})"
                    ),
                )),
            }
        };
        let (kept, added) = (element(0)?, element(1)?);
        let mut whole = part(parts, 0)?;
        let spread = load::to_elements(std::mem::take(&mut whole.bytes), kept);
        let count = spread.len() as u64 / u64::from(kept.stride.max(1));
        let invocations = u32::try_from(count).unwrap_or(u32::MAX);
        let most = self.device.info().limits.workgroup_count;
        let groups =
            fit::groups([invocations, 1, 1], prepared.entry.workgroup, most).ok_or_else(|| {
                of(
                    parts,
                    &format!("{count} elements are too many for a shader that combines them"),
                )
            })?;
        let accumulator = self.device.buffer(spread.len() as u64).map_err(failed)?;
        self.device
            .upload(&accumulator, 0, Bytes::from(spread))
            .wait(PATIENCE)
            .map_err(failed)?;
        for tile in 1..tiles {
            let next = part(parts, tile)?;
            if next.info != whole.info {
                return Err(unlike(parts, tile, &whole, &next));
            }
            let bytes = load::to_elements(next.bytes, added);
            let buffer = self.device.buffer(bytes.len() as u64).map_err(failed)?;
            self.device
                .upload(&buffer, 0, Bytes::from(bytes))
                .wait(PATIENCE)
                .map_err(failed)?;
            let bindings = vec![
                BufferBinding::whole(0, &accumulator),
                BufferBinding::whole(1, &buffer),
            ];
            let step = RecordingStep::Dispatch {
                kernel: prepared.kernel.clone(),
                bindings,
                push: Vec::new(),
                groups,
            };
            let recording = self.device.record(vec![step]).map_err(failed)?;
            let run = self.clock.watch(self.device.run(&recording), 0);
            self.clock.wait(run).map_err(failed)?;
        }
        let bytes = self
            .device
            .download(&accumulator, 0..accumulator.bytes())
            .wait(PATIENCE)
            .map_err(failed)?;
        whole.bytes = load::from_elements(bytes, kept);
        Ok(whole)
    }
}

fn part(parts: &BindingParts<'_>, tile: u32) -> Result<Array, CallError> {
    parts
        .location(tile)
        .read()
        .map_err(|error| of(parts, &error))
}

fn unlike(parts: &BindingParts<'_>, tile: u32, first: &Array, other: &Array) -> CallError {
    of(
        parts,
        &format!(
            "the part of tile {tile} is {:?}, that of tile 0 {:?}",
            other.info, first.info
        ),
    )
}

fn of(parts: &BindingParts<'_>, problem: &dyn std::fmt::Display) -> CallError {
    CallError::Task(format!("`{}`: {problem}", parts.binding))
}
