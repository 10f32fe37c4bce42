//! The engine on a GPU: the matrix by bins and the constants of pixels are uploaded once; frames
//! follow in batches as they are in memory, and come back as sums, pairs of 32-bit floats. While
//! one batch is computed the next one is on its way.

use super::{
    corrections::Dummy,
    errors::IntegrationError,
    frames::{Frames, Pixels, Sums},
    integrator::{EngineJob, PreparedRegion},
};
use bytes::Bytes;
use nodectl_gpu::device::{
    BufferBinding, Device, DeviceBuffer, DeviceError, DeviceRecording, Kernel, KernelSource,
    PendingCall, RecordingStep,
};
use std::{
    collections::{BTreeMap, VecDeque},
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
/// For uploads, runs and downloads of a batch. A device that takes longer hangs.
const LIMIT: Duration = Duration::from_secs(120);

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
    /// The most bytes of a binding.
    bindable: u64,
    /// One for each kind of dummies that frames have had: one, as a rule.
    plans: Mutex<Vec<Arc<Plan>>>,
}

/// What is prepared for frames with some kind of dummies.
struct Plan {
    dummy: Dummy,
    /// In the order of regions and their bins.
    parts: Vec<Uploaded>,
    constants: DeviceBuffer,
    /// Locked while a batch's calls are queued: they take effect in that order.
    slots: Mutex<Slots>,
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
struct Slots {
    next: usize,
    slots: Vec<Slot>,
}

/// Memory of a batch, and the recordings that work on it.
struct Slot {
    frames: DeviceBuffer,
    sums: Vec<DeviceBuffer>,
    /// By the kind of the frames' numbers and their count.
    recordings: BTreeMap<(u32, usize), DeviceRecording>,
}

/// Frames that are integrated by one call.
struct FrameBatch<'a> {
    bytes: &'a [u8],
    frame_bytes: usize,
    /// What the memory for a batch must hold at least.
    slot_bytes: usize,
}

/// The sums of a batch, for each region, on their way.
struct SumBatch {
    frames: usize,
    sums: Vec<PendingCall<Vec<u8>>>,
}

impl VulkanEngine {
    pub fn new(device: Device) -> Result<Self, IntegrationError> {
        let bindable = device.info().limits.storage_range;
        Self::with(device, bindable)
    }

    /// On a device of which one binding has at most so many bytes.
    pub(super) fn with(device: Device, bindable: u64) -> Result<Self, IntegrationError> {
        let bytes = include_bytes!("../../../shaders/integrate.spv");
        let spirv: Vec<u32> = bytes
            .as_chunks::<4>()
            .0
            .iter()
            .map(|word| u32::from_le_bytes(*word))
            .collect();
        let source = KernelSource {
            spirv: &spirv,
            entry: "main",
            constants: &[],
            name: "integrate",
        };
        let kernel = device.kernel(&source)?;
        Ok(Self {
            device,
            kernel,
            bindable,
            plans: Mutex::default(),
        })
    }

    /// For each region and frame, the sums of all bins.
    pub fn sums(
        &self,
        job: &EngineJob<'_>,
        frames: &Frames<'_>,
    ) -> Result<Vec<Vec<Vec<Sums>>>, IntegrationError> {
        let plan = self.plan(job)?;
        let bytes = bytes_of(frames);
        let frame_bytes = frames.pixels.bytes_per_pixel() * frames.shape[0] * frames.shape[1];
        let at_once = self.batch_bytes() / frame_bytes.max(1);
        if at_once == 0 {
            let most = self.batch_bytes();
            return Err(IntegrationError::Gpu(format!(
                "a frame of {frame_bytes} bytes, and it takes {most} at once"
            )));
        }
        let mut by_region: Vec<Vec<Vec<Sums>>> = job.regions.iter().map(|_| Vec::new()).collect();
        let mut waiting = VecDeque::new();
        for bytes in bytes.chunks(at_once * frame_bytes) {
            if waiting.len() == SLOTS {
                waiting
                    .pop_front()
                    .map_or(Ok(()), |batch| finish(&plan, batch, &mut by_region))?;
            }
            let slot_bytes = bytes
                .len()
                .max((at_once * frame_bytes).min(frames.frames * frame_bytes));
            let batch = FrameBatch {
                bytes,
                frame_bytes,
                slot_bytes,
            };
            waiting.push_back(self.submit(&plan, job, kind(&frames.pixels), batch)?);
        }
        waiting
            .into_iter()
            .try_for_each(|batch| finish(&plan, batch, &mut by_region))?;
        Ok(by_region)
    }

    fn batch_bytes(&self) -> usize {
        let limits = &self.device.info().limits;
        BATCH_BYTES.min(self.bindable).min(limits.buffer_bytes) as usize & !3
    }

    fn plan(&self, job: &EngineJob<'_>) -> Result<Arc<Plan>, IntegrationError> {
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
            [
                omega,
                image(&corrections.dark),
                image(&corrections.variance),
            ]
        });
        let constants: Vec<f32> = constants.collect();
        let mut parts = Vec::new();
        for (number, region) in job.regions.iter().enumerate() {
            self.upload_region(number, region, &mut parts)?;
        }
        let plan = Arc::new(Plan {
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
        self.device
            .upload(&buffer, 0, Bytes::copy_from_slice(bytes))
            .wait(LIMIT)?;
        Ok(buffer)
    }

    /// Queues the calls for a batch of frames.
    fn submit(
        &self,
        plan: &Plan,
        job: &EngineJob<'_>,
        kind: u32,
        batch: FrameBatch<'_>,
    ) -> Result<SumBatch, IntegrationError> {
        let FrameBatch {
            bytes,
            frame_bytes,
            slot_bytes,
        } = batch;
        let frames = bytes.len() / frame_bytes;
        let mut slots = plan.slots.lock().unwrap_or_else(PoisonError::into_inner);
        let index = slots.next;
        slots.next = (index + 1) % SLOTS;
        let slot = self.slot(
            plan,
            &mut slots.slots,
            index,
            slot_bytes,
            slot_bytes / frame_bytes,
        )?;
        let recording = match slot.recordings.get(&(kind, frames)) {
            Some(recording) => recording.clone(),
            None => {
                let recording = self.record(plan, job, slot, kind, frames)?;
                slot.recordings.insert((kind, frames), recording.clone());
                recording
            }
        };
        let upload = self.device.upload(&slot.frames, 0, padded(bytes));
        let run = self.device.run(&recording);
        let download = |(region, sums): (&Uploaded, &DeviceBuffer)| {
            self.device.download(
                sums,
                0..(frames * FLOATS * region.bins * size_of::<f32>()) as u64,
            )
        };
        let sums = plan.parts.iter().zip(&slot.sums).map(download).collect();
        drop(slots);
        // A failure of the first two fails what follows, and is told from there.
        drop((upload, run));
        Ok(SumBatch { frames, sums })
    }

    /// The memory for a batch: what there is, if it is large enough.
    fn slot<'a>(
        &self,
        plan: &Plan,
        slots: &'a mut Vec<Slot>,
        index: usize,
        bytes: usize,
        frames: usize,
    ) -> Result<&'a mut Slot, IntegrationError> {
        let wanted = bytes.next_multiple_of(4) as u64;
        let sums_bytes =
            |region: &Uploaded| (frames * FLOATS * region.bins * size_of::<f32>()) as u64;
        let is_enough = slots.get(index).is_some_and(|slot| {
            let mut sums = slot.sums.iter().zip(&plan.parts);
            slot.frames.bytes() >= wanted
                && sums.all(|(sums, region)| sums.bytes() >= sums_bytes(region))
        });
        if !is_enough {
            let sums = plan
                .parts
                .iter()
                .map(|region| self.device.buffer(sums_bytes(region)));
            let sums = sums.collect::<Result<_, _>>()?;
            let slot = Slot {
                frames: self.device.buffer(wanted)?,
                sums,
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

    fn record(
        &self,
        plan: &Plan,
        job: &EngineJob<'_>,
        slot: &Slot,
        kind: u32,
        frames: usize,
    ) -> Result<DeviceRecording, IntegrationError> {
        let has_dummy = job.dummy.is_some();
        let mut steps = Vec::new();
        for (region, sums) in plan.parts.iter().zip(&slot.sums) {
            let lanes = (region.shares / region.bins / 4)
                .next_power_of_two()
                .clamp(1, GROUP);
            let groups = region.bins.div_ceil(GROUP / lanes).min(MAX_GROUPS);
            let buffers = [
                &region.starts,
                &region.pixels,
                &region.weights,
                &plan.constants,
                &slot.frames,
                sums,
            ];
            let bindings = buffers
                .iter()
                .enumerate()
                .map(|(index, buffer)| BufferBinding::whole(index as u32, buffer));
            let bindings: Vec<BufferBinding> = bindings.collect();
            for first in (0..frames).step_by(AT_ONCE) {
                let numbers = [
                    region.bins,
                    job.corrections.omega.len(),
                    region.shares,
                    first,
                    frames,
                    lanes,
                ];
                let flags = [kind, has_dummy.into(), job.model.is_poissonian().into()];
                let (value, delta) = if has_dummy {
                    (job.dummy.value, job.dummy.delta)
                } else {
                    (0.0, 0.0)
                };
                let push = numbers.iter().map(|number| *number as u32).chain(flags);
                let push = push
                    .chain([value.to_bits(), delta.to_bits()])
                    .flat_map(u32::to_le_bytes)
                    .collect();
                let (kernel, bindings) = (self.kernel.clone(), bindings.clone());
                steps.push(RecordingStep::Dispatch {
                    kernel,
                    bindings,
                    push,
                    groups: [groups as u32, 1, 1],
                });
            }
        }
        Ok(self.device.record(steps)?)
    }
}

/// Waits for a batch.
fn finish(
    plan: &Plan,
    batch: SumBatch,
    by_region: &mut [Vec<Vec<Sums>>],
) -> Result<(), IntegrationError> {
    // Further parts of a region lengthen what its first has left.
    let before: Vec<usize> = by_region.iter().map(Vec::len).collect();
    for (region, pending) in plan.parts.iter().zip(batch.sums) {
        let frames = &mut by_region[region.region];
        let bytes = pending.wait(LIMIT)?;
        let floats: Vec<f32> = bytemuck::pod_collect_to_vec(&bytes);
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
    Ok(())
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

/// Whole words, as the shader reads them.
fn padded(bytes: &[u8]) -> Bytes {
    let mut whole = Vec::with_capacity(bytes.len().next_multiple_of(4));
    whole.extend_from_slice(bytes);
    whole.resize(bytes.len().next_multiple_of(4), 0);
    whole.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn parts_of_a_matrix_are_all_of_it_and_fit(
            counts in prop::collection::vec(0u32..40, 1..60), most in 1u64..100,
        ) {
            let mut starts = vec![0];
            starts.extend(counts.iter().scan(0, |sum, count| { *sum += count; Some(*sum) }));
            let mut next = 0;
            for bins in cuts(&starts, most) {
                prop_assert!(bins.start == next && bins.end > bins.start);
                next = bins.end;
                let shares = u64::from(starts[bins.end] - starts[bins.start]);
                prop_assert!(bins.len() == 1 || (shares <= most && bins.len() as u64 <= most));
            }
            prop_assert_eq!(next, counts.len());
        }
    }
}
