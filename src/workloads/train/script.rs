//! `kind = "train"` with a command: the user's own program, as several workers that share parameters through the nodes that they
//! run on (`nodectl.params` in Python). Owns the meaning of its keys.

use crate::{
    types::{ParamSpace, servers},
    workloads::{
        PlannedJob,
        job_file::{Fault, Fields, PlacedJob},
        map::{self, command, common, uploads},
    },
};

#[rustfmt::skip]
const KEYS: [&str; 21] = [
    "name", "kind", "after", "command", "workers", "env", "source", "outputs", "output_limit", "log_limit", "into",
    "computing", "retries", "timeout", "grace", "priority", "min_nodes", "where", "wait", "exclude", "resources",
];

/// For workers that die; the others go on meanwhile.
const DEFAULT_RETRIES: u32 = 3;

pub(in crate::workloads) fn plan(fields: &Fields<'_, '_>) -> Result<PlacedJob, Fault> {
    fields.check_keys(&KEYS)?;
    let (name, name_span) = common::name(fields)?;
    let after = fields.one_or_more("after")?;
    let workers = workers(fields)?;
    let params = ParamSpace::Single;
    let mut command = command::plan(fields, &params, false)?;
    let uploads = uploads::plan(fields, None, &command.words)?;
    common::check_clash(&after, &uploads)?;
    command::check_program(&command.words[0], &uploads)?;
    let settings = serde_json::json!({ "workers": workers }).to_string();
    // As in `[env]`, where braces are placeholders.
    command.env.push((servers::VARIABLE.into(), settings.replace('{', "{{").replace('}', "}}")));
    let work = map::work(fields, &name, command, None)?;
    let job = PlannedJob {
        is_step: false,
        after: after.iter().map(|other| other.value.clone()).collect(),
        uploads,
        cluster_uploads: Vec::new(),
        delivery: None,
        into: common::into(fields)?,
        computing: common::computing(fields)?,
        work,
        params,
        repeat: workers,
        retries: fields.u32("retries", 0)?.map_or(DEFAULT_RETRIES, |retries| retries.value),
        min_nodes: fields.u32("min_nodes", 0)?.map_or(0, |count| count.value),
        place: common::place(fields)?,
        // There is one process of each worker.
        speculate: false,
        at_once: None,
        note: None,
        wait_for_nodes: fields.bool("wait")?.is_some_and(|wait| wait.value),
        name,
    };
    Ok(PlacedJob { job, name_span, after_spans: after.into_iter().map(|other| other.span).collect() })
}

fn workers(fields: &Fields<'_, '_>) -> Result<u32, Fault> {
    let Some(workers) = fields.u32("workers", 1)? else { return Ok(1) };
    if workers.value > servers::MAX_WORKERS {
        let message = format!("{} workers are more than {}", workers.value, servers::MAX_WORKERS);
        return Err(Fault::new(workers.span, message));
    }
    Ok(workers.value)
}

#[cfg(test)]
mod tests {
    use crate::{types::servers::VARIABLE, workloads::job_file::parse};
    use std::path::Path;

    #[test]
    fn a_script_is_a_job_of_as_many_tasks_as_workers() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("train.py"), "").unwrap();
        let text = "kind = \"train\"\ncommand = [\"python3\", \"train.py\"]\nworkers = 3\n";
        let jobs = parse(text, &dir.path().join("job.toml")).unwrap();
        assert_eq!((jobs[0].repeat, jobs[0].task_count(), jobs[0].speculate), (3, 3, false));
        assert!(jobs[0].uploads.iter().any(|upload| upload.path == "train.py"));
        assert_eq!(jobs[0].work.env, [(VARIABLE.to_string(), "{{\"workers\":3}}".to_string())]);
    }

    #[test]
    fn keys_of_the_other_kinds_are_told() {
        let text = "kind = \"train\"\ncommand = [\"true\"]\nparams = { x = [1] }\n";
        let error = parse(text, Path::new("job.toml")).unwrap_err().to_string();
        assert!(error.contains("params"), "{error}");
    }
}
