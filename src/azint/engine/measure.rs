//! Which engine integrates faster here: both are tried on the same frames.

use super::{
    cpu,
    errors::IntegrationError,
    frames::Frames,
    integrator::{AnyEngine, Integrator},
    vulkan,
};
use nodectl_gpu::device::Device;
use nodectl_types::GpuKind;
use std::{
    fmt,
    time::{Duration, Instant},
};

/// How long each engine is tried.
const TRIAL: Duration = Duration::from_secs(1);
/// Times that frames are integrated in a trial, at most.
const MAX_ROUNDS: u32 = 1000;

/// What a trial of the engines came to.
#[derive(Clone, Debug, PartialEq)]
pub struct Comparison {
    pub device_name: String,
    pub threads: usize,
    pub outcome: MeasureOutcome,
}

#[derive(Clone, Debug, PartialEq)]
pub enum MeasureOutcome {
    /// Frames a second.
    Measured { device: f64, processor: f64 },
    /// Why the processor does it without a trial.
    NotTried(&'static str),
    /// What the device said.
    Failed(String),
}

impl Comparison {
    /// Whether the device integrates.
    pub fn is_device(&self) -> bool {
        matches!(self.outcome, MeasureOutcome::Measured { device, processor } if device > processor)
    }
}

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let processor = nodectl_gpu::ops::processor_name(self.threads);
        let name = &self.device_name;
        match &self.outcome {
            MeasureOutcome::Measured {
                device,
                processor: on_processor,
            } if self.is_device() => {
                write!(
                    f,
                    "Vulkan, {name} ({device:.0} frames/s; {processor}: {on_processor:.0})"
                )
            }
            MeasureOutcome::Measured {
                device,
                processor: on_processor,
            } => {
                write!(
                    f,
                    "{processor} ({on_processor:.0} frames/s; Vulkan, {name}: {device:.0})"
                )
            }
            MeasureOutcome::NotTried(why) => write!(f, "{processor} ({why})"),
            MeasureOutcome::Failed(why) => write!(f, "{processor} (Vulkan, {name}: {why})"),
        }
    }
}

impl Integrator {
    /// Goes on with the engine that is faster on such frames: the device's, or the processor's with
    /// the integrator's threads. A device that is a processor in disguise never wins.
    ///
    /// # Errors
    /// Where the frames do not fit the integrator. A device that fails loses.
    pub fn choose_engine(
        &mut self,
        device: &Device,
        frames: &Frames<'_>,
    ) -> Result<Comparison, IntegrationError> {
        let info = device.info();
        let (device_name, threads) = (info.gpu.name.clone(), self.threads());
        let is_software = info.gpu.kind == GpuKind::Software;
        let told = |outcome| Comparison {
            device_name,
            threads,
            outcome,
        };
        self.set_engine(AnyEngine::Cpu(cpu::CpuEngine::new()));
        if is_software {
            return Ok(told(MeasureOutcome::NotTried(
                "the device here is software",
            )));
        }
        if self.is_together() {
            return Ok(told(MeasureOutcome::NotTried(
                "filters and the azimuthal error model are the processor's",
            )));
        }
        let processor = self.rate(frames)?;
        let on_device = vulkan::VulkanEngine::new(device.clone()).and_then(|engine| {
            self.set_engine(AnyEngine::Vulkan(engine));
            self.rate(frames)
        });
        let comparison = told(match on_device {
            Ok(device) => MeasureOutcome::Measured { device, processor },
            Err(error) => MeasureOutcome::Failed(error.to_string()),
        });
        if !comparison.is_device() {
            self.set_engine(AnyEngine::Cpu(cpu::CpuEngine::new()));
        }
        Ok(comparison)
    }

    /// Frames a second, of a trial.
    fn rate(&self, frames: &Frames<'_>) -> Result<f64, IntegrationError> {
        // What is made once is not counted.
        self.integrate(frames, &[])?;
        let begin = Instant::now();
        let mut rounds = 0;
        while rounds < MAX_ROUNDS && (rounds == 0 || begin.elapsed() < TRIAL) {
            self.integrate(frames, &[])?;
            rounds += 1;
        }
        Ok(f64::from(rounds) * frames.frames as f64 / begin.elapsed().as_secs_f64())
    }
}
