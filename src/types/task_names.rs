//! What the results of a job's tasks are called: a template that gives each of them a name of its
//! own, such as `{file.stem}`. `run` makes directories of them.

use super::{
    JobDraft, JobSpec, ParamSpace, Params, TaskIndex, check::BadSpec, limits, template, text,
};
use std::collections::BTreeMap;

/// The longest name, in bytes: directories that are being made have a few more.
pub const MAX_BYTES: usize = 200;
/// Files that stand beside the directories.
const TAKEN: [&str; 4] = ["results.csv", "results.jsonl", "results.new", "logs"];

impl JobSpec {
    /// What the results of a task are called, if not by its number.
    pub fn task_name(&self, task: TaskIndex) -> Option<String> {
        if u64::from(task) >= self.task_count() {
            return None;
        }
        let params = self.task_params(task);
        if let Some((_, kind)) = self.work.kind_of(task) {
            return of_kind(&kind.name, &params).ok();
        }
        name(self.work.task_names.as_ref()?, &params, u64::from(task)).ok()
    }
}

impl JobDraft {
    /// What the results of a task will be called, if not by its number.
    pub fn task_name(&self, task: TaskIndex) -> Option<String> {
        let set = u64::from(task / self.repeat.max(1));
        if set >= self.params.len() {
            return None;
        }
        let params = self.params.get(set);
        if let Some((_, kind)) = self.work.kind_of(task) {
            return of_kind(&kind.name, &params).ok();
        }
        name(self.work.task_names.as_ref()?, &params, u64::from(task)).ok()
    }
}

/// Fails unless every task gets a name of its own that a directory may have.
pub fn check(template: &str, params: &ParamSpace, repeat: u32) -> Result<(), BadSpec> {
    let bad = |problem: String| BadSpec {
        field: "task_names",
        problem,
    };
    let tasks = params.len().saturating_mul(u64::from(repeat));
    if tasks > limits::MAX_NAMED_TASKS {
        return Err(bad(format!(
            "the job has {tasks} tasks; at most {} can have names",
            limits::MAX_NAMED_TASKS
        )));
    }
    let mut named = BTreeMap::new();
    for task in 0..tasks {
        let name = name(template, &params.get(task / u64::from(repeat.max(1))), task);
        let name = name.map_err(|problem| bad(format!("task {task}: {problem}")))?;
        if let Some(other) = named.insert(name.clone(), task) {
            return Err(bad(format!(
                "tasks {other} and {task} would both be called `{}`\n\
                 hint: add what tells them apart, or their number: `{{task}}`",
                text::shown(&name)
            )));
        }
    }
    Ok(())
}

/// The name of one task.
fn name(template: &str, params: &Params, task: u64) -> Result<String, String> {
    named(template, &|name| match name {
        "task" => Some(task.to_string()),
        _ => value_of(params, name),
    })
}

/// The name of one task of a graph, where others need it by that: it does not have its number,
/// which depends on what the others need.
pub fn of_kind(template: &str, params: &Params) -> Result<String, String> {
    named(template, &|name| value_of(params, name))
}

fn value_of(params: &Params, name: &str) -> Option<String> {
    let (_, value) = params.iter().find(|(param, _)| param == name)?;
    Some(value.to_string())
}

fn named(template: &str, known: &dyn Fn(&str) -> Option<String>) -> Result<String, String> {
    let mut room = MAX_BYTES;
    let name = template::expand_within(template, &|name| template::value(name, known), &mut room)
        .map_err(|error| error.to_string())?;
    let shown = text::shown(&name);
    if name.contains('/') {
        return Err(format!(
            "`{shown}` has a `/`, which no directory's name has\n\
             hint: of a path, `{{file.name}}` is the last part, and `{{file.stem}}` that without its ending"
        ));
    }
    let is_sound =
        text::is_name(&name) && !name.starts_with(['.', '-']) && !TAKEN.contains(&name.as_str());
    if is_sound {
        Ok(name)
    } else {
        Err(format!(
            "`{shown}` cannot name a directory of results: names do not begin with `.` or `-`, have no control characters, \
             and are not {}",
            TAKEN.join(", ")
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Value;
    use proptest::prelude::*;

    fn files(files: &[&str]) -> ParamSpace {
        ParamSpace::Rows {
            columns: vec!["file".into()],
            cells: files
                .iter()
                .map(|file| Value::Text((*file).into()))
                .collect(),
        }
    }

    fn problem(template: &str, params: &ParamSpace, repeat: u32) -> String {
        check(template, params, repeat).unwrap_err().problem
    }

    #[test]
    fn each_task_has_a_name_of_its_own() {
        let scans = files(&["raw/a.tif", "raw/b.tif"]);
        assert_eq!(check("{file.stem}", &scans, 1), Ok(()));
        assert_eq!(check("scan-{file.name}-{task}", &scans, 3), Ok(()));
        assert!(
            problem("{file.stem}", &scans, 2).starts_with("tasks 0 and 1 would both be called `a`")
        );
        assert!(problem("same", &scans, 1).contains("both be called `same`"));
        assert!(problem("{file}", &scans, 1).contains("`raw/a.tif` has a `/`"));
        assert!(
            problem("{attempt}", &scans, 1).contains("nothing is known under the name `attempt`")
        );
        for bad in [".hidden", "-rf", "", "results.csv", "a\nb"] {
            assert!(
                problem(bad, &ParamSpace::Single, 1).contains("cannot name a directory"),
                "{bad:?}"
            );
        }
    }

    #[test]
    fn a_million_names_are_refused_and_not_made() {
        assert!(problem("{task}", &ParamSpace::Single, 1_000_000).contains("1000000 tasks"));
    }

    proptest! {
        #[test]
        fn a_name_leads_nowhere_else(value in ".{0,40}") {
            let params = vec![("p".to_string(), Value::Text(value.into()))];
            if let Ok(name) = name("{p}", &params, 0) {
                prop_assert!(crate::manifest::safe_path(&name) || name.contains('\\'));
                prop_assert!(!name.contains('/'));
            }
        }
    }
}
