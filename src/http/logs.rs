//! What tasks write: from the node that runs the attempt while it runs, from its record and blob
//! once it has ended.

use super::{
    caller::Caller,
    error::ApiError,
    extract::{Args, Path},
    resolve,
    results::located,
    state::Shared,
};
use axum::{
    Extension,
    body::Body,
    extract::State,
    http::{HeaderName, HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use futures::{StreamExt, stream};
use nodectl_types::{
    Answer, Attempt, BlobHash, Captured, Failure, JobId, JobQuery, NodeId, NodeQuery, Outcome,
    Query, QueryError, TaskIndex, TaskRecord, gang,
    query::{Cursor, Location, LogPlace, Stream, TaskFilter, TaskState},
};
use nodectl_wire::api::Problem;
use serde::{Deserialize, Serialize};
use std::{io, sync::Arc, time::Duration};
use tokio::{fs::File, io::AsyncSeekExt};
use tokio_util::io::ReaderStream;
use utoipa::{IntoParams, ToSchema};

/// How often a followed log that stands still is looked at again.
const FOLLOW_PERIOD: Duration = Duration::from_millis(250);
/// How often a log is looked for again when it moved from the runner to its record in between.
const MOVES: u32 = 20;
/// How often a coordinator that does not answer is asked again: longer than it takes to be found
/// dead.
const FOLLOW_MOVES: u32 = 120;
const READ_BYTES: usize = 64 << 10;
/// Whether the attempt had ended whose log an answer begins with: else more may come.
const ENDED: HeaderName = HeaderName::from_static("nodectl-ended");

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum StreamName {
    #[default]
    Stdout,
    Stderr,
}

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct LogArgs {
    #[serde(default)]
    stream: StreamName,
    /// Bytes to skip.
    #[serde(default)]
    offset: u64,
    /// Wait for the task to start and for more until the attempt ends.
    #[serde(default)]
    follow: bool,
    /// Of which process, where the task is several: its rank. Without it that of rank 0, or, of an
    /// attempt that failed, that of the rank that did.
    #[serde(default)]
    rank: Option<u32>,
}

/// What a task wrote, or writes: the bytes as they are.
#[utoipa::path(get, path = "/v1/jobs/{job}/tasks/{task}/log", tag = "results",
    params(("job" = String, Path, min_length = 1), ("task" = String, Path, description = "Its number, counted from 0, or what its results are called."), LogArgs), responses(
    (status = 200, description = "As far as the attempt that counts, or runs, has written it.",
        content_type = "application/octet-stream", body = String,
        headers(("nodectl-ended" = bool, description = "Whether that attempt had ended. If it had not, more may come: `follow` waits for it."))),
    (status = 404, description = "No such job or task, or its log is gone.", body = Problem),
    (status = 409, description = "It has not started, or waits to run again.", body = Problem),
    (status = 504, description = "The node that has the log does not answer.", body = Problem)))]
pub(super) async fn log(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
    Path((reference, task)): Path<(String, String)>,
    Args(args): Args<LogArgs>,
) -> Result<Response, ApiError> {
    let job = resolve::own_job(&shared, &caller, &reference, "read").await?;
    let task = resolve::task(&shared, &caller, job, &task).await?;
    let stream = match args.stream {
        StreamName::Stdout => Stream::Stdout,
        StreamName::Stderr => Stream::Stderr,
    };
    let tail = Tail {
        shared,
        job,
        task,
        stream,
        offset: args.offset,
        follow: args.follow,
        rank: args.rank,
        followed: None,
        has_given: false,
        is_over: false,
        job_is_over: false,
        at: LogStart::Unknown,
    };
    let mut tail = tail.begin().await?;
    // What is asked for once is an answer only if whoever has it gave it: until then there is no
    // status. Who follows waits, and reads on.
    let first = if tail.follow {
        None
    } else {
        tail.next().await?
    };
    let is_over = HeaderValue::from_static(if tail.is_over { "true" } else { "false" });
    let first = stream::iter(first.map(Ok));
    let body = Body::from_stream(first.chain(stream::unfold(tail, Tail::advance)));
    let kind = HeaderValue::from_static("application/octet-stream");
    Ok(([(header::CONTENT_TYPE, kind), (ENDED, is_over)], body).into_response())
}

/// A log that is being read.
struct Tail {
    shared: Arc<Shared>,
    job: JobId,
    task: TaskIndex,
    stream: Stream,
    offset: u64,
    follow: bool,
    rank: Option<u32>,
    /// The attempt whose bytes were given. Those of a later one follow only where the log is
    /// followed.
    followed: Option<Attempt>,
    /// Bytes were given.
    has_given: bool,
    /// All that `followed` wrote was given.
    is_over: bool,
    /// No task of the job starts any more.
    job_is_over: bool,
    at: LogStart,
}

enum LogStart {
    Unknown,
    Running { node: NodeId, attempt: Attempt },
    Bytes(Bytes),
    File(ReaderStream<File>),
    End,
}

impl Tail {
    /// Finds the log, so that what is wrong becomes a status code and not a broken stream.
    async fn begin(mut self) -> Result<Self, ApiError> {
        match self.locate().await? {
            Location::Nowhere if !self.follow => {
                let hint = format!(
                    "`nodectl explain {} {}` says why; `nodectl logs -f` waits for it",
                    self.job, self.task
                );
                return Err(
                    ApiError::conflict(format!("task {} has not started", self.task)).hint(hint),
                );
            }
            Location::Nowhere => {}
            Location::Running { node, attempt } => self.at = LogStart::Running { node, attempt },
            Location::Ended(record) => self.show_ended(&record).await?,
        }
        Ok(self)
    }

    async fn locate(&self) -> Result<Location, ApiError> {
        let rank = self.rank.unwrap_or_default();
        located(&self.shared, self.job, self.task, rank).await
    }

    /// The body's next bytes; None at the end.
    async fn advance(mut self) -> Option<(io::Result<Bytes>, Self)> {
        let bytes = self.next().await.transpose()?;
        Some((bytes.map_err(|error| broken(&error)), self))
    }

    /// The next bytes; None at the end.
    async fn next(&mut self) -> Result<Option<Bytes>, ApiError> {
        let mut moves = 0;
        loop {
            let after = if self.follow {
                LogStart::Unknown
            } else {
                LogStart::End
            };
            let bytes = match std::mem::replace(&mut self.at, LogStart::End) {
                LogStart::End => return Ok(None),
                LogStart::Bytes(bytes) => {
                    self.at = after;
                    Some(bytes).filter(|bytes| !bytes.is_empty())
                }
                LogStart::File(mut file) => match file.next().await {
                    Some(bytes) => {
                        let read = |error| ApiError::disk("reading a log", &error);
                        let bytes = bytes.map_err(read)?;
                        self.at = LogStart::File(file);
                        Some(bytes)
                    }
                    None => {
                        self.at = after;
                        None
                    }
                },
                LogStart::Running { node, attempt } => self.read_running(node, attempt).await?,
                LogStart::Unknown => self.find_again(&mut moves).await?,
            };
            if bytes.is_some() {
                self.has_given = true;
                return Ok(bytes);
            }
        }
    }

    /// Bytes of a running attempt. None if there are none now; `at` says where to look next.
    async fn read_running(
        &mut self,
        node: NodeId,
        attempt: Attempt,
    ) -> Result<Option<Bytes>, ApiError> {
        let query = Query::Node(
            node,
            NodeQuery::Log(LogPlace {
                job: self.job,
                task: self.task,
                attempt,
                stream: self.stream,
                offset: self.offset,
            }),
        );
        self.followed = Some(attempt);
        match self.shared.ask(query).await {
            Ok(Answer::Log { bytes, ended: _ }) if !bytes.is_empty() => {
                self.offset += bytes.len() as u64;
                self.at = LogStart::Running { node, attempt };
                Ok(Some(Bytes::from(bytes)))
            }
            Ok(Answer::Log { ended, .. }) => {
                if self.follow && !ended {
                    tokio::time::sleep(FOLLOW_PERIOD).await;
                    self.at = LogStart::Running { node, attempt };
                } else if self.follow {
                    // Its record, or another attempt, comes next.
                    self.at = LogStart::Unknown;
                }
                Ok(None)
            }
            // It ended in between: its record has the rest.
            Err(QueryError::NoLog(_)) => {
                self.at = LogStart::Unknown;
                Ok(None)
            }
            // The node is gone, or about to be found so: then the task runs again elsewhere.
            Err(QueryError::NoNode(_) | QueryError::Timeout(_) | QueryError::Leaving)
                if self.follow =>
            {
                self.at = LogStart::Unknown;
                Ok(None)
            }
            Ok(_) => Err(ApiError::unexpected("a log")),
            Err(QueryError::NoNode(_) | QueryError::Timeout(_) | QueryError::Leaving) => {
                Err(self.no_word_of(node).await)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// The node that has the log does not give it.
    async fn no_word_of(&self, node: NodeId) -> ApiError {
        let name = match self.shared.ask(Query::Nodes).await {
            Ok(Answer::Nodes(lines)) => {
                let line = lines.into_iter().find(|line| line.info.id == node);
                line.map(|line| line.info.name)
            }
            _ => None,
        };
        let error = format!(
            "task {} ran on {}, which has its log and does not give it",
            self.task,
            name.unwrap_or_else(|| node.short())
        );
        ApiError::new(StatusCode::GATEWAY_TIMEOUT, error)
            .hint("`nodectl nodes` shows who is away; `nodectl logs -f` waits")
    }

    /// Looks for the log until it is somewhere; `moves` counts how often in vain. Gives a line that
    /// tells of another attempt, if one is followed from here on.
    async fn find_again(&mut self, moves: &mut u32) -> Result<Option<Bytes>, ApiError> {
        let place = match self.locate().await {
            // A coordinator that died has a successor soon.
            Err(_) if self.follow && *moves < FOLLOW_MOVES => return self.look_later(moves).await,
            place => place?,
        };
        if !self.follow {
            return self.find_once(place, moves).await.map(|()| None);
        }
        match place {
            Location::Ended(record) if self.is_over && self.followed == Some(record.attempt) => {
                if self.goes_on(&record).await? {
                    return self.look_later(&mut 0).await;
                }
            }
            Location::Ended(record) => {
                let notice = self.turn_to(record.attempt);
                self.show_ended(&record).await?;
                return Ok(notice);
            }
            // Its record does not count yet; or its node did not answer, and may the next time.
            Location::Running { node, attempt } if self.followed == Some(attempt) => {
                self.look_later(moves).await?;
                self.at = LogStart::Running { node, attempt };
            }
            Location::Running { node, attempt } => {
                let notice = self.turn_to(attempt);
                self.at = LogStart::Running { node, attempt };
                return Ok(notice);
            }
            Location::Nowhere if !self.job_is_over => {
                // Between the two questions it may have started and ended: once more, then.
                self.job_is_over = self.job_is_over().await?;
                if self.job_is_over {
                    self.at = LogStart::Unknown;
                } else {
                    return self.look_later(&mut 0).await;
                }
            }
            Location::Nowhere => {}
        }
        Ok(None)
    }

    /// Where a log is that is not followed and was not where it had been found. Of one attempt all
    /// is given, or the request fails: an end is never made up.
    async fn find_once(&mut self, place: Location, moves: &mut u32) -> Result<(), ApiError> {
        let read = self.followed.filter(|_| self.has_given);
        let may_be_read = |attempt: Attempt| read.is_none_or(|read| read == attempt);
        match place {
            Location::Ended(record) if may_be_read(record.attempt) => {
                self.show_ended(&record).await
            }
            Location::Running { node, attempt } if may_be_read(attempt) => {
                if *moves >= MOVES {
                    return Err(self.no_word_of(node).await);
                }
                self.look_later(moves).await?;
                self.at = LogStart::Running { node, attempt };
                Ok(())
            }
            Location::Ended(_) | Location::Running { .. } | Location::Nowhere => {
                let error = format!(
                    "the attempt of task {} that was read came to nothing, and it runs again",
                    self.task
                );
                Err(ApiError::conflict(error).hint("`nodectl logs -f` goes on with the next"))
            }
        }
    }

    async fn look_later(&mut self, moves: &mut u32) -> Result<Option<Bytes>, ApiError> {
        *moves += 1;
        tokio::time::sleep(FOLLOW_PERIOD).await;
        self.at = LogStart::Unknown;
        Ok(None)
    }

    /// Reads an attempt from its beginning, unless it is the one that is being read.
    fn turn_to(&mut self, attempt: Attempt) -> Option<Bytes> {
        let before = self.followed.replace(attempt);
        if before.is_none_or(|before| before == attempt) {
            return None;
        }
        (self.offset, self.is_over) = (0, false);
        Some(Bytes::from_static(b"[nodectl: the task runs again]\n"))
    }

    async fn show_ended(&mut self, record: &TaskRecord) -> Result<(), ApiError> {
        self.at = self.open(record).await?;
        (self.followed, self.is_over) = (Some(record.attempt), true);
        Ok(())
    }

    /// Whether a task that failed is going to be tried again.
    async fn goes_on(&self, record: &TaskRecord) -> Result<bool, ApiError> {
        if record.is_done() || record.is_cancelled() {
            return Ok(false);
        }
        let query = Query::Job(
            self.job,
            JobQuery::Tasks {
                filter: TaskFilter::All,
                offset: self.task,
                limit: 1,
            },
        );
        let waits = |state| {
            matches!(
                state,
                TaskState::Pending | TaskState::Queued | TaskState::Running
            )
        };
        match self.shared.ask(query).await? {
            Answer::Tasks { lines, .. } => Ok(lines.first().is_some_and(|line| waits(line.state))),
            _ => Err(ApiError::unexpected("a task's state")),
        }
    }

    /// A task that never started never will.
    async fn job_is_over(&self) -> Result<bool, ApiError> {
        let query = Query::Job(
            self.job,
            JobQuery::Watch {
                cursor: Cursor::default(),
                wait_ms: 0,
                limit: 1,
            },
        );
        match self.shared.ask(query).await? {
            Answer::Watch { progress, .. } => Ok(progress.phase.is_ended()),
            _ => Err(ApiError::unexpected("a job's progress")),
        }
    }

    /// The stream of an ended attempt from `offset`.
    async fn open(&self, record: &TaskRecord) -> Result<LogStart, ApiError> {
        if let Some(rank) = self.rank.filter(|rank| *rank != kept_rank(record)) {
            return self.open_rank(record, rank).await;
        }
        let captured = match self.stream {
            Stream::Stdout => &record.stdout,
            Stream::Stderr => &record.stderr,
        };
        match captured.blob {
            Some(hash) if captured.total_bytes > captured.tail.len() as u64 => {
                self.open_file(record, hash).await
            }
            _ => Ok(LogStart::Bytes(rest_of(captured, self.offset))),
        }
    }

    /// What another process of a task wrote than the one whose record it is.
    async fn open_rank(&self, record: &TaskRecord, rank: u32) -> Result<LogStart, ApiError> {
        if !record.is_done() {
            let error = format!(
                "of the attempt of task {} that failed, only the log of rank {} is kept",
                self.task,
                kept_rank(record)
            );
            let hint = format!("leave out the rank, or ask for {}", kept_rank(record));
            return Err(ApiError::conflict(error).hint(hint));
        }
        let name = match self.stream {
            Stream::Stdout => "stdout",
            Stream::Stderr => "stderr",
        };
        let path = gang::rank_file(rank, name);
        match record.outputs.iter().find(|file| file.path == path) {
            Some(file) => self.open_file(record, file.hash).await,
            // It wrote nothing.
            None => Ok(LogStart::Bytes(Bytes::new())),
        }
    }

    async fn open_file(&self, record: &TaskRecord, hash: BlobHash) -> Result<LogStart, ApiError> {
        let mut file = super::blobs::local(&self.shared, hash, vec![record.node]).await?;
        let sought = file.seek(io::SeekFrom::Start(self.offset)).await;
        sought.map_err(|error| ApiError::disk("reading a log", &error))?;
        Ok(LogStart::File(ReaderStream::with_capacity(
            file, READ_BYTES,
        )))
    }
}

/// The rank of the process whose streams are those of the record.
fn kept_rank(record: &TaskRecord) -> u32 {
    match &record.outcome {
        Outcome::Failed(Failure::Rank { rank, .. }) => *rank,
        Outcome::Done
        | Outcome::Failed(_)
        | Outcome::Cancelled
        | Outcome::Stopped(_)
        | Outcome::Added => 0,
    }
}

/// What a record itself has of a stream from `offset`.
fn rest_of(captured: &Captured, offset: u64) -> Bytes {
    let first = captured
        .total_bytes
        .saturating_sub(captured.tail.len() as u64);
    let skipped = usize::try_from(offset.saturating_sub(first))
        .unwrap_or(usize::MAX)
        .min(captured.tail.len());
    Bytes::copy_from_slice(&captured.tail[skipped..])
}

fn broken(error: &ApiError) -> io::Error {
    io::Error::other(error.problem.error.clone())
}
