//! The journal's records as the version before had them: version 2, in which nobody noted who
//! accepted a result, in an attempt which of an epoch's claims ordered it, in a job's head what it
//! comes after, or in its specification who submitted it, what its tasks are kept from, which
//! secrets they get, how they are called, whether it is a step, whether each is several processes,
//! and which of them differ or need others.

use nodectl_types::{
    After, Attempt, Author, BlobHash, Captured, Isolation, JobHead, JobId, JobSpec, Needs, NodeId,
    Outcome, OutputFile, ParamSpace, Params, Phase, Record, Resources, Saved, Sweep, TaskIndex,
    TaskRecord, WorkSpec, WorkerSpec,
};
use serde::Deserialize;
use std::sync::Arc;

#[derive(Deserialize)]
enum Former {
    Spec(FormerSpec),
    Head(FormerHead),
    Task(FormerTask),
}

#[derive(Deserialize)]
struct FormerSpec {
    work: FormerWork,
    params: ParamSpace,
    repeat: u32,
    retries: u32,
    min_nodes: u32,
    place: String,
    speculate: bool,
    at_once: Option<u32>,
    wait_for_nodes: bool,
    extends: Option<JobId>,
    submitter: NodeId,
    submitted_ms: u64,
}

#[derive(Deserialize)]
struct FormerWork {
    name: String,
    command: Vec<String>,
    worker: Option<WorkerSpec>,
    env: Vec<(String, String)>,
    resources: Resources,
    priority: i32,
    timeout_ms: Option<u64>,
    grace_ms: u64,
    inputs: Option<BlobHash>,
    /// A name, and the job whose results it stands for; without a name its end is meant.
    after: Vec<(String, JobId)>,
    outputs: Vec<String>,
    output_limit_bytes: u64,
    log_limit_bytes: u64,
    sweep: Option<Sweep>,
}

#[derive(Deserialize)]
struct FormerHead {
    job: JobId,
    name: String,
    spec: BlobHash,
    submitter: NodeId,
    submitted_ms: u64,
    epoch: u32,
    holder: NodeId,
    version: u64,
    replicas: Vec<NodeId>,
    cancelled: bool,
    reason: Option<String>,
    round: u32,
    phase: Phase,
    tasks: u32,
    done: u32,
    failed: u32,
    stopped: u32,
    workers: Option<u32>,
    saved: Option<Saved>,
    ended_ms: u64,
}

#[derive(Deserialize)]
struct FormerAttempt {
    epoch: u32,
    number: u32,
}

#[derive(Deserialize)]
struct FormerTask {
    task: TaskIndex,
    attempt: FormerAttempt,
    node: NodeId,
    outcome: Outcome,
    failures: u32,
    started_ms: u64,
    duration_us: u64,
    cpu_us: u64,
    max_rss_bytes: u64,
    stdout: Captured,
    stderr: Captured,
    value: Option<String>,
    outputs: Vec<OutputFile>,
}

/// One record of that version.
pub fn decode(bytes: &[u8]) -> Result<Record, postcard::Error> {
    let (former, rest) = postcard::take_from_bytes(bytes)?;
    if !rest.is_empty() {
        return Err(postcard::Error::DeserializeBadEncoding);
    }
    Ok(match former {
        Former::Spec(spec) => Record::Spec(Arc::new(spec.into())),
        Former::Head(head) => Record::Head(head.into()),
        Former::Task(task) => Record::Task(Arc::new(task.into())),
    })
}

impl From<FormerSpec> for JobSpec {
    fn from(spec: FormerSpec) -> Self {
        Self {
            work: Arc::new(spec.work.into()),
            params: spec.params,
            repeat: spec.repeat,
            retries: spec.retries,
            min_nodes: spec.min_nodes,
            place: spec.place,
            speculate: spec.speculate,
            at_once: spec.at_once,
            wait_for_nodes: spec.wait_for_nodes,
            extends: spec.extends,
            needs: Needs::default(),
            submitter: spec.submitter,
            submitted_ms: spec.submitted_ms,
        }
    }
}

impl From<FormerWork> for WorkSpec {
    fn from(work: FormerWork) -> Self {
        Self {
            name: work.name,
            command: work.command,
            worker: work.worker,
            env: work.env,
            resources: work.resources,
            priority: work.priority,
            timeout_ms: work.timeout_ms,
            grace_ms: work.grace_ms,
            inputs: work.inputs,
            after: work
                .after
                .into_iter()
                .map(|(name, job)| After::named(name, job))
                .collect(),
            outputs: work.outputs,
            checkpoint_dir: None,
            output_limit_bytes: work.output_limit_bytes,
            log_limit_bytes: work.log_limit_bytes,
            sweep: work.sweep,
            author: Author::default(),
            isolation: Isolation::default(),
            secrets: Vec::new(),
            task_names: None,
            is_step: false,
            gang: None,
            kinds: Vec::new(),
            adaptive: false,
        }
    }
}

impl From<FormerHead> for JobHead {
    fn from(head: FormerHead) -> Self {
        Self {
            job: head.job,
            name: head.name,
            spec: head.spec,
            submitter: head.submitter,
            author: Author::default(),
            submitted_ms: head.submitted_ms,
            epoch: head.epoch,
            holder: head.holder,
            version: head.version,
            replicas: head.replicas,
            cancelled: head.cancelled,
            given_up: 0,
            reason: head.reason,
            round: head.round,
            phase: head.phase,
            tasks: head.tasks,
            after: Vec::new(),
            is_step: false,
            is_log: false,
            voters: None,
            open: None,
            done: head.done,
            failed: head.failed,
            stopped: head.stopped,
            workers: head.workers,
            saved: head.saved.map(Box::new),
            ended_ms: head.ended_ms,
        }
    }
}

impl From<FormerTask> for TaskRecord {
    fn from(task: FormerTask) -> Self {
        Self {
            task: task.task,
            attempt: Attempt {
                epoch: task.attempt.epoch,
                claim: 0,
                number: task.attempt.number,
            },
            node: task.node,
            outcome: task.outcome,
            // Most were accepted by whoever ordered them.
            accepted: task.attempt.epoch,
            failures: task.failures,
            started_ms: task.started_ms,
            duration_us: task.duration_us,
            cpu_us: task.cpu_us,
            max_rss_bytes: task.max_rss_bytes,
            stdout: task.stdout,
            stderr: task.stderr,
            value: task.value,
            outputs: task.outputs,
            params: Params::new(),
            row: None,
        }
    }
}
