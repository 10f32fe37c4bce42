//! Ids, one a line.

use super::{
    model::{ClusterStatus, Output, RunSummary},
    tasks::ListedTask,
};
use nodectl_wire::api::{Device, Job, JobLine, Node, SecretView, TaskResult};

pub struct Quiet;

impl Output for Quiet {
    fn status(&self, status: &ClusterStatus) -> String {
        lines([status.node.id.as_str()])
    }

    fn nodes(&self, nodes: &[Node]) -> String {
        lines(nodes.iter().map(|node| node.id.as_str()))
    }

    fn jobs(&self, jobs: &[JobLine], _: u64) -> String {
        lines(jobs.iter().map(|job| job.id.as_str()))
    }

    fn devices(&self, devices: &[Device]) -> String {
        lines(devices.iter().map(|device| device.gpu.uuid.as_str()))
    }

    fn secrets(&self, secrets: &[SecretView], _: u64) -> String {
        lines(secrets.iter().map(|secret| secret.name.as_str()))
    }

    fn job(&self, job: &Job, _: u64) -> String {
        lines([job.line.id.as_str()])
    }

    fn tasks(&self, tasks: &[ListedTask], _: u64, _: bool) -> String {
        tasks
            .iter()
            .map(|task| format!("{}\n", task.row.task))
            .collect()
    }

    fn results(&self, results: &[TaskResult], _: bool) -> String {
        results
            .iter()
            .map(|result| format!("{}\n", result.task))
            .collect()
    }

    fn submitted(&self, job: &str, _: &str) -> String {
        lines([job])
    }

    /// The ids were printed at submission.
    fn summary(&self, _: &[RunSummary]) -> String {
        String::new()
    }
}

fn lines<'a>(ids: impl IntoIterator<Item = &'a str>) -> String {
    ids.into_iter().flat_map(|id| [id, "\n"]).collect()
}
