//! Integrators that share matrices and threads: the processor's, and a GPU's where there is one.

use super::engine::{ChunkDecoder, EngineChoice, IntegrationError, Integrator};
use nodectl_gpu::device::Device;
use rayon::ThreadPool;

/// Who integrates frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkSplit {
    Processor,
    Device(ChunkDecoder),
    /// So many threads feed the GPU, and the others integrate beside it. Each takes its next frames
    /// when it has done the last, so that neither waits for the other.
    Both {
        decoder: ChunkDecoder,
        feeders: usize,
    },
}

/// The integrators of one plan.
pub struct Integrators {
    processor: Integrator,
    device: Option<DeviceIntegrator>,
    split: WorkSplit,
}

struct DeviceIntegrator {
    integrator: Integrator,
    device: Device,
}

impl Integrators {
    /// The processor's alone.
    pub fn of_processor(processor: Integrator) -> Self {
        Self {
            processor,
            device: None,
            split: WorkSplit::Processor,
        }
    }

    /// The processor's and a GPU's. The GPU integrates until `share` says something else.
    ///
    /// # Errors
    /// Where the GPU takes none of the kernels.
    pub fn with_device(processor: Integrator, device: Device) -> Result<Self, IntegrationError> {
        let integrator = processor.with_engine(EngineChoice::Vulkan(device.clone()))?;
        Ok(Self {
            processor,
            device: Some(DeviceIntegrator { integrator, device }),
            split: WorkSplit::Device(ChunkDecoder::Processor),
        })
    }

    /// Has them integrate so from now on. Without a GPU the processor does it all.
    pub fn share(&mut self, split: WorkSplit) {
        self.split = split;
        let (WorkSplit::Device(decoder) | WorkSplit::Both { decoder, .. }) = split else {
            return;
        };
        if let Some(device) = &mut self.device {
            device.integrator.set_chunk_decoder(decoder);
        }
    }

    pub fn split(&self) -> WorkSplit {
        self.split
    }

    /// The GPU, if there is one.
    pub fn device(&self) -> Option<&Device> {
        self.device.as_ref().map(|on_device| &on_device.device)
    }

    /// Whether a GPU integrates, alone or not.
    pub fn is_on_device(&self) -> bool {
        let is_used = self.split != WorkSplit::Processor;
        let is_able = |on_device: &DeviceIntegrator| on_device.integrator.is_on_device();
        is_used && self.device.as_ref().is_some_and(is_able)
    }

    /// The integrator of the thread that asks, which is one of the pool's.
    pub fn of_this_thread(&self) -> &Integrator {
        let feeders = match self.split {
            WorkSplit::Processor => 0,
            WorkSplit::Device(_) => usize::MAX,
            WorkSplit::Both { feeders, .. } => feeders,
        };
        let thread = self.pool().current_thread_index().unwrap_or_default();
        match &self.device {
            Some(on_device) if thread < feeders => &on_device.integrator,
            _ => &self.processor,
        }
    }

    /// The processor's, of which axes and settings are those of all.
    pub fn processor(&self) -> &Integrator {
        &self.processor
    }

    /// The threads that all of them share.
    pub fn pool(&self) -> &ThreadPool {
        self.processor.pool()
    }
}
