//! Recordings: steps that are checked and given their barriers once, to be run many times.

use super::{
    DeviceError, DeviceInfo,
    commands::CommandWriter,
    cut::StepSize,
    error::refused,
    hazards::{BufferAccess, Hazards},
    kernel::{CompiledKernel, Kernel},
    learned::Learned,
    memory::DeviceBuffer,
    recorded::{Recorded, RecordedStep, RecordedWork},
};
use std::{
    collections::BTreeMap,
    ops::Range,
    sync::{Arc, Mutex},
};
use vulkano::{
    Validated, VulkanError,
    descriptor_set::{
        DescriptorBufferInfo, DescriptorSet, WriteDescriptorSet,
        allocator::StandardDescriptorSetAllocator,
    },
    device::Device,
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

impl DeviceRecording {
    pub(super) fn device(&self) -> &Arc<Device> {
        &self.0.device
    }
}

/// What recording needs of the device.
pub(super) struct DeviceRecorder<'a> {
    pub(super) writer: &'a CommandWriter,
    pub(super) info: &'a DeviceInfo,
    pub(super) sets: &'a Arc<StandardDescriptorSetAllocator>,
    pub(super) learned: &'a Learned,
}

impl DeviceRecorder<'_> {
    pub(super) fn record(&self, steps: Vec<RecordingStep>) -> Result<DeviceRecording, DeviceError> {
        for (index, step) in steps.iter().enumerate() {
            self.check(step)
                .map_err(|why| DeviceError::Invalid(format!("step {index}: {why}")))?;
        }
        let mut hazards = Hazards::default();
        let mut buffers = BTreeMap::new();
        let (mut recorded, mut sizes) = (Vec::new(), Vec::new());
        for step in steps {
            let waits = hazards.add(&accesses(&step));
            let of_step = buffers_of(&step).into_iter();
            buffers.extend(of_step.map(|buffer| (buffer.0.number, buffer.clone())));
            sizes.push(size(&step));
            let work = self.prepare(step)?;
            recorded.push(RecordedStep { waits, work });
        }
        let recorded = Recorded {
            steps: recorded,
            sizes,
            buffers: buffers.into_values().collect(),
            device: self.writer.device.clone(),
            cut: Mutex::default(),
        };
        recorded.cut(self.writer, self.learned)?;
        Ok(DeviceRecording(Arc::new(recorded)))
    }

    fn prepare(&self, step: RecordingStep) -> Result<RecordedWork, DeviceError> {
        Ok(match step {
            RecordingStep::Dispatch {
                kernel,
                bindings,
                push,
                groups: _,
            } => RecordedWork::Dispatch {
                sets: self.bind(&kernel.0, bindings)?,
                kernel,
                push,
            },
            RecordingStep::Copy {
                from,
                from_offset,
                to,
                to_offset,
                bytes,
            } => RecordedWork::Copy {
                from,
                from_offset,
                to,
                to_offset,
                bytes,
            },
            RecordingStep::Fill {
                buffer,
                range,
                value,
            } => RecordedWork::Fill {
                buffer,
                range,
                value,
            },
        })
    }

    fn bind(
        &self,
        kernel: &CompiledKernel,
        bindings: Vec<BufferBinding>,
    ) -> Result<Vec<(u32, Arc<DescriptorSet>)>, DeviceError> {
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
        let made = writes.into_iter().map(|(set, writes)| {
            let layout = kernel.layout.set_layouts()[set as usize].clone();
            let made = DescriptorSet::new(self.sets.clone(), layout, writes, [])
                .map_err(refused::<Validated<VulkanError>>("binding buffers"))?;
            Ok((set, made))
        });
        made.collect()
    }

    fn check(&self, step: &RecordingStep) -> Result<(), String> {
        if buffers_of(step)
            .iter()
            .any(|buffer| buffer.device() != &self.writer.device)
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
        if kernel.device() != &self.writer.device {
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

fn size(step: &RecordingStep) -> StepSize {
    match step {
        RecordingStep::Dispatch { kernel, groups, .. } => StepSize {
            kernel: Some(kernel.0.id),
            groups: *groups,
            divides: kernel.0.divides,
        },
        RecordingStep::Copy { .. } | RecordingStep::Fill { .. } => StepSize {
            kernel: None,
            groups: [0; 3],
            divides: false,
        },
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
