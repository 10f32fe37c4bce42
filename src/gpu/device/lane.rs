//! A lane: a queue with a timeline semaphore that counts its submissions.

use super::{DeviceError, error::refused};
use ash::vk;
use std::{sync::Arc, time::Duration};
use vulkano::{
    Validated, VulkanError, VulkanObject,
    command_buffer::CommandBuffer,
    device::{DeviceOwned, Queue},
    sync::semaphore::{Semaphore, SemaphoreCreateInfo, SemaphoreType, SemaphoreWaitInfo},
};

/// The calls of a driver that tell that a device is lost. Tests have others in their place.
pub(super) trait LaneDriver: Send + Sync {
    /// Submits in order.
    ///
    /// # Safety
    /// All that the submissions point to lives until they have ended.
    unsafe fn submit(
        &self,
        queue: &Arc<Queue>,
        submissions: &[vk::SubmitInfo<'_>],
    ) -> Result<(), DeviceError>;

    /// Whether a timeline came to a number within `limit`.
    fn wait(&self, timeline: &Semaphore, number: u64, limit: Duration)
    -> Result<bool, DeviceError>;
}

/// What there is.
pub(super) struct VulkanDriver;

impl LaneDriver for VulkanDriver {
    unsafe fn submit(
        &self,
        queue: &Arc<Queue>,
        submissions: &[vk::SubmitInfo<'_>],
    ) -> Result<(), DeviceError> {
        queue.with(|_guard| {
            let submit = queue.device().fns().v1_0.queue_submit;
            // SAFETY: the queue is locked by the guard; the rest is the caller's to see to.
            let result = unsafe {
                submit(
                    queue.handle(),
                    submissions.len() as u32,
                    submissions.as_ptr(),
                    vk::Fence::null(),
                )
            };
            result
                .result()
                .map_err(|error| refused::<VulkanError>("submitting work")(error.into()))
        })
    }

    fn wait(
        &self,
        timeline: &Semaphore,
        number: u64,
        limit: Duration,
    ) -> Result<bool, DeviceError> {
        let info = SemaphoreWaitInfo {
            value: number,
            ..Default::default()
        };
        match timeline.wait(info, Some(limit)) {
            Ok(()) => Ok(true),
            Err(Validated::Error(VulkanError::Timeout)) => Ok(false),
            Err(error) => Err(refused::<Validated<VulkanError>>("waiting for it")(error)),
        }
    }
}

/// A place on a lane's timeline: reached when the submission with that number, and all before it,
/// have ended.
#[derive(Clone)]
pub(super) struct Point {
    pub(super) timeline: Arc<Semaphore>,
    pub(super) number: u64,
    driver: Arc<dyn LaneDriver>,
}

pub(super) struct Lane {
    pub(super) queue: Arc<Queue>,
    driver: Arc<dyn LaneDriver>,
    timeline: Arc<Semaphore>,
    submitted: u64,
}

/// One command buffer, and the points of other lanes that must be reached before it starts.
pub(super) struct LaneSubmission<'a> {
    pub(super) commands: &'a CommandBuffer,
    pub(super) after: Vec<Point>,
}

impl Lane {
    pub(super) fn new(
        queue: &Arc<Queue>,
        driver: &Arc<dyn LaneDriver>,
    ) -> Result<Self, DeviceError> {
        let create = SemaphoreCreateInfo {
            semaphore_type: SemaphoreType::Timeline,
            ..Default::default()
        };
        let timeline = Semaphore::new(queue.device().clone(), create).map_err(refused::<
            Validated<VulkanError>,
        >(
            "making a timeline",
        ))?;
        Ok(Self {
            queue: queue.clone(),
            driver: driver.clone(),
            timeline: Arc::new(timeline),
            submitted: 0,
        })
    }

    /// The point that the submission with this number reaches.
    pub(super) fn point(&self, number: u64) -> Point {
        Point {
            timeline: self.timeline.clone(),
            number,
            driver: self.driver.clone(),
        }
    }

    /// How many submissions were made.
    pub(super) fn submitted(&self) -> u64 {
        self.submitted
    }

    /// Submits in order; the first gets the number after `submitted()`.
    pub(super) fn submit(&mut self, submissions: &[LaneSubmission<'_>]) -> Result<(), DeviceError> {
        let parts: Vec<SubmitParts> = submissions
            .iter()
            .zip(self.submitted + 1..)
            .map(|(one, number)| self.parts(one, number))
            .collect();
        let mut timelines: Vec<_> = parts.iter().map(SubmitParts::timeline).collect();
        let infos: Vec<_> = parts
            .iter()
            .zip(&mut timelines)
            .map(|(parts, timeline)| parts.info(timeline))
            .collect();
        // SAFETY: all handles belong to live objects of the queue's device, which whoever submits
        // keeps until the point is reached; `infos` points into `parts` and `timelines`, which
        // outlive the call.
        unsafe { self.driver.submit(&self.queue, &infos) }?;
        self.submitted += submissions.len() as u64;
        Ok(())
    }

    fn parts(&self, submission: &LaneSubmission<'_>, number: u64) -> SubmitParts {
        SubmitParts {
            commands: [submission.commands.handle()],
            wait: submission
                .after
                .iter()
                .map(|point| point.timeline.handle())
                .collect(),
            wait_numbers: submission.after.iter().map(|point| point.number).collect(),
            wait_stages: vec![vk::PipelineStageFlags::ALL_COMMANDS; submission.after.len()],
            signal: [self.timeline.handle()],
            signal_number: [number],
        }
    }
}

/// The arrays that a `vk::SubmitInfo` points to.
struct SubmitParts {
    commands: [vk::CommandBuffer; 1],
    wait: Vec<vk::Semaphore>,
    wait_numbers: Vec<u64>,
    wait_stages: Vec<vk::PipelineStageFlags>,
    signal: [vk::Semaphore; 1],
    signal_number: [u64; 1],
}

impl SubmitParts {
    fn timeline(&self) -> vk::TimelineSemaphoreSubmitInfo<'_> {
        vk::TimelineSemaphoreSubmitInfo::default()
            .wait_semaphore_values(&self.wait_numbers)
            .signal_semaphore_values(&self.signal_number)
    }

    fn info<'a>(
        &'a self,
        timeline: &'a mut vk::TimelineSemaphoreSubmitInfo<'a>,
    ) -> vk::SubmitInfo<'a> {
        vk::SubmitInfo::default()
            .command_buffers(&self.commands)
            .wait_semaphores(&self.wait)
            .wait_dst_stage_mask(&self.wait_stages)
            .signal_semaphores(&self.signal)
            .push_next(timeline)
    }
}

impl Point {
    /// Whether it was reached within `limit`.
    pub(super) fn wait(&self, limit: Duration) -> Result<bool, DeviceError> {
        self.driver.wait(&self.timeline, self.number, limit)
    }
}
