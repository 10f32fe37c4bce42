//! `kind = "train"` with a command: the user's own program, as several workers that share
//! parameters through the nodes that they run on (`nodectl.params` in Python). Owns the meaning of
//! its keys.

use super::{
    job::{checkpoints, values},
    team::Team,
};
use nodectl_formats::safetensors;
use nodectl_jobfile::{
    Fault, Fields, PlacedJob, PlannedJob, Upload,
    keys::{command, common, python, uploads, work::command_work},
};
use nodectl_types::ParamSpace;
use std::collections::BTreeMap;

/// The keys of a script that is trained.
#[rustfmt::skip]
pub const KEYS: [&str; 28] = [
    "name", "kind", "after", "command", "python", "workers", "servers", "env", "source", "outputs", "output_limit", "log_limit", "into",
    "checkpoint", "init_from", "resume_from", "computing", "retries", "timeout", "grace", "priority", "min_nodes", "where", "wait", "exclude", "resources",
    "isolation", "secrets",
];

pub(crate) fn plan(fields: &Fields<'_, '_>) -> Result<PlacedJob, Fault> {
    fields.check_keys(&KEYS)?;
    let (name, name_span) = common::name(fields)?;
    let after = fields.one_or_more("after")?;
    let mut team = Team::plan(fields)?;
    let params = ParamSpace::Single;
    let mut command = command::plan(fields, &params, false)?;
    let mut files: BTreeMap<String, Upload> = uploads::plan(fields, None, &command.words, false)?
        .into_iter()
        .map(|upload| (upload.path.clone(), upload))
        .collect();
    team.checkpoints = checkpoints(fields)?;
    team.init_from = values(fields, "init_from", &mut files)?;
    team.resume_from = values(fields, "resume_from", &mut files)?;
    // What is in them, its model knows.
    for (key, file) in [
        ("init_from", &team.init_from),
        ("resume_from", &team.resume_from),
    ] {
        let Some((path, value)) = file.as_ref().zip(fields.get(key)) else {
            continue;
        };
        let header = safetensors::read_metadata(&fields.context.base.join(path));
        header.map_err(|error| Fault::new(value.span(), error.to_string()))?;
    }
    let uploads: Vec<Upload> = files.into_values().collect();
    let uploads = python::plan(fields, &mut command, uploads)?;
    common::check_clash(&after, &uploads)?;
    command::check_program(&command.words[0], &uploads)?;
    command.env.push(team.variable());
    let work = command_work(fields, &name, command, None)?;
    let job = PlannedJob {
        after: after.iter().map(|other| other.value.clone()).collect(),
        uploads,
        into: common::into(fields)?,
        computing: common::computing(fields)?,
        ..PlannedJob::new(team.draft(fields, work)?)
    };
    Ok(PlacedJob {
        job,
        name_span,
        after_spans: after.into_iter().map(|other| other.span).collect(),
    })
}

#[cfg(test)]
mod tests {
    use nodectl_jobfile::parse;
    use nodectl_types::servers::VARIABLE;
    use std::path::Path;

    #[test]
    fn a_script_is_a_job_of_as_many_tasks_as_workers() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("train.py"), "").unwrap();
        let text = "kind = \"train\"\ncommand = [\"python3\", \"train.py\"]\nworkers = 3\n";
        let jobs = parse(text, &dir.path().join("job.toml"), crate::plan).unwrap();
        assert_eq!(
            (
                jobs[0].draft.repeat,
                jobs[0].task_count(),
                jobs[0].draft.speculate
            ),
            (3, 3, false)
        );
        assert!(
            jobs[0]
                .uploads
                .iter()
                .any(|upload| upload.path == "train.py")
        );
        assert_eq!(
            jobs[0].draft.work.env,
            [(VARIABLE.to_string(), "{{\"workers\":3}}".to_string())]
        );
    }

    #[test]
    fn keys_of_the_other_kinds_are_told() {
        let text = "kind = \"train\"\ncommand = [\"true\"]\nparams = { x = [1] }\n";
        let error = parse(text, Path::new("job.toml"), crate::plan)
            .unwrap_err()
            .to_string();
        assert!(error.contains("params"), "{error}");
    }
}
