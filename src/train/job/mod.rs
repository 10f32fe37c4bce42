//! The job file of a training: its keys, put together to a plan and the job that carries it out.
//!
//! | file | owns |
//! |---|---|
//! | `layers` | `layers` of `[model]` |
//! | `data` | `[data]` |
//! | `optimizer` | `[optimizer]` |
//! | `sharing` | `consistency` and other keys of several workers |
//! | `numbers` | numbers and pairs of them, with their limits |

mod data;
mod layers;
mod numbers;
mod optimizer;
mod sharing;
#[cfg(test)]
mod tests;

use super::{
    exchange,
    model::{Loss, ModelSpec, ShapeMismatch, arrays, output_shape},
    plan::{Checkpoints, Every, PLAN_FILE, TrainPlan},
    run::{FILES, WORKER_FILE},
    team::Team,
};
use nodectl_jobfile::{
    Fault, Fields, PlacedJob, PlannedJob, Upload, UploadSource,
    keys::{common, resources, uploads, work::builtin_work},
    to_i64,
};
use nodectl_types::{Builtin, WorkSpec};
use std::collections::BTreeMap;
use toml::de::DeValue;

#[rustfmt::skip]
pub const KEYS: [&str; 33] = [
    "name", "kind", "data", "model", "loss", "epochs", "batch", "seed", "optimizer", "checkpoint", "init_from",
    "resume_from", "output_limit", "log_limit", "into", "computing", "retries", "timeout", "grace", "priority", "where",
    "wait", "resources", "workers", "servers", "consistency", "shares", "compression", "block_size", "replicas",
    "use_sfb", "num_push_threads", "num_pull_threads",
];

const DEFAULT_EPOCHS: u32 = 10;
const DEFAULT_BATCH: u32 = 32;
const DEFAULT_KEPT: u32 = 2;
/// Data up to this size are read and checked whole before the job is submitted; of more, the
/// headers.
const CHECKED_BYTES: u64 = 64 << 20;

pub(crate) fn plan(fields: &Fields<'_, '_>) -> Result<PlacedJob, Fault> {
    fields.check_keys(&KEYS)?;
    let (name, name_span) = common::name(fields)?;
    let mut files = BTreeMap::new();
    let data = data::plan(fields, &mut files)?;
    let (model, layers) = model(fields, &data)?;
    let optimizer = optimizer::plan(fields)?;
    let team = Team::plan(fields)?;
    let threads = resources::plan(fields, true)?
        .cpu_milli
        .div_ceil(1000)
        .max(1);
    let plan = TrainPlan {
        model,
        data: data.spec.clone(),
        epochs: fields
            .u32("epochs", 1)?
            .map_or(DEFAULT_EPOCHS, |epochs| epochs.value),
        batch: fields
            .u32("batch", 1)?
            .map_or(DEFAULT_BATCH, |batch| batch.value),
        seed: seed(fields)?,
        optimizer,
        checkpoints: checkpoints(fields)?,
        init_from: values(fields, "init_from", &mut files)?,
        resume_from: values(fields, "resume_from", &mut files)?,
        threads,
        sharing: sharing::plan(fields)?,
    };
    if let (Some(_), Some(resume)) = (&plan.init_from, fields.get("resume_from")) {
        return Err(Fault::new(
            resume.span(),
            "a job begins with `init_from` or goes on with `resume_from`, not both",
        ));
    }
    check_names(fields, &plan, &files)?;
    check(fields, &plan, &data, &layers)?;
    let planned = Upload {
        path: PLAN_FILE.into(),
        source: UploadSource::Bytes(plan.encode().into()),
        executable: false,
    };
    files.insert(PLAN_FILE.into(), planned);
    let work = work(fields, &name, &plan, &team)?;
    let job = PlannedJob {
        uploads: files.into_values().collect(),
        into: common::into(fields)?,
        computing: common::computing(fields)?,
        ..PlannedJob::new(team.draft(fields, work)?)
    };
    Ok(PlacedJob {
        job,
        name_span,
        after_spans: Vec::new(),
    })
}

/// `[model]` and `loss`, with the shape of samples from the data.
fn model(
    fields: &Fields<'_, '_>,
    data: &data::Data,
) -> Result<(ModelSpec, layers::PlacedLayers), Fault> {
    let Some(table) = fields.table("model", "[model]")? else {
        let fault = Fault::new(fields.span.clone(), "the job has no [model]");
        return Err(fault.hint("[model]\nlayers = [{ dense = 64 }, \"relu\", { dense = 10 }]"));
    };
    table.check_keys(&["layers"])?;
    let layers = layers::plan(&table)?;
    let loss = loss(fields)?;
    let input = data
        .spec
        .sample_shape(&fields.context.base)
        .map_err(|error| data.fault(&error))?;
    Ok((
        ModelSpec {
            input,
            layers: layers.layers(),
            loss,
        },
        layers,
    ))
}

fn loss(fields: &Fields<'_, '_>) -> Result<Loss, Fault> {
    let Some(name) = fields.string("loss")? else {
        return Ok(Loss::CrossEntropy);
    };
    let all = [Loss::CrossEntropy, Loss::Mse, Loss::BinaryCrossEntropy];
    all.into_iter()
        .find(|loss| loss.name() == name.value)
        .ok_or_else(|| {
            let fault = Fault::new(name.span, format!("there is no loss `{}`", name.value));
            fault.suggest(&name.value, &all.map(Loss::name))
        })
}

fn seed(fields: &Fields<'_, '_>) -> Result<u64, Fault> {
    let Some(seed) = fields.integer("seed")? else {
        return Ok(0);
    };
    u64::try_from(seed.value).map_err(|_| {
        Fault::new(
            seed.span,
            format!("`seed` counts from 0, not {}", seed.value),
        )
    })
}

/// The file of `init_from` or `resume_from`.
pub(super) fn values(
    fields: &Fields<'_, '_>,
    key: &str,
    files: &mut BTreeMap<String, Upload>,
) -> Result<Option<String>, Fault> {
    let Some(item) = fields.string(key)? else {
        return Ok(None);
    };
    if !item.value.ends_with(".safetensors") {
        return Err(Fault::new(
            item.span,
            format!("`{key}` is a .safetensors file, not `{}`", item.value),
        ));
    }
    let upload = uploads::file(fields.context, &item)?;
    let path = upload.path.clone();
    files.insert(path.clone(), upload);
    Ok(Some(path))
}

/// `[checkpoint]`.
pub(super) fn checkpoints(fields: &Fields<'_, '_>) -> Result<Option<Checkpoints>, Fault> {
    let Some(table) = fields.table("checkpoint", "[checkpoint]")? else {
        return Ok(None);
    };
    table.check_keys(&["every", "keep"])?;
    let missing = || {
        let fault = Fault::new(table.span.clone(), "[checkpoint] does not say how often");
        fault.hint("every = 500, in steps, or every = \"5 min\"")
    };
    let every = table.get("every").ok_or_else(missing)?;
    let every = match every.get_ref() {
        DeValue::Integer(number) => {
            match to_i64(number).and_then(|steps| u64::try_from(steps).ok()) {
                Some(steps) if steps > 0 => Every::Steps(steps),
                _ => {
                    return Err(Fault::new(
                        every.span(),
                        "`every` is a number of steps from 1 on",
                    ));
                }
            }
        }
        _ => {
            let time = table.duration("every")?.ok_or_else(missing)?;
            match u64::try_from(time.value.as_millis()).unwrap_or(u64::MAX) {
                0 => {
                    return Err(Fault::new(
                        time.span,
                        "`every` is a time of at least a millisecond",
                    ));
                }
                millis => Every::Millis(millis),
            }
        }
    };
    let keep = table
        .u32("keep", 1)?
        .map_or(DEFAULT_KEPT, |keep| keep.value);
    Ok(Some(Checkpoints { every, keep }))
}

/// Shapes, and of data that are not large every number: before the job takes anybody's GPU.
fn check(
    fields: &Fields<'_, '_>,
    plan: &TrainPlan,
    data: &data::Data,
    layers: &layers::PlacedLayers,
) -> Result<(), Fault> {
    let fault = |misfit: ShapeMismatch| {
        let place = layers.span(&misfit.path);
        let fault = Fault::new(place, layers.described(&misfit.path, &misfit.message));
        match misfit.hint {
            Some(hint) => fault.hint(hint),
            None => fault,
        }
    };
    let outputs = output_shape(&plan.model).map_err(fault)?[0];
    arrays(&plan.model).map_err(fault)?;
    if plan.model.takes_indices()
        && let Some(key) = ["scale", "standardize"]
            .into_iter()
            .find_map(|key| data.table_key(key))
    {
        return Err(Fault::new(
            key,
            "an embedding takes whole numbers as they are: nothing scales them",
        ));
    }
    let base = &fields.context.base;
    let lengths = plan
        .data
        .files()
        .into_iter()
        .map(|file| base.join(file).metadata().map_or(0, |file| file.len()));
    let is_small = lengths.sum::<u64>() <= CHECKED_BYTES;
    // A few bytes may be many when they are inflated.
    if is_small
        && plan
            .data
            .bytes(base, CHECKED_BYTES)
            .map_err(|error| data.fault(&error))?
            <= CHECKED_BYTES
    {
        plan.data
            .load(base, &plan.model, outputs, plan.seed)
            .map_err(|error| data.fault(&error))?;
    }
    for (key, file) in [
        ("init_from", &plan.init_from),
        ("resume_from", &plan.resume_from),
    ] {
        let Some((path, value)) = file.as_ref().zip(fields.get(key)) else {
            continue;
        };
        let path = base.join(path);
        let checked = if key == "init_from" {
            super::file::check_values(&path, &arrays(&plan.model).map_err(fault)?)
        } else {
            super::file::check_checkpoint(&path, &plan.model)
        };
        checked.map_err(|error| Fault::new(value.span(), error.to_string()))?;
    }
    Ok(())
}

/// What travels with the job lies beside what the training leaves.
fn check_names(
    fields: &Fields<'_, '_>,
    plan: &TrainPlan,
    files: &BTreeMap<String, Upload>,
) -> Result<(), Fault> {
    let metric = format!("{}.svg", plan.model.loss.metric());
    let own = [
        PLAN_FILE,
        WORKER_FILE,
        "confusion.csv",
        "confusion.svg",
        &metric,
    ]
    .into_iter()
    .chain(FILES);
    let own: Vec<&str> = own.collect();
    let top = |path: &str| {
        path.split('/')
            .next()
            .map(str::to_string)
            .unwrap_or_default()
    };
    match files.keys().find(|path| own.contains(&top(path).as_str())) {
        None => Ok(()),
        Some(path) => {
            let span = ["init_from", "resume_from", "data"]
                .into_iter()
                .find_map(|key| {
                    let value = fields.get(key)?;
                    (value
                        .get_ref()
                        .as_str()
                        .is_none_or(|given| given.ends_with(path.as_str())))
                    .then(|| value.span())
                });
            let message = format!("`{path}` has the name of what the training itself writes");
            let hint = format!("put it into a directory of another name: \"start/{path}\"");
            Err(Fault::new(span.unwrap_or_default(), message).hint(hint))
        }
    }
}

fn work(
    fields: &Fields<'_, '_>,
    name: &str,
    plan: &TrainPlan,
    team: &Team,
) -> Result<WorkSpec, Fault> {
    let mut outputs: Vec<String> = FILES.map(str::to_string).to_vec();
    outputs.push(format!("{}.svg", plan.model.loss.metric()));
    if plan.model.loss == Loss::CrossEntropy {
        outputs.push("confusion.*".into());
    }
    outputs.push(WORKER_FILE.into());
    // One pattern: of several workers one leaves the model and what belongs to it. Braces are
    // doubled, as in every template.
    let outputs = vec![format!("{{{{{}}}}}", outputs.join(","))];
    let work = builtin_work(
        fields,
        name,
        Builtin::Train,
        resources::plan(fields, true)?,
        outputs,
    )?;
    Ok(WorkSpec {
        env: vec![team.variable()],
        worker: Some(Builtin::Train.worker(&exchange::init(plan, team))),
        ..work
    })
}
