//! The engine on a GPU: the matrix by bins and the constants of pixels are uploaded once; frames
//! follow in batches, as they are in memory or as chunks that the GPU decodes, and come back as
//! sums, pairs of 32-bit floats. While one batch is computed the next one is on its way.

mod batch;
mod queue;
#[cfg(test)]
mod tests;

pub(super) use self::queue::FrameQueue;
use self::{
    batch::{BatchContent, BatchLayout, BlockLayout, FrameBatch, SlotSize, groups},
    queue::BatchQueue,
};
use super::{
    corrections::Dummy,
    errors::IntegrationError,
    frames::{Frames, Pixels, Sums},
    integrator::{EngineJob, PreparedRegion},
};
use crate::decode::ChunkBlocks;
use nodectl_gpu::device::{
    BufferBinding, Device, DeviceBuffer, DeviceError, DeviceRecording, HostBuffer, Kernel,
    KernelSource, PendingCall, RecordingStep,
};
use nodectl_types::GpuKind;
use rayon::prelude::*;
use std::{
    collections::BTreeMap,
    ops::Range,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

/// Of a batch of frames, at most; devices may take less at once.
const BATCH_BYTES: u64 = 256 << 20;
/// Batches on their way. They have their own memory.
const SLOTS: usize = 2;
/// Frames that share a pass over the matrix, and invocations of a workgroup, as in the shader.
const AT_ONCE: usize = 4;
const GROUP: usize = 128;
/// Sums of a bin, and floats of each.
const QUANTITIES: usize = 5;
const FLOATS: usize = 2 * QUANTITIES;
/// Every device has at least so many workgroups.
const MAX_GROUPS: usize = 65_535;
/// Bytes that a thread copies at once.
const COPIED_AT_ONCE: usize = 4 << 20;
/// For uploads, runs and downloads of a batch. A device that takes longer hangs.
const LIMIT: Duration = Duration::from_secs(120);

/// For each region and frame, the sums of all bins.
pub(super) type BatchSums = Vec<Vec<Vec<Sums>>>;

impl From<DeviceError> for IntegrationError {
    fn from(error: DeviceError) -> Self {
        match error {
            DeviceError::Lost { .. } => Self::LostGpu(error.to_string()),
            other => Self::Gpu(other.to_string()),
        }
    }
}

pub(super) struct VulkanEngine {
    device: Device,
    kernel: Kernel,
    /// What decodes chunks.
    decoder: Kernel,
    /// The most bytes of a binding.
    bindable: u64,
    /// One for each kind of dummies that frames have had: one, as a rule.
    plans: Mutex<Vec<Arc<FramePlan>>>,
}

/// What is prepared for frames with some kind of dummies.
struct FramePlan {
    dummy: Dummy,
    /// In the order of regions and their bins.
    parts: Vec<Uploaded>,
    constants: DeviceBuffer,
    /// Locked while a batch's calls are queued: they take effect in that order.
    slots: Mutex<BatchSlots>,
}

/// Bins of a region, with their part of its matrix on the device: all of them, unless that is more
/// than one binding has.
struct Uploaded {
    /// The region's number.
    region: usize,
    bins: usize,
    starts: DeviceBuffer,
    pixels: DeviceBuffer,
    weights: DeviceBuffer,
    shares: usize,
}

#[derive(Default)]
struct BatchSlots {
    next: usize,
    slots: Vec<BatchSlot>,
}

/// Memory of a batch, and the recordings that work on it.
struct BatchSlot {
    size: SlotSize,
    frames: DeviceBuffer,
    sums: Vec<DeviceBuffer>,
    /// Chunks to be decoded, where their blocks lie, and which frames have damaged ones.
    source: DeviceBuffer,
    places: DeviceBuffer,
    faults: DeviceBuffer,
    /// By the layout of the frames and their count.
    recordings: BTreeMap<(BatchLayout, usize), DeviceRecording>,
}

/// The sums of a batch, for each region, on their way.
struct SumBatch {
    frames: usize,
    sums: Vec<PendingCall<HostBuffer>>,
    /// Of frames that the device decodes.
    faults: Option<PendingCall<HostBuffer>>,
}

impl VulkanEngine {
    pub fn new(device: Device) -> Result<Self, IntegrationError> {
        let bindable = device.info().limits.storage_range;
        Self::with(device, bindable)
    }

    /// On a device of which one binding has at most so many bytes.
    pub(super) fn with(device: Device, bindable: u64) -> Result<Self, IntegrationError> {
        let bytes = include_bytes!("../../../shaders/integrate.spv");
        let kernel = shipped(&device, "integrate", bytes)?;
        let bytes = include_bytes!("../../../shaders/decode_blocks.spv");
        let decoder = shipped(&device, "decode_blocks", bytes)?;
        Ok(Self {
            device,
            kernel,
            decoder,
            bindable,
            plans: Mutex::default(),
        })
    }

    /// What kind of device it is.
    pub fn kind(&self) -> GpuKind {
        self.device.info().gpu.kind
    }

    /// The sums of frames in memory, which threads of the pool copy to where the device reads them.
    pub fn sums(
        &self,
        job: &EngineJob<'_>,
        frames: &Frames<'_>,
    ) -> Result<BatchSums, IntegrationError> {
        let Some(mut queue) = self.frames(*job, &frames.pixels, frames.frames)? else {
            let pixels = frames.shape[0] * frames.shape[1];
            let (bytes, most) = (pixels * frames.pixels.bytes_per_pixel(), self.batch_bytes());
            return Err(IntegrationError::Gpu(format!(
                "a frame of {bytes} bytes, and it takes {most} at once"
            )));
        };
        let frame_bytes = queue.frame_bytes().max(1);
        for pixels in bytes_of(frames).chunks(queue.at_once() * frame_bytes) {
            let mut memory = queue.memory(pixels.len() / frame_bytes)?;
            let targets = memory.par_chunks_mut(COPIED_AT_ONCE);
            targets
                .zip(pixels.par_chunks(COPIED_AT_ONCE))
                .for_each(|(target, pixels)| target.copy_from_slice(pixels));
            queue.push(memory)?;
        }
        queue.finish()
    }

    /// The sums of `frames` frames that are written where the device reads them. None where it
    /// takes none of such a size.
    pub fn frames<'e>(
        &'e self,
        job: EngineJob<'e>,
        pixels: &Pixels<'_>,
        frames: usize,
    ) -> Result<Option<FrameQueue<'e>>, IntegrationError> {
        FrameQueue::new(self, job, pixels, frames)
    }

    /// The sums of frames whose chunks the device decodes, of pixels such as `pixels`. None where
    /// it cannot: chunks are too large or of several kinds, or one of them is damaged.
    pub fn sums_of_chunks(
        &self,
        job: &EngineJob<'_>,
        pixels: &Pixels<'_>,
        chunks: &[ChunkBlocks<'_>],
    ) -> Result<Option<BatchSums>, IntegrationError> {
        let Some(blocks) = BlockLayout::of(chunks) else {
            return Ok(None);
        };
        let layout = blocks.frames(kind(pixels), pixels.bytes_per_pixel());
        let limit = self.batch_bytes();
        let at_once = limit / layout.frame_bytes().max(1);
        let Some(groups) = groups(chunks, at_once, limit) else {
            return Ok(None);
        };
        let most = at_once.min(chunks.len());
        let mut queue = BatchQueue::new(self, *job)?;
        for chunks in groups {
            let host = |bytes| self.device.host_buffer(bytes);
            queue.push(FrameBatch::of_chunks(layout, chunks, most, limit, host)?)?;
        }
        let (sums, is_whole) = queue.finish()?;
        Ok(is_whole.then_some(sums))
    }

    fn batch_bytes(&self) -> usize {
        let limits = &self.device.info().limits;
        BATCH_BYTES.min(self.bindable).min(limits.buffer_bytes) as usize & !3
    }

    fn plan(&self, job: &EngineJob<'_>) -> Result<Arc<FramePlan>, IntegrationError> {
        let mut plans = self.plans.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(plan) = plans.iter().find(|plan| plan.dummy == job.dummy) {
            return Ok(plan.clone());
        }
        let corrections = job.corrections;
        let at = |image: &Option<Vec<f32>>, pixel: usize| {
            image.as_ref().map_or(0.0, |image| image[pixel])
        };
        let constants = (0..corrections.omega.len()).flat_map(|pixel| {
            let omega = if corrections.is_valid(pixel, &job.dummy) {
                corrections.omega[pixel]
            } else {
                0.0
            };
            // Of pixels that do not count nothing is read, NaN for example.
            let image = |image| if omega == 0.0 { 0.0 } else { at(image, pixel) };
            // Four numbers are read at once.
            let (dark, variance) = (image(&corrections.dark), image(&corrections.variance));
            [omega, dark, variance, 0.0]
        });
        let constants: Vec<f32> = constants.collect();
        let mut parts = Vec::new();
        for (number, region) in job.regions.iter().enumerate() {
            self.upload_region(number, region, &mut parts)?;
        }
        let plan = Arc::new(FramePlan {
            dummy: job.dummy,
            parts,
            constants: self.upload(bytemuck::cast_slice(&constants))?,
            slots: Mutex::default(),
        });
        plans.push(plan.clone());
        Ok(plan)
    }

    fn upload_region(
        &self,
        number: usize,
        region: &PreparedRegion,
        parts: &mut Vec<Uploaded>,
    ) -> Result<(), IntegrationError> {
        let rows = region.rows();
        for bins in cuts(&rows.starts, self.bindable / size_of::<u32>() as u64) {
            let starts = &rows.starts[bins.start..=bins.end];
            let (first, end) = (starts[0], starts[bins.len()]);
            let starts: Vec<u32> = starts.iter().map(|start| start - first).collect();
            let shares = first as usize..end as usize;
            parts.push(Uploaded {
                region: number,
                bins: bins.len(),
                starts: self.upload(bytemuck::cast_slice(&starts))?,
                pixels: self.upload(bytemuck::cast_slice(&rows.pixels[shares.clone()]))?,
                weights: self.upload(bytemuck::cast_slice(&rows.weights[shares.clone()]))?,
                shares: shares.len(),
            });
        }
        Ok(())
    }

    fn upload(&self, bytes: &[u8]) -> Result<DeviceBuffer, IntegrationError> {
        let most = self.bindable;
        if bytes.len() as u64 > most {
            let size = bytes.len();
            return Err(IntegrationError::Gpu(format!(
                "one bin's pixels, or the constants of all, are {size} bytes, and it takes {most}; \
                 hint: engine = \"cpu\""
            )));
        }
        let buffer = self.device.buffer((bytes.len() as u64).max(4))?;
        let mut memory = self.device.host_buffer(bytes.len())?;
        memory.copy_from_slice(bytes);
        self.device.upload(&buffer, 0, memory).wait(LIMIT)?;
        Ok(buffer)
    }

    /// Queues the calls for a batch of frames.
    fn submit(
        &self,
        plan: &FramePlan,
        job: &EngineJob<'_>,
        batch: FrameBatch,
    ) -> Result<SumBatch, IntegrationError> {
        let (layout, frames) = (batch.layout, batch.frames);
        let mut slots = plan.slots.lock().unwrap_or_else(PoisonError::into_inner);
        let index = slots.next;
        slots.next = (index + 1) % SLOTS;
        let slot = self.slot(plan, &mut slots.slots, index, batch.size)?;
        let recording = match slot.recordings.get(&(layout, frames)) {
            Some(recording) => recording.clone(),
            None => {
                let recording = self.record(plan, job, slot, &layout, frames)?;
                let key = (layout, frames);
                slot.recordings.insert(key, recording.clone());
                recording
            }
        };
        // Asked for before anything is queued: it may have to wait for what was.
        let sums = plan
            .parts
            .iter()
            .map(|region| self.device.host_buffer(sums_bytes(region, frames) as usize));
        let sums = sums.collect::<Result<Vec<_>, _>>()?;
        let faults = layout
            .blocks
            .map(|_| self.device.host_buffer(fault_bytes(frames) as usize))
            .transpose()?;
        let upload =
            |buffer: &DeviceBuffer, memory: HostBuffer| self.device.upload(buffer, 0, memory);
        let uploads = match batch.content {
            BatchContent::Pixels(pixels) => vec![upload(&slot.frames, pixels)],
            BatchContent::Chunks { source, places } => {
                vec![upload(&slot.source, source), upload(&slot.places, places)]
            }
        };
        let run = self.device.run(&recording);
        let download =
            |(from, into): (&DeviceBuffer, HostBuffer)| self.device.download_into(from, 0, into);
        let sums = slot.sums.iter().zip(sums).map(download).collect();
        let faults = faults.map(|faults| download((&slot.faults, faults)));
        drop(slots);
        // A failure of these fails what follows, and is told from there.
        drop((uploads, run));
        Ok(SumBatch {
            frames,
            sums,
            faults,
        })
    }

    /// The memory for a batch: what there is, if it is large enough.
    fn slot<'a>(
        &self,
        plan: &FramePlan,
        slots: &'a mut Vec<BatchSlot>,
        index: usize,
        wanted: SlotSize,
    ) -> Result<&'a mut BatchSlot, IntegrationError> {
        let before = slots.get(index).map(|slot| slot.size);
        let size = before.unwrap_or_default().max(wanted);
        if before != Some(size) {
            let buffer = |bytes: u64| self.device.buffer(bytes.max(4));
            let sums = plan
                .parts
                .iter()
                .map(|region| buffer(sums_bytes(region, size.frames)));
            let slot = BatchSlot {
                size,
                sums: sums.collect::<Result<_, _>>()?,
                frames: buffer(size.pixels)?,
                source: buffer(size.source)?,
                places: buffer(size.places)?,
                faults: buffer(fault_bytes(size.frames))?,
                recordings: BTreeMap::new(),
            };
            if index < slots.len() {
                slots[index] = slot;
            } else {
                slots.push(slot);
            }
        }
        let last = slots.len() - 1;
        Ok(&mut slots[index.min(last)])
    }

    /// What is done with a batch once it is there.
    fn record(
        &self,
        plan: &FramePlan,
        job: &EngineJob<'_>,
        slot: &BatchSlot,
        layout: &BatchLayout,
        frames: usize,
    ) -> Result<DeviceRecording, IntegrationError> {
        let mut steps = Vec::new();
        if let Some(blocks) = layout.blocks {
            steps.extend(self.decoding(slot, layout, blocks, frames));
        }
        for (region, sums) in plan.parts.iter().zip(&slot.sums) {
            let lanes = (region.shares / region.bins / 4)
                .next_power_of_two()
                .clamp(1, GROUP);
            let groups = region.bins.div_ceil(GROUP / lanes).min(MAX_GROUPS);
            let numbers = [
                region.bins,
                job.corrections.omega.len(),
                region.shares,
                layout.stride,
                frames,
                lanes,
            ];
            let has_dummy = job.dummy.is_some();
            let flags = [has_dummy.into(), job.model.is_poissonian().into()];
            let (value, delta) = if has_dummy {
                (job.dummy.value, job.dummy.delta)
            } else {
                (0.0, 0.0)
            };
            let numbers = numbers.iter().map(|number| *number as u32);
            let floats = [value.to_bits(), delta.to_bits()];
            steps.push(RecordingStep::Dispatch {
                kernel: self.kernel.clone(),
                bindings: bindings(&[
                    &region.starts,
                    &region.pixels,
                    &region.weights,
                    &plan.constants,
                    &slot.frames,
                    sums,
                ]),
                push: push(numbers.chain([layout.kind]).chain(flags).chain(floats)),
                groups: [groups as u32, frames.div_ceil(AT_ONCE) as u32, 1],
            });
        }
        Ok(self.device.record(steps)?)
    }

    /// Chunks to frames.
    fn decoding(
        &self,
        slot: &BatchSlot,
        layout: &BatchLayout,
        blocks: BlockLayout,
        frames: usize,
    ) -> [RecordingStep; 2] {
        let count = frames * blocks.per_frame;
        let numbers = [
            count,
            blocks.per_frame,
            blocks.element,
            blocks.block,
            blocks.in_blocks,
            blocks.length,
            layout.frame_bytes() / size_of::<u32>(),
        ];
        let faults = RecordingStep::Fill {
            buffer: slot.faults.clone(),
            range: 0..fault_bytes(frames),
            value: 0,
        };
        let decode = RecordingStep::Dispatch {
            kernel: self.decoder.clone(),
            bindings: bindings(&[&slot.source, &slot.places, &slot.frames, &slot.faults]),
            push: push(numbers.iter().map(|number| *number as u32)),
            groups: [count.min(MAX_GROUPS) as u32, 1, 1],
        };
        [faults, decode]
    }
}

/// A shipped shader.
fn shipped(device: &Device, name: &str, spirv: &[u8]) -> Result<Kernel, IntegrationError> {
    let words = spirv.as_chunks::<4>().0.iter();
    let spirv: Vec<u32> = words.map(|word| u32::from_le_bytes(*word)).collect();
    let source = KernelSource {
        spirv: &spirv,
        entry: "main",
        constants: &[],
        name,
    };
    Ok(device.kernel(&source)?)
}

/// Whole buffers, in the order of their bindings.
fn bindings(buffers: &[&DeviceBuffer]) -> Vec<BufferBinding> {
    let numbered = (0..).zip(buffers);
    numbered
        .map(|(index, buffer)| BufferBinding::whole(index, buffer))
        .collect()
}

fn push(words: impl Iterator<Item = u32>) -> Vec<u8> {
    words.flat_map(u32::to_le_bytes).collect()
}

fn sums_bytes(region: &Uploaded, frames: usize) -> u64 {
    (frames * FLOATS * region.bins * size_of::<f32>()) as u64
}

fn fault_bytes(frames: usize) -> u64 {
    (frames * size_of::<u32>()) as u64
}

/// Waits for a batch. Whether all of its frames could be decoded.
fn finish(
    plan: &FramePlan,
    batch: SumBatch,
    by_region: &mut [Vec<Vec<Sums>>],
) -> Result<bool, IntegrationError> {
    // Further parts of a region lengthen what its first has left.
    let before: Vec<usize> = by_region.iter().map(Vec::len).collect();
    for (region, pending) in plan.parts.iter().zip(batch.sums) {
        let frames = &mut by_region[region.region];
        let bytes = pending.wait(LIMIT)?;
        // Memory of devices begins at multiples of 64, at least.
        let floats: &[f32] = bytemuck::cast_slice(&bytes);
        let own = floats.chunks(FLOATS * region.bins).take(batch.frames);
        for (number, frame) in (before[region.region]..).zip(own) {
            let sum = |quantity: usize, bin: usize| {
                let at = 2 * quantity * region.bins + bin;
                f64::from(frame[at]) + f64::from(frame[at + region.bins])
            };
            let bin = |bin| Sums {
                signal: sum(0, bin),
                variance: sum(1, bin),
                norm: sum(2, bin),
                norm2: sum(3, bin),
                count: sum(4, bin),
            };
            if number == frames.len() {
                frames.push(Vec::with_capacity(region.bins));
            }
            frames[number].extend((0..region.bins).map(bin));
        }
    }
    let faults = batch.faults.map(|faults| faults.wait(LIMIT)).transpose()?;
    Ok(faults.is_none_or(|faults| faults.iter().all(|byte| *byte == 0)))
}

/// Bins that follow each other with at most `most` elements together, or one that has more.
fn cuts(starts: &[u32], most: u64) -> Vec<Range<usize>> {
    let bins = starts.len() - 1;
    let (mut cuts, mut first) = (Vec::new(), 0);
    while first < bins {
        let within = |start: &u32| u64::from(start - starts[first]) <= most;
        // What their own starts take counts, too.
        let end = first + starts[first + 1..].partition_point(within);
        let end = end
            .min(first + (most as usize).saturating_sub(1))
            .clamp(first + 1, bins);
        cuts.push(first..end);
        first = end;
    }
    cuts
}

fn kind(pixels: &Pixels<'_>) -> u32 {
    match pixels {
        Pixels::U8(_) => 0,
        Pixels::U16(_) => 1,
        Pixels::U32(_) => 2,
        Pixels::I32(_) => 3,
        Pixels::F32(_) => 4,
    }
}

fn bytes_of<'a>(frames: &Frames<'a>) -> &'a [u8] {
    match frames.pixels {
        Pixels::U8(values) => values,
        Pixels::U16(values) => bytemuck::cast_slice(values),
        Pixels::U32(values) => bytemuck::cast_slice(values),
        Pixels::I32(values) => bytemuck::cast_slice(values),
        Pixels::F32(values) => bytemuck::cast_slice(values),
    }
}
