//! The engine on the processor. Frames go through it eight at a time: a block of their pixels is
//! converted and interleaved, so that each share of the matrix is looked up once and multiplied
//! with eight values. Sums over few pixels are 32-bit floats, over many 64-bit ones. What depends
//! on the detector alone (Σ c·ω, Σ c, …) is summed once; pixels that differ from what was expected
//! of them (a dead pixel that lives, or the other way round) correct it.
//!
//! | file | owns |
//! |---|---|
//! | `layout` | matrices as the inner loops want them |
//! | `constants` | sums that are the same for all frames, and their corrections |
//! | `lanes` | conversion of pixels, by instruction set |
//! | `block` | the inner loops |

mod block;
mod constants;
mod lanes;
mod layout;

use self::{
    block::{BlockTask, RunningSums, SumPart},
    constants::{Constants, Expectation},
    layout::ShareLayout,
};
use super::{
    corrections::Dummy,
    frames::{Frames, Pixels, Sums},
    integrator::EngineJob,
};
use rayon::prelude::*;
use std::{
    ops::Range,
    sync::{Arc, Mutex, PoisonError},
};

/// Frames that are integrated together.
pub(super) const LANES: usize = 8;
/// Pixels that are converted together. A multiple of 8 and of the streams in `block`.
const BLOCK: usize = 256;
/// One frame in so many pixels may differ from what is expected before the expectation is made
/// anew.
const PIXELS_PER_SURPRISE: usize = 512;

#[derive(Default)]
pub(super) struct CpuEngine {
    /// One for each kind of dummies that frames have had: one, as a rule.
    plans: Mutex<Vec<Arc<CpuPlan>>>,
}

/// What is prepared for frames with some kind of dummies.
struct CpuPlan {
    dummy: Dummy,
    /// Which pixels can count at all: a bit each, eight to a byte.
    valid: Vec<u8>,
    layouts: Vec<ShareLayout>,
    expectation: Mutex<Arc<Expectation>>,
}

impl CpuPlan {
    fn new(job: &EngineJob<'_>) -> Self {
        let pixels = job.corrections.omega.len();
        let mut valid = vec![0u8; pixels.div_ceil(8)];
        for pixel in (0..pixels).filter(|pixel| job.corrections.is_valid(*pixel, &job.dummy)) {
            valid[pixel / 8] |= 1 << (pixel % 8);
        }
        let layouts = job
            .regions
            .iter()
            .map(|region| ShareLayout::new(&region.matrix, &valid))
            .collect();
        let expectation = Mutex::new(Arc::new(Expectation::new(
            job,
            &valid,
            vec![0; valid.len()],
        )));
        Self {
            dummy: job.dummy,
            valid,
            layouts,
            expectation,
        }
    }

    fn expectation(&self) -> Arc<Expectation> {
        self.expectation
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

impl CpuEngine {
    pub fn new() -> Self {
        Self::default()
    }

    /// For each region and frame, the sums of all bins. In the caller's pool.
    pub fn sums(&self, job: &EngineJob<'_>, frames: &Frames<'_>) -> Vec<Vec<Vec<Sums>>> {
        let plan = self.plan(job);
        let groups: Vec<Vec<Vec<Vec<Sums>>>> = match frames.pixels {
            Pixels::U8(values) => groups(&plan, job, frames, values),
            Pixels::U16(values) => groups(&plan, job, frames, values),
            Pixels::U32(values) => groups(&plan, job, frames, values),
            Pixels::I32(values) => groups(&plan, job, frames, values),
            Pixels::F32(values) => groups(&plan, job, frames, values),
        };
        let mut by_region: Vec<Vec<Vec<Sums>>> = job
            .regions
            .iter()
            .map(|_| Vec::with_capacity(frames.frames))
            .collect();
        for group in groups {
            by_region
                .iter_mut()
                .zip(group)
                .for_each(|(region, frames)| region.extend(frames));
        }
        by_region
    }

    /// Sums over up to `LANES` frames, a strip at a time.
    pub fn strips(&self, job: &EngineJob<'_>, frames: usize) -> CpuStrips {
        CpuStrips::new(self.plan(job), job, frames)
    }

    fn plan(&self, job: &EngineJob<'_>) -> Arc<CpuPlan> {
        // Others wait while the first one makes the plan.
        let mut plans = self.plans.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(plan) = plans.iter().find(|plan| plan.dummy == job.dummy) {
            return plan.clone();
        }
        let plan = Arc::new(CpuPlan::new(job));
        plans.push(plan.clone());
        plan
    }
}

/// The sums, by group, region, frame and bin, of groups of up to `LANES` frames.
fn groups<T: lanes::Pixel>(
    plan: &CpuPlan,
    job: &EngineJob<'_>,
    frames: &Frames<'_>,
    values: &[T],
) -> Vec<Vec<Vec<Vec<Sums>>>> {
    let pixels = frames.shape[0] * frames.shape[1];
    let groups = frames.frames.div_ceil(LANES);
    // Few frames for many threads: frames are cut.
    let parts = rayon::current_num_threads().div_ceil(groups.max(1)).max(1);
    let part_pixels = pixels.div_ceil(parts).next_multiple_of(BLOCK);
    let each = (0..groups).into_par_iter().map(|group| {
        let first = group * LANES;
        let values: Vec<&[T]> = (first..frames.frames.min(first + LANES))
            .map(|frame| &values[frame * pixels..(frame + 1) * pixels])
            .collect();
        let expectation = plan.expectation();
        let task = BlockTask {
            plan,
            job,
            expectation: &expectation,
            frames: values.len(),
        };
        let cuts: Vec<Range<usize>> = (0..pixels)
            .step_by(part_pixels)
            .map(|start| start..pixels.min(start + part_pixels))
            .collect();
        let part = |range: Range<usize>| {
            let mut running = task.begin(range.start);
            let values: Vec<&[T]> = values.iter().map(|frame| &frame[range.clone()]).collect();
            task.add(&mut running, &values);
            running.finish()
        };
        let mut parts = cuts
            .into_par_iter()
            .map(part)
            .collect::<Vec<SumPart>>()
            .into_iter();
        let mut whole = parts.next().unwrap_or_default();
        parts.for_each(|part| whole.add(&part));
        finish(&task, whole)
    });
    each.collect()
}

/// Sums over up to `LANES` frames whose pixels come a strip at a time. In the caller's thread.
pub(super) struct CpuStrips {
    plan: Arc<CpuPlan>,
    expectation: Arc<Expectation>,
    running: RunningSums,
    frames: usize,
}

impl CpuStrips {
    fn new(plan: Arc<CpuPlan>, job: &EngineJob<'_>, frames: usize) -> Self {
        let expectation = plan.expectation();
        let running = BlockTask {
            plan: &plan,
            job,
            expectation: &expectation,
            frames,
        }
        .begin(0);
        Self {
            plan,
            expectation,
            running,
            frames,
        }
    }

    /// The pixels that come next.
    pub fn add(&mut self, job: &EngineJob<'_>, strip: &Frames<'_>) {
        match strip.pixels {
            Pixels::U8(values) => self.add_of(job, values),
            Pixels::U16(values) => self.add_of(job, values),
            Pixels::U32(values) => self.add_of(job, values),
            Pixels::I32(values) => self.add_of(job, values),
            Pixels::F32(values) => self.add_of(job, values),
        }
    }

    fn add_of<T: lanes::Pixel>(&mut self, job: &EngineJob<'_>, values: &[T]) {
        let task = BlockTask {
            plan: &self.plan,
            job,
            expectation: &self.expectation,
            frames: self.frames,
        };
        let each = values.len() / self.frames;
        let frames: [&[T]; LANES] =
            std::array::from_fn(|lane| &values[lane.min(self.frames - 1) * each..][..each]);
        task.add(&mut self.running, &frames);
    }

    /// By region, frame and bin.
    pub fn finish(self, job: &EngineJob<'_>) -> Vec<Vec<Vec<Sums>>> {
        let task = BlockTask {
            plan: &self.plan,
            job,
            expectation: &self.expectation,
            frames: self.frames,
        };
        finish(&task, self.running.finish())
    }
}

/// The sums of a group of frames, by region, frame and bin.
fn finish(task: &BlockTask<'_>, whole: SumPart) -> Vec<Vec<Vec<Sums>>> {
    if whole.surprises > task.job.corrections.omega.len() / PIXELS_PER_SURPRISE * task.frames {
        let expectation = Expectation::new(task.job, &task.plan.valid, whole.invalid);
        *task
            .plan
            .expectation
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = Arc::new(expectation);
    }
    let is_poisson = task.job.model.is_poissonian();
    let regions = whole.regions.into_iter().zip(&task.expectation.constants);
    let each = regions.map(|(region, constants)| {
        let of_frame = |lane: usize| {
            let correction = region
                .corrections
                .as_ref()
                .and_then(|lanes| lanes[lane].as_ref());
            let bin = |(bin, constant): (usize, &Constants)| {
                let now =
                    correction.map_or(*constant, |correction| constant.plus(&correction[bin]));
                // What corrections leave of nothing is their rounding.
                if now.count.abs() <= 1e-9 * (constant.count + 1.0) || now.norm == 0.0 {
                    return Sums::default();
                }
                Sums {
                    signal: region.signal[bin][lane] - now.dark,
                    variance: now.variance
                        + if is_poisson {
                            region.variance[bin][lane]
                        } else {
                            0.0
                        },
                    norm: now.norm,
                    norm2: now.norm2,
                    count: now.count,
                }
            };
            constants.iter().enumerate().map(bin).collect()
        };
        (0..task.frames).map(of_frame).collect()
    });
    each.collect()
}
