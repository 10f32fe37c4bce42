//! The integrator of a plan, as its worker's node and the frames at hand want it.

use crate::{
    gpu::device::Device,
    types::Scalar,
    workloads::{
        builtin::CallError,
        integrate::{
            engine::{self, DetectorFile, Frames, Image, Images, Integrator, Mask, Options, Patterns, Pixels},
            frames::Stack,
            plan::{EngineChoice, ImageFile, IntegratePlan},
            results::{Part, RegionPart, Total, nexus::Axes},
        },
        kernel::run::device,
    },
};
use std::{
    env,
    path::{Path, PathBuf},
};

/// Frames that are integrated at once: engines read their matrix once for so many.
const BATCH: usize = 8;
/// Threads that decompress for a GPU, unless somebody says otherwise.
const GPU_THREADS: usize = 8;

/// An integrator that threads share.
pub struct Engine {
    integrator: Integrator,
    threads: usize,
    name: String,
    scalar: Scalar,
}

/// Opens a plan's integrator; its images are in `dir`.
pub fn open(plan: &IntegratePlan, dir: &Path, stack: &Stack) -> Result<Engine, CallError> {
    let task = |why: String| CallError::Task(why);
    let was_given_gpu = env::var_os("NODECTL_GPU_UUID").is_some_and(|uuid| !uuid.is_empty());
    let is_gpu = plan.engine == EngineChoice::Vulkan || (plan.engine == EngineChoice::Auto && was_given_gpu);
    let cores = || std::thread::available_parallelism().map_or(1, usize::from);
    let suitable = || if is_gpu { cores().min(GPU_THREADS) } else { 1 };
    let threads = plan.threads.map_or_else(suitable, |threads| threads as usize);
    let device = if is_gpu { Some(device::open()?) } else { None };
    let (choice, mut name) = match &device {
        Some(device) if plan.engine == EngineChoice::Vulkan => {
            (engine::EngineChoice::Vulkan(device.clone()), format!("Vulkan, {}", device.info().gpu.name))
        }
        _ => (engine::EngineChoice::Cpu, format!("CPU, {threads} threads")),
    };
    let options = Options { threads, engine: choice, cache: cache() };
    let images = images(plan, dir).map_err(task)?;
    let mut integrator = Integrator::new(&plan.settings, &images, options).map_err(|error| task(error.to_string()))?;
    if let Some(device) = device.filter(|_| plan.engine == EngineChoice::Auto) {
        name = choose(&mut integrator, &device, stack.scalar).map_err(|error| task(error.to_string()))?.to_string();
    }
    Ok(Engine { integrator, threads, name, scalar: stack.scalar })
}

/// Tries a GPU and the processor on frames such as are to come.
fn choose(
    integrator: &mut Integrator,
    device: &Device,
    scalar: Scalar,
) -> Result<engine::Comparison, engine::IntegrationError> {
    let shape = integrator.shape();
    let bytes = vec![1u32; (BATCH * shape[0] * shape[1] * scalar.bytes()).div_ceil(4)];
    let bytes: &[u8] = &bytemuck::cast_slice(&bytes)[..BATCH * shape[0] * shape[1] * scalar.bytes()];
    let pixels = match scalar {
        Scalar::U8 => Pixels::U8(bytes),
        Scalar::U16 => Pixels::U16(bytemuck::cast_slice(bytes)),
        Scalar::I32 => Pixels::I32(bytemuck::cast_slice(bytes)),
        Scalar::F32 => Pixels::F32(bytemuck::cast_slice(bytes)),
        _ => Pixels::U32(bytemuck::cast_slice(bytes)),
    };
    integrator.choose_engine(device, &Frames::new(pixels, BATCH, shape)?)
}

/// Where matrices stay from job to job: the user's cache.
fn cache() -> Option<PathBuf> {
    let base = env::var_os("XDG_CACHE_HOME").filter(|path| !path.is_empty()).map(PathBuf::from);
    let base = base.or_else(|| Some(PathBuf::from(env::var_os("HOME")?).join(".cache")))?;
    let path = base.join("nodectl").join("integration");
    std::fs::create_dir_all(&path).ok().map(|()| path)
}

fn images(plan: &IntegratePlan, dir: &Path) -> Result<Images, String> {
    let files = &plan.images;
    let image = |file: &Option<ImageFile>| -> Result<Option<Image>, String> {
        let read = |file: &ImageFile| Image::read(&dir.join(&file.path), file.member.as_deref());
        file.as_ref().map(read).transpose().map_err(|error| error.to_string())
    };
    let detector = files.detector.as_ref().map(|file| DetectorFile::read(&dir.join(&file.path)));
    let mask = files.mask.as_ref().map(|file| Mask::read(&dir.join(&file.path), file.member.as_deref()));
    Ok(Images {
        mask: mask.transpose().map_err(|error| error.to_string())?,
        dark: image(&files.dark)?,
        flat: image(&files.flat)?,
        absorption: image(&files.absorption)?,
        variance: image(&files.variance)?,
        detector: detector.transpose().map_err(|error| error.to_string())?,
    })
}

impl Engine {
    /// Frames that it should get at once.
    pub fn batch(&self) -> usize {
        BATCH
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
        self.scalar == stack.scalar
    }

    /// The axes of each region.
    pub fn axes(&self) -> Vec<Axes> {
        let regions = self.integrator.settings().regions();
        let several = regions.len() > 1;
        let axes = |(index, (axes, region)): (usize, (&engine::Axes, &engine::Region))| Axes {
            name: several.then(|| region.name.clone().unwrap_or_else(|| format!("{}", index + 1))),
            radial: axes.radial.clone(),
            azimuthal_deg: axes.azimuthal_deg.clone(),
        };
        self.integrator.axes().zip(&regions).enumerate().map(axes).collect()
    }

    /// The patterns of frames, the first of which is number `first` of its dataset.
    pub fn integrate(&self, first: u64, frames: &Frames<'_>, monitors: Option<&[f64]>) -> Result<Part, CallError> {
        let patterns =
            self.integrator.integrate(frames, monitors.unwrap_or_default()).map_err(|error| match error {
                engine::IntegrationError::Gpu(_) => CallError::Device(error.to_string()),
                error => CallError::Task(error.to_string()),
            })?;
        let region = |patterns: Patterns| {
            let mut total = Total::default();
            total.add(patterns.bins, &patterns.signal, &patterns.norm, patterns.variance.as_deref());
            RegionPart { intensity: patterns.intensity, sigma: patterns.sigma, total }
        };
        Ok(Part { first, frames: frames.frames as u64, regions: patterns.into_iter().map(region).collect() })
    }
}
