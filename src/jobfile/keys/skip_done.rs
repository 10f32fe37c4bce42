//! `skip_done`: tasks that an earlier run did already are not run again.

use crate::{Fault, Fields};
use nodectl_types::{JobDraft, WorkerSpec, template};

/// What a command may say of a task that is not in the task's parameters.
const NUMBER: &str = "task";

/// Whether the job asks for it. Fails where its tasks cannot be told apart by what they are given.
pub fn plan(fields: &Fields<'_, '_>, draft: &JobDraft) -> Result<bool, Fault> {
    let Some(asked) = fields.bool("skip_done")?.filter(|asked| asked.value) else {
        return Ok(false);
    };
    match check(draft) {
        Ok(()) => Ok(true),
        Err((problem, hint)) => {
            Err(Fault::new(asked.span, format!("`skip_done`: {problem}")).hint(hint))
        }
    }
}

/// Fails, with the problem and a hint, unless a task's command, parameters and files say all that
/// it does: tasks that are left out change the numbers of the others.
pub fn check(draft: &JobDraft) -> Result<(), (String, String)> {
    let work = &draft.work;
    if matches!(work.worker, Some(WorkerSpec::Builtin(_))) {
        return Err((
            format!("`{}` is no job of the kind `map`", work.name),
            "leave it out here; an integration has `existing_output = \"outdated\"`".into(),
        ));
    }
    if work.gang.is_some() {
        return Err((
            "what tasks of several processes come to depends on how many there are, which is not compared"
                .into(),
            "leave out `skip_done`, or `nodes` and `per_node`".into(),
        ));
    }
    if !work.kinds.is_empty() || !draft.needs.is_empty() {
        return Err((
            "what a task comes to depends on those that it needs, which are not compared".into(),
            "leave it out: a job that failed goes on where it stood with `nodectl retry --failed`"
                .into(),
        ));
    }
    if draft.is_open() {
        return Err((
            "its tasks are added while it runs".into(),
            "leave out `skip_done`, or `open`".into(),
        ));
    }
    if work.adaptive {
        return Err((
            "what tasks are given is drawn while the job runs, from what others came to".into(),
            "leave out `skip_done`, or draw with `method = \"random\"`".into(),
        ));
    }
    if draft.repeat > 1 {
        return Err((
            "tasks that `repeat` makes are given the same, and cannot be told apart".into(),
            format!(
                "make the repetition a parameter: params.repetition = {{ range = [1, {}] }}",
                draft.repeat
            ),
        ));
    }
    let texts = work
        .command
        .iter()
        .chain(work.env.iter().map(|(_, value)| value))
        .chain(&work.outputs);
    let names_number = |text: &String| {
        let placeholders = template::placeholders(text).unwrap_or_default();
        placeholders.iter().any(|found| found.name == NUMBER)
    };
    match texts.into_iter().find(|text| names_number(text)) {
        None => Ok(()),
        Some(text) => Err((
            format!("`{text}` names the task's number, which is another where tasks are left out"),
            "give each task a parameter of its own in place of `{task}`".into(),
        )),
    }
}
