//! The job file of an integration: its keys, put together to a request and the jobs that carry it
//! out.

use super::{
    chain::{self, CommonKeys, InputFiles, IntegrationRequest, Strategy},
    counts::Count,
    datasets::{self, MAX_DATASETS, Named},
    plan::{EngineRequest, Existing, OnBadFrames},
    results::Calibrant,
    settings,
};
use nodectl_jobfile::{
    Fault, Fields, Item, PlacedJob,
    keys::{common, resources, work::builtin_work},
};
use nodectl_types::{Builtin, Resources};
use std::path::PathBuf;
use toml::Spanned;

#[rustfmt::skip]
pub const KEYS: [&str; 56] = [
    "name", "kind", "datasets", "dataset", "directories", "entry", "monitor", "calibrant",
    "poni", "pyfai", "detector", "points", "azimuthal_points", "unit", "radial_range", "azimuthal_range", "regions", "splitting",
    "mask", "dark", "flat", "absorption", "variance", "dummy", "delta_dummy", "solid_angle", "polarization_factor",
    "polarization_offset", "transmission", "error_model", "sigma_clip", "quantile", "chi_discontinuity_at_0",
    "strategy", "workers", "threads_per_worker", "workers_per_gpu", "engine", "frames_per_task", "input", "output",
    "existing_output", "bad_frames", "output_limit", "log_limit", "into", "computing", "retries", "timeout", "grace", "priority", "min_nodes",
    "where", "speculate", "wait", "resources",
];

/// Workers that share a GPU unless somebody says otherwise.
pub(super) const DEFAULT_WORKERS_PER_GPU: u32 = 4;

/// Plans one job: the last of those that are returned, which come in order.
pub fn plan(fields: &Fields<'_, '_>) -> Result<Vec<PlacedJob>, Fault> {
    fields.check_keys(&KEYS)?;
    debug_assert!(settings::KEYS.iter().all(|key| KEYS.contains(key)));
    let named = named(fields)?;
    let (settings, pictures) = settings::plan(fields)?;
    let text = |key: &str| fields.string(key).map(|item| item.map(|item| item.value));
    let common = common(fields)?;
    let location = location(fields, common.name())?;
    let engine = chosen(
        fields,
        "engine",
        &[
            ("auto", EngineRequest::Auto),
            ("cpu", EngineRequest::Cpu),
            ("vulkan", EngineRequest::Vulkan),
        ],
    )?;
    let count = |key: &str| fields.u32(key, 1).map(|item| item.map(|item| item.value));
    let request = IntegrationRequest {
        named,
        place: ["detector", "poni", "pyfai"]
            .into_iter()
            .find_map(|key| fields.get(key))
            .map(Spanned::span)
            .unwrap_or_default(),
        dataset: text("dataset")?,
        directories: directories(fields)?,
        entry: text("entry")?,
        monitor: text("monitor")?,
        calibrant: calibrant(fields)?,
        settings,
        pictures,
        strategy: strategy(fields)?,
        workers: count("workers")?,
        threads: measurable(fields, "threads_per_worker")?,
        workers_per_gpu: workers_per_gpu(fields, engine)?,
        engine,
        frames_per_task: count("frames_per_task")?.map(u64::from),
        input: chosen(
            fields,
            "input",
            &[
                ("auto", InputFiles::Auto),
                ("shared", InputFiles::Shared),
                ("upload", InputFiles::Upload),
            ],
        )?,
        location,
        location_place: fields.get("output").map(Spanned::span).unwrap_or_default(),
        existing: existing(fields)?,
        on_bad_frames: chosen(
            fields,
            "bad_frames",
            &[("mark", OnBadFrames::Mark), ("fail", OnBadFrames::Fail)],
        )?,
        notes: Vec::new(),
    };
    check_there(fields, &request)?;
    chain::build(request, &common)
}

/// Fails where this machine has none of the files: then the paths are wrong, which is more than one
/// dataset's problem. Files that are shared may be where only the nodes see them.
fn check_there(fields: &Fields<'_, '_>, request: &IntegrationRequest) -> Result<(), Fault> {
    let may_lack = fields.context.following.is_some() || request.input == InputFiles::Shared;
    let is_any_there = request.named.iter().any(|named| named.path.exists());
    let Some(first) = request.named.first().filter(|_| !may_lack && !is_any_there) else {
        return Ok(());
    };
    let path = first.path.display();
    let message = match request.named.len() {
        1 => format!("there is no file {path}"),
        count => format!("none of the {count} files is there; the first is {path}"),
    };
    let place = fields.get("datasets").map(Spanned::span);
    Err(Fault::new(place.unwrap_or_default(), message)
        .hint("relative paths begin where the job file is; input = \"shared\" is for files that only nodes see"))
}

/// The directory of the results, where the file names one.
fn location(fields: &Fields<'_, '_>, name: &str) -> Result<Option<PathBuf>, Fault> {
    let output = fields.string("output")?;
    if let Some(output) = output
        .as_ref()
        .filter(|output| output.value.trim().is_empty())
    {
        let fault = Fault::new(output.span.clone(), "`output` names no directory");
        return Err(fault.hint(
            "leave it out for results where `nodectl run` puts those of other jobs; beside the job file is \".\"",
        ));
    }
    let output = output.map(|output| output.value);
    // What is followed has one place for all its results, and is not done twice when it is begun
    // again.
    let following = fields.context.following;
    let output = output.or_else(|| following.map(|_| format!("{name}-patterns")));
    Ok(output.map(|output| std::path::absolute(&output).unwrap_or_else(|_| output.into())))
}

/// What becomes of results that are there.
fn existing(fields: &Fields<'_, '_>) -> Result<Existing, Fault> {
    let existing = chosen(
        fields,
        "existing_output",
        &[
            ("error", Existing::Error),
            ("skip", Existing::Skip),
            ("outdated", Existing::Outdated),
            ("overwrite", Existing::Overwrite),
        ],
    )?;
    Ok(datasets::existing(fields.context.following, existing))
}

/// What is followed is split: it comes one by one.
fn strategy(fields: &Fields<'_, '_>) -> Result<Strategy, Fault> {
    let chosen = chosen(
        fields,
        "strategy",
        &[
            ("auto", Strategy::Auto),
            ("split", Strategy::Split),
            ("whole", Strategy::Whole),
        ],
    )?;
    Ok(match chosen {
        Strategy::Auto if fields.context.following.is_some() => Strategy::Split,
        strategy => strategy,
    })
}

/// A number, or `"auto"`.
fn measurable(fields: &Fields<'_, '_>, key: &str) -> Result<Count, Fault> {
    match fields
        .get(key)
        .map(|value| (value.span(), value.get_ref().as_str()))
    {
        None => Ok(Count::Auto),
        Some((_, Some("auto"))) => Ok(Count::Measured),
        Some((span, Some(other))) => {
            let fault = Fault::new(span, format!("`{key}` cannot be `{other}`"));
            Err(fault.hint("a whole number, or \"auto\" to have it measured"))
        }
        Some((_, None)) => Ok(fields
            .u32(key, 1)?
            .map_or(Count::Auto, |count| Count::Given(count.value))),
    }
}

/// Measured only where it counts: for workers that all have a GPU, whose share nothing else says.
fn workers_per_gpu(fields: &Fields<'_, '_>, engine: EngineRequest) -> Result<Count, Fault> {
    let key = "workers_per_gpu";
    let count = measurable(fields, key)?;
    let Some(value) = fields.get(key).filter(|_| count == Count::Measured) else {
        return Ok(count);
    };
    if engine != EngineRequest::Vulkan {
        let fault = Fault::new(value.span(), format!("`{key}` is measured for GPUs only"));
        return Err(fault.hint("engine = \"vulkan\""));
    }
    if fields.get("resources").is_some() {
        let message = format!("`{key}` says nothing where `resources` do");
        return Err(Fault::new(value.span(), message).hint("leave out one of the two"));
    }
    Ok(count)
}

fn common(fields: &Fields<'_, '_>) -> Result<CommonKeys, Fault> {
    let (name, name_span) = common::name(fields)?;
    let given = fields.get("resources").is_some();
    let work = builtin_work(
        fields,
        &name,
        Builtin::Integrate,
        Resources::default(),
        Vec::new(),
    )?;
    Ok(CommonKeys {
        draft: common::draft(fields, work)?,
        resources: if given {
            Some(resources::plan(fields, true)?)
        } else {
            None
        },
        name_span,
        into: common::into(fields)?,
        computing: common::computing(fields)?,
    })
}

fn named(fields: &Fields<'_, '_>) -> Result<Vec<Named>, Fault> {
    if let Some(following) = fields.context.following {
        return Ok(datasets::following(following));
    }
    let words = fields.one_or_more("datasets")?;
    if words.is_empty() {
        let fault = Fault::new(fields.span.clone(), "the job has no `datasets`");
        return Err(
            fault.hint("paths, patterns, or @FILE with one a line, e.g. datasets = \"scans/*.h5\"")
        );
    }
    let mut named: Vec<Named> = Vec::new();
    for word in words {
        for found in datasets::named(&word.value, &fields.context.base)
            .map_err(|why| Fault::new(word.span.clone(), why))?
        {
            if !named.contains(&found) {
                named.push(found);
            }
        }
        if named.len() > MAX_DATASETS {
            return Err(Fault::new(
                word.span,
                format!("more than {MAX_DATASETS} datasets"),
            ));
        }
    }
    Ok(named)
}

/// Directories into which the datasets' files may lead, besides their own.
fn directories(fields: &Fields<'_, '_>) -> Result<Vec<PathBuf>, Fault> {
    let directory = |item: Item<String>| {
        let path = fields.context.base.join(&item.value);
        match path.canonicalize() {
            Ok(real) if real.is_dir() => Ok(real),
            Ok(_) => Err(Fault::new(
                item.span,
                format!("`{}` is not a directory", item.value),
            )),
            Err(error) => Err(Fault::new(item.span, format!("`{}`: {error}", item.value))),
        }
    };
    fields
        .one_or_more("directories")?
        .into_iter()
        .map(directory)
        .collect()
}

fn calibrant(fields: &Fields<'_, '_>) -> Result<Option<Calibrant>, Fault> {
    let Some(name) = fields.string("calibrant")? else {
        return Ok(None);
    };
    match Calibrant::from_name(&name.value) {
        Some(calibrant) => Ok(Some(calibrant)),
        None => {
            let fault = Fault::new(
                name.span,
                format!("the rings of `{}` are not known", name.value),
            );
            let names: Vec<&str> = Calibrant::all().map(Calibrant::name).collect();
            Err(fault.suggest(&name.value, &names))
        }
    }
}

/// One of some words; the first where the key is left out.
fn chosen<T: Copy>(fields: &Fields<'_, '_>, key: &str, words: &[(&str, T)]) -> Result<T, Fault> {
    let Some(text) = fields.string(key)? else {
        return Ok(words[0].1);
    };
    let found = words
        .iter()
        .find(|(word, _)| *word == text.value)
        .map(|(_, value)| *value);
    found.ok_or_else(|| {
        let known: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
        Fault::new(text.span, format!("`{key}` is one of {}", known.join(", ")))
            .suggest(&text.value, &known)
    })
}
