//! JSON: the API's own types, one document a command; tasks and results one a line, so that a
//! million of them need no memory.

use super::{
    model::{ClusterStatus, Output, RunSummary},
    tasks::ListedTask,
};
use nodectl_wire::api::{Device, Job, JobLine, Node, SecretView, Submitted, TaskResult};
use serde::Serialize;

pub struct Json;

impl Output for Json {
    fn status(&self, status: &ClusterStatus) -> String {
        document(status)
    }

    fn nodes(&self, nodes: &[Node]) -> String {
        document(nodes)
    }

    fn jobs(&self, jobs: &[JobLine], _: u64) -> String {
        document(jobs)
    }

    fn devices(&self, devices: &[Device]) -> String {
        document(devices)
    }

    fn secrets(&self, secrets: &[SecretView], _: u64) -> String {
        document(secrets)
    }

    fn job(&self, job: &Job, _: u64) -> String {
        document(job)
    }

    fn tasks(&self, tasks: &[ListedTask], _: u64, _: bool) -> String {
        tasks.iter().map(line).collect()
    }

    fn results(&self, results: &[TaskResult], _: bool) -> String {
        results.iter().map(line).collect()
    }

    fn submitted(&self, job: &str, _: &str) -> String {
        line(&Submitted {
            job: job.to_string(),
        })
    }

    fn summary(&self, summaries: &[RunSummary]) -> String {
        document(summaries)
    }
}

fn line(data: &impl Serialize) -> String {
    serde_json::to_string(data).expect("api types have string keys only and always encode") + "\n"
}

pub fn document<T: Serialize + ?Sized>(data: &T) -> String {
    serde_json::to_string_pretty(data).expect("api types have string keys only and always encode")
        + "\n"
}
