//! Kernels: compiled compute pipelines, and what they expect to be bound. Compiled once for each
//! content.

use super::{
    DeviceError, DeviceInfo,
    cut::KernelId,
    error::refused,
    pipeline,
    reflect::{self, Buffers},
};
use half::f16;
use std::{
    collections::HashMap,
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Mutex},
};
use vulkano::{
    Validated, VulkanError,
    descriptor_set::layout::DescriptorType,
    device::{Device, DeviceOwned},
    pipeline::{
        ComputePipeline, PipelineLayout, PipelineShaderStageCreateInfo,
        compute::ComputePipelineCreateInfo, layout::PipelineDescriptorSetLayoutCreateInfo,
    },
    shader::{
        EntryPoint, ShaderModule, ShaderModuleCreateInfo, SpecializationConstant,
        spirv::{ExecutionMode, ExecutionModel, Instruction, Spirv},
    },
};

/// How many compiled kernels a device keeps for those who ask again. Those in use stay whatever
/// their number.
const MAX_KEPT: usize = 256;

/// A compute shader to be compiled.
#[derive(Clone, Copy, Debug)]
pub struct KernelSource<'a> {
    pub spirv: &'a [u32],
    /// The entry point's name.
    pub entry: &'a str,
    /// Specialization constants by their id. Others keep the shader's defaults.
    pub constants: &'a [(u32, Constant)],
    /// What errors call it.
    pub name: &'a str,
}

/// The value of a specialization constant. Its type must be the one that the shader declares.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Constant {
    Bool(bool),
    U8(u8),
    U16(u16),
    U32(u32),
    U64(u64),
    I8(i8),
    I16(i16),
    I32(i32),
    I64(i64),
    F16(f16),
    F32(f32),
    F64(f64),
}

/// A compiled kernel. Clones name the same one.
#[derive(Clone)]
pub struct Kernel(pub(super) Arc<CompiledKernel>);

pub(super) struct CompiledKernel {
    pub(super) name: String,
    pub(super) pipeline: Arc<ComputePipeline>,
    pub(super) layout: Arc<PipelineLayout>,
    /// What must be bound, by set and binding.
    pub(super) buffers: Buffers,
    /// Bytes of push constants.
    pub(super) push_bytes: u32,
    workgroup: [u32; 3],
    /// What is learned of it goes by this.
    pub(super) id: KernelId,
    /// Whether its workgroups may be dispatched by and by: it does not ask how many there are.
    pub(super) divides: bool,
}

impl Kernel {
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Invocations of a workgroup in each dimension, as the shader declares; 0 where a
    /// specialization constant says it in a form that is not followed.
    pub fn workgroup(&self) -> [u32; 3] {
        self.0.workgroup
    }

    pub(super) fn device(&self) -> &Arc<Device> {
        self.0.pipeline.device()
    }
}

impl fmt::Debug for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Kernel {{ name: {:?}, workgroup: {:?} }}",
            self.0.name, self.0.workgroup
        )
    }
}

/// The kernels that were compiled before, by the hash of all that makes them.
#[derive(Default)]
pub(super) struct Kernels {
    by_content: Mutex<HashMap<blake3::Hash, Kernel>>,
}

impl Kernels {
    /// Compiles, or finds what was compiled from the same source before.
    pub(super) fn get(
        &self,
        device: &Arc<Device>,
        info: &DeviceInfo,
        source: &KernelSource<'_>,
    ) -> Result<Kernel, DeviceError> {
        let hash = content(source);
        if let Some(kernel) = self.known().get(&hash) {
            return Ok(kernel.clone());
        }
        // The module's parser was not made for hostile input.
        let compiled = catch_unwind(AssertUnwindSafe(|| compile(device, info, source, hash)));
        let compiled =
            compiled.unwrap_or_else(|_| Err(DeviceError::invalid("its SPIR-V is malformed")));
        let kernel = compiled.map_err(|error| named(source.name, error))?;
        let mut known = self.known();
        if known.len() >= MAX_KEPT {
            known.retain(|_, kernel| Arc::strong_count(&kernel.0) > 1);
        }
        if known.len() < MAX_KEPT {
            known.insert(hash, kernel.clone());
        }
        Ok(kernel)
    }

    fn known(&self) -> std::sync::MutexGuard<'_, HashMap<blake3::Hash, Kernel>> {
        self.by_content
            .lock()
            .expect("no code panics while it holds this lock")
    }
}

fn named(name: &str, error: DeviceError) -> DeviceError {
    match error {
        DeviceError::Invalid(why) => DeviceError::Invalid(format!("kernel `{name}`: {why}")),
        other => other,
    }
}

fn content(source: &KernelSource<'_>) -> blake3::Hash {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&(source.spirv.len() as u64).to_le_bytes());
    hasher.update(bytemuck::cast_slice(source.spirv));
    hasher.update(&(source.entry.len() as u64).to_le_bytes());
    hasher.update(source.entry.as_bytes());
    for (id, value) in source.constants {
        hasher.update(format!("{id}={value:?};").as_bytes());
    }
    hasher.update(source.name.as_bytes());
    hasher.finalize()
}

fn compile(
    device: &Arc<Device>,
    info: &DeviceInfo,
    source: &KernelSource<'_>,
    hash: blake3::Hash,
) -> Result<Kernel, DeviceError> {
    let spirv =
        Spirv::new(source.spirv).map_err(|error| match std::error::Error::source(&error) {
            Some(why) => DeviceError::Invalid(format!("its SPIR-V cannot be read: {error} {why}")),
            None => DeviceError::Invalid(format!("its SPIR-V cannot be read: {error}")),
        })?;
    // SAFETY: the SPIR-V comes from naga, was validated by it, or was committed with this program;
    // what is bound and dispatched is checked against its declarations.
    let module =
        unsafe { ShaderModule::new(device.clone(), ShaderModuleCreateInfo::new(source.spirv)) };
    let module = module.map_err(refused::<Validated<VulkanError>>("the driver refuses it"))?;
    let entry = entry_point(&module, source)?;
    let workgroup = workgroup(&spirv, source.entry);
    check_workgroup(workgroup, info)?;
    let (buffers, push_bytes) = interface(&spirv, &entry, info)?;
    let stage = PipelineShaderStageCreateInfo::new(entry);
    let layouts = PipelineDescriptorSetLayoutCreateInfo::from_stages([&stage]);
    let layouts = layouts
        .into_pipeline_layout_create_info(device.clone())
        .map_err(|error| refused("its bindings")(error.error))?;
    let layout = PipelineLayout::new(device.clone(), layouts)
        .map_err(refused::<Validated<VulkanError>>("its bindings"))?;
    let divides = !reflect::asks_for_count(&spirv);
    let entry = stage.entry_point.clone();
    let create = ComputePipelineCreateInfo::stage_layout(stage, layout.clone());
    let pipeline = match divides {
        true => pipeline::divisible(&entry, create).map_err(Validated::Error),
        false => ComputePipeline::new(device.clone(), None, create),
    };
    let pipeline = pipeline.map_err(refused::<Validated<VulkanError>>(
        "the driver cannot compile it",
    ))?;
    Ok(Kernel(Arc::new(CompiledKernel {
        name: source.name.into(),
        pipeline,
        layout,
        buffers,
        push_bytes,
        workgroup,
        id: hash.as_bytes()[..16].try_into().expect("16 of 32 bytes"),
        divides,
    })))
}

fn entry_point(
    module: &Arc<ShaderModule>,
    source: &KernelSource<'_>,
) -> Result<EntryPoint, DeviceError> {
    let declared = module.specialization_constants();
    for (id, value) in source.constants {
        let value = specialization(*value);
        match declared.get(id) {
            None => {
                let mut known: Vec<_> = declared.keys().collect();
                known.sort();
                return Err(DeviceError::Invalid(format!(
                    "it has no specialization constant {id}; it has {known:?}"
                )));
            }
            Some(default) if !default.eq_type(&value) => {
                return Err(DeviceError::Invalid(format!(
                    "specialization constant {id} is {value:?}, and its default is {default:?}: the types differ"
                )));
            }
            Some(_) => {}
        }
    }
    let values = source
        .constants
        .iter()
        .map(|(id, value)| (*id, specialization(*value)))
        .collect();
    let module = module.specialize(values).map_err(DeviceError::invalid)?;
    module
        .entry_point_with_execution(source.entry, ExecutionModel::GLCompute)
        .ok_or_else(|| {
            DeviceError::Invalid(format!("it has no compute entry point `{}`", source.entry))
        })
}

fn specialization(constant: Constant) -> SpecializationConstant {
    match constant {
        Constant::Bool(value) => SpecializationConstant::Bool(value),
        Constant::U8(value) => SpecializationConstant::U8(value),
        Constant::U16(value) => SpecializationConstant::U16(value),
        Constant::U32(value) => SpecializationConstant::U32(value),
        Constant::U64(value) => SpecializationConstant::U64(value),
        Constant::I8(value) => SpecializationConstant::I8(value),
        Constant::I16(value) => SpecializationConstant::I16(value),
        Constant::I32(value) => SpecializationConstant::I32(value),
        Constant::I64(value) => SpecializationConstant::I64(value),
        Constant::F16(value) => SpecializationConstant::F16(value),
        Constant::F32(value) => SpecializationConstant::F32(value),
        Constant::F64(value) => SpecializationConstant::F64(value),
    }
}

/// What the entry point uses.
fn interface(
    spirv: &Spirv,
    entry: &EntryPoint,
    info: &DeviceInfo,
) -> Result<(Buffers, u32), DeviceError> {
    let declared = reflect::buffers(spirv);
    let mut buffers = Buffers::new();
    for ((set, binding), needs) in &entry.info().descriptor_binding_requirements {
        let is_buffer = needs.descriptor_types.iter().any(|kind| {
            matches!(
                kind,
                DescriptorType::StorageBuffer | DescriptorType::UniformBuffer
            )
        });
        match declared.get(&(*set, *binding)) {
            Some(buffer) if is_buffer && needs.descriptor_count == Some(1) => {
                buffers.insert((*set, *binding), *buffer)
            }
            _ => {
                return Err(DeviceError::Invalid(format!(
                    "binding {binding} of set {set} is not a buffer\nhint: images, samplers and arrays of buffers are not \
                     offered; use storage buffers"
                )));
            }
        };
    }
    let push = entry
        .info()
        .push_constant_requirements
        .map_or(0, |range| range.offset + range.size);
    if push > info.limits.push_bytes {
        return Err(DeviceError::Invalid(format!(
            "it has {push} bytes of push constants, and the GPU takes {}",
            info.limits.push_bytes
        )));
    }
    Ok((buffers, push))
}

fn workgroup(spirv: &Spirv, entry: &str) -> [u32; 3] {
    let named = spirv.entry_points().iter().find_map(|found| match found {
        Instruction::EntryPoint {
            entry_point, name, ..
        } if name == entry => Some(*entry_point),
        _ => None,
    });
    let modes = spirv
        .execution_modes()
        .iter()
        .find_map(|found| match found {
            Instruction::ExecutionMode {
                entry_point,
                mode:
                    ExecutionMode::LocalSize {
                        x_size,
                        y_size,
                        z_size,
                    },
            } if Some(*entry_point) == named => Some([*x_size, *y_size, *z_size]),
            _ => None,
        });
    modes.unwrap_or([0; 3])
}

fn check_workgroup(workgroup: [u32; 3], info: &DeviceInfo) -> Result<(), DeviceError> {
    let limits = &info.limits;
    let invocations: u64 = workgroup.iter().map(|size| u64::from(*size)).product();
    let too_long = workgroup
        .iter()
        .zip(&limits.workgroup_size)
        .any(|(size, limit)| size > limit);
    if too_long || invocations > u64::from(limits.workgroup_invocations) {
        return Err(DeviceError::Invalid(format!(
            "its workgroup of {workgroup:?} is more than the GPU takes: {:?} and {} invocations in all",
            limits.workgroup_size, limits.workgroup_invocations
        )));
    }
    Ok(())
}
