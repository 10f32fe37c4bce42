//! Configuration files of the ESRF's integrator, as they are: `[dataset]`,
//! `[azimuthal integration]`, `[computations distribution]` and `[output]` with `key = value`. Keys
//! that have a meaning here keep it; those that cannot have one are told in the log, and one that
//! is unknown is an error.
//!
//! | key | what becomes of it |
//! |---|---|
//! | `location` | `datasets`: files and patterns, with commas or lines between them |
//! | `hdf5_entry` | `entry` |
//! | `layout`, `repack_output`, `python_executable` | nothing: layouts are found, results are whole, there is no Python |
//! | `n_pts`, `unit`, `pixel_splitting`, … | the settings of the same meaning |
//! | `trim_method`, `trim_bounds` | `sigma_clip`, or `quantile` for a median filter, in percent |
//! | `n_workers`, `ai_engines_per_worker`, `cores_per_worker` | `workers`, `workers_per_gpu`, `threads_per_worker` |
//! | `partition` | `local`: whatever the nodes have; `gpu`, `p9gpu`: workers with shares of GPUs |
//! | `memory_per_worker`, `time` | a task's memory and time |
//! | `[output] location`, `existing_output` | `output`, `existing_output` |

use super::{
    chain::{self, CommonKeys, InputFiles, Request, Strategy, Threads},
    datasets::{self, Named},
    engine::{Filter, IntegrationSettings, Region, Unit},
    plan::{EngineRequest, Existing},
    settings::{DEFAULT_POINTS, Pictures, detector, error_model, geometry, splitting},
};
use nodectl_jobfile::{Context, Fault, Item, PlacedJob, PlannedJob, in_order};
use nodectl_types::{Builtin, JobDraft, Resources, WorkSpec, units::parse_bytes};
use std::ops::Range;

/// The header that no job file has.
const HEADER: &str = "[azimuthal integration]";

const SECTIONS: [(&str, &[&str]); 4] = [
    ("dataset", &["location", "hdf5_entry", "layout"]),
    (
        "azimuthal integration",
        &[
            "n_pts",
            "unit",
            "detector",
            "poni_file",
            "mask_file",
            "flatfield_file",
            "dark_file",
            "error_model",
            "azimuthal_range",
            "radial_range",
            "polarization_factor",
            "correct_solid_angle",
            "pixel_splitting",
            "trim_method",
            "trim_n_pts",
            "trim_bounds",
        ],
    ),
    (
        "computations distribution",
        &[
            "n_workers",
            "ai_engines_per_worker",
            "cores_per_worker",
            "partition",
            "memory_per_worker",
            "time",
            "python_executable",
        ],
    ),
    ("output", &["location", "existing_output", "repack_output"]),
];

/// Workers for each of the "big workers" of a GPU partition, as integrator has them by default.
const DEFAULT_ENGINES: u32 = 8;
const DEFAULT_CORES: u32 = 4;
const DEFAULT_WORKERS: u32 = 4;

/// The jobs of such a file, in an order in which they can be submitted; None of another.
pub fn jobs(context: &Context<'_>) -> Option<Result<Vec<PlannedJob>, Fault>> {
    let is_one = context.text.lines().any(|line| line.trim() == HEADER);
    is_one.then(|| in_order(plan(context)?))
}

/// A value and its bytes in the text.
#[derive(Clone, Debug)]
struct ConfigEntry {
    section: &'static str,
    key: &'static str,
    value: String,
    span: Range<usize>,
}

struct ConfigFile(Vec<ConfigEntry>);

fn plan(context: &Context<'_>) -> Result<Vec<PlacedJob>, Fault> {
    let config = parse(context.text)?;
    for (section, key) in [
        ("dataset", "layout"),
        ("output", "repack_output"),
        ("computations distribution", "python_executable"),
    ] {
        if config.get(section, key).is_some() {
            tracing::warn!("`{key}` has no meaning for nodectl and is left out");
        }
    }
    let named = config.named(context)?;
    let (settings, pictures) = config.settings(context)?;
    let share = config.distribution()?;
    let location = config
        .get("output", "location")
        .map(|entry| context.base.join(&entry.value));
    let location = location.or_else(|| {
        context
            .following
            .map(|_| format!("{}-patterns", context.stem).into())
    });
    let request = Request {
        named,
        dataset: None,
        directories: Vec::new(),
        place: config
            .integration("poni_file")
            .map_or(0..0, |poni| poni.span.clone()),
        entry: config
            .get("dataset", "hdf5_entry")
            .map(|entry| entry.value.clone()),
        monitor: None,
        calibrant: None,
        settings,
        pictures,
        strategy: if context.following.is_some() {
            Strategy::Split
        } else {
            Strategy::Auto
        },
        workers: Some(share.workers),
        threads: Threads::Given(share.threads),
        workers_per_gpu: Some(share.workers_per_gpu),
        engine: share.engine,
        frames_per_task: None,
        // What integrator reads lies on a file system that all machines share.
        input: InputFiles::Shared,
        location: location.map(|location| std::path::absolute(&location).unwrap_or(location)),
        location_place: config
            .get("output", "location")
            .map_or(0..0, |entry| entry.span.clone()),
        existing: datasets::existing(context.following, config.existing()?),
    };
    chain::build(request, &config.common(context, &share)?)
}

fn parse(text: &str) -> Result<ConfigFile, Fault> {
    let mut entries: Vec<ConfigEntry> = Vec::new();
    let mut section: Option<(&'static str, &'static [&'static str])> = None;
    let mut start = 0;
    for line in text.split_inclusive('\n') {
        let place = start..start + line.trim_end().len();
        start += line.len();
        let bare = line.trim();
        if bare.is_empty() || bare.starts_with(['#', ';']) {
            continue;
        }
        if let Some(name) = bare
            .strip_prefix('[')
            .and_then(|rest| rest.strip_suffix(']'))
        {
            let known = SECTIONS.iter().find(|(known, _)| *known == name.trim());
            section = Some(*known.ok_or_else(|| {
                let names: Vec<&str> = SECTIONS.iter().map(|(name, _)| *name).collect();
                Fault::new(place.clone(), format!("there is no section `[{name}]`"))
                    .suggest(name, &names)
            })?);
            continue;
        }
        let Some((section, keys)) = section else {
            return Err(Fault::new(place, "this stands before the first section")
                .hint("begin with [dataset]"));
        };
        // As in Python's files, what is indented goes on with the line before.
        if line.starts_with([' ', '\t'])
            && !bare.contains('=')
            && let Some(last) = entries.last_mut()
        {
            last.value += &format!("\n{}", uncommented(bare));
            last.span.end = place.end;
            continue;
        }
        let Some((key, value)) = bare.split_once(['=', ':']) else {
            return Err(Fault::new(
                place,
                "this is neither a section nor `key = value`",
            ));
        };
        let key = key.trim();
        let known = keys.iter().find(|known| **known == key).ok_or_else(|| {
            Fault::new(place.clone(), format!("[{section}] has no key `{key}`")).suggest(key, keys)
        })?;
        if entries
            .iter()
            .any(|entry| (entry.section, entry.key) == (section, *known))
        {
            return Err(Fault::new(place, format!("`{key}` is given twice")));
        }
        entries.push(ConfigEntry {
            section,
            key: known,
            value: uncommented(value),
            span: place,
        });
    }
    // An empty value is none.
    entries.retain(|entry| !entry.value.is_empty());
    Ok(ConfigFile(entries))
}

/// Without a comment behind it, and quotes around it.
fn uncommented(value: &str) -> String {
    let bare = value
        .split(" #")
        .next()
        .unwrap_or_default()
        .split(" ;")
        .next()
        .unwrap_or_default()
        .trim();
    let unquoted = ['"', '\'']
        .iter()
        .find_map(|quote| bare.strip_prefix(*quote)?.strip_suffix(*quote));
    unquoted.unwrap_or(bare).to_string()
}

/// How the work is spread.
struct WorkDistribution {
    workers: u32,
    threads: u32,
    workers_per_gpu: u32,
    engine: EngineRequest,
}

impl ConfigFile {
    fn get(&self, section: &str, key: &str) -> Option<&ConfigEntry> {
        self.0
            .iter()
            .find(|entry| (entry.section, entry.key) == (section, key))
    }

    fn integration(&self, key: &str) -> Option<&ConfigEntry> {
        self.get("azimuthal integration", key)
    }

    fn computations(&self, key: &str) -> Option<&ConfigEntry> {
        self.get("computations distribution", key)
    }

    fn named(&self, context: &Context<'_>) -> Result<Vec<Named>, Fault> {
        if let Some(following) = context.following {
            return Ok(datasets::following(following));
        }
        let Some(location) = self.get("dataset", "location") else {
            let place = context.text.len()..context.text.len();
            return Err(Fault::new(place, "[dataset] has no `location`")
                .hint("the HDF5 files, with wildcards"));
        };
        let mut named: Vec<Named> = Vec::new();
        for word in location
            .value
            .split([',', '\n'])
            .map(str::trim)
            .filter(|word| !word.is_empty())
        {
            let found = datasets::named(word, &context.base)
                .map_err(|why| Fault::new(location.span.clone(), why))?;
            named.extend(found);
        }
        named.dedup();
        Ok(named)
    }

    fn settings(&self, context: &Context<'_>) -> Result<(IntegrationSettings, Pictures), Fault> {
        let Some(poni) = self.integration("poni_file") else {
            let place = context.text.find(HEADER).unwrap_or(0);
            return Err(Fault::new(
                place..place + HEADER.len(),
                "[azimuthal integration] has no `poni_file`",
            ));
        };
        let mut geometry = geometry(&context.base.join(&poni.value))
            .map_err(|why| Fault::new(poni.span.clone(), why))?;
        let item = |entry: &ConfigEntry| Item {
            value: entry.value.clone(),
            span: entry.span.clone(),
        };
        let given = self.integration("detector").map(item);
        let mut pictures = detector(&mut geometry, &context.base, &item(poni), given)?;
        let unit = self.word("unit", Unit::from_name)?.unwrap_or_default();
        let points = match self.integration("n_pts") {
            Some(entry) => whole(entry)?,
            None => DEFAULT_POINTS,
        };
        let mut settings = IntegrationSettings::new(geometry, unit, points);
        settings.splitting = self.word("pixel_splitting", splitting)?.unwrap_or_default();
        settings.error_model = self.word("error_model", error_model)?.unwrap_or_default();
        settings.solid_angle = self.word("correct_solid_angle", truth)?.unwrap_or(true);
        settings.polarization_factor = self
            .integration("polarization_factor")
            .map(one_number)
            .transpose()?;
        let range = |key: &str| self.integration(key).map(two_numbers).transpose();
        let region = Region {
            name: None,
            radial_range: range("radial_range")?,
            azimuthal_range_deg: range("azimuthal_range")?,
        };
        if region != Region::default() {
            settings.regions = vec![region];
        }
        settings.filter = self.filter(points)?;
        for (key, what) in [
            ("mask_file", "mask"),
            ("flatfield_file", "flat"),
            ("dark_file", "dark"),
        ] {
            if let Some(entry) = self.integration(key) {
                let added = pictures.add(what, &entry.value, &context.base);
                added.map_err(|why| Fault::new(entry.span.clone(), why))?;
            }
        }
        settings
            .check()
            .map_err(|error| Fault::new(poni.span.clone(), error.to_string()))?;
        Ok((settings, pictures))
    }

    fn filter(&self, points: u32) -> Result<Option<Filter>, Fault> {
        let Some(method) = self.integration("trim_method") else {
            return Ok(None);
        };
        if let Some(own) = self.integration("trim_n_pts")
            && whole(own)? != points
        {
            let fault = Fault::new(
                own.span.clone(),
                "patterns are trimmed with as many points as they have",
            );
            return Err(fault.hint(format!("set trim_n_pts = {points}, or leave it out")));
        }
        let bounds = self.integration("trim_bounds");
        match method.value.to_lowercase().as_str() {
            "none" | "no" => Ok(None),
            "sigma_clip" | "sigma_clip_ng" => {
                let threshold = bounds
                    .map(|bounds| numbers(bounds).map(|all| all[0]))
                    .transpose()?
                    .unwrap_or(5.0);
                Ok(Some(Filter::SigmaClip {
                    threshold,
                    iterations: 5,
                }))
            }
            "median" | "medfilt1d" | "medfilt1d_ng" | "percentile" | "quantile" => {
                let [low, high] = bounds.map(two_numbers).transpose()?.unwrap_or([50.0, 50.0]);
                Ok(Some(Filter::Quantile {
                    low: low / 100.0,
                    high: high / 100.0,
                }))
            }
            other => {
                let fault = Fault::new(
                    method.span.clone(),
                    format!("there is no `trim_method` called `{other}`"),
                );
                Err(fault.suggest(other, &["median", "sigma_clip", "none"]))
            }
        }
    }

    fn distribution(&self) -> Result<WorkDistribution, Fault> {
        let number = |key: &str, default: u32| self.computations(key).map_or(Ok(default), whole);
        let workers = number("n_workers", DEFAULT_WORKERS)?;
        let workers_per_gpu = number("ai_engines_per_worker", DEFAULT_ENGINES)?;
        let threads = number("cores_per_worker", DEFAULT_CORES)?;
        match self
            .computations("partition")
            .map(|entry| (entry, entry.value.as_str()))
        {
            None | Some((_, "local")) => Ok(WorkDistribution {
                workers,
                threads,
                workers_per_gpu,
                engine: EngineRequest::Auto,
            }),
            // There, each of `n_workers` has a GPU and several workers.
            Some((_, "gpu" | "p9gpu")) => {
                let workers = workers.saturating_mul(workers_per_gpu);
                Ok(WorkDistribution {
                    workers,
                    threads,
                    workers_per_gpu,
                    engine: EngineRequest::Vulkan,
                })
            }
            Some((entry, other)) => {
                let fault = Fault::new(
                    entry.span.clone(),
                    format!("there is no partition `{other}` here"),
                );
                Err(fault.hint("local: whatever the nodes have; gpu: workers that share GPUs"))
            }
        }
    }

    fn existing(&self) -> Result<Existing, Fault> {
        let Some(entry) = self.get("output", "existing_output") else {
            return Ok(Existing::Error);
        };
        match entry.value.to_lowercase().as_str() {
            "error" | "raise" | "fail" => Ok(Existing::Error),
            "skip" => Ok(Existing::Skip),
            "outdated" | "reprocess_if_conffile_more_recent" => Ok(Existing::Outdated),
            "overwrite" | "reprocess" | "replace" => Ok(Existing::Overwrite),
            other => {
                let fault = Fault::new(
                    entry.span.clone(),
                    format!("`existing_output` cannot be `{other}`"),
                );
                Err(fault.suggest(other, &["skip", "outdated", "overwrite", "error"]))
            }
        }
    }

    fn common(&self, context: &Context<'_>, share: &WorkDistribution) -> Result<CommonKeys, Fault> {
        let memory = self.computations("memory_per_worker").map(|entry| {
            parse_bytes(&entry.value).map_err(|error| {
                Fault::new(entry.span.clone(), format!("`memory_per_worker`: {error}"))
            })
        });
        let resources = memory.transpose()?.map(|memory_bytes| Resources {
            cpu_milli: share.threads.saturating_mul(1000),
            memory_bytes,
            gpu_milli: if share.engine == EngineRequest::Vulkan {
                (1000 / share.workers_per_gpu.max(1)).max(1)
            } else {
                0
            },
            ..Resources::default()
        });
        let allowed = |c: char| {
            if c.is_ascii_alphanumeric() || "-_.".contains(c) {
                c
            } else {
                '_'
            }
        };
        let name: String = context.stem.chars().map(allowed).take(40).collect();
        let name = name.trim_start_matches(['.', '-']).to_string();
        let name = if name.is_empty() {
            "integration"
        } else {
            &name
        };
        let work = WorkSpec {
            worker: Some(Builtin::Integrate.worker("{}")),
            timeout_ms: self.computations("time").map(time_ms).transpose()?,
            ..WorkSpec::named(name)
        };
        Ok(CommonKeys {
            draft: JobDraft::new(work),
            resources,
            name_span: 0..0,
            into: None,
            computing: None,
        })
    }

    fn word<T>(
        &self,
        key: &str,
        parse: impl FnOnce(&str) -> Option<T>,
    ) -> Result<Option<T>, Fault> {
        let Some(entry) = self.integration(key) else {
            return Ok(None);
        };
        let found = parse(&entry.value);
        found.map(Some).ok_or_else(|| {
            Fault::new(
                entry.span.clone(),
                format!("`{key}` cannot be `{}`", entry.value),
            )
        })
    }
}

fn truth(text: &str) -> Option<bool> {
    match text.to_lowercase().as_str() {
        "1" | "true" | "yes" | "on" => Some(true),
        "0" | "false" | "no" | "off" => Some(false),
        _ => None,
    }
}

fn whole(entry: &ConfigEntry) -> Result<u32, Fault> {
    let number = entry.value.parse().ok().filter(|number| *number > 0);
    let wrong = || {
        Fault::new(
            entry.span.clone(),
            format!(
                "`{}` is a whole number from 1 on, not `{}`",
                entry.key, entry.value
            ),
        )
    };
    number.ok_or_else(wrong)
}

fn numbers(entry: &ConfigEntry) -> Result<Vec<f64>, Fault> {
    let bare = entry.value.trim_matches(['(', ')', '[', ']']);
    let parsed: Option<Vec<f64>> = bare
        .split([',', ' '])
        .filter(|word| !word.is_empty())
        .map(|word| word.parse().ok())
        .collect();
    let wrong = || {
        Fault::new(
            entry.span.clone(),
            format!("`{}` is numbers, not `{}`", entry.key, entry.value),
        )
    };
    parsed
        .filter(|numbers| !numbers.is_empty())
        .ok_or_else(wrong)
}

fn one_number(entry: &ConfigEntry) -> Result<f64, Fault> {
    match numbers(entry)?[..] {
        [number] => Ok(number),
        _ => Err(Fault::new(
            entry.span.clone(),
            format!("`{}` is one number", entry.key),
        )),
    }
}

fn two_numbers(entry: &ConfigEntry) -> Result<[f64; 2], Fault> {
    match numbers(entry)?[..] {
        [from, to] => Ok([from, to]),
        _ => Err(Fault::new(
            entry.span.clone(),
            format!("`{}` is two numbers, from and to", entry.key),
        )),
    }
}

/// SLURM's times: minutes, `h:m:s`, or with days before a hyphen.
fn time_ms(entry: &ConfigEntry) -> Result<u64, Fault> {
    let wrong = || {
        Fault::new(
            entry.span.clone(),
            format!(
                "`time` is days-hours:minutes:seconds, not `{}`",
                entry.value
            ),
        )
    };
    let (days, rest) = entry.value.split_once('-').unwrap_or(("0", &entry.value));
    let parts: Option<Vec<u64>> = rest
        .split(':')
        .map(|part| part.trim().parse().ok())
        .collect();
    let days: u64 = days.trim().parse().map_err(|_| wrong())?;
    let seconds = match parts.ok_or_else(wrong)?[..] {
        [minutes] => minutes.checked_mul(60),
        [minutes, seconds] => minutes
            .checked_mul(60)
            .and_then(|sum| sum.checked_add(seconds)),
        [hours, minutes, seconds] => hours.checked_mul(3600).and_then(|sum| {
            sum.checked_add(minutes.checked_mul(60)?)?
                .checked_add(seconds)
        }),
        _ => None,
    };
    let total = days
        .checked_mul(86_400)
        .zip(seconds)
        .and_then(|(days, seconds)| days.checked_add(seconds)?.checked_mul(1000));
    total.filter(|total| *total > 0).ok_or_else(wrong)
}
