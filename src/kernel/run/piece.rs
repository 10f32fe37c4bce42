//! Cells on a device that are computed together: their buffers, and the recordings of their steps.

use super::{fit, kernels::PreparedKernel};
use crate::{
    KernelPlan,
    plan::{Content, TILE_BYTES, tile_bytes},
    tiles::Cells,
};
use bytes::Bytes;
use nodectl_builtin::{CallError, device::failed};
use nodectl_gpu::device::{
    BufferBinding, Device, DeviceBuffer, DeviceLimits, DeviceRecording, PendingCall, RecordingStep,
};
use std::{
    collections::BTreeMap,
    ops::Range,
    sync::{Mutex, PoisonError},
};

/// The most steps of one recording.
const MAX_BATCH: u32 = 256;
/// Batches whose steps' uniforms are on the device at once.
pub const SLOTS: usize = 2;

pub struct KernelPiece<'a> {
    device: &'a Device,
    plan: &'a KernelPlan,
    prepared: &'a PreparedKernel,
    wide: Cells,
    space: [u32; 3],
    groups: [u32; 3],
    /// By binding; none for `Content::Tile`.
    buffers: Vec<Option<DeviceBuffer>>,
    /// `Tile` structs, one after the other for the steps of a batch. None where the kernel has no
    /// such uniform.
    places: Option<[DeviceBuffer; SLOTS]>,
    /// From one of those structs to the next.
    stride: u64,
    recordings: Mutex<BTreeMap<(u32, bool, usize), DeviceRecording>>,
}

impl<'a> KernelPiece<'a> {
    /// `steps` is how many there will be.
    pub fn new(
        device: &'a Device,
        plan: &'a KernelPlan,
        prepared: &'a PreparedKernel,
        (wide, space): (Cells, [u32; 3]),
        steps: u32,
        buffers: Vec<Option<DeviceBuffer>>,
    ) -> Result<Self, CallError> {
        let limits = &device.info().limits;
        let groups = groups(&wide, prepared, limits).ok_or_else(|| {
            CallError::Task(format!(
                "{:?} cells are too many for one dispatch",
                wide.size
            ))
        })?;
        let stride = (TILE_BYTES as u64).next_multiple_of(limits.uniform_alignment.max(1));
        let knows_its_place = plan
            .bindings
            .iter()
            .any(|binding| matches!(binding.content, Content::Tile));
        let slot = || {
            device
                .buffer(stride * u64::from(steps.clamp(1, MAX_BATCH)))
                .map_err(failed)
        };
        let places = if knows_its_place {
            Some([slot()?, slot()?])
        } else {
            None
        };
        let recordings = Mutex::default();
        Ok(Self {
            device,
            plan,
            prepared,
            wide,
            space,
            groups,
            buffers,
            places,
            stride,
            recordings,
        })
    }

    /// Of one step.
    pub fn cells(&self) -> u64 {
        self.wide.count()
    }

    /// How many steps to submit at once, of those left: where buffers are exchanged an even number,
    /// so that the same recording serves again.
    pub fn batch(&self, paced: u64, left: u32) -> u32 {
        let batch = u32::try_from(paced).unwrap_or(u32::MAX).min(MAX_BATCH);
        if batch >= left || batch < 2 {
            batch.clamp(1, left.max(1))
        } else {
            batch & !1
        }
    }

    /// Submits steps `done .. done + batch`, the first of all being number `first`, and the uploads
    /// that they need.
    pub fn submit(
        &self,
        first: u32,
        done: u32,
        batch: u32,
        slot: usize,
        uploads: &mut Vec<PendingCall<()>>,
    ) -> Result<PendingCall<()>, CallError> {
        if let Some(places) = &self.places {
            let mut bytes = vec![0; (self.stride * u64::from(batch)) as usize];
            for (index, place) in bytes.chunks_exact_mut(self.stride as usize).enumerate() {
                let step = first + done + index as u32;
                place[..TILE_BYTES].copy_from_slice(&tile_bytes(
                    self.wide.origin,
                    self.wide.size,
                    self.space,
                    step,
                ));
            }
            uploads.push(self.device.upload(&places[slot], 0, Bytes::from(bytes)));
        }
        Ok(self
            .device
            .run(&self.recording(batch, done % 2 == 1, slot)?))
    }

    fn recording(
        &self,
        batch: u32,
        is_odd: bool,
        slot: usize,
    ) -> Result<DeviceRecording, CallError> {
        let mut known = self
            .recordings
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(recording) = known.get(&(batch, is_odd, slot)) {
            return Ok(recording.clone());
        }
        let step = |index: u32| RecordingStep::Dispatch {
            kernel: self.prepared.kernel.clone(),
            bindings: self.bindings(index, u32::from(is_odd) + index, slot),
            push: Vec::new(),
            groups: self.groups,
        };
        let recording = self
            .device
            .record((0..batch).map(step).collect())
            .map_err(failed)?;
        known.insert((batch, is_odd, slot), recording.clone());
        Ok(recording)
    }

    fn bindings(&self, index: u32, step: u32, slot: usize) -> Vec<BufferBinding> {
        let bind = |(number, binding): (usize, &crate::plan::BindingPlan)| {
            let (buffer, range): (&DeviceBuffer, Range<u64>) =
                match (&binding.content, &self.places) {
                    (Content::Tile, Some(places)) => {
                        let offset = self.stride * u64::from(index);
                        (&places[slot], offset..offset + TILE_BYTES as u64)
                    }
                    _ => {
                        let buffer = self.buffer(number, step)?;
                        (buffer, 0..buffer.bytes())
                    }
                };
            Some(BufferBinding {
                set: binding.set,
                binding: binding.binding,
                buffer: buffer.clone(),
                range,
            })
        };
        self.plan
            .bindings
            .iter()
            .enumerate()
            .filter_map(bind)
            .collect()
    }

    /// The buffer that a binding has in step `step` of this task, counted from 0.
    pub fn buffer(&self, index: usize, step: u32) -> Option<&DeviceBuffer> {
        let name = &self.plan.bindings[index].name;
        let partner = self
            .plan
            .swaps
            .iter()
            .find_map(|(read, written)| match name {
                name if name == read => Some(written),
                name if name == written => Some(read),
                _ => None,
            });
        let partner = partner.filter(|_| step % 2 == 1);
        let partner = partner.and_then(|partner| {
            self.plan
                .bindings
                .iter()
                .position(|binding| binding.name == *partner)
        });
        self.buffers[partner.unwrap_or(index)].as_ref()
    }
}

/// The workgroups that cover the cells; None where the device does not take so many.
pub fn groups(wide: &Cells, prepared: &PreparedKernel, limits: &DeviceLimits) -> Option<[u32; 3]> {
    fit::groups(wide.size, prepared.entry.workgroup, limits.workgroup_count)
}
