//! How many threads workers have, and how many workers share a GPU: as the job file says, or as it
//! is measured where the job is submitted.

use super::{
    chain::IntegrationRequest,
    datasets::DatasetFiles,
    frames::Stack,
    measure::measure,
    plan::{DatasetPlan, EngineRequest},
    sharing::{self, SharingRequest},
};
use std::sync::Arc;

/// Decoded bytes of frames that are worth two seconds of measuring.
const MUCH_BYTES: u64 = 16 << 30;

/// Threads of a worker, or workers of a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Count {
    Given(u32),
    /// Measured here.
    Measured,
    /// Of threads: measured if there is much to do for processors alone. Else what suits the
    /// engine.
    Auto,
}

impl Count {
    pub(super) fn given(self) -> Option<u32> {
        match self {
            Self::Given(count) => Some(count),
            Self::Measured | Self::Auto => None,
        }
    }
}

/// The request with what was measured, and what is to be said of it. What cannot be measured fails
/// where it is integrated.
pub(super) fn measured(
    request: IntegrationRequest,
    seen: &[DatasetFiles],
    cores: u32,
) -> (IntegrationRequest, Option<String>) {
    let wanted = |count| count == Count::Measured;
    let on_gpus = request.engine == EngineRequest::Vulkan;
    let is_much = || {
        let bytes = seen.iter().map(|seen| seen.bytes);
        bytes.fold(0, u64::saturating_add) >= MUCH_BYTES
    };
    let of_threads = match request.threads {
        Count::Given(_) => false,
        Count::Measured => true,
        Count::Auto => request.engine == EngineRequest::Cpu && is_much(),
    };
    let first = seen.iter().find(|seen| seen.bytes > 0);
    let Some(plan) = first.map(|seen| &seen.plan) else {
        return (request, None);
    };
    let (request, told) = if on_gpus && (of_threads || wanted(request.workers_per_gpu)) {
        of_gpu(request, plan, cores)
    } else if of_threads {
        of_processor(request, plan, cores)
    } else {
        return (request, None);
    };
    let told = told.unwrap_or_else(|why| format!("nothing could be measured: {why}"));
    let note = format!("{}: {told}", plan.name);
    (request, Some(note))
}

fn of_processor(
    request: IntegrationRequest,
    plan: &DatasetPlan,
    cores: u32,
) -> (IntegrationRequest, Result<String, String>) {
    let opened = Stack::open_within(
        &plan.path,
        plan.dataset.as_deref(),
        plan.entry.as_deref(),
        &request.directories,
    );
    let measured = opened.map_err(|error| error.to_string()).and_then(|stack| {
        let images = request.pictures.read()?;
        measure(&Arc::new(stack), &request.settings, &images, cores)
    });
    match measured {
        Ok(measured) => {
            let threads = Count::Given(measured.threads);
            (
                IntegrationRequest { threads, ..request },
                Ok(measured.to_string()),
            )
        }
        Err(why) => (request, Err(why)),
    }
}

fn of_gpu(
    request: IntegrationRequest,
    plan: &DatasetPlan,
    cores: u32,
) -> (IntegrationRequest, Result<String, String>) {
    // What nobody has asked to have measured is as workers have it without this.
    let left_out = |count: Count, usual: u32| match count {
        Count::Given(count) => Some(count),
        Count::Measured => None,
        Count::Auto => Some(usual),
    };
    let workers = left_out(request.workers_per_gpu, super::job::DEFAULT_WORKERS_PER_GPU);
    let is_alone = workers == Some(1);
    let threads = left_out(
        request.threads,
        super::run::usual_gpu_threads(is_alone) as u32,
    );
    let asked = SharingRequest {
        path: plan.path.clone(),
        dataset: plan.dataset.clone(),
        entry: plan.entry.clone(),
        directories: request.directories.clone(),
        settings: request.settings.clone(),
        images: request.pictures.here(),
        candidates: sharing::candidates(workers, threads, cores),
    };
    match sharing::measure_in_child(&asked) {
        Ok(measured) => {
            let best = measured.best;
            let found = |count: Count, best: u32| match count {
                Count::Measured => Count::Given(best),
                Count::Given(_) | Count::Auto => count,
            };
            let request = IntegrationRequest {
                threads: found(request.threads, best.threads),
                workers_per_gpu: found(request.workers_per_gpu, best.workers),
                ..request
            };
            (request, Ok(measured.to_string()))
        }
        Err(why) => (request, Err(why)),
    }
}
