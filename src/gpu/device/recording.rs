//! Recordings: steps that were checked, given their barriers and written into a command buffer
//! once, to be run many times.

use super::{
    DeviceError, DeviceInfo,
    error::refused,
    hazards::{BufferAccess, Hazards},
    kernel::{CompiledKernel, Kernel},
    memory::DeviceBuffer,
};
use ash::vk;
use std::{collections::BTreeMap, fmt, ops::Range, sync::Arc};
use vulkano::{
    Validated, ValidationError, VulkanError, VulkanObject,
    buffer::Subbuffer,
    command_buffer::{
        BufferCopy, CommandBuffer, CommandBufferBeginInfo, CommandBufferLevel, CommandBufferUsage,
        CopyBufferInfo, RecordingCommandBuffer, allocator::StandardCommandBufferAllocator,
    },
    descriptor_set::{
        DescriptorBufferInfo, DescriptorSet, WriteDescriptorSet,
        allocator::StandardDescriptorSetAllocator,
    },
    device::{Device, DeviceOwned},
    pipeline::PipelineBindPoint,
    sync::{AccessFlags, DependencyInfo, MemoryBarrier, PipelineStages},
};

/// One thing that a recording does. Steps take effect in order; those that do not depend on each
/// other may overlap.
#[derive(Clone, Debug)]
pub enum RecordingStep {
    /// Runs a kernel over `groups` workgroups. `push` holds its push constants, all of them.
    Dispatch {
        kernel: Kernel,
        bindings: Vec<BufferBinding>,
        push: Vec<u8>,
        groups: [u32; 3],
    },
    /// Offsets and size in bytes. Source and target may be one buffer if the ranges do not overlap.
    Copy {
        from: DeviceBuffer,
        from_offset: u64,
        to: DeviceBuffer,
        to_offset: u64,
        bytes: u64,
    },
    /// Writes `value` over and over. The range, in bytes, starts and ends at multiples of 4.
    Fill {
        buffer: DeviceBuffer,
        range: Range<u64>,
        value: u32,
    },
}

/// Bytes of a buffer as a kernel's `@group(set) @binding(binding)`.
#[derive(Clone, Debug)]
pub struct BufferBinding {
    pub set: u32,
    pub binding: u32,
    pub buffer: DeviceBuffer,
    pub range: Range<u64>,
}

impl BufferBinding {
    /// The whole buffer as a binding of set 0.
    pub fn whole(binding: u32, buffer: &DeviceBuffer) -> Self {
        Self {
            set: 0,
            binding,
            buffer: buffer.clone(),
            range: 0..buffer.bytes(),
        }
    }
}

/// Steps that can be run again and again. Clones name the same one. It keeps its buffers and
/// kernels.
#[derive(Clone, Debug)]
pub struct DeviceRecording(pub(super) Arc<Recorded>);

pub(super) struct Recorded {
    pub(super) commands: CommandBuffer,
    /// Every buffer once.
    pub(super) buffers: Vec<DeviceBuffer>,
    kernels: Vec<Kernel>,
    /// Kept for the commands.
    _sets: Vec<Arc<DescriptorSet>>,
}

impl fmt::Debug for Recorded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Recorded {{ kernels: {:?}, buffers: {:?} }}",
            self.kernels, self.buffers
        )
    }
}

impl DeviceRecording {
    pub(super) fn device(&self) -> &Arc<Device> {
        self.0.commands.device()
    }
}

/// What recording needs of the device.
pub(super) struct DeviceRecorder<'a> {
    pub(super) device: &'a Arc<Device>,
    pub(super) info: &'a DeviceInfo,
    pub(super) commands: &'a Arc<StandardCommandBufferAllocator>,
    pub(super) sets: &'a Arc<StandardDescriptorSetAllocator>,
    pub(super) family: u32,
}

impl DeviceRecorder<'_> {
    pub(super) fn record(&self, steps: Vec<RecordingStep>) -> Result<DeviceRecording, DeviceError> {
        for (index, step) in steps.iter().enumerate() {
            self.check(step)
                .map_err(|why| DeviceError::Invalid(format!("step {index}: {why}")))?;
        }
        let mut commands = begin(
            self.commands,
            self.family,
            CommandBufferUsage::SimultaneousUse,
        )?;
        let mut hazards = Hazards::default();
        let mut buffers = BTreeMap::new();
        let (mut kernels, mut sets) = (Vec::new(), Vec::new());
        for step in steps {
            let accesses = accesses(&step);
            if hazards.add(&accesses) {
                barrier(&mut commands)?;
            }
            buffers.extend(
                buffers_of(&step)
                    .into_iter()
                    .map(|buffer| (buffer.0.number, buffer.clone())),
            );
            match step {
                RecordingStep::Dispatch {
                    kernel,
                    bindings,
                    push,
                    groups,
                } => {
                    sets.extend(self.dispatch(
                        &mut commands,
                        &kernel.0,
                        bindings,
                        &push,
                        groups,
                    )?);
                    kernels.push(kernel);
                }
                RecordingStep::Copy {
                    from,
                    from_offset,
                    to,
                    to_offset,
                    bytes,
                } => {
                    copy(
                        &mut commands,
                        &from.0.memory,
                        from_offset,
                        &to.0.memory,
                        to_offset,
                        bytes,
                    )?;
                }
                RecordingStep::Fill {
                    buffer,
                    range,
                    value,
                } => fill(&mut commands, &buffer.0.memory, range, value)?,
            }
        }
        let commands = end(commands)?;
        let buffers = buffers.into_values().collect();
        Ok(DeviceRecording(Arc::new(Recorded {
            commands,
            buffers,
            kernels,
            _sets: sets,
        })))
    }

    fn dispatch(
        &self,
        commands: &mut RecordingCommandBuffer,
        kernel: &CompiledKernel,
        bindings: Vec<BufferBinding>,
        push: &[u8],
        groups: [u32; 3],
    ) -> Result<Vec<Arc<DescriptorSet>>, DeviceError> {
        if groups.contains(&0) {
            return Ok(Vec::new());
        }
        // SAFETY: the recording keeps the pipeline; the device has the features it needs, else it
        // had not been made.
        unsafe { commands.bind_pipeline_compute(&kernel.pipeline) }.map_err(not_recorded)?;
        let mut writes: BTreeMap<u32, Vec<WriteDescriptorSet>> = BTreeMap::new();
        for binding in bindings {
            let info = DescriptorBufferInfo {
                buffer: binding.buffer.0.memory.clone(),
                range: binding.range,
            };
            writes
                .entry(binding.set)
                .or_default()
                .push(WriteDescriptorSet::buffer_with_range(binding.binding, info));
        }
        let mut sets = Vec::new();
        for (set, writes) in writes {
            let layout = kernel.layout.set_layouts()[set as usize].clone();
            let made = DescriptorSet::new(self.sets.clone(), layout, writes, [])
                .map_err(refused::<Validated<VulkanError>>("binding buffers"))?;
            // SAFETY: the recording keeps the set, and the set its buffers.
            unsafe {
                commands.bind_descriptor_sets(
                    PipelineBindPoint::Compute,
                    &kernel.layout,
                    set,
                    &[made.as_raw()],
                    &[],
                )
            }
            .map_err(not_recorded)?;
            sets.push(made);
        }
        push_constants(commands, kernel, push);
        // SAFETY: everything that the kernel declares is bound, and `check` compared the counts
        // with the limits.
        unsafe { commands.dispatch(groups) }.map_err(not_recorded)?;
        Ok(sets)
    }

    fn check(&self, step: &RecordingStep) -> Result<(), String> {
        if buffers_of(step)
            .iter()
            .any(|buffer| buffer.device() != self.device)
        {
            return Err("a buffer of another device".into());
        }
        match step {
            RecordingStep::Dispatch {
                kernel,
                bindings,
                push,
                groups,
            } => self.check_dispatch(kernel, bindings, push, *groups),
            RecordingStep::Copy {
                from,
                from_offset,
                to,
                to_offset,
                bytes,
            } => {
                let source = inside(from, *from_offset, *bytes)?;
                let target = inside(to, *to_offset, *bytes)?;
                let overlap = source.start < target.end && target.start < source.end;
                if from.is_same(to) && overlap {
                    return Err(format!(
                        "bytes {source:?} and {target:?} of the same buffer overlap"
                    ));
                }
                Ok(())
            }
            RecordingStep::Fill { buffer, range, .. } => {
                check_range(buffer, range)?;
                if !range.start.is_multiple_of(4) || !range.end.is_multiple_of(4) {
                    return Err(format!(
                        "bytes {range:?} do not start and end at multiples of 4"
                    ));
                }
                Ok(())
            }
        }
    }

    fn check_dispatch(
        &self,
        kernel: &Kernel,
        bindings: &[BufferBinding],
        push: &[u8],
        groups: [u32; 3],
    ) -> Result<(), String> {
        let name = kernel.name();
        if kernel.device() != self.device {
            return Err(format!("kernel `{name}` of another device"));
        }
        let limit = self.info.limits.workgroup_count;
        if groups
            .iter()
            .zip(&limit)
            .any(|(count, limit)| count > limit)
        {
            return Err(format!(
                "kernel `{name}`: {groups:?} workgroups, and the GPU takes {limit:?}"
            ));
        }
        if push.len() != kernel.0.push_bytes as usize {
            let needed = kernel.0.push_bytes;
            return Err(format!(
                "kernel `{name}` takes {needed} bytes of push constants, and {} are given",
                push.len()
            ));
        }
        let mut bound = BTreeMap::new();
        for binding in bindings {
            let place = (binding.set, binding.binding);
            let what = format!(
                "kernel `{name}`, binding {} of set {}",
                binding.binding, binding.set
            );
            self.check_binding(&kernel.0, binding)
                .map_err(|why| format!("{what}: {why}"))?;
            if bound.insert(place, ()).is_some() {
                return Err(format!("{what}: bound twice"));
            }
        }
        match kernel
            .0
            .buffers
            .keys()
            .find(|place| !bound.contains_key(place))
        {
            Some((set, binding)) => Err(format!(
                "kernel `{name}`: nothing is bound to binding {binding} of set {set}"
            )),
            None => Ok(()),
        }
    }

    fn check_binding(
        &self,
        kernel: &CompiledKernel,
        binding: &BufferBinding,
    ) -> Result<(), String> {
        let Some(needed) = kernel.buffers.get(&(binding.set, binding.binding)) else {
            return Err("the kernel has no such buffer".into());
        };
        check_range(&binding.buffer, &binding.range)?;
        let bytes = binding.range.end - binding.range.start;
        if bytes == 0 || bytes < needed.min_bytes {
            return Err(format!(
                "{bytes} bytes, and the shader declares at least {}",
                needed.min_bytes.max(1)
            ));
        }
        let limits = &self.info.limits;
        let (largest, alignment) = match needed.uniform {
            true => (limits.uniform_range, limits.uniform_alignment),
            false => (limits.storage_range, limits.storage_alignment),
        };
        if bytes > largest {
            return Err(format!(
                "{bytes} bytes, and the GPU binds at most {largest}"
            ));
        }
        if !binding.range.start.is_multiple_of(alignment) {
            return Err(format!(
                "starts at byte {}, which is not a multiple of {alignment}",
                binding.range.start
            ));
        }
        Ok(())
    }
}

/// The whole range, if it lies in the buffer.
pub(super) fn inside(buffer: &DeviceBuffer, offset: u64, bytes: u64) -> Result<Range<u64>, String> {
    let range = offset..offset.saturating_add(bytes);
    check_range(buffer, &range)?;
    Ok(range)
}

pub(super) fn check_range(buffer: &DeviceBuffer, range: &Range<u64>) -> Result<(), String> {
    if range.start > range.end || range.end > buffer.bytes() {
        return Err(format!("bytes {range:?} of a buffer of {}", buffer.bytes()));
    }
    Ok(())
}

fn buffers_of(step: &RecordingStep) -> Vec<&DeviceBuffer> {
    match step {
        RecordingStep::Dispatch { bindings, .. } => {
            bindings.iter().map(|binding| &binding.buffer).collect()
        }
        RecordingStep::Copy { from, to, .. } => vec![from, to],
        RecordingStep::Fill { buffer, .. } => vec![buffer],
    }
}

fn accesses(step: &RecordingStep) -> Vec<BufferAccess> {
    let access = |buffer: &DeviceBuffer, range: Range<u64>, writes| BufferAccess {
        buffer: buffer.0.number,
        range,
        writes,
    };
    match step {
        RecordingStep::Dispatch {
            kernel, bindings, ..
        } => {
            let writes =
                |binding: &BufferBinding| kernel.0.buffers[&(binding.set, binding.binding)].writes;
            bindings
                .iter()
                .map(|binding| access(&binding.buffer, binding.range.clone(), writes(binding)))
                .collect()
        }
        RecordingStep::Copy {
            from,
            from_offset,
            to,
            to_offset,
            bytes,
        } => vec![
            access(from, *from_offset..from_offset + bytes, false),
            access(to, *to_offset..to_offset + bytes, true),
        ],
        RecordingStep::Fill { buffer, range, .. } => vec![access(buffer, range.clone(), true)],
    }
}

/// A command buffer, whose first command waits for everything that was submitted to its queue
/// before.
pub(super) fn begin(
    allocator: &Arc<StandardCommandBufferAllocator>,
    family: u32,
    usage: CommandBufferUsage,
) -> Result<RecordingCommandBuffer, DeviceError> {
    let info = CommandBufferBeginInfo {
        usage,
        ..Default::default()
    };
    let commands =
        RecordingCommandBuffer::new(allocator.clone(), family, CommandBufferLevel::Primary, info);
    let mut commands =
        commands.map_err(refused::<Validated<VulkanError>>("beginning to record"))?;
    barrier(&mut commands)?;
    Ok(commands)
}

pub(super) fn end(commands: RecordingCommandBuffer) -> Result<CommandBuffer, DeviceError> {
    // SAFETY: what was recorded is complete and checked; submitting it keeps what it uses.
    unsafe { commands.end() }.map_err(refused("recording"))
}

/// Later commands see all that earlier ones wrote, and begin when those have ended.
fn barrier(commands: &mut RecordingCommandBuffer) -> Result<(), DeviceError> {
    let all = PipelineStages::ALL_COMMANDS;
    let access = AccessFlags::MEMORY_READ | AccessFlags::MEMORY_WRITE;
    let barrier = MemoryBarrier {
        src_stages: all,
        src_access: access,
        dst_stages: all,
        dst_access: access,
        ..Default::default()
    };
    let dependency = DependencyInfo {
        memory_barriers: [barrier].into_iter().collect(),
        ..Default::default()
    };
    // SAFETY: a global barrier outside of render passes names no resources.
    unsafe { commands.pipeline_barrier(&dependency) }.map_err(not_recorded)?;
    Ok(())
}

/// What was written becomes visible to the host once it knows that the submission has ended.
pub(super) fn barrier_to_host(commands: &mut RecordingCommandBuffer) -> Result<(), DeviceError> {
    let barrier = MemoryBarrier {
        src_stages: PipelineStages::ALL_TRANSFER,
        src_access: AccessFlags::TRANSFER_WRITE,
        dst_stages: PipelineStages::HOST,
        dst_access: AccessFlags::HOST_READ,
        ..Default::default()
    };
    let dependency = DependencyInfo {
        memory_barriers: [barrier].into_iter().collect(),
        ..Default::default()
    };
    // SAFETY: a global barrier outside of render passes names no resources.
    unsafe { commands.pipeline_barrier(&dependency) }.map_err(not_recorded)?;
    Ok(())
}

/// Both ranges lie in their buffers.
pub(super) fn copy(
    commands: &mut RecordingCommandBuffer,
    from: &Subbuffer<[u8]>,
    from_offset: u64,
    to: &Subbuffer<[u8]>,
    to_offset: u64,
    bytes: u64,
) -> Result<(), DeviceError> {
    if bytes == 0 {
        return Ok(());
    }
    let region = BufferCopy {
        src_offset: from_offset,
        dst_offset: to_offset,
        size: bytes,
        ..Default::default()
    };
    let mut info = CopyBufferInfo::buffers(from.clone(), to.clone());
    info.regions = [region].into_iter().collect();
    // SAFETY: the caller keeps both until the command buffer has run for the last time.
    unsafe { commands.copy_buffer(&info) }.map_err(not_recorded)?;
    Ok(())
}

/// The range lies in the buffer and is aligned to 4 bytes.
pub(super) fn fill(
    commands: &mut RecordingCommandBuffer,
    buffer: &Subbuffer<[u8]>,
    range: Range<u64>,
    value: u32,
) -> Result<(), DeviceError> {
    if range.is_empty() {
        return Ok(());
    }
    let words = buffer.clone().slice(range).reinterpret::<[u32]>();
    // SAFETY: the caller keeps the buffer until the command buffer has run for the last time.
    unsafe { commands.fill_buffer(&words, value) }.map_err(not_recorded)?;
    Ok(())
}

fn push_constants(commands: &mut RecordingCommandBuffer, kernel: &CompiledKernel, push: &[u8]) {
    let functions = commands.device().fns();
    for range in kernel.layout.push_constant_ranges() {
        let bytes = &push[range.offset as usize..][..range.size as usize];
        // SAFETY: handles of live objects; the range is one of the layout's, and `push` has its
        // bytes.
        unsafe {
            (functions.v1_0.cmd_push_constants)(
                commands.handle(),
                kernel.layout.handle(),
                vk::ShaderStageFlags::COMPUTE,
                range.offset,
                range.size,
                bytes.as_ptr().cast(),
            );
        }
    }
}

fn not_recorded(why: Box<ValidationError>) -> DeviceError {
    DeviceError::Invalid(format!("recording: {why}"))
}
