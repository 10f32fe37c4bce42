//! The integrator of a plan, as its worker's node and the frames at hand want it.

use super::decoder;
use crate::{
    batch::{BatchError, BatchScratch},
    engine::{
        self, DetectorFile, Frames, Image, Images, IntegrationError, Integrator, Mask, Options,
        Pixels, Region,
    },
    frames::{Stack, StoredFrames},
    plan::{EngineRequest, ImageFile, ImageFiles, IntegratePlan},
    results::{BadFrames, Part, RegionPart, Total, nexus::RegionAxes},
};
use nodectl_builtin::{CallError, device};
use nodectl_gpu::device::Device;
use nodectl_types::Scalar;
use rayon::ThreadPool;
use std::{
    env,
    path::{Path, PathBuf},
    sync::Arc,
};

/// Frames that are integrated at once: engines read their matrix once for so many.
const BATCH: usize = 8;
/// Frames that a GPU integrates at once: the more, the more of it has something to do.
pub(crate) const DEVICE_BATCH: usize = 32;
/// Threads that decompress for a GPU, unless somebody says otherwise.
const GPU_THREADS: usize = 8;

/// An integrator that threads share.
pub struct SharedEngine {
    integrator: Integrator,
    threads: usize,
    name: String,
    scalar: Scalar,
    /// Of its frames, where nothing else says it.
    shape: Option<[usize; 2]>,
}

/// Opens a plan's integrator; its images are in `dir`.
pub fn open(
    plan: &IntegratePlan,
    dir: &Path,
    stack: &Arc<Stack>,
) -> Result<SharedEngine, CallError> {
    let task = |why: String| CallError::Task(why);
    let was_given_gpu = env::var_os("NODECTL_GPU_UUID").is_some_and(|uuid| !uuid.is_empty());
    let is_gpu = plan.engine == EngineRequest::Vulkan
        || (plan.engine == EngineRequest::Auto && was_given_gpu);
    let suitable = || if is_gpu { usual_gpu_threads() } else { 1 };
    let threads = plan
        .threads
        .map_or_else(suitable, |threads| threads as usize);
    let device = if is_gpu { Some(device::open()?) } else { None };
    let (choice, mut name) = match &device {
        Some(device) if plan.engine == EngineRequest::Vulkan => (
            engine::EngineChoice::Vulkan(device.clone()),
            format!("Vulkan, {}", device.info().gpu.name),
        ),
        _ => (
            engine::EngineChoice::Cpu,
            nodectl_gpu::ops::processor_name(threads),
        ),
    };
    let options = Options {
        threads,
        engine: choice,
        cache: cache(),
    };
    let images = images(&plan.images, |file| dir.join(&file.path)).map_err(task)?;
    let settings = plan.settings.of_frames(stack.shape);
    let mut integrator =
        Integrator::new(&settings, &images, options).map_err(|error| task(error.to_string()))?;
    if let Some(device) = device.filter(|_| plan.engine == EngineRequest::Auto) {
        name = choose(&mut integrator, &device, stack.scalar)
            .map_err(|error| task(error.to_string()))?
            .to_string();
    }
    if let Some(told) = choose_decoder(&mut integrator, stack) {
        name = format!("{name}, {told}");
    }
    let detector = &plan.settings.geometry.detector;
    Ok(SharedEngine {
        integrator,
        threads,
        name,
        scalar: stack.scalar,
        shape: detector.takes_any_shape().then_some(stack.shape),
    })
}

/// Threads that decompress for a GPU here, unless somebody says otherwise.
pub(crate) fn usual_gpu_threads() -> usize {
    std::thread::available_parallelism()
        .map_or(1, usize::from)
        .min(GPU_THREADS)
}

/// Has chunks of frames such as these decoded where that is faster, and says where, if there is a
/// choice.
pub(crate) fn choose_decoder(integrator: &mut Integrator, stack: &Arc<Stack>) -> Option<String> {
    decoder::choose(integrator, stack, DEVICE_BATCH)
}

/// Tries a GPU and the processor on frames such as are to come.
fn choose(
    integrator: &mut Integrator,
    device: &Device,
    scalar: Scalar,
) -> Result<engine::Comparison, engine::IntegrationError> {
    let shape = integrator.shape();
    let bytes = vec![1u32; (BATCH * shape[0] * shape[1] * scalar.bytes()).div_ceil(4)];
    let bytes: &[u8] =
        &bytemuck::cast_slice(&bytes)[..BATCH * shape[0] * shape[1] * scalar.bytes()];
    let pixels = match scalar {
        Scalar::U8 => Pixels::U8(bytes),
        Scalar::U16 => Pixels::U16(bytemuck::cast_slice(bytes)),
        Scalar::I32 => Pixels::I32(bytemuck::cast_slice(bytes)),
        Scalar::F32 => Pixels::F32(bytemuck::cast_slice(bytes)),
        _ => Pixels::U32(bytemuck::cast_slice(bytes)),
    };
    integrator.choose_engine(device, &Frames::new(pixels, BATCH, shape)?)
}

/// Where matrices, and parts of datasets that nobody has asked to see, stay from job to job: the
/// user's cache.
pub fn cache() -> Option<PathBuf> {
    let base = env::var_os("XDG_CACHE_HOME")
        .filter(|path| !path.is_empty())
        .map(PathBuf::from);
    let base = base.or_else(|| Some(PathBuf::from(env::var_os("HOME")?).join(".cache")))?;
    let path = base.join("nodectl").join("integration");
    std::fs::create_dir_all(&path).ok().map(|()| path)
}

/// Reads images, each where `place` has it.
pub fn images(files: &ImageFiles, place: impl Fn(&ImageFile) -> PathBuf) -> Result<Images, String> {
    let image = |file: &Option<ImageFile>| -> Result<Option<Image>, String> {
        let read = |file: &ImageFile| Image::read(&place(file), file.member.as_deref());
        file.as_ref()
            .map(read)
            .transpose()
            .map_err(|error| error.to_string())
    };
    let detector = files
        .detector
        .as_ref()
        .map(|file| DetectorFile::read(&place(file)));
    let mask = files
        .mask
        .as_ref()
        .map(|file| Mask::read(&place(file), file.member.as_deref()));
    Ok(Images {
        mask: mask.transpose().map_err(|error| error.to_string())?,
        dark: image(&files.dark)?,
        flat: image(&files.flat)?,
        absorption: image(&files.absorption)?,
        variance: image(&files.variance)?,
        detector: detector.transpose().map_err(|error| error.to_string())?,
    })
}

/// What a region's results are called; None for the only one.
pub fn region_name(regions: &[Region], index: usize) -> Option<String> {
    let several = regions.len() > 1;
    several.then(|| {
        regions[index]
            .name
            .clone()
            .unwrap_or_else(|| format!("{}", index + 1))
    })
}

impl SharedEngine {
    /// Frames that it should get at once.
    pub fn batch(&self) -> usize {
        if self.integrator.is_on_device() {
            DEVICE_BATCH
        } else {
            BATCH
        }
    }

    /// Threads that read frames should have.
    pub fn threads(&self) -> usize {
        self.threads
    }

    /// What integrates, for people.
    pub fn name(&self) -> String {
        self.name.clone()
    }

    /// Whether it was opened for frames such as these.
    pub fn suits(&self, stack: &Stack) -> bool {
        self.scalar == stack.scalar && self.shape.is_none_or(|shape| shape == stack.shape)
    }

    /// The axes of each region.
    pub fn axes(&self) -> Vec<RegionAxes> {
        let regions = self.integrator.settings().regions();
        let axes = |(index, axes): (usize, &engine::Axes)| RegionAxes {
            name: region_name(&regions, index),
            radial: axes.radial.clone(),
            azimuthal_deg: axes.azimuthal_deg.clone(),
        };
        self.integrator.axes().enumerate().map(axes).collect()
    }

    /// Where frames are decoded and integrated: as many threads as `threads` says.
    pub fn pool(&self) -> &ThreadPool {
        self.integrator.pool()
    }

    /// The patterns of stored frames, the first of which is number `first` of its dataset.
    pub fn integrate(
        &self,
        first: u64,
        stack: &Stack,
        units: &[StoredFrames],
        monitors: Option<&[f64]>,
        batches: &mut BatchScratch,
    ) -> Result<Part, BatchError> {
        let integrator = &self.integrator;
        let patterns = batches.integrate(integrator, stack, units, monitors.unwrap_or_default())?;
        let frames = units
            .iter()
            .map(|unit| unit.frames.end - unit.frames.start)
            .sum();
        Ok(Part {
            first,
            frames,
            regions: patterns.into_iter().map(RegionPart::of).collect(),
            bad: Vec::new(),
        })
    }

    /// The part of frames that have no patterns.
    pub fn bad(&self, bad: BadFrames) -> Part {
        let has_errors = self.integrator.has_errors();
        let region = |axes: &engine::Axes| {
            let nothing = vec![f32::NAN; axes.bins() * bad.frames as usize];
            let zeros = vec![0.0; axes.bins()];
            let mut total = Total::default();
            total.add(axes.bins(), &zeros, &zeros, has_errors.then_some(&zeros));
            RegionPart {
                sigma: has_errors.then(|| nothing.clone()),
                intensity: nothing,
                total,
            }
        };
        Part {
            first: bad.first,
            frames: bad.frames,
            regions: self.integrator.axes().map(region).collect(),
            bad: vec![bad],
        }
    }
}

/// What a call ends with where a batch has no patterns.
pub fn failed(stack: &Stack, error: &BatchError) -> CallError {
    match error {
        BatchError::Integration(IntegrationError::Gpu(_)) => CallError::Device(error.to_string()),
        BatchError::Integration(IntegrationError::LostGpu(_)) => {
            CallError::LostDevice(error.to_string())
        }
        BatchError::Integration(error) => CallError::Task(format!(
            "{}: `{}`: {error}",
            stack.path.display(),
            stack.dataset
        )),
        BatchError::Frames(error) => CallError::Task(error.to_string()),
    }
}
