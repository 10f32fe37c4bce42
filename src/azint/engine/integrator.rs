//! The integrator: settings and images become matrices once, then batches of frames become
//! patterns.

use super::{
    bins::{self, PreparedFrame},
    cache,
    corrections::{Corrections, Dummy},
    cpu, detectors,
    errors::{IntegrationError, IntegratorError},
    frames::{Axes, Frames, Patterns, Pixels, Sums},
    geometry::Projection,
    images::Images,
    matrix::{BinRows, PixelMatrix},
    settings::{ErrorModel, IntegrationSettings, Splitting},
    splitting::Positions,
    vulkan,
};
use crate::decode::ChunkBlocks;
use nodectl_gpu::device::{Device, HostBuffer};
use nodectl_types::GpuKind;
use rayon::{ThreadPool, ThreadPoolBuilder, prelude::*};
use std::{
    path::PathBuf,
    sync::{Arc, OnceLock},
};

/// What an integrator works with.
pub struct Options {
    /// Threads of the integrator, at least 1.
    pub threads: usize,
    pub engine: EngineChoice,
    /// Where matrices are kept from one run to the next; None: nowhere.
    pub cache: Option<PathBuf>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            threads: 1,
            engine: EngineChoice::Cpu,
            cache: None,
        }
    }
}

/// Frames that can be integrated strip by strip at once.
pub const MAX_STRIPS: usize = cpu::LANES;

/// Where sums are made.
#[derive(Clone, Default)]
pub enum EngineChoice {
    #[default]
    Cpu,
    /// A GPU. Sums that need all pixels of a bin together (filters, the azimuthal error model) are
    /// the processor's there too.
    Vulkan(Device),
}

/// Integrates frames of one detector in one geometry. Shared by threads: calls may overlap.
pub struct Integrator {
    shared: Arc<SharedParts>,
    engine: AnyEngine,
    pool: Arc<ThreadPool>,
    chunk_decoder: ChunkDecoder,
}

/// What integrators have in common that differ in what adds up.
struct SharedParts {
    settings: IntegrationSettings,
    corrections: Corrections,
    detector: detectors::ResolvedDetector,
    regions: Vec<PreparedRegion>,
}

/// What decodes chunks for a GPU that could do it itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ChunkDecoder {
    #[default]
    Processor,
    Device,
}

pub(super) enum AnyEngine {
    Cpu(cpu::CpuEngine),
    Vulkan(vulkan::VulkanEngine),
}

impl AnyEngine {
    fn new(choice: EngineChoice) -> Result<Self, IntegrationError> {
        Ok(match choice {
            EngineChoice::Cpu => Self::Cpu(cpu::CpuEngine::new()),
            EngineChoice::Vulkan(device) => Self::Vulkan(vulkan::VulkanEngine::new(device)?),
        })
    }
}

/// A region's matrix and axes.
pub(super) struct PreparedRegion {
    pub axes: Axes,
    pub matrix: PixelMatrix,
    /// The matrix by bins, made when somebody asks.
    rows: OnceLock<BinRows>,
}

impl PreparedRegion {
    pub fn new(matrix: PixelMatrix, axes: Axes) -> Self {
        Self {
            axes,
            matrix,
            rows: OnceLock::new(),
        }
    }

    pub fn rows(&self) -> &BinRows {
        self.rows.get_or_init(|| self.matrix.rows())
    }
}

impl Integrator {
    /// Builds the matrices, or takes them from the cache.
    ///
    /// # Errors
    /// Where settings or images make no sense, alone or together; with the reason.
    pub fn new(
        settings: &IntegrationSettings,
        images: &Images,
        options: Options,
    ) -> Result<Self, IntegratorError> {
        settings.check()?;
        let threads = ThreadPoolBuilder::new().num_threads(options.threads.max(1));
        let pool = threads
            .build()
            .map_err(|error| IntegratorError::Threads(error.to_string()))?;
        let detector = detectors::resolve(&settings.geometry.detector, images.detector.as_ref())?;
        let projection = Projection::new(
            &settings.geometry,
            detector.clone(),
            settings.chi_discontinuity_at_0,
        )?;
        if settings.splitting == Splitting::Full && projection.corner_count() != 4 {
            let why = "pixels with six corners cannot be split by area; hint: splitting = \"bbox\"";
            return Err(IntegratorError::Conflict(why));
        }
        let (corrections, regions) = pool.install(|| -> Result<_, IntegratorError> {
            let corrections = Corrections::new(settings, images, &detector, &projection)?;
            let regions = {
                let masked = corrections.masked.as_deref();
                let key = cache::key(settings, &detector, masked);
                cache::regions(options.cache.as_deref(), settings, key, || {
                    split(settings, &projection, masked)
                })?
            };
            Ok((corrections, regions))
        })?;
        Ok(Self {
            shared: Arc::new(SharedParts {
                settings: settings.clone(),
                corrections,
                detector,
                regions,
            }),
            engine: AnyEngine::new(options.engine)?,
            pool: Arc::new(pool),
            chunk_decoder: ChunkDecoder::default(),
        })
    }

    /// Another integrator with the same matrices and threads, which adds up elsewhere.
    ///
    /// # Errors
    /// Where the device refuses the engine's kernels.
    pub fn with_engine(&self, engine: EngineChoice) -> Result<Self, IntegrationError> {
        Ok(Self {
            shared: self.shared.clone(),
            engine: AnyEngine::new(engine)?,
            pool: self.pool.clone(),
            chunk_decoder: ChunkDecoder::default(),
        })
    }

    /// Has chunks decoded there from now on, where a GPU integrates and they are such as it can
    /// decode.
    pub fn set_chunk_decoder(&mut self, decoder: ChunkDecoder) {
        self.chunk_decoder = decoder;
    }

    /// Whether `integrate_chunks` has something to do.
    pub fn takes_chunks(&self) -> bool {
        self.chunk_decoder == ChunkDecoder::Device && self.is_on_device()
    }

    /// What kind of device adds up, where one does.
    pub fn device_kind(&self) -> Option<GpuKind> {
        match &self.engine {
            AnyEngine::Vulkan(engine) if !self.is_together() => Some(engine.kind()),
            AnyEngine::Vulkan(_) | AnyEngine::Cpu(_) => None,
        }
    }

    /// Whether a GPU adds up.
    pub fn is_on_device(&self) -> bool {
        self.device_kind().is_some()
    }

    #[cfg(test)]
    pub(super) fn set_engine(&mut self, engine: AnyEngine) {
        self.engine = engine;
    }

    /// Whether sums need all pixels of a bin together: those are the processor's with every engine.
    pub fn is_together(&self) -> bool {
        self.shared.settings.filter.is_some()
            || self.shared.settings.error_model == ErrorModel::Azimuthal
    }

    /// Rows and columns of frames.
    pub fn shape(&self) -> [usize; 2] {
        self.shared.detector.shape
    }

    pub fn settings(&self) -> &IntegrationSettings {
        &self.shared.settings
    }

    /// The threads that integrate. What is called in one of them needs no others.
    pub fn pool(&self) -> &ThreadPool {
        &self.pool
    }

    /// The axes of each region's patterns, in the order of the settings' regions.
    pub fn axes(&self) -> impl Iterator<Item = &Axes> {
        self.shared.regions.iter().map(|region| &region.axes)
    }

    /// The patterns of frames, for each region. `monitors`: what each frame is divided by; none for
    /// one.
    ///
    /// # Errors
    /// Where frames have another shape than the detector, or monitors another number than frames.
    pub fn integrate(
        &self,
        frames: &Frames<'_>,
        monitors: &[f64],
    ) -> Result<Vec<Patterns>, IntegrationError> {
        if frames.shape != self.shape() {
            return Err(IntegrationError::Shape {
                found: frames.shape,
                wanted: self.shape(),
            });
        }
        self.check_monitors(frames.frames, monitors)?;
        let sums = self.pool.install(|| self.sums(frames))?;
        Ok(self.patterns(sums, monitors))
    }

    /// The patterns of frames that a GPU decodes, as `integrate` returns them: a chunk for each, of
    /// pixels such as `pixels`. None where it does not take them or one of them is damaged, which
    /// decoding them otherwise tells.
    ///
    /// # Errors
    /// Where monitors have another number than frames, or the GPU fails.
    pub fn integrate_chunks(
        &self,
        pixels: &Pixels<'_>,
        chunks: &[ChunkBlocks<'_>],
        monitors: &[f64],
    ) -> Result<Option<Vec<Patterns>>, IntegrationError> {
        let AnyEngine::Vulkan(engine) = &self.engine else {
            return Ok(None);
        };
        let [rows, columns] = self.shape();
        let wanted = rows * columns * pixels.bytes_per_pixel();
        if !self.takes_chunks() || chunks.iter().any(|chunk| chunk.length != wanted) {
            return Ok(None);
        }
        self.check_monitors(chunks.len(), monitors)?;
        let sums = engine.sums_of_chunks(&self.job(pixels), pixels, chunks)?;
        Ok(sums.map(|sums| self.patterns(sums, monitors)))
    }

    /// Begins the integration of up to `MAX_STRIPS` frames whose pixels come a strip at a time, so
    /// that nobody needs whole frames in memory. None where they are needed: by filters, the
    /// azimuthal error model and GPUs.
    pub fn strips(&self, pixels: &Pixels<'_>, frames: usize) -> Option<Strips<'_>> {
        let AnyEngine::Cpu(engine) = &self.engine else {
            return None;
        };
        if self.is_together() || frames == 0 || frames > MAX_STRIPS {
            return None;
        }
        let job = self.job(pixels);
        Some(Strips {
            integrator: self,
            sums: engine.strips(&job, frames),
            job,
            frames,
            done: 0,
        })
    }

    /// Begins the integration of so many frames that are written where a GPU reads them, of pixels
    /// such as `pixels`. None where no GPU adds up, or it does not take such frames.
    ///
    /// # Errors
    /// Where the GPU fails.
    pub fn device_frames(
        &self,
        pixels: &Pixels<'_>,
        frames: usize,
    ) -> Result<Option<DeviceFrames<'_>>, IntegrationError> {
        let AnyEngine::Vulkan(engine) = &self.engine else {
            return Ok(None);
        };
        if self.is_together() {
            return Ok(None);
        }
        let queue = engine.frames(self.job(pixels), pixels, frames)?;
        Ok(queue.map(|queue| DeviceFrames {
            integrator: self,
            queue,
            frames: 0,
        }))
    }

    fn patterns(&self, sums: Vec<Vec<Vec<Sums>>>, monitors: &[f64]) -> Vec<Patterns> {
        let has_errors = self.has_errors();
        let patterns = self
            .shared
            .regions
            .iter()
            .zip(sums)
            .map(|(region, of_frames)| {
                let mut patterns =
                    Patterns::with_capacity(of_frames.len(), region.axes.bins(), has_errors);
                for (frame, sums) in of_frames.into_iter().enumerate() {
                    let monitor = monitors.get(frame).copied().unwrap_or(1.0);
                    patterns.push(sums.into_iter().map(|sums| Sums {
                        norm: sums.norm * monitor,
                        norm2: sums.norm2 * monitor * monitor,
                        ..sums
                    }));
                }
                patterns
            });
        patterns.collect()
    }

    /// # Errors
    /// Where there are monitors, but not one for each frame.
    pub fn check_monitors(&self, frames: usize, monitors: &[f64]) -> Result<(), IntegrationError> {
        if !monitors.is_empty() && monitors.len() != frames {
            return Err(IntegrationError::Monitors {
                monitors: monitors.len(),
                frames,
            });
        }
        Ok(())
    }

    /// Whether patterns have error bars.
    pub fn has_errors(&self) -> bool {
        self.shared.settings.error_model != ErrorModel::No || self.shared.settings.filter.is_some()
    }

    /// For each region and frame, the sums of all bins; ω without the monitor.
    fn sums(&self, frames: &Frames<'_>) -> Result<Vec<Vec<Vec<Sums>>>, IntegrationError> {
        let job = self.job(&frames.pixels);
        if self.is_together() {
            return Ok(self.sums_by_bins(frames, job.dummy));
        }
        match &self.engine {
            AnyEngine::Cpu(engine) => Ok(engine.sums(&job, frames)),
            AnyEngine::Vulkan(engine) => engine.sums(&job, frames),
        }
    }

    fn job(&self, pixels: &Pixels<'_>) -> EngineJob<'_> {
        let dummy = Dummy::new(
            &self.shared.settings,
            &self.shared.detector,
            unsigned_bits(pixels),
        );
        EngineJob {
            corrections: &self.shared.corrections,
            regions: &self.shared.regions,
            dummy,
            model: self.shared.settings.error_model,
        }
    }

    fn sums_by_bins(&self, frames: &Frames<'_>, dummy: Dummy) -> Vec<Vec<Vec<Sums>>> {
        let (model, filter) = (
            self.shared.settings.error_model,
            self.shared.settings.filter,
        );
        let of_frame = |frame: usize| {
            let values = values(frames, frame);
            let prepared =
                PreparedFrame::new(values, &self.shared.corrections, dummy, model, |pixel| {
                    self.shared.corrections.is_valid(pixel, &dummy)
                });
            self.shared
                .regions
                .iter()
                .map(|region| bins::sums(region.rows(), &prepared, model, filter))
                .collect()
        };
        let by_frame: Vec<Vec<Vec<Sums>>> =
            (0..frames.frames).into_par_iter().map(of_frame).collect();
        let mut by_region: Vec<Vec<Vec<Sums>>> =
            self.shared.regions.iter().map(|_| Vec::new()).collect();
        for of_frame in by_frame {
            by_region
                .iter_mut()
                .zip(of_frame)
                .for_each(|(region, sums)| region.push(sums));
        }
        by_region
    }
}

/// Frames whose pixels come a strip at a time.
pub struct Strips<'i> {
    integrator: &'i Integrator,
    job: EngineJob<'i>,
    sums: cpu::CpuStrips,
    frames: usize,
    /// Pixels of a frame that were added.
    done: usize,
}

impl Strips<'_> {
    /// Adds the pixels that come next: a strip as a frame of one row, of each frame. All but the
    /// last are a multiple of 8 long.
    ///
    /// # Errors
    /// Where strips are those of another number of frames, or longer than frames.
    pub fn add(&mut self, strip: &Frames<'_>) -> Result<(), IntegrationError> {
        let length = strip.shape[0] * strip.shape[1];
        let [rows, columns] = self.integrator.shape();
        let is_aligned = self.done.is_multiple_of(8);
        if strip.frames != self.frames || length > rows * columns - self.done || !is_aligned {
            return Err(IntegrationError::Length {
                frames: self.frames,
                shape: strip.shape,
                values: strip.pixels.len(),
            });
        }
        self.sums.add(&self.job, strip);
        self.done += length;
        Ok(())
    }

    /// The patterns, once all pixels were added; as `Integrator::integrate` returns them.
    ///
    /// # Errors
    /// Where pixels lack, or monitors have another number than frames.
    pub fn finish(self, monitors: &[f64]) -> Result<Vec<Patterns>, IntegrationError> {
        let [rows, columns] = self.integrator.shape();
        if self.done != rows * columns {
            return Err(IntegrationError::Length {
                frames: self.frames,
                shape: [rows, columns],
                values: self.done,
            });
        }
        self.integrator.check_monitors(self.frames, monitors)?;
        Ok(self
            .integrator
            .patterns(self.sums.finish(&self.job), monitors))
    }
}

/// Frames that are written where a GPU reads them, some at a time.
pub struct DeviceFrames<'i> {
    integrator: &'i Integrator,
    queue: vulkan::FrameQueue<'i>,
    frames: usize,
}

impl DeviceFrames<'_> {
    /// Frames that are added at once, at most.
    pub fn at_once(&self) -> usize {
        self.queue.at_once()
    }

    /// Memory for so many frames that follow each other, at most `at_once`. What is in it is old.
    ///
    /// # Errors
    /// Where there is none, or the GPU is lost.
    pub fn memory(&mut self, frames: usize) -> Result<HostBuffer, IntegrationError> {
        self.queue.memory(frames)
    }

    /// Adds the frames that come next, in memory that was asked for here. While the GPU has them
    /// the next ones can be written.
    ///
    /// # Errors
    /// Where the GPU fails.
    pub fn add(&mut self, memory: HostBuffer) -> Result<(), IntegrationError> {
        self.frames += memory.len() / self.queue.frame_bytes().max(1);
        self.queue.push(memory)
    }

    /// The patterns of all, as `Integrator::integrate` returns them.
    ///
    /// # Errors
    /// Where monitors have another number than frames, or the GPU fails.
    pub fn finish(self, monitors: &[f64]) -> Result<Vec<Patterns>, IntegrationError> {
        self.integrator.check_monitors(self.frames, monitors)?;
        Ok(self.integrator.patterns(self.queue.finish()?, monitors))
    }
}

/// What engines are given with frames.
#[derive(Clone, Copy)]
pub(super) struct EngineJob<'a> {
    pub corrections: &'a Corrections,
    pub regions: &'a [PreparedRegion],
    pub dummy: Dummy,
    pub model: ErrorModel,
}

fn split(
    settings: &IntegrationSettings,
    projection: &Projection,
    masked: Option<&[bool]>,
) -> Result<Vec<(PixelMatrix, Axes)>, IntegratorError> {
    let positions = Positions::new(settings, projection);
    settings
        .regions()
        .iter()
        .map(|region| positions.split(settings, region, masked))
        .collect()
}

/// The values of one frame as 32-bit floats, as pyFAI sees them.
pub(super) fn values<'a>(frames: &Frames<'a>, frame: usize) -> Box<dyn Iterator<Item = f32> + 'a> {
    let pixels = frames.shape[0] * frames.shape[1];
    let range = frame * pixels..(frame + 1) * pixels;
    match frames.pixels {
        Pixels::U8(values) => Box::new(values[range].iter().map(|value| f32::from(*value))),
        Pixels::U16(values) => Box::new(values[range].iter().map(|value| f32::from(*value))),
        Pixels::U32(values) => Box::new(values[range].iter().map(|value| *value as f32)),
        Pixels::I32(values) => Box::new(values[range].iter().map(|value| *value as f32)),
        Pixels::F32(values) => Box::new(values[range].iter().copied()),
    }
}

fn unsigned_bits(pixels: &Pixels<'_>) -> Option<u32> {
    match pixels {
        Pixels::U8(_) => Some(8),
        Pixels::U16(_) => Some(16),
        Pixels::U32(_) => Some(32),
        Pixels::I32(_) | Pixels::F32(_) => None,
    }
}
