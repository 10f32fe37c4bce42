//! The keys that jobs of every kind have, and what they mean.

use crate::{Fault, Fields, Item, Upload, to_i64};
use nodectl_formats::files;
use nodectl_types::{
    Gang, Isolation, JobDraft, ParamSpace, WorkSpec, defaults, isolation::is_image, limits,
    manifest::safe_path, predicate::Predicate, secret::is_secret_name,
};
use std::{ops::Range, path::PathBuf};
use toml::{Spanned, de::DeValue};

/// The longest name of a job: it becomes part of directory names.
pub const MAX_NAME_BYTES: usize = 64;

/// The job's name, or the file's where it has none.
pub fn name(fields: &Fields<'_, '_>) -> Result<(String, Range<usize>), Fault> {
    let found = fields.string("name")?;
    let span = found
        .as_ref()
        .map_or(fields.span.clone(), |name| name.span.clone());
    let name = found.map_or_else(|| fields.context.stem.clone(), |name| name.value);
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if name.is_empty()
        || name.len() > MAX_NAME_BYTES
        || name.starts_with(['.', '-'])
        || !name.chars().all(allowed)
    {
        let fault = Fault::new(span, format!("`{name}` cannot be a job's name"));
        if name.contains('{') {
            let hint = "all tasks of a job have its name; `task_names` is for their directories, \
                        e.g. task_names = \"{file.stem}\"";
            return Err(fault.hint(hint));
        }
        let rule = "names directories of results: letters, digits, `_`, `-` and `.`";
        return Err(fault.hint(format!(
            "set `name`, which {rule}, at most {MAX_NAME_BYTES} of them"
        )));
    }
    Ok((name, span))
}

/// The number of tasks, against the limits.
pub fn check_count(
    fields: &Fields<'_, '_>,
    params: &ParamSpace,
    repeat: Option<&Item<u32>>,
) -> Result<(), Fault> {
    let count = params
        .len()
        .saturating_mul(repeat.map_or(1, |repeat| u64::from(repeat.value)));
    if count > limits::MAX_TASKS {
        let key = ["params", "files"].iter().find_map(|key| fields.get(key));
        let span = repeat
            .map(|repeat| repeat.span.clone())
            .or(key.map(toml::Spanned::span));
        let message = format!(
            "the job would have {count} tasks; at most {} are possible",
            limits::MAX_TASKS
        );
        let hint = "let each task do more: fewer parameter sets, each of them a range";
        return Err(Fault::new(span.unwrap_or_default(), message).hint(hint));
    }
    Ok(())
}

/// Results of `after` appear as directories beside the uploads.
pub fn check_clash(after: &[Item<String>], uploads: &[Upload]) -> Result<(), Fault> {
    for job in after {
        let taken = |upload: &&Upload| upload.path.split('/').next() == Some(job.value.as_str());
        if let Some(upload) = uploads.iter().find(taken) {
            let message = format!(
                "the results of `{}` and the uploaded `{}` would share a name",
                job.value, upload.path
            );
            return Err(Fault::new(job.span.clone(), message).hint("rename the job or the files"));
        }
    }
    Ok(())
}

pub fn timeout(fields: &Fields<'_, '_>) -> Result<Option<u64>, Fault> {
    match fields.duration("timeout")? {
        Some(timeout) if millis(timeout.value) == 0 => {
            let fault = Fault::new(
                timeout.span,
                "a timeout of less than a millisecond fails every task",
            );
            Err(fault.hint("for no timeout, leave it out"))
        }
        timeout => Ok(timeout.map(|timeout| millis(timeout.value))),
    }
}

pub fn priority(fields: &Fields<'_, '_>) -> Result<i32, Fault> {
    let Some(priority) = fields.integer("priority")? else {
        return Ok(0);
    };
    i32::try_from(priority.value).map_err(|_| {
        let message = format!(
            "`priority` is a whole number from {} to {}, not {}",
            i32::MIN,
            i32::MAX,
            priority.value
        );
        Fault::new(priority.span, message)
    })
}

/// A job of this work, as far as its other keys say: one task, unless the caller knows of more.
pub fn draft(fields: &Fields<'_, '_>, work: WorkSpec) -> Result<JobDraft, Fault> {
    let usual = JobDraft::new(work);
    Ok(JobDraft {
        retries: fields
            .u32("retries", 0)?
            .map_or(usual.retries, |retries| retries.value),
        min_nodes: fields.u32("min_nodes", 0)?.map_or(0, |count| count.value),
        place: place(fields)?,
        speculate: fields
            .bool("speculate")?
            .is_none_or(|speculate| speculate.value),
        wait_for_nodes: fields.bool("wait")?.is_some_and(|wait| wait.value),
        ..usual
    })
}

/// `where`, checked here so that a mistake is shown at its place.
pub fn place(fields: &Fields<'_, '_>) -> Result<String, Fault> {
    let Some(text) = fields.string("where")? else {
        return Ok(String::new());
    };
    match Predicate::parse(&text.value) {
        Ok(_) => Ok(text.value),
        Err(error) => {
            let rest = text.value.get(error.offset..).unwrap_or_default();
            let word = rest
                .find(|c: char| !c.is_alphanumeric() && !matches!(c, '.' | '_' | '-'))
                .unwrap_or(rest.len());
            let span = text.within(fields.context, error.offset, word.max(1));
            let fault = Fault::new(span, format!("`where`: {}", error.message));
            Err(match error.hint {
                Some(hint) => fault.hint(hint),
                None => fault,
            })
        }
    }
}

pub fn into(fields: &Fields<'_, '_>) -> Result<Option<PathBuf>, Fault> {
    let Some(into) = fields.string("into")? else {
        return Ok(None);
    };
    let relative = into.value.trim_start_matches("./").trim_end_matches('/');
    if !safe_path(relative) {
        let fault = Fault::new(
            into.span,
            format!(
                "`into` names a directory below the current one, not `{}`",
                into.value
            ),
        );
        return Err(fault.hint("results go below the directory where `nodectl run` is called"));
    }
    Ok(Some(PathBuf::from(relative)))
}

/// The file of a computing mode, relative to the job file.
pub fn computing(fields: &Fields<'_, '_>) -> Result<Option<PathBuf>, Fault> {
    let Some(file) = fields.string("computing")? else {
        return Ok(None);
    };
    let path = fields.context.base.join(&file.value);
    match files::open(&path) {
        Ok(_) => Ok(Some(path)),
        Err(error) => {
            let fault = Fault::new(
                file.span,
                format!("`computing`: cannot read `{}`: {error}", file.value),
            );
            Err(fault.hint("the file of a computing mode, relative to the job file"))
        }
    }
}

/// `secrets`: names of values that tasks find in memory.
pub fn secrets(fields: &Fields<'_, '_>) -> Result<Vec<String>, Fault> {
    let named = fields.one_or_more("secrets")?;
    if let Some(bad) = named.iter().find(|name| !is_secret_name(&name.value)) {
        let fault = Fault::new(
            bad.span.clone(),
            format!("`{}` cannot be the name of a secret", bad.value),
        );
        return Err(
            fault.hint("`secrets` holds names, such as \"HF_TOKEN\"; `nodectl secret put NAME` keeps their values")
        );
    }
    Ok(named.into_iter().map(|name| name.value).collect())
}

/// `nodes` and `per_node`: how many processes each task is.
pub fn gang(fields: &Fields<'_, '_>) -> Result<Option<Gang>, Fault> {
    let (nodes, per_node) = (nodes(fields)?, fields.u32("per_node", 1)?);
    let spans = nodes.iter().map(|item| &item.span);
    let mut spans = spans.chain(per_node.iter().map(|item| &item.span));
    let Some(span) = spans.next().cloned() else {
        return Ok(None);
    };
    let bounds = nodes.map(|item| item.value);
    let gang = Gang::of(bounds, per_node.map(|item| item.value));
    if gang.is_some_and(|gang| gang.ranks() > limits::MAX_RANKS) {
        let fault = Fault::new(
            span,
            format!(
                "a task would be {} processes; at most {} are possible",
                gang.map_or(0, Gang::ranks),
                limits::MAX_RANKS
            ),
        );
        return Err(fault.hint("`nodes` times `per_node` is how many processes a task is"));
    }
    Ok(gang)
}

/// `nodes = 4`, or `nodes = [2, 8]`: the least and the most.
fn nodes(fields: &Fields<'_, '_>) -> Result<Option<Item<(u32, u32)>>, Fault> {
    let Some(DeValue::Array(list)) = fields.get("nodes").map(Spanned::get_ref) else {
        let fixed = fields.u32("nodes", 1)?;
        return Ok(fixed.map(|Item { value, span }| Item {
            value: (value, value),
            span,
        }));
    };
    let span = fields.get("nodes").map(Spanned::span).unwrap_or_default();
    let number = |item: &Spanned<DeValue<'_>>| {
        let number = item.get_ref().as_integer().and_then(to_i64);
        number.and_then(|number| u32::try_from(number).ok())
    };
    let bounds: Vec<Option<u32>> = list.iter().map(number).collect();
    match bounds[..] {
        [Some(least), Some(most)] if (1..=most).contains(&least) => Ok(Some(Item {
            value: (least, most),
            span,
        })),
        _ => {
            let fault = Fault::new(
                span,
                "`nodes` is not two whole numbers, the smaller one first",
            );
            Err(fault.hint("`nodes = [2, 8]` is on 2 to 8 nodes; `nodes = 4` on 4"))
        }
    }
}

/// `[isolation]`: what tasks are kept from.
pub fn isolation(fields: &Fields<'_, '_>) -> Result<Isolation, Fault> {
    let Some(table) = fields.table("isolation", "[isolation]")? else {
        return Ok(Isolation::default());
    };
    table.check_keys(&[
        "setuid",
        "hides_node",
        "core_dumps",
        "network",
        "read_only",
        "image",
    ])?;
    let setuid = table.bool("setuid")?;
    let hides_node = table.bool("hides_node")?;
    let is_set = |key| Ok(table.bool(key)?.is_some_and(|item| item.value));
    if let (Some(Item { value: true, .. }), Some(Item { value: true, span })) =
        (&setuid, &hides_node)
    {
        let fault = Fault::new(
            span.clone(),
            "nothing can be hidden from programs that gain rights (`setuid = true`)",
        );
        return Err(fault.hint("leave one of the two out"));
    }
    let image = table.string("image")?;
    if let Some(image) = image.as_ref().filter(|image| !is_image(&image.value)) {
        let fault = Fault::new(
            image.span.clone(),
            format!("`{}` is not the name of a container image", image.value),
        );
        return Err(
            fault.hint("an Apptainer file such as tools.sif, or a podman image such as docker.io/library/python:3.12")
        );
    }
    Ok(Isolation {
        setuid: setuid.map(|item| item.value),
        hides_node: hides_node.map(|item| item.value),
        core_dumps: is_set("core_dumps")?,
        offline: table.bool("network")?.is_some_and(|network| !network.value),
        read_only: is_set("read_only")?,
        image: image.map(|image| image.value),
    })
}

fn millis(duration: std::time::Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

pub fn grace_ms(fields: &Fields<'_, '_>) -> Result<u64, Fault> {
    Ok(fields
        .duration("grace")?
        .map_or(defaults::GRACE_MS, |grace| millis(grace.value)))
}

pub fn output_limit_bytes(fields: &Fields<'_, '_>) -> Result<u64, Fault> {
    Ok(fields
        .bytes("output_limit")?
        .map_or(defaults::OUTPUT_LIMIT_BYTES, |limit| limit.value))
}

pub fn log_limit_bytes(fields: &Fields<'_, '_>) -> Result<u64, Fault> {
    Ok(fields
        .bytes("log_limit")?
        .map_or(defaults::LOG_LIMIT_BYTES, |limit| limit.value))
}
