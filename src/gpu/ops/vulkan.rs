//! Ops on a GPU: their dispatches become steps of a recording on a `Device`. Only in worker
//! processes: a driver may crash.

use super::{
    super::device::{self, Device, DeviceError, DeviceRecording, KernelSource},
    buffer::{Buffer, BufferView, ElementKind},
    dispatch::{Generated, Lowering, LoweringTarget, ProgramStep},
    engine::{Engine, EngineError, Pending, Program, check_inside},
    gemm::Gemm,
    op::{Op, checked},
    shaders,
    tuning::{ProductClass, ProductShader, ProductWay, Tuning},
};
use bytes::Bytes;
use nodectl_types::GpuKind;
use std::{
    ops::Range,
    sync::Arc,
    time::{Duration, Instant},
};

/// How often a way of multiplying is tried, the first time not counted.
const TRIALS: usize = 3;
/// The time of the way that is taken where none is much faster, with which others are compared.
const WORTH_IT: f64 = 0.95;
/// What a trial takes at least, unless a product is shorter than that many times over.
const TRIAL_TIME: Duration = Duration::from_millis(2);
const MOST_TIMES: u32 = 64;
/// A trial that takes longer hangs.
const TRIAL_LIMIT: Duration = Duration::from_secs(60);

/// Runs ops on one GPU. Clones are the same engine.
#[derive(Clone)]
pub struct Vulkan(Arc<VulkanState>);

struct VulkanState {
    device: Device,
    generated: Generated,
    /// Bound where a shader has a binding that an op does not use.
    nothing: device::DeviceBuffer,
    tuning: Tuning,
    /// The most bytes of a binding.
    bindable: u64,
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
        let limits = &device.info().limits;
        let tuning = Tuning::new(limits, cooperative);
        let bindable = limits.storage_range;
        Self::with(device, tuning, bindable)
    }

    pub(super) fn with(device: Device, tuning: Tuning, bindable: u64) -> Result<Self, EngineError> {
        let nothing = device.buffer(256)?;
        Ok(Self(Arc::new(VulkanState {
            device,
            generated: Generated::default(),
            nothing,
            tuning,
            bindable,
        })))
    }

    /// Rows and columns of what a workgroup computes where products of m × k and k × n matrices are
    /// fastest, of f32 and of f16; 0: by cooperative matrices. The ways are tried unless that was
    /// done before.
    ///
    /// # Errors
    /// What goes wrong while they are tried.
    pub fn product_tiles(&self, sizes: [u32; 3]) -> Result<[u16; 2], EngineError> {
        let way = |kind: ElementKind| {
            let product = self.blank_product(sizes, kind)?;
            Ok::<_, EngineError>(self.way(&product)?.tile())
        };
        Ok([way(ElementKind::F32)?, way(ElementKind::F16)?])
    }

    /// A product of zeros.
    fn blank_product(&self, [m, n, k]: [u32; 3], kind: ElementKind) -> Result<Gemm, EngineError> {
        let matrix = |rows: u32, columns: u32, kind: ElementKind| {
            let len = u64::from(rows) * u64::from(columns);
            Ok::<_, EngineError>(self.buffer(len * kind.bytes())?.view(kind, 0, len))
        };
        let (a, b) = (matrix(m, k, kind)?, matrix(k, n, kind)?);
        Ok(Gemm::new(a, b, matrix(m, n, ElementKind::F32)?, [m, n, k]))
    }

    /// The fastest way of multiplying such matrices.
    fn way(&self, product: &Gemm) -> Result<ProductWay, EngineError> {
        let (class, tuning) = (ProductClass::of(product), &self.0.tuning);
        if let Some(known) = tuning.known(&class) {
            return Ok(known);
        }
        let ways = tuning.ways(&class);
        let way = match ways.as_slice() {
            [only] => *only,
            several => {
                let name = class.to_string();
                let known = self
                    .0
                    .device
                    .choice(&name)
                    .as_deref()
                    .and_then(ProductWay::parse);
                match known.filter(|way| several.contains(way)) {
                    Some(way) => way,
                    None => {
                        let way = self.fastest(&class, several)?;
                        self.0.device.choose(&name, &way.to_string());
                        way
                    }
                }
            }
        };
        tuning.know(class, way);
        Ok(way)
    }

    /// Tries ways of multiplying; the first is taken unless another is worth it.
    fn fastest(
        &self,
        class: &ProductClass,
        ways: &[ProductWay],
    ) -> Result<ProductWay, EngineError> {
        let is_software = self.0.device.info().gpu.kind == GpuKind::Software;
        let kind = match class.is_of_halves() {
            true => ElementKind::F16,
            false => ElementKind::F32,
        };
        let product = self.blank_product(class.trial(is_software), kind)?;
        let mut best: Option<(ProductWay, f64)> = None;
        for way in ways {
            let took = self.trial(&product, *way)?.as_secs_f64();
            if best.is_none_or(|(_, time)| took < time * WORTH_IT) {
                best = Some((*way, took));
            }
        }
        Ok(best.map_or(ProductWay::Tiles32, |(way, _)| way))
    }

    /// How long a way takes for a product, several times over where it is short: a launch takes as
    /// long as many products of a fast GPU.
    fn trial(&self, product: &Gemm, way: ProductWay) -> Result<Duration, EngineError> {
        let mut times = 1;
        loop {
            let mut lowering = Lowering::new(self, &self.0.generated);
            for _ in 0..times {
                product.dispatch(self.0.tuning.shader(way), &mut lowering)?;
            }
            let recording = self.recording(lowering)?;
            let mut best = Duration::MAX;
            for trial in 0..=TRIALS {
                let began = Instant::now();
                self.0.device.run(&recording).wait(TRIAL_LIMIT)?;
                if trial > 0 {
                    best = best.min(began.elapsed());
                }
            }
            if best >= TRIAL_TIME || times == MOST_TIMES {
                return Ok(best / times);
            }
            times *= 4;
        }
    }

    fn recording(&self, lowering: Lowering<'_>) -> Result<DeviceRecording, EngineError> {
        let steps = lowering.steps.into_iter().map(|step| self.step(step));
        Ok(self.0.device.record(steps.collect::<Result<_, _>>()?)?)
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
        if bytes.end - bytes.start > self.0.bindable {
            let (size, most) = (bytes.end - bytes.start, self.0.bindable);
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

impl LoweringTarget for Vulkan {
    fn allocate(&self, bytes: u64) -> Result<Buffer, EngineError> {
        self.buffer(bytes)
    }

    fn bindable(&self) -> u64 {
        self.0.bindable
    }

    fn product(&self, product: &Gemm) -> Result<ProductShader, EngineError> {
        Ok(self.0.tuning.shader(self.way(product)?))
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
        let mut lowering = Lowering::new(self, &self.0.generated);
        for op in ops {
            op.operation().lower(&mut lowering)?;
        }
        Ok(Program::new((self.recording(lowering)?, self.0.clone())))
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
