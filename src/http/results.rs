//! Pages and streams of results, and single ones. Pages and streams are `JobQuery::Watch`: a page
//! waits for news at most `WATCH_WAIT`, a stream asks for one page after the other as its reader
//! takes them.

use super::{
    caller::Caller,
    cluster::members,
    error::ApiError,
    extract::{Args, Path},
    resolve,
    state::Shared,
};
use axum::{
    Extension, Json,
    extract::State,
    http::HeaderMap,
    response::sse::{Event, KeepAlive, Sse},
};
use futures::{Stream, StreamExt, stream};
use nodectl_types::{
    Answer, JobId, JobQuery, Query, TaskIndex, TaskRecord, limits,
    query::{Cursor, Location, Progress},
};
use nodectl_wire::api::{CursorView, Problem, ProgressView, Results, TaskResult};
use serde::Deserialize;
use std::{collections::BTreeMap, convert::Infallible, sync::Arc};
use utoipa::IntoParams;

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct PageArgs {
    /// Of the cursor of the page before; 0 begins.
    #[serde(default)]
    claim: u32,
    #[serde(default)]
    position: u32,
    /// How long to wait for news; at most 8,000.
    #[serde(default)]
    wait_ms: u32,
    /// At most 512 results.
    limit: Option<u32>,
}

/// A page of results, as soon as there is one or after `wait_ms`. The job is over when its phase
/// says so and the page is empty.
#[utoipa::path(get, path = "/v1/jobs/{job}/results", tag = "results", params(("job" = String, Path, min_length = 1), PageArgs),
    responses((status = 200, body = Results), (status = 404, description = "No such job.", body = Problem)))]
pub(super) async fn page(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
    Path(reference): Path<String>,
    Args(args): Args<PageArgs>,
) -> Result<Json<Results>, ApiError> {
    let job = resolve::own_job(&shared, &caller, &reference, "read").await?;
    let cursor = Cursor {
        claim: args.claim,
        position: args.position,
    };
    let limit = args
        .limit
        .unwrap_or(limits::RECORD_BATCH as u32)
        .clamp(1, limits::RECORD_BATCH as u32);
    Ok(Json(
        watch(&shared, job, cursor, args.wait_ms, limit).await?,
    ))
}

async fn watch(
    shared: &Shared,
    job: JobId,
    cursor: Cursor,
    wait_ms: u32,
    limit: u32,
) -> Result<Results, ApiError> {
    let wait_ms = wait_ms.min(limits::WATCH_WAIT.as_millis() as u32);
    let (cursor, progress, records) = look(shared, job, cursor, wait_ms, limit).await?;
    Ok(Results {
        cursor: cursor.into(),
        progress: ProgressView::from(&progress),
        results: task_results(shared, job, &progress, &records).await,
    })
}

/// A page of records: the cursor behind them, and how far the job is.
pub(super) async fn look(
    shared: &Shared,
    job: JobId,
    cursor: Cursor,
    wait_ms: u32,
    limit: u32,
) -> Result<(Cursor, Progress, Vec<Arc<TaskRecord>>), ApiError> {
    let query = Query::Job(
        job,
        JobQuery::Watch {
            cursor,
            wait_ms,
            limit,
        },
    );
    match shared.ask(query).await? {
        Answer::Watch {
            cursor,
            progress,
            records,
        } => Ok((cursor, progress, records)),
        _ => Err(ApiError::unexpected("results")),
    }
}

/// Where a task is, or one of its processes (else 0), or how it ended.
pub(super) async fn located(
    shared: &Shared,
    job: JobId,
    task: TaskIndex,
    rank: u32,
) -> Result<Location, ApiError> {
    let query = Query::Job(job, JobQuery::Locate { task, rank });
    match shared.ask(query).await? {
        Answer::Where(location) => Ok(location),
        _ => Err(ApiError::unexpected("a task's place")),
    }
}

/// How a task ended: its last attempt.
#[utoipa::path(get, path = "/v1/jobs/{job}/tasks/{task}/result", tag = "results",
    params(("job" = String, Path, min_length = 1), ("task" = String, Path, description = "Its number, counted from 0, or what its results are called.")),
    responses((status = 200, body = TaskResult), (status = 404, description = "No such job or task.", body = Problem),
    (status = 409, description = "It has not ended.", body = Problem)))]
pub(super) async fn of_task(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
    Path((reference, task)): Path<(String, String)>,
) -> Result<Json<TaskResult>, ApiError> {
    let job = resolve::own_job(&shared, &caller, &reference, "read").await?;
    let task = resolve::task(&shared, &caller, job, &task).await?;
    match located(&shared, job, task, 0).await? {
        Location::Ended(record) => {
            let spec = shared.spec(job).await;
            let members = members(&shared).await.unwrap_or_default();
            let ran = members.into_iter().find(|line| line.info.id == record.node);
            let name = ran.map(|line| line.info.name);
            Ok(Json(TaskResult::new(&record, spec.as_deref(), name)))
        }
        Location::Nowhere | Location::Running { .. } => {
            Err(ApiError::conflict(format!("task {task} has not ended")))
        }
    }
}

pub(super) async fn task_results(
    shared: &Shared,
    job: JobId,
    progress: &Progress,
    records: &[Arc<TaskRecord>],
) -> Vec<TaskResult> {
    if records.is_empty() {
        return Vec::new();
    }
    let spec = shared.spec(job).await;
    let at_work = progress.nodes.iter();
    let mut names: BTreeMap<_, _> = at_work
        .map(|(node, name, ..)| (*node, name.clone()))
        .collect();
    // Also of nodes that died, or that work no more for the job.
    let members = members(shared).await.unwrap_or_default();
    names.extend(
        members
            .into_iter()
            .map(|line| (line.info.id, line.info.name)),
    );
    let result = |record: &Arc<TaskRecord>| {
        let name = names.get(&record.node).cloned();
        TaskResult::new(record, spec.as_deref(), name)
    };
    records.iter().map(result).collect()
}

/// Server-sent events: `progress` (`ProgressView`) when it changes, `result` (`TaskResult`) as
/// tasks end, `end` (`ProgressView`) when the job is over, `error` (`Problem`) if the stream cannot
/// go on. An event's id is a cursor: `Last-Event-ID` resumes after it.
#[utoipa::path(get, path = "/v1/jobs/{job}/events", tag = "results", params(("job" = String, Path, min_length = 1)), responses(
    (status = 200, content_type = "text/event-stream", body = String),
    (status = 404, description = "No such job.", body = Problem)))]
pub(super) async fn events(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
    Path(reference): Path<String>,
    headers: HeaderMap,
) -> Result<Sse<impl Stream<Item = Result<Event, Infallible>>>, ApiError> {
    let job = resolve::own_job(&shared, &caller, &reference, "read").await?;
    let cursor = match headers.get("last-event-id") {
        None => Cursor::default(),
        Some(id) => parse_event_id(id.as_bytes())?,
    };
    // The first page is asked for here, so that an unknown job is a status code and not a stream.
    let first = watch(&shared, job, cursor, 0, limits::RECORD_BATCH as u32).await?;
    let feed = Feed {
        shared,
        job,
        step: ResultStep::Tell(first),
        shown: None,
    };
    Ok(
        Sse::new(stream::unfold(feed, Feed::advance).flat_map(stream::iter))
            .keep_alive(KeepAlive::default()),
    )
}

fn parse_event_id(id: &[u8]) -> Result<Cursor, ApiError> {
    let text = String::from_utf8_lossy(id);
    let parsed = text
        .split_once('.')
        .and_then(|(claim, position)| Some((claim.parse().ok()?, position.parse().ok()?)));
    let (claim, position) = parsed
        .ok_or_else(|| ApiError::bad_request(format!("`{text}` is not the id of an event")))?;
    Ok(Cursor { claim, position })
}

/// A stream of events between two steps.
struct Feed {
    shared: Arc<Shared>,
    job: JobId,
    step: ResultStep,
    /// The progress told last.
    shown: Option<ProgressView>,
}

enum ResultStep {
    Tell(Results),
    /// Ask for the page after this cursor; its reader has taken everything before.
    Ask(CursorView),
    Over,
}

impl Feed {
    async fn advance(mut self) -> Option<(Vec<Result<Event, Infallible>>, Self)> {
        let page = match std::mem::replace(&mut self.step, ResultStep::Over) {
            ResultStep::Over => return None,
            ResultStep::Tell(page) => page,
            ResultStep::Ask(cursor) => {
                let wait_ms = limits::WATCH_WAIT.as_millis() as u32;
                match watch(
                    &self.shared,
                    self.job,
                    cursor.into(),
                    wait_ms,
                    limits::RECORD_BATCH as u32,
                )
                .await
                {
                    Ok(page) => page,
                    Err(error) => {
                        return Some((vec![Ok(event("error", None, &error.problem))], self));
                    }
                }
            }
        };
        Some((self.tell(page).into_iter().map(Ok).collect(), self))
    }

    fn tell(&mut self, page: Results) -> Vec<Event> {
        let mut events: Vec<_> = page
            .results
            .iter()
            .map(|result| event("result", None, result))
            .collect();
        if page.progress.phase.is_ended() && page.results.is_empty() {
            events.push(event("end", Some(page.cursor), &page.progress));
            return events;
        }
        self.step = ResultStep::Ask(page.cursor);
        if self.shown.as_ref() != Some(&page.progress) || !page.results.is_empty() {
            // After the results: who resumes at this id has seen all before it.
            events.push(event("progress", Some(page.cursor), &page.progress));
            self.shown = Some(page.progress);
        }
        events
    }
}

fn event(name: &str, cursor: Option<CursorView>, data: &impl serde::Serialize) -> Event {
    let json =
        serde_json::to_string(data).expect("api types have string keys only and always encode");
    let event = Event::default().event(name).data(json);
    match cursor {
        Some(cursor) => event.id(format!("{}.{}", cursor.claim, cursor.position)),
        None => event,
    }
}
