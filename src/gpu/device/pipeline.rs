//! Compute pipelines whose dispatches may begin at any workgroup, which vulkano does not make.

use ash::vk;
use std::{ffi::CString, sync::Arc};
use vulkano::{
    VulkanError, VulkanObject,
    device::DeviceOwned,
    pipeline::{ComputePipeline, compute::ComputePipelineCreateInfo},
    shader::EntryPoint,
};

/// Makes the pipeline that `create` describes, for `vkCmdDispatchBase`. Its layout is made of the
/// entry point's own bindings, and the module was checked when it was made.
pub(super) fn divisible(
    entry: &EntryPoint,
    create: ComputePipelineCreateInfo,
) -> Result<Arc<ComputePipeline>, VulkanError> {
    let device = create.layout.device().clone();
    let module = entry.module();
    let mut data = Vec::new();
    let entries: Vec<_> = module
        .specialization_info()
        .iter()
        .map(|(id, value)| {
            let (offset, bytes) = (data.len() as u32, value.as_bytes());
            data.extend_from_slice(bytes);
            vk::SpecializationMapEntry {
                constant_id: *id,
                offset,
                size: bytes.len(),
            }
        })
        .collect();
    let constants = vk::SpecializationInfo::default()
        .map_entries(&entries)
        .data(&data);
    let name = CString::new(entry.info().name.as_str()).unwrap_or_default();
    let stage = vk::PipelineShaderStageCreateInfo::default()
        .stage(vk::ShaderStageFlags::COMPUTE)
        .module(module.handle())
        .name(&name)
        .specialization_info(&constants);
    let info = vk::ComputePipelineCreateInfo::default()
        .flags(vk::PipelineCreateFlags::DISPATCH_BASE)
        .stage(stage)
        .layout(create.layout.handle());
    let mut pipeline = vk::Pipeline::null();
    // SAFETY: the handles are those of live objects of the device, what `info` points to outlives
    // the call, and there is room for the one pipeline that is made.
    let result = unsafe {
        (device.fns().v1_0.create_compute_pipelines)(
            device.handle(),
            vk::PipelineCache::null(),
            1,
            &info,
            std::ptr::null(),
            &mut pipeline,
        )
    };
    result.result().map_err(VulkanError::from)?;
    // SAFETY: the pipeline was made from `create`'s stage and layout; the flag is none that vulkano
    // knows.
    Ok(unsafe { ComputePipeline::from_handle(device, pipeline, create) })
}
