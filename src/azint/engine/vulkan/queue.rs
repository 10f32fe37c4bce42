//! Batches on their way through the device, a few at a time: while one is computed the next one is
//! uploaded, and one more written.

use super::{
    BatchSums, FramePlan, SLOTS, SumBatch, VulkanEngine,
    batch::{BatchLayout, FrameBatch},
    finish, kind,
};
use crate::engine::{errors::IntegrationError, frames::Pixels, integrator::EngineJob};
use nodectl_gpu::device::HostBuffer;
use std::{collections::VecDeque, sync::Arc};

/// Host memory of a batch of pixels. A thread has as many such batches as there are slots.
const PIXEL_BYTES: usize = 64 << 20;
/// So much if it must be for whole passes over the matrix.
const MOST_PIXEL_BYTES: usize = 2 * PIXEL_BYTES;
/// Frames that share such a pass.
const PASS: usize = super::AT_ONCE;

/// The sums of batches that follow each other.
pub(super) struct BatchQueue<'e> {
    engine: &'e VulkanEngine,
    job: EngineJob<'e>,
    plan: Arc<FramePlan>,
    waiting: VecDeque<SumBatch>,
    by_region: BatchSums,
    is_whole: bool,
}

impl<'e> BatchQueue<'e> {
    pub(super) fn new(
        engine: &'e VulkanEngine,
        job: EngineJob<'e>,
    ) -> Result<Self, IntegrationError> {
        Ok(Self {
            engine,
            plan: engine.plan(&job)?,
            waiting: VecDeque::new(),
            by_region: job.regions.iter().map(|_| Vec::new()).collect(),
            is_whole: true,
            job,
        })
    }

    pub(super) fn push(&mut self, batch: FrameBatch) -> Result<(), IntegrationError> {
        self.make_room(SLOTS)?;
        let batch = self.engine.submit(&self.plan, &self.job, batch)?;
        self.waiting.push_back(batch);
        Ok(())
    }

    /// Waits until fewer than `most` batches are on their way.
    fn make_room(&mut self, most: usize) -> Result<(), IntegrationError> {
        while self.waiting.len() >= most {
            self.finish_one()?;
        }
        Ok(())
    }

    fn finish_one(&mut self) -> Result<(), IntegrationError> {
        if let Some(batch) = self.waiting.pop_front() {
            self.is_whole &= finish(&self.plan, batch, &mut self.by_region)?;
        }
        Ok(())
    }

    /// The sums of all, and whether all frames could be decoded.
    pub(super) fn finish(mut self) -> Result<(BatchSums, bool), IntegrationError> {
        self.make_room(1)?;
        Ok((self.by_region, self.is_whole))
    }
}

/// Frames that somebody writes where the device reads them.
pub(in crate::engine) struct FrameQueue<'e> {
    batches: BatchQueue<'e>,
    layout: BatchLayout,
    at_once: usize,
}

impl<'e> FrameQueue<'e> {
    /// For `frames` frames of such pixels. None where not even one fits.
    pub(super) fn new(
        engine: &'e VulkanEngine,
        job: EngineJob<'e>,
        pixels: &Pixels<'_>,
        frames: usize,
    ) -> Result<Option<Self>, IntegrationError> {
        let layout = BatchLayout {
            kind: kind(pixels),
            pixel_bytes: pixels.bytes_per_pixel(),
            stride: job.corrections.omega.len(),
            blocks: None,
        };
        let at_once = at_once(layout.frame_bytes(), engine.batch_bytes()).min(frames.max(1));
        if at_once == 0 {
            return Ok(None);
        }
        Ok(Some(Self {
            batches: BatchQueue::new(engine, job)?,
            layout,
            at_once,
        }))
    }

    /// Frames of a batch, at most.
    pub(in crate::engine) fn at_once(&self) -> usize {
        self.at_once
    }

    pub(in crate::engine) fn frame_bytes(&self) -> usize {
        self.layout.frame_bytes()
    }

    /// Memory for a batch of so many frames, with whatever was in it. It is written while the batch
    /// before it is on its way; those before that one are waited for.
    pub(in crate::engine) fn memory(
        &mut self,
        frames: usize,
    ) -> Result<HostBuffer, IntegrationError> {
        self.batches.make_room(SLOTS)?;
        let bytes = frames * self.layout.frame_bytes();
        Ok(self.batches.engine.device.host_buffer(bytes)?)
    }

    /// Adds a batch: whole frames, in memory that was asked for here.
    pub(in crate::engine) fn push(&mut self, memory: HostBuffer) -> Result<(), IntegrationError> {
        let batch = FrameBatch::of_pixels(self.layout, memory, self.at_once);
        self.batches.push(batch)
    }

    pub(in crate::engine) fn finish(self) -> Result<BatchSums, IntegrationError> {
        Ok(self.batches.finish()?.0)
    }
}

/// Frames of a batch of pixels, where the device takes batches of `limit` bytes: whole passes over
/// the matrix, if they fit.
fn at_once(frame_bytes: usize, limit: usize) -> usize {
    let fit = |bytes: usize| bytes.min(limit) / frame_bytes.max(1);
    let passes = fit(PIXEL_BYTES) / PASS * PASS;
    match passes {
        0 if fit(MOST_PIXEL_BYTES) >= PASS => PASS,
        0 => fit(MOST_PIXEL_BYTES).max(fit(limit).min(1)),
        passes => passes,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_are_whole_passes_of_little_memory() {
        let mib = |count: usize| count << 20;
        assert_eq!(at_once(mib(18), mib(256)), 4);
        assert_eq!(at_once(mib(9), mib(256)), 4);
        assert_eq!(at_once(mib(4), mib(256)), 16);
        assert_eq!(at_once(mib(36), mib(256)), 3);
        assert_eq!(at_once(mib(200), mib(256)), 1);
        assert_eq!(at_once(mib(300), mib(256)), 0);
        assert_eq!(at_once(1200, 7200), 4);
        assert_eq!(at_once(2400, 7200), 3);
    }
}
