//! A node's local API, asked from a thread without a runtime.

use super::common::cluster::Cluster;
use nodectl::{
    http::{Client, client::ClientError, socket_path},
    wire::api::{Job, JobLine, NodeSelf, PhaseName},
};
use std::{future::Future, path::Path};

pub struct BenchApi {
    runtime: tokio::runtime::Runtime,
    client: Client,
}

impl BenchApi {
    pub fn of(data_dir: &Path) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        let runtime = runtime.expect("a runtime without threads needs nothing");
        Self {
            runtime,
            client: Client::new(socket_path(data_dir)),
        }
    }

    pub fn ask<'a, T, F: Future<Output = Result<T, ClientError>>>(
        &'a self,
        call: impl FnOnce(&'a Client) -> F,
    ) -> Option<T> {
        self.runtime.block_on(call(&self.client)).ok()
    }

    pub fn node(&self) -> Option<NodeSelf> {
        self.ask(Client::node)
    }

    /// How many members it sees alive; 0 while it does not answer.
    pub fn members(&self) -> usize {
        self.ask(Client::nodes)
            .map_or(0, |nodes| nodes.iter().filter(|node| node.alive).count())
    }

    pub fn job(&self, job: &str) -> Option<Job> {
        self.ask(|client| client.job(job))
    }

    /// What the node itself knows of the job's end. A question about one job goes to its
    /// coordinator, which a bench that measures the coordinator had better leave alone.
    pub fn knows_ended(&self, job: &str) -> bool {
        let is_it = |line: &JobLine| line.id == job && line.phase.is_ended();
        self.ask(Client::jobs)
            .is_some_and(|lines| lines.iter().any(is_it))
    }

    pub fn has_ended(&self, job: &str) -> bool {
        self.job(job).is_some_and(|job| job.line.phase.is_ended())
    }

    pub fn is_done(&self, job: &str) -> bool {
        self.job(job)
            .is_some_and(|job| job.line.phase == PhaseName::Done)
    }
}

/// The APIs of the first `count` nodes.
pub fn of_all(cluster: &Cluster, count: usize) -> Vec<BenchApi> {
    (0..count)
        .map(|number| BenchApi::of(cluster.data_dir(number)))
        .collect()
}
