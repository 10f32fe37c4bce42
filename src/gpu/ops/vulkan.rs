//! Ops on a GPU: their dispatches become steps of a recording on a `Device`. Only in worker
//! processes: a driver may crash.

use super::{
    super::device::{self, Device, DeviceError, DeviceRecording, KernelSource},
    buffer::{Buffer, BufferView},
    dispatch::{CompiledShader, Generated, Lowering, ProgramStep},
    engine::{Engine, EngineError, Pending, Program, check_inside},
    op::{Op, checked},
    shaders,
};
use bytes::Bytes;
use std::{ops::Range, sync::Arc};

/// Runs ops on one GPU. Clones are the same engine.
#[derive(Clone)]
pub struct Vulkan(Arc<VulkanState>);

struct VulkanState {
    device: Device,
    generated: Generated,
    /// Bound where a shader has a binding that an op does not use.
    nothing: device::DeviceBuffer,
    /// Products of f16 by cooperative matrices, where the device has them.
    cooperative: Option<CompiledShader>,
}

/// What a `Buffer` of this engine is.
struct VulkanMemory {
    device: device::DeviceBuffer,
    engine: Arc<VulkanState>,
}

impl Vulkan {
    pub fn new(device: Device) -> Result<Self, EngineError> {
        let cooperative = device
            .info()
            .multiplies_halves()
            .then(shaders::gemm_cooperative);
        Self::with(device, cooperative)
    }

    pub(super) fn with(
        device: Device,
        cooperative: Option<CompiledShader>,
    ) -> Result<Self, EngineError> {
        let nothing = device.buffer(256)?;
        Ok(Self(Arc::new(VulkanState {
            device,
            generated: Generated::default(),
            nothing,
            cooperative,
        })))
    }

    pub fn device(&self) -> &Device {
        &self.0.device
    }

    /// The buffer as the device knows it; `None` if it is another engine's.
    fn find<'a>(&self, buffer: &'a Buffer) -> Option<&'a device::DeviceBuffer> {
        buffer
            .memory::<VulkanMemory>()
            .filter(|memory| Arc::ptr_eq(&memory.engine, &self.0))
            .map(|memory| &memory.device)
    }

    /// The device's buffer, if it is of this engine and the range lies inside.
    fn part<'a>(
        &self,
        buffer: &'a Buffer,
        range: &Range<u64>,
    ) -> Result<&'a device::DeviceBuffer, EngineError> {
        let found = self.find(buffer).ok_or(EngineError::Foreign)?;
        check_inside(buffer, range)?;
        Ok(found)
    }

    fn step(&self, step: ProgramStep) -> Result<device::RecordingStep, EngineError> {
        match step {
            ProgramStep::Fill { view, value } => {
                let buffer = self.find(&view.buffer).ok_or(EngineError::Foreign)?.clone();
                Ok(device::RecordingStep::Fill {
                    buffer,
                    range: view.range(),
                    value,
                })
            }
            ProgramStep::Dispatch {
                shader,
                bindings,
                parameters,
                groups,
            } => {
                let source = KernelSource {
                    spirv: &shader.spirv,
                    entry: "main",
                    constants: &[],
                    name: shader.name,
                };
                let kernel = self.0.device.kernel(&source)?;
                let mut firsts = Vec::new();
                let mut bound = Vec::new();
                for (binding, view) in bindings.iter().enumerate() {
                    let (buffer, range, first) = self.bind(view)?;
                    firsts.push(first);
                    bound.push(device::BufferBinding {
                        set: 0,
                        binding: binding as u32,
                        buffer,
                        range,
                    });
                }
                let push = firsts
                    .into_iter()
                    .chain(parameters)
                    .flat_map(u32::to_le_bytes)
                    .collect();
                Ok(device::RecordingStep::Dispatch {
                    kernel,
                    bindings: bound,
                    push,
                    groups,
                })
            }
        }
    }

    /// The bytes to bind for a view, from an aligned one on, and the element of them that is the
    /// view's first.
    fn bind(
        &self,
        view: &BufferView,
    ) -> Result<(device::DeviceBuffer, Range<u64>, u32), EngineError> {
        if view.len == 0 {
            return Ok((self.0.nothing.clone(), 0..self.0.nothing.bytes(), 0));
        }
        let limits = &self.0.device.info().limits;
        let range = view.range();
        let start = range.start - range.start % limits.storage_alignment;
        // Shaders see whole words; buffers are as large.
        let bytes = start..range.end.next_multiple_of(4);
        if bytes.end - bytes.start > limits.storage_range {
            let (size, most) = (bytes.end - bytes.start, limits.storage_range);
            let what = format!(
                "a view of {size} bytes, and the GPU takes {most} at once; hint: cut the work"
            );
            return Err(DeviceError::Invalid(what).into());
        }
        let buffer = self.find(&view.buffer).ok_or(EngineError::Foreign)?.clone();
        Ok((
            buffer,
            bytes,
            ((range.start - start) / view.kind.bytes()) as u32,
        ))
    }
}

impl Engine for Vulkan {
    fn name(&self) -> String {
        self.0.device.info().gpu.name.clone()
    }

    fn buffer(&self, bytes: u64) -> Result<Buffer, EngineError> {
        let size = bytes.checked_next_multiple_of(4).unwrap_or(u64::MAX).max(4);
        let device = self.0.device.buffer(size).map_err(|error| match error {
            DeviceError::OutOfMemory { .. } => EngineError::OutOfMemory { bytes },
            other => other.into(),
        })?;
        Ok(Buffer::new(
            VulkanMemory {
                device,
                engine: self.0.clone(),
            },
            bytes,
        ))
    }

    fn record(&self, ops: &[Op]) -> Result<Program, EngineError> {
        for access in checked(ops)? {
            if !access.views().all(|view| self.find(&view.buffer).is_some()) {
                return Err(EngineError::Foreign);
            }
        }
        let mut allocate = |bytes| self.buffer(bytes);
        let shared_bytes = self.0.device.info().limits.shared_bytes.into();
        let mut lowering = Lowering::new(
            &mut allocate,
            &self.0.generated,
            shared_bytes,
            self.0.cooperative.clone(),
        );
        for op in ops {
            op.operation().lower(&mut lowering)?;
        }
        let steps = lowering
            .steps
            .into_iter()
            .map(|step| self.step(step))
            .collect::<Result<Vec<_>, _>>()?;
        Ok(Program::new((self.0.device.record(steps)?, self.0.clone())))
    }

    fn upload(&self, to: &Buffer, offset: u64, bytes: Bytes) -> Pending<()> {
        let range = offset..offset.saturating_add(bytes.len() as u64);
        match self.part(to, &range) {
            Ok(buffer) => later(self.0.device.upload(buffer, offset, bytes)),
            Err(error) => Pending::ready(Err(error)),
        }
    }

    fn run(&self, program: &Program) -> Pending<()> {
        match program.prepared::<(DeviceRecording, Arc<VulkanState>)>() {
            Ok((recording, engine)) if Arc::ptr_eq(engine, &self.0) => {
                later(self.0.device.run(recording))
            }
            Ok(_) => Pending::ready(Err(EngineError::Foreign)),
            Err(error) => Pending::ready(Err(error)),
        }
    }

    fn download(&self, from: &Buffer, range: Range<u64>) -> Pending<Vec<u8>> {
        match self.part(from, &range) {
            Ok(buffer) => later(self.0.device.download(buffer, range)),
            Err(error) => Pending::ready(Err(error)),
        }
    }
}

fn later<T: Send + 'static>(pending: device::PendingCall<T>) -> Pending<T> {
    Pending::new(move |limit| Ok(pending.wait(limit)?))
}
