//! Tasks of a graph, as a request has them and as a job shows them.

use super::{
    ResourceView,
    submit::{BadJob, ParamsRequest, ResourcesRequest, bad},
};
use nodectl_types::{
    JobDraft, JobSpec, ParamSpace, RowSet, TaskKind, WorkSpec,
    graph::{GraphTask, order},
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use utoipa::ToSchema;

/// A task of a job whose tasks differ; with `params`, one for each set of them. What is missing is
/// as the job says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TaskRequest {
    /// What it is called, with placeholders where there are `params`.
    pub name: String,
    pub command: Vec<String>,
    /// Names of tasks that have to be done first, or patterns of names with `*` and `?`. It finds
    /// their files in `inputs/NAME`.
    #[serde(default)]
    pub needs: Vec<String>,
    #[serde(default)]
    pub params: Option<ParamsRequest>,
    /// Besides the job's, and before them.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    #[serde(default)]
    pub resources: Option<ResourcesRequest>,
    #[serde(default)]
    pub timeout_ms: Option<u64>,
    #[serde(default)]
    pub retries: Option<u32>,
    /// Globs of the files to keep.
    #[serde(default)]
    pub outputs: Vec<String>,
}

/// Tasks of a job that are alike.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct TaskKindView {
    pub name: String,
    /// How many there are.
    pub tasks: u32,
    pub command: Vec<String>,
    pub resources: ResourceView,
}

impl From<&TaskKind> for TaskKindView {
    fn from(kind: &TaskKind) -> Self {
        Self {
            name: kind.name.clone(),
            tasks: kind.tasks,
            command: kind.command.clone(),
            resources: ResourceView::from(&kind.resources),
        }
    }
}

impl TaskKindView {
    /// Those of a job.
    pub fn of(spec: &JobSpec) -> Vec<Self> {
        spec.work.kinds.iter().map(Self::from).collect()
    }
}

/// The draft of a job with these tasks.
pub(super) fn with_tasks(draft: JobDraft, tasks: Vec<TaskRequest>) -> Result<JobDraft, BadJob> {
    if draft.params != ParamSpace::Single || draft.repeat != 1 {
        let problem = "a job with tasks has no parameters of its own: give them to its tasks";
        return Err(bad("params", problem));
    }
    let mut sets = Vec::with_capacity(tasks.len());
    for task in &tasks {
        let space = task.params.clone().map(ParamsRequest::into_space);
        sets.push(RowSet::of(&space.unwrap_or(Ok(ParamSpace::Single))?));
    }
    let named = tasks.iter().zip(&sets).map(|(task, params)| GraphTask {
        name: &task.name,
        needs: task.needs.iter().map(String::as_str).collect(),
        params,
    });
    let ordered = order(&named.collect::<Vec<_>>()).map_err(|error| {
        let at = error.kind;
        let field = match error.need {
            Some(need) => format!("tasks[{at}].needs[{need}]"),
            None => format!("tasks[{at}].name"),
        };
        let hint = error.hint.map(|hint| format!("; {hint}"));
        bad(
            field,
            format!("{}{}", error.problem, hint.unwrap_or_default()),
        )
    })?;
    let kinds = ordered.kinds.iter().map(|at| {
        let (task, set) = (tasks[*at].clone(), &sets[*at]);
        let resources = task.resources.map(ResourcesRequest::into_resources);
        Ok(TaskKind {
            name: task.name,
            tasks: set.rows,
            command: task.command,
            env: task.env.into_iter().collect(),
            resources: resources.unwrap_or(Ok(draft.work.resources.clone()))?,
            timeout_ms: task.timeout_ms.or(draft.work.timeout_ms),
            retries: task.retries.unwrap_or(draft.retries),
            outputs: task.outputs,
        })
    });
    let kinds = kinds.collect::<Result<Vec<_>, BadJob>>()?;
    Ok(JobDraft {
        retries: kinds.iter().map(|kind| kind.retries).max().unwrap_or(0),
        params: ParamSpace::Parts(ordered.kinds.iter().map(|at| sets[*at].clone()).collect()),
        needs: ordered.needs,
        work: WorkSpec {
            kinds,
            ..draft.work
        },
        ..draft
    })
}

#[cfg(test)]
mod tests {
    use super::super::JobRequest;
    use nodectl_types::{After, JobDraft};
    use serde_json::json;

    fn draft(job: serde_json::Value) -> Result<JobDraft, String> {
        let request: JobRequest = serde_json::from_value(job).map_err(|error| error.to_string())?;
        let draft = request.into_draft().map_err(|error| error.to_string())?;
        draft.check().map_err(|error| error.to_string())?;
        Ok(draft)
    }

    #[test]
    fn a_request_of_tasks_is_a_graph() {
        let graph = draft(json!({
            "name": "g", "retries": 1,
            "tasks": [
                { "name": "sum", "command": ["sum"], "needs": ["fit-*"], "retries": 0 },
                { "name": "fit-{k}", "command": ["fit", "{k}"], "needs": ["load"],
                  "params": { "grid": { "k": [1, 2] } }, "resources": { "cpus": 2.0 } },
                { "name": "load", "command": ["load"] },
            ],
        }));
        let graph = graph.unwrap();
        let names: Vec<_> = graph
            .work
            .kinds
            .iter()
            .map(|kind| kind.name.as_str())
            .collect();
        assert_eq!((names, graph.retries), (vec!["load", "fit-{k}", "sum"], 1));
        assert_eq!(graph.needs.of(3), [1, 2]);
        assert_eq!(graph.task_name(2).as_deref(), Some("fit-2"));
        assert_eq!(graph.work.resources_of(1).cpu_milli, 2000);
        assert_eq!(graph.work.after, Vec::<After>::new());
    }

    #[test]
    fn a_request_that_is_no_graph_is_refused_with_its_place() {
        let task =
            |name: &str, needs: &[&str]| json!({ "name": name, "command": ["x"], "needs": needs });
        let refused = |tasks: Vec<serde_json::Value>| {
            draft(json!({ "name": "g", "tasks": tasks })).unwrap_err()
        };
        let unknown = refused(vec![task("load", &[]), task("b", &["laod"])]);
        assert_eq!(
            unknown,
            "`tasks[1].needs[0]`: there is no task `laod` to need; did you mean `load`?"
        );
        let circle = refused(vec![task("a", &["b"]), task("b", &["a"])]);
        assert!(circle.contains("need each other"), "{circle}");
        let both = draft(json!({ "name": "g", "command": ["x"], "tasks": [task("a", &[])] }));
        assert!(both.unwrap_err().contains("`command`"));
    }
}
