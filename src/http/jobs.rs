//! Jobs and tasks: list, submit, cancel, retry, explain.

use super::{
    caller::Caller,
    error::ApiError,
    extract::{Args, Path, body_bytes},
    resolve,
    state::Shared,
};
use axum::{
    Extension, Json,
    body::Body,
    extract::State,
    http::{HeaderMap, StatusCode, header},
    response::{IntoResponse, Response},
};
use nodectl_ports::wall_ms;
use nodectl_types::{
    After, Answer, JobDraft, JobHead, JobId, JobQuery, NodeQuery, Query, TaskIndex, limits,
    query::{JobDetail, MemberLine, TaskFilter, TaskLine},
    servers,
};
use nodectl_wire::{
    api::{
        AuditName, CancelRequest, Explanation, Job, JobLine, JobRequest, Okay, Problem, Retried,
        StateName, Stored, Submitted, TaskList, TaskRow, TrainingView,
    },
    control::validate_spec,
};
use serde::Deserialize;
use std::sync::Arc;
use utoipa::IntoParams;

/// Rows of a listing unless the reader says otherwise, and at most.
const DEFAULT_ROWS: u32 = 1_000;
const MAX_ROWS: u32 = 10_000;
const CANCEL_BODY_BYTES: usize = 1 << 20;
/// Names a submission (draft-ietf-httpapi-idempotency-key-header).
pub(super) const IDEMPOTENCY_KEY: &str = "idempotency-key";
/// How often that was submitted before.
pub(super) const ASKED_BEFORE: &str = "nodectl-asked-before";
const MAX_KEY_BYTES: usize = 256;

/// Every job that the cluster remembers, oldest first.
#[utoipa::path(get, path = "/v1/jobs", tag = "jobs", responses((status = 200, body = Vec<JobLine>)))]
pub(super) async fn list(
    State(shared): State<Arc<Shared>>,
) -> Result<Json<Vec<JobLine>>, ApiError> {
    match shared.ask(Query::Jobs).await? {
        Answer::Jobs(mut heads) => {
            heads.sort_by_key(|head| (head.submitted_ms, head.job));
            let aside = match shared.ask(Query::Aside).await {
                Ok(Answer::Aside(jobs)) => jobs,
                _ => Vec::new(),
            };
            let line = |head: &JobHead| JobLine {
                aside: aside.contains(&head.job),
                ..JobLine::from(head)
            };
            Ok(Json(heads.iter().map(line).collect()))
        }
        _ => Err(ApiError::unexpected("the list of jobs")),
    }
}

/// All about one job. `job` is an id, the unique beginning of one, a name (the newest job of that
/// name), or `last`.
#[utoipa::path(get, path = "/v1/jobs/{job}", tag = "jobs", params(("job" = String, Path, min_length = 1)), responses(
    (status = 200, body = Job), (status = 404, description = "No such job.", body = Problem),
    (status = 409, description = "The beginning of several ids.", body = Problem),
    (status = 503, description = "Nobody coordinates it.", body = Problem)))]
pub(super) async fn detail(
    State(shared): State<Arc<Shared>>,
    Path(reference): Path<String>,
) -> Result<Json<Job>, ApiError> {
    let job = resolve::job(&shared, &reference).await?;
    match shared.ask(Query::Job(job, JobQuery::Detail)).await? {
        Answer::Job(detail) => {
            shared.keep_detail(&detail);
            let members = match shared.ask(Query::Nodes).await {
                Ok(Answer::Nodes(members)) => members,
                _ => Vec::new(),
            };
            let coordinator = members
                .iter()
                .find(|line| detail.head.epoch > 0 && line.info.id == detail.head.holder);
            Ok(Json(Job {
                coordinator_name: coordinator.map(|line| line.info.name.clone()),
                training: training(&shared, &detail, &members).await,
                ..Job::from(&*detail)
            }))
        }
        _ => Err(ApiError::unexpected("a job")),
    }
}

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct TaskArgs {
    /// Only tasks in this state: `pending`, `running`, `done`, `failed` or `cancelled`.
    state: Option<StateName>,
    #[serde(default)]
    offset: u32,
    /// At most 10,000; 1,000 if missing.
    limit: Option<u32>,
}

/// A page of a job's tasks.
#[utoipa::path(get, path = "/v1/jobs/{job}/tasks", tag = "jobs", params(("job" = String, Path, min_length = 1), TaskArgs), responses(
    (status = 200, body = TaskList), (status = 404, description = "No such job.", body = Problem)))]
pub(super) async fn tasks(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
    Path(reference): Path<String>,
    Args(args): Args<TaskArgs>,
) -> Result<Json<TaskList>, ApiError> {
    let filter = task_filter(args.state)?;
    let job = resolve::job(&shared, &reference).await?;
    let limit = args.limit.unwrap_or(DEFAULT_ROWS).min(MAX_ROWS);
    match shared
        .ask(Query::Job(
            job,
            JobQuery::Tasks {
                filter,
                offset: args.offset,
                limit,
            },
        ))
        .await?
    {
        Answer::Tasks { lines, total } => {
            let spec = resolve::own_spec(&shared, &caller, job).await;
            let row = |line: &TaskLine| TaskRow {
                name: spec.as_ref().and_then(|spec| spec.task_name(line.task)),
                ..TaskRow::from(line)
            };
            Ok(Json(TaskList {
                tasks: lines.iter().map(row).collect(),
                total,
            }))
        }
        _ => Err(ApiError::unexpected("the tasks of a job")),
    }
}

fn task_filter(state: Option<StateName>) -> Result<TaskFilter, ApiError> {
    match state {
        None => Ok(TaskFilter::All),
        Some(StateName::Pending | StateName::Queued) => Ok(TaskFilter::Pending),
        Some(StateName::Running) => Ok(TaskFilter::Running),
        Some(StateName::Done) => Ok(TaskFilter::Done),
        Some(StateName::Failed) => Ok(TaskFilter::Failed),
        Some(StateName::Cancelled) => Ok(TaskFilter::Cancelled),
    }
}

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct ExplainQuery {
    /// A task: its number, counted from 0, or what its results are called; the job as a whole if
    /// missing.
    task: Option<String>,
}

/// Why a job or a task is where it is.
#[utoipa::path(get, path = "/v1/jobs/{job}/explain", tag = "jobs", params(("job" = String, Path, min_length = 1), ExplainQuery),
    responses((status = 200, body = Explanation), (status = 404, description = "No such job or task.", body = Problem)))]
pub(super) async fn explain(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
    Path(reference): Path<String>,
    Args(args): Args<ExplainQuery>,
) -> Result<Json<Explanation>, ApiError> {
    let job = resolve::job(&shared, &reference).await?;
    let task = match &args.task {
        Some(task) => Some(resolve::task(&shared, &caller, job, task).await?),
        None => None,
    };
    let Answer::Explanation(lines) = shared
        .ask(Query::Job(job, JobQuery::Explain { task }))
        .await?
    else {
        return Err(ApiError::unexpected("an explanation"));
    };
    let mut explanation = Explanation::from(lines);
    if let Some(task) = task
        && let Some(spec) = resolve::own_spec(&shared, &caller, job).await
        && let Some(name) = spec.task_name(task)
    {
        add_name(&mut explanation, task, &name);
    }
    Ok(Json(explanation))
}

/// Has the sentence about a task say what its results are called.
fn add_name(explanation: &mut Explanation, task: TaskIndex, name: &str) {
    let number = format!("task {task} ");
    let named = format!("task {task} (`{name}`) ");
    for line in &mut explanation.lines {
        if let Some(rest) = line.strip_prefix(&number)
            && !line.starts_with(&named)
        {
            *line = format!("{named}{rest}");
        }
    }
}

/// Submits a job: `JobRequest` as JSON, or the job itself (postcard) as
/// `application/octet-stream`, which `nodectl run` sends. With a key (the header `Idempotency-Key`,
/// or `key` in the JSON) it may be submitted again when the answer is lost, or says that nothing is
/// known yet (504), also through another node: it is the same job. A key is of one submission.
/// The header `Nodectl-Asked-Before` says how often it was submitted before: of two beginnings of
/// one job, neither of which the other's node could know of, the later one counts.
#[utoipa::path(post, path = "/v1/jobs", tag = "jobs", request_body = JobRequest, responses(
    (status = 201, body = Submitted), (status = 400, description = "The body is no job.", body = Problem),
    (status = 413, description = "The body is too large.", body = Problem),
    (status = 415, description = "The body is of another type.", body = Problem),
    (status = 422, description = "The job is not valid, or no node can run it.", body = Problem)))]
pub(super) async fn submit(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
    body: Body,
) -> Result<(StatusCode, Json<Submitted>), ApiError> {
    let (draft, key) = read_draft(&shared, &headers, body).await?;
    let name = draft.work.name.clone();
    let submitted = accept(&shared, &caller, &headers, draft, key).await;
    let about = submitted
        .as_ref()
        .map_or(name, |(_, Json(submitted))| submitted.job.clone());
    shared
        .noted(&caller, AuditName::Submit, Some(about), submitted)
        .await
}

pub(super) async fn accept(
    shared: &Shared,
    caller: &Caller,
    headers: &HeaderMap,
    mut draft: JobDraft,
    key: Option<String>,
) -> Result<(StatusCode, Json<Submitted>), ApiError> {
    let key = submission_key(headers, key)?;
    draft.work.author = caller.author(&shared.api.facts.name);
    let spec = draft.submitted(shared.api.facts.id, wall_ms());
    let invalid = |error: &dyn std::fmt::Display| {
        ApiError::new(
            StatusCode::UNPROCESSABLE_ENTITY,
            format!("the job is not valid: {error}"),
        )
    };
    validate_spec(&spec).map_err(|error| invalid(&error))?;
    spec.check().map_err(|error| invalid(&error))?;
    // Their results become this job's to read.
    for job in spec.work.after.iter().map(After::job).chain(spec.extends) {
        caller.owns_job(shared, job, "continue from").await?;
    }
    let spec = Arc::new(spec);
    let job = key.as_deref().map(JobId::of_key);
    match shared
        .ask(Query::Submit {
            job,
            asked_before: asked_before(headers)?,
            spec: spec.clone(),
        })
        .await?
    {
        Answer::Submitted { job } => {
            shared.keep_spec(job, spec);
            Ok((
                StatusCode::CREATED,
                Json(Submitted {
                    job: job.to_string(),
                }),
            ))
        }
        _ => Err(ApiError::unexpected("a new job")),
    }
}

/// The key of a submission: from the header, or from the body.
fn submission_key(
    headers: &HeaderMap,
    in_body: Option<String>,
) -> Result<Option<String>, ApiError> {
    let in_header = match headers.get(IDEMPOTENCY_KEY).map(|key| key.to_str()) {
        None => None,
        Some(Ok(key)) => Some(key.to_string()),
        Some(Err(_)) => {
            return Err(ApiError::bad_request(
                "the header Idempotency-Key is not visible ASCII",
            ));
        }
    };
    if in_header.is_some() && in_body.is_some() && in_header != in_body {
        return Err(ApiError::bad_request(
            "the header Idempotency-Key and `key` differ",
        ));
    }
    let key = in_header.or(in_body);
    if key
        .as_ref()
        .is_some_and(|key| key.is_empty() || key.len() > MAX_KEY_BYTES)
    {
        return Err(ApiError::bad_request(format!(
            "the key of a submission has 1 to {MAX_KEY_BYTES} bytes"
        )));
    }
    Ok(key)
}

/// 0 without the header.
fn asked_before(headers: &HeaderMap) -> Result<u32, ApiError> {
    let Some(said) = headers.get(ASKED_BEFORE) else {
        return Ok(0);
    };
    let number = said.to_str().ok().and_then(|said| said.parse().ok());
    number.ok_or_else(|| {
        ApiError::bad_request(
            "the header Nodectl-Asked-Before is not a number: how often this was submitted before",
        )
    })
}

/// The job of a body, and the key that came with it.
async fn read_draft(
    shared: &Shared,
    headers: &HeaderMap,
    body: Body,
) -> Result<(JobDraft, Option<String>), ApiError> {
    let kind = headers
        .get(header::CONTENT_TYPE)
        .and_then(|kind| kind.to_str().ok())
        .unwrap_or_default();
    let kind = kind
        .split(';')
        .next()
        .unwrap_or_default()
        .trim()
        .to_ascii_lowercase();
    if kind != "application/json" && kind != "application/octet-stream" {
        return Err(ApiError::new(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            format!("a job of the type `{kind}`"),
        )
        .hint("send application/json"));
    }
    let whole = body_bytes(shared, body, limits::MAX_SPEC_BYTES).await?;
    let bytes = &whole.bytes;
    if kind == "application/octet-stream" {
        let (draft, rest) = postcard::take_from_bytes(bytes)
            .map_err(|error| ApiError::bad_request(format!("the body is not a job: {error}")))?;
        return if rest.is_empty() {
            Ok((draft, None))
        } else {
            Err(ApiError::bad_request("bytes after the job"))
        };
    }
    let mut request: JobRequest = serde_json::from_slice(bytes)
        .map_err(|error| ApiError::bad_request(format!("the job: {error}")))?;
    let key = request.key.take();
    request
        .into_draft()
        .map(|draft| (draft, key))
        .map_err(|error| {
            ApiError::new(
                StatusCode::UNPROCESSABLE_ENTITY,
                format!("the job is not valid: {error}"),
            )
        })
}

/// Stops a job, or single tasks of it; neither can be resumed. Results so far are kept. For tasks,
/// answers when it is durable that they have ended; those that had ended before stay as they are.
#[utoipa::path(post, path = "/v1/jobs/{job}/cancel", tag = "jobs", params(("job" = String, Path, min_length = 1)),
    request_body(content = Option<CancelRequest>, description = "Nothing, for the whole job."), responses(
    (status = 200, body = Okay), (status = 404, description = "No such job or task.", body = Problem)))]
pub(super) async fn cancel(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
    Path(reference): Path<String>,
    body: Body,
) -> Result<Json<Okay>, ApiError> {
    let whole = body_bytes(&shared, body, CANCEL_BODY_BYTES).await?;
    let job = resolve::job(&shared, &reference).await?;
    let cancelled = end(&shared, &caller, job, &whole.bytes).await;
    shared
        .noted(&caller, AuditName::Cancel, Some(job.to_string()), cancelled)
        .await
}

async fn end(
    shared: &Shared,
    caller: &Caller,
    job: JobId,
    bytes: &[u8],
) -> Result<Json<Okay>, ApiError> {
    caller.owns_job(shared, job, "cancel").await?;
    let query = if bytes.is_empty() {
        Query::Job(job, JobQuery::Cancel)
    } else {
        let request: CancelRequest = serde_json::from_slice(bytes)
            .map_err(|error| ApiError::bad_request(format!("the tasks: {error}")))?;
        if request.tasks.len() > limits::MAX_CANCELLED {
            let error = format!(
                "{} tasks at once; at most {} are possible",
                request.tasks.len(),
                limits::MAX_CANCELLED
            );
            return Err(ApiError::bad_request(error));
        }
        Query::Job(
            job,
            JobQuery::CancelTasks {
                tasks: resolve::tasks(shared, caller, job, request.tasks).await?,
            },
        )
    };
    shared.ask(query).await?;
    Ok(Json(Okay { ok: true }))
}

/// Forgets a job that has ended, on all nodes: its journal, its results, its checkpoints. Nodes
/// that are away hear of it when they are back. Refused while an unfinished job comes after it.
#[utoipa::path(delete, path = "/v1/jobs/{job}", tag = "jobs", params(("job" = String, Path, min_length = 1)), responses(
    (status = 200, body = Okay), (status = 404, description = "No such job.", body = Problem),
    (status = 409, description = "It has not ended, or another job needs it.", body = Problem)))]
pub(super) async fn remove(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
    Path(reference): Path<String>,
) -> Result<Json<Okay>, ApiError> {
    let job = resolve::job(&shared, &reference).await?;
    let removed = async {
        caller.owns_job(&shared, job, "remove").await?;
        shared.ask(Query::Remove { job }).await?;
        Ok(Json(Okay { ok: true }))
    }
    .await;
    shared
        .noted(&caller, AuditName::Remove, Some(job.to_string()), removed)
        .await
}

/// Goes on with a job that an earlier `run` left unfinished when it was killed, and that this node,
/// inside another `run`, has put aside. Does nothing to other jobs.
#[utoipa::path(post, path = "/v1/jobs/{job}/resume", tag = "jobs", params(("job" = String, Path, min_length = 1)), responses(
    (status = 200, body = Okay), (status = 404, description = "No such job.", body = Problem)))]
pub(super) async fn resume(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
    Path(reference): Path<String>,
) -> Result<Json<Okay>, ApiError> {
    let job = resolve::job(&shared, &reference).await?;
    let resumed = async {
        caller.owns_job(&shared, job, "continue").await?;
        shared.ask(Query::Resume { job }).await?;
        Ok(Json(Okay { ok: true }))
    }
    .await;
    shared
        .noted(&caller, AuditName::Attach, Some(job.to_string()), resumed)
        .await
}

/// A job's specification (postcard), as `POST /v1/jobs` takes it.
#[utoipa::path(get, path = "/v1/jobs/{job}/spec", tag = "jobs", params(("job" = String, Path, min_length = 1)), responses(
    (status = 200, content_type = "application/octet-stream", body = Vec<u8>),
    (status = 404, description = "No such job.", body = Problem),
    (status = 503, description = "No node that is here has it.", body = Problem)))]
pub(super) async fn spec(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
    Path(reference): Path<String>,
) -> Result<Response, ApiError> {
    let job = resolve::own_job(&shared, &caller, &reference, "copy").await?;
    // An unknown job is one; whatever else keeps its specification away may pass.
    shared.ask(Query::Job(job, JobQuery::Detail)).await?;
    let spec = shared.spec(job).await;
    let spec = spec.ok_or_else(|| ApiError::no_specification(job))?;
    let bytes = postcard::to_stdvec(&*spec).expect("plain data always encodes");
    Ok(([(header::CONTENT_TYPE, "application/octet-stream")], bytes).into_response())
}

/// Puts the newest checkpoint of a training job, on whatever node it is, into this node's store.
#[utoipa::path(post, path = "/v1/jobs/{job}/checkpoint", tag = "jobs", params(("job" = String, Path, min_length = 1)), responses(
    (status = 200, body = Stored), (status = 404, description = "No such job, or it has no checkpoint.", body = Problem)))]
pub(super) async fn checkpoint(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
    Path(reference): Path<String>,
) -> Result<Json<Stored>, ApiError> {
    let job = resolve::own_job(&shared, &caller, &reference, "copy").await?;
    let Some(path) = shared.api.trainings.newest(job).await else {
        let error = ApiError::not_found(format!("job {job} has no checkpoint"));
        return Err(
            error.hint("checkpoints are made by training jobs with [checkpoint] in their job file")
        );
    };
    let blobs = shared.api.blobs.clone();
    let stored = tokio::task::spawn_blocking(move || blobs.put_file(&path)).await;
    let stored = stored.map_err(|_| ApiError::unexpected("storing a checkpoint"))?;
    let (hash, bytes) = stored.map_err(|error| {
        ApiError::new(
            StatusCode::INSUFFICIENT_STORAGE,
            format!("the checkpoint could not be stored: {error}"),
        )
    })?;
    Ok(Json(Stored {
        hash: hash.to_string(),
        bytes,
    }))
}

/// What the members have of a training job: where its checkpoints are, which workers are late.
async fn training(
    shared: &Shared,
    detail: &JobDetail,
    members: &[MemberLine],
) -> Option<TrainingView> {
    if !detail
        .spec
        .work
        .env
        .iter()
        .any(|(name, _)| name == servers::VARIABLE)
    {
        return None;
    }
    let job = detail.head.job;
    let alive: Vec<_> = members.iter().filter(|line| line.alive).collect();
    let asked = alive
        .iter()
        .map(|line| shared.ask(Query::Node(line.info.id, NodeQuery::Training { job })));
    let answers = futures::future::join_all(asked).await;
    let mut view = TrainingView::default();
    for (line, answer) in alive.iter().zip(answers) {
        if let Ok(Answer::Training(here)) = answer {
            view.add(&line.info, &here);
        }
    }
    if detail.head.phase.is_ended() {
        view.waiting.clear();
    }
    Some(view)
}

/// Gives a job's failed tasks as many attempts again.
#[utoipa::path(post, path = "/v1/jobs/{job}/retry", tag = "jobs", params(("job" = String, Path, min_length = 1)), responses(
    (status = 200, body = Retried), (status = 404, description = "No such job.", body = Problem)))]
pub(super) async fn retry(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
    Path(reference): Path<String>,
) -> Result<Json<Retried>, ApiError> {
    let job = resolve::job(&shared, &reference).await?;
    let retried = async {
        caller.owns_job(&shared, job, "retry").await?;
        match shared.ask(Query::Job(job, JobQuery::Retry)).await? {
            Answer::Retried { tasks } => Ok(Json(Retried { tasks })),
            _ => Err(ApiError::unexpected("a retry")),
        }
    }
    .await;
    shared
        .noted(&caller, AuditName::Retry, Some(job.to_string()), retried)
        .await
}
