//! Command buffers: how parts of recordings and single transfers are written into them.

use super::{
    DeviceError,
    cut::{CutPart, CutPiece},
    error::refused,
    kernel::CompiledKernel,
    learned::KernelShares,
    pace::KernelShare,
    recorded::{Recorded, RecordedWork, RecordingPart},
};
use ash::vk;
use std::{ops::Range, sync::Arc};
use vulkano::{
    Validated, ValidationError, VulkanError, VulkanObject,
    buffer::Subbuffer,
    command_buffer::{
        BufferCopy, CommandBuffer, CommandBufferBeginInfo, CommandBufferLevel, CommandBufferUsage,
        CopyBufferInfo, RecordingCommandBuffer, allocator::StandardCommandBufferAllocator,
    },
    descriptor_set::DescriptorSet,
    device::{Device, DeviceOwned},
    pipeline::PipelineBindPoint,
    sync::{AccessFlags, DependencyInfo, MemoryBarrier, PipelineStages},
};

/// Writes command buffers.
pub(super) struct CommandWriter {
    pub(super) device: Arc<Device>,
    pub(super) commands: Arc<StandardCommandBufferAllocator>,
    pub(super) family: u32,
}

impl CommandWriter {
    /// A command buffer with a part of a recording.
    pub(super) fn part(
        &self,
        recorded: &Recorded,
        part: CutPart,
    ) -> Result<RecordingPart, DeviceError> {
        let usage = CommandBufferUsage::SimultaneousUse;
        let mut commands = begin(&self.commands, self.family, usage)?;
        let mut shares = KernelShares::new();
        for piece in &part.pieces {
            let step = &recorded.steps[piece.step];
            if step.waits && piece.begins {
                barrier(&mut commands)?;
            }
            step.work.write(&mut commands, piece)?;
            if let Some(kernel) = recorded.sizes[piece.step].kernel {
                let share = shares.entry(kernel).or_insert(KernelShare {
                    groups: 0,
                    largest: 0,
                });
                share.groups += piece.groups();
                share.largest = share.largest.max(piece.groups());
            }
        }
        Ok(RecordingPart {
            commands: end(commands)?,
            shares,
            pieces: part.pieces,
        })
    }
}

impl RecordedWork {
    fn write(
        &self,
        commands: &mut RecordingCommandBuffer,
        piece: &CutPiece,
    ) -> Result<(), DeviceError> {
        match self {
            Self::Dispatch { kernel, sets, push } => {
                dispatch(commands, &kernel.0, sets, push, piece)
            }
            Self::Copy {
                from,
                from_offset,
                to,
                to_offset,
                bytes,
            } => copy(
                commands,
                &from.0.memory,
                *from_offset,
                &to.0.memory,
                *to_offset,
                *bytes,
            ),
            Self::Fill {
                buffer,
                range,
                value,
            } => fill(commands, &buffer.0.memory, range.clone(), *value),
        }
    }
}

fn dispatch(
    commands: &mut RecordingCommandBuffer,
    kernel: &CompiledKernel,
    sets: &[(u32, Arc<DescriptorSet>)],
    push: &[u8],
    piece: &CutPiece,
) -> Result<(), DeviceError> {
    // SAFETY: the recording keeps the pipeline; the device has the features it needs, else it had
    // not been made.
    unsafe { commands.bind_pipeline_compute(&kernel.pipeline) }.map_err(not_recorded)?;
    for (number, set) in sets {
        // SAFETY: the recording keeps the set, and the set its buffers.
        unsafe {
            commands.bind_descriptor_sets(
                PipelineBindPoint::Compute,
                &kernel.layout,
                *number,
                &[set.as_raw()],
                &[],
            )
        }
        .map_err(not_recorded)?;
    }
    push_constants(commands, kernel, push);
    let ([x, y, z], [columns, rows, layers]) = (piece.base, piece.count);
    if piece.base == [0; 3] {
        // SAFETY: everything that the kernel declares is bound, and `check` compared the counts
        // with the limits.
        unsafe { commands.dispatch(piece.count) }.map_err(not_recorded)?;
    } else {
        let functions = &commands.device().fns().v1_1;
        // SAFETY: as above; the piece lies within those counts, and only kernels that were compiled
        // for it are cut.
        unsafe {
            (functions.cmd_dispatch_base)(commands.handle(), x, y, z, columns, rows, layers);
        }
    }
    Ok(())
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
