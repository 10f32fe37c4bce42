//! Configuration files of the ESRF's integrator, as they are: `[dataset]`,
//! `[azimuthal integration]`, `[computations distribution]` and `[output]` with `key = value`. Keys
//! that have a meaning here keep it, with integrator's defaults; those that cannot have one are
//! told when the job is submitted, and one that is unknown is an error.
//!
//! | key | what becomes of it |
//! |---|---|
//! | `location` | `datasets`: files and patterns, with commas or lines between them |
//! | `hdf5_entry`, `detector_name`, `detector_suffix` | which scans of a file are integrated (`scans`) |
//! | `n_pts`, `unit`, `pixel_splitting`, … | the settings of the same meaning |
//! | `azimuthal_range` | with n slices, so many regions |
//! | `correct_detector_attenuation` | `transmission`, of 1 mm of CdTe |
//! | `trim_method`, `trim_bounds` | `sigma_clip`, or `quantile` for a median filter, in percent |
//! | `n_workers`, `ai_engines_per_worker`, `cores_per_worker` | `workers`, `workers_per_gpu`, `threads_per_worker` |
//! | `partition` | `local`: whatever the nodes have; others: workers with shares of GPUs, and where no node has a GPU as with `local` |
//! | `strategy` | a key of nodectl's own: `strategy` |
//! | `memory_per_worker`, `time` | a task's memory, of workers with GPUs, and its time |
//! | `[output] location`, `existing_output` | `output`, `existing_output` |
//!
//! | file | owns |
//! |---|---|
//! | `keys` | all keys, their defaults, and why some are not used |
//! | `text` | from text to entries, values as numbers |
//! | `settings` | how frames are integrated |
//! | `scans` | the scans in a file |

mod keys;
mod scans;
mod settings;
#[cfg(test)]
mod tests;
mod text;

use self::{
    keys::{COMPUTATIONS, DATASET, INTEGRATION, OUTPUT},
    scans::{DetectorName, each_scan},
    text::{ConfigFile, parse},
};
use super::{
    chain::{self, CommonKeys, InputFiles, IntegrationRequest, Strategy},
    counts::Count,
    datasets::{self, Named},
    plan::{EngineRequest, Existing, OnBadFrames},
};
use nodectl_jobfile::{Context, Fault, PlacedJob, PlannedJob, in_order};
use nodectl_types::units::counted;
use nodectl_types::{Builtin, JobDraft, Resources, WorkSpec, units::parse_bytes};

/// The header that no job file has.
const HEADER: &str = "[azimuthal integration]";

/// The jobs of such a file, in an order in which they can be submitted; None of another.
pub fn jobs(context: &Context<'_>) -> Option<Result<Vec<PlannedJob>, Fault>> {
    let is_one = context.text.lines().any(|line| line.trim() == HEADER);
    is_one.then(|| in_order(plan(context)?))
}

fn plan(context: &Context<'_>) -> Result<Vec<PlacedJob>, Fault> {
    let config = parse(context.text)?;
    let mut notes = config.unused();
    let named = config.named(context)?;
    let (settings, pictures) = config.settings(context, &mut notes)?;
    let share = config.distribution(context.without_gpus, &mut notes)?;
    let prefers_gpus = share.engine == EngineRequest::Vulkan;
    let common = config.common(context, &share, &mut notes)?;
    let location = config.get(OUTPUT, "location");
    let directory = location.map(|entry| context.base.join(&entry.value));
    let directory = directory.or_else(|| {
        context
            .following
            .map(|_| format!("{}-patterns", context.stem).into())
    });
    if !notes.is_empty() {
        notes.insert(0, "of the configuration's keys:".into());
    }
    let request = IntegrationRequest {
        named,
        dataset: None,
        directories: Vec::new(),
        place: config
            .get(INTEGRATION, "poni_file")
            .map_or(0..0, |poni| poni.span.clone()),
        entry: config
            .get(DATASET, "hdf5_entry")
            .map(|entry| entry.value.clone()),
        monitor: None,
        calibrant: None,
        settings,
        pictures,
        strategy: share.strategy,
        workers: Some(share.workers),
        threads: Count::Given(share.threads),
        workers_per_gpu: Count::Given(share.workers_per_gpu),
        engine: share.engine,
        frames_per_task: None,
        // What integrator reads lies on a file system that all machines share.
        input: InputFiles::Shared,
        location: directory.map(|directory| std::path::absolute(&directory).unwrap_or(directory)),
        location_place: location.map_or(0..0, |entry| entry.span.clone()),
        existing: datasets::existing(context.following, config.existing()?),
        on_bad_frames: OnBadFrames::Mark,
        notes,
    };
    let request = match context.following {
        Some(_) => IntegrationRequest {
            strategy: Strategy::Split,
            ..request
        },
        None => request,
    };
    let mut jobs = chain::build(request, &common)?;
    for placed in &mut jobs {
        placed.job.prefers_gpus = prefers_gpus;
    }
    Ok(jobs)
}

/// How the work is spread.
struct WorkDistribution {
    workers: u32,
    threads: u32,
    workers_per_gpu: u32,
    engine: EngineRequest,
    strategy: Strategy,
}

impl ConfigFile {
    /// What is to be said of the keys that have a value and no use here.
    fn unused(&self) -> Vec<String> {
        let given = self.0.iter().filter(|entry| !entry.value.is_empty());
        let told = given.filter_map(|entry| {
            let why = keys::key(entry.section, entry.key)?.unused?;
            Some(format!("  {} is not used: {why}", entry.key))
        });
        told.collect()
    }

    fn named(&self, context: &Context<'_>) -> Result<Vec<Named>, Fault> {
        let mut named: Vec<Named> = Vec::new();
        if let Some(following) = context.following {
            named = datasets::following(following);
        } else {
            let Some(location) = self.get(DATASET, "location") else {
                let place = context.text.len()..context.text.len();
                return Err(Fault::new(place, "[dataset] has no `location`")
                    .hint("the HDF5 files, with wildcards"));
            };
            let words = location.value.split([',', '\n']).map(str::trim);
            for word in words.filter(|word| !word.is_empty()) {
                let found = datasets::named(word, &context.base);
                named.extend(found.map_err(|why| location.fault(why))?);
            }
        }
        let text = |section, key| self.get(section, key).map(|entry| entry.value.clone());
        let detector = DetectorName {
            name: text(INTEGRATION, "detector_name"),
            suffix: text(INTEGRATION, "detector_suffix"),
        };
        let entry = text(DATASET, "hdf5_entry");
        named = each_scan(named, entry.as_deref(), &detector);
        named.dedup();
        Ok(named)
    }

    fn distribution(
        &self,
        without_gpus: bool,
        notes: &mut Vec<String>,
    ) -> Result<WorkDistribution, Fault> {
        let number = |key| self.or_default(COMPUTATIONS, key).whole();
        let (workers, threads) = (number("n_workers")?, number("cores_per_worker")?);
        let workers_per_gpu = number("ai_engines_per_worker")?;
        let strategy = self.strategy()?;
        let partition = self.or_default(COMPUTATIONS, "partition").value;
        let is_local = partition == "local" || partition.is_empty();
        if without_gpus && !is_local {
            notes.push(format!(
                "  partition = {partition}: no node has a GPU, so processors integrate, as with partition = local"
            ));
        }
        if without_gpus || is_local {
            let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get() as u32);
            if threads > cores {
                notes.push(format!(
                    "  cores_per_worker = {threads} is more than this machine has: workers have {cores}"
                ));
            }
            return Ok(WorkDistribution {
                workers,
                threads: threads.min(cores),
                workers_per_gpu,
                engine: EngineRequest::Auto,
                strategy,
            });
        }
        if !["gpu", "p9gpu"].contains(&partition.as_str()) {
            notes.push(format!(
                "  partition = {partition} names no machines here: workers run where there are GPUs"
            ));
        }
        // There, each of `n_workers` has a GPU and several workers.
        let workers = workers.saturating_mul(workers_per_gpu);
        notes.push(format!(
            "  partition = {partition}: {} (n_workers × ai_engines_per_worker), each with {} \
             (cores_per_worker) and 1/{workers_per_gpu} of a GPU; `partition = local` takes what the nodes have",
            counted(workers, "worker"),
            counted(threads, "core")
        ));
        Ok(WorkDistribution {
            workers,
            threads,
            workers_per_gpu,
            engine: EngineRequest::Vulkan,
            strategy,
        })
    }

    fn strategy(&self) -> Result<Strategy, Fault> {
        let entry = self.or_default(COMPUTATIONS, "strategy");
        match entry.value.as_str() {
            "auto" | "" => Ok(Strategy::Auto),
            "split" => Ok(Strategy::Split),
            "whole" => Ok(Strategy::Whole),
            other => {
                let fault = entry.fault(format!("`strategy` cannot be `{other}`"));
                Err(fault.suggest(other, &["auto", "split", "whole"]))
            }
        }
    }

    fn existing(&self) -> Result<Existing, Fault> {
        let entry = self.or_default(OUTPUT, "existing_output");
        match entry.value.to_lowercase().as_str() {
            "error" | "raise" | "fail" => Ok(Existing::Error),
            "skip" => Ok(Existing::Skip),
            "outdated" | "reprocess_if_conffile_more_recent" | "" => Ok(Existing::Outdated),
            "overwrite" | "reprocess" | "replace" => Ok(Existing::Overwrite),
            other => {
                let fault = entry.fault(format!("`existing_output` cannot be `{other}`"));
                let known = [
                    "skip",
                    "reprocess_if_conffile_more_recent",
                    "overwrite",
                    "raise",
                ];
                Err(fault.suggest(other, &known))
            }
        }
    }

    fn common(
        &self,
        context: &Context<'_>,
        share: &WorkDistribution,
        notes: &mut Vec<String>,
    ) -> Result<CommonKeys, Fault> {
        let name: String = context.stem.chars().map(allowed).take(40).collect();
        let name = match name.trim_start_matches(['.', '-']) {
            "" => "integration",
            name => name,
        };
        let time = self.get(COMPUTATIONS, "time");
        let work = WorkSpec {
            worker: Some(Builtin::Integrate.worker("{}")),
            timeout_ms: time.map(text::ConfigEntry::time_ms).transpose()?,
            ..WorkSpec::named(name)
        };
        Ok(CommonKeys {
            draft: JobDraft::new(work),
            resources: self.resources(share, notes)?,
            name_span: 0..0,
            into: None,
            computing: None,
        })
    }

    /// What a worker asks for besides its cores. Integrator's memory is that of all workers of a
    /// GPU together, and asked of SLURM alone.
    fn resources(
        &self,
        share: &WorkDistribution,
        notes: &mut Vec<String>,
    ) -> Result<Option<Resources>, Fault> {
        let Some(entry) = self.get(COMPUTATIONS, "memory_per_worker") else {
            return Ok(None);
        };
        let memory = parse_bytes(&entry.value)
            .map_err(|error| entry.fault(format!("`memory_per_worker`: {error}")))?;
        if share.engine != EngineRequest::Vulkan {
            notes.push(
                "  memory_per_worker is not used where processors integrate: workers take what they need"
                    .into(),
            );
            return Ok(None);
        }
        let sharing = share.workers_per_gpu.max(1);
        Ok(Some(Resources {
            cpu_milli: share.threads.saturating_mul(1000),
            memory_bytes: memory / u64::from(sharing),
            gpu_milli: (1000 / sharing).max(1),
            ..Resources::default()
        }))
    }
}

fn allowed(c: char) -> char {
    if c.is_ascii_alphanumeric() || "-_.".contains(c) {
        c
    } else {
        '_'
    }
}
