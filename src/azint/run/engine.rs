//! The integrator of a plan, as its worker's node and the frames at hand want it.

use super::choice;
use crate::{
    batch::{BatchError, BatchScratch},
    engine::{
        Axes, DetectorFile, EngineChoice, Image, Images, IntegrationError, Integrator, Mask,
        Options, Region,
    },
    frames::{Stack, StoredFrames},
    integrators::Integrators,
    plan::{EngineRequest, ImageFile, ImageFiles, IntegratePlan},
    results::{BadFrames, Part, RegionPart, Total, nexus::RegionAxes},
};
use nodectl_builtin::{CallError, device};
use nodectl_types::Scalar;
use rayon::ThreadPool;
use std::{
    env,
    path::{Path, PathBuf},
    sync::Arc,
};

/// Frames that are integrated at once: engines read their matrix once for so many.
const BATCH: usize = 8;
/// Frames that a thread gives a GPU at once, at most: the more, the more of it has something to do.
const DEVICE_BATCH: usize = 32;
/// Bytes of them, unless they are fewer than a processor would get: other threads have some, too.
const DEVICE_BATCH_BYTES: usize = 128 << 20;
/// Threads that decompress for a GPU beside other workers of it, unless somebody says otherwise.
const GPU_THREADS: usize = 8;
/// Threads that decompress in a worker that has its GPU for itself, unless somebody says otherwise.
const ALONE_THREADS: usize = 32;

/// What integrates frames of a plan, shared by threads.
pub struct SharedEngine {
    integrators: Integrators,
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
    let of_gpu = || usual_gpu_threads(plan.is_alone_on_gpu);
    let suitable = || if is_gpu { of_gpu() } else { 1 };
    let threads = plan
        .threads
        .map_or_else(suitable, |threads| threads as usize);
    let options = Options {
        threads,
        engine: EngineChoice::Cpu,
        cache: cache(),
    };
    let images = images(&plan.images, |file| dir.join(&file.path)).map_err(task)?;
    let settings = plan.settings.of_frames(stack.shape);
    let processor =
        Integrator::new(&settings, &images, options).map_err(|error| task(error.to_string()))?;
    let (integrators, name) = match is_gpu {
        false => (
            Integrators::of_processor(processor),
            nodectl_gpu::ops::processor_name(threads),
        ),
        true => {
            let mut both = Integrators::with_device(processor, device::open()?)
                .map_err(|error| task(error.to_string()))?;
            let name = choice::choose(&mut both, plan.engine, stack);
            (both, name)
        }
    };
    let detector = &plan.settings.geometry.detector;
    Ok(SharedEngine {
        integrators,
        threads,
        name,
        scalar: stack.scalar,
        shape: detector.takes_any_shape().then_some(stack.shape),
    })
}

/// Threads that decompress for a GPU here, unless somebody says otherwise.
pub(crate) fn usual_gpu_threads(is_alone: bool) -> usize {
    let most = if is_alone { ALONE_THREADS } else { GPU_THREADS };
    std::thread::available_parallelism()
        .map_or(1, usize::from)
        .min(most)
}

/// Frames of so many bytes that a thread gives a GPU at once.
pub(crate) fn device_batch(frame_bytes: usize) -> usize {
    (DEVICE_BATCH_BYTES / frame_bytes.max(1)).clamp(BATCH, DEVICE_BATCH)
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
    /// Frames of so many bytes that it should get at once.
    pub fn batch(&self, frame_bytes: usize) -> usize {
        if self.integrators.is_on_device() {
            device_batch(frame_bytes)
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
        let regions = self.integrators.processor().settings().regions();
        let axes = |(index, axes): (usize, &Axes)| RegionAxes {
            name: region_name(&regions, index),
            radial: axes.radial.clone(),
            azimuthal_deg: axes.azimuthal_deg.clone(),
        };
        self.integrators
            .processor()
            .axes()
            .enumerate()
            .map(axes)
            .collect()
    }

    /// Where frames are decoded and integrated: as many threads as `threads` says.
    pub fn pool(&self) -> &ThreadPool {
        self.integrators.pool()
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
        let integrator = self.integrators.of_this_thread();
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
        let has_errors = self.integrators.processor().has_errors();
        let region = |axes: &Axes| {
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
            regions: self.integrators.processor().axes().map(region).collect(),
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
