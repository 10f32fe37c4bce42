//! What refusals look like: a status code and `Problem` as JSON.

use axum::{
    Json,
    http::StatusCode,
    response::{IntoResponse, Response},
};
use nodectl_types::{JobId, QueryError, text};
use nodectl_wire::api::Problem;
use std::io;

/// A request that was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ApiError {
    pub status: StatusCode,
    pub problem: Problem,
}

impl ApiError {
    pub fn new(status: StatusCode, error: impl Into<String>) -> Self {
        Self {
            status,
            problem: Problem {
                error: error.into(),
                hint: None,
            },
        }
    }

    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.problem.hint = Some(hint.into());
        self
    }

    pub fn bad_request(error: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, error)
    }

    pub fn not_found(error: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, error)
    }

    pub fn conflict(error: impl Into<String>) -> Self {
        Self::new(StatusCode::CONFLICT, error)
    }

    /// The node answered another question than was asked: a defect of this program, told rather
    /// than hidden.
    pub fn unexpected(asked: &str) -> Self {
        Self::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            format!("the node did not answer the question for {asked}"),
        )
        .hint("this is a defect of nodectl: please report it")
    }

    /// No node that is here has what the job was submitted as.
    pub fn no_specification(job: JobId) -> Self {
        let error = format!("the specification of job {job} is not here");
        Self::new(StatusCode::SERVICE_UNAVAILABLE, error)
            .hint("try again when the nodes that hold its state are back")
    }

    /// The disk refused `doing`.
    pub fn disk(doing: &str, error: &io::Error) -> Self {
        let full = matches!(
            error.kind(),
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded
        );
        let status = if full {
            StatusCode::INSUFFICIENT_STORAGE
        } else {
            StatusCode::INTERNAL_SERVER_ERROR
        };
        let hint = match error.kind() {
            io::ErrorKind::ReadOnlyFilesystem => {
                "the node's data directory is on a file system that is read-only"
            }
            io::ErrorKind::PermissionDenied => "check who may write to the node's data directory",
            _ if full => "make room in the node's data directory",
            _ => "look at the node's disk: `nodectl doctor`",
        };
        Self::new(status, format!("{doing}: {error}")).hint(hint)
    }

    /// Of a text that ends with a hint of its own.
    pub fn with_own_hint(status: StatusCode, text: &str) -> Self {
        let (error, hint) = text::split_hint(text);
        Self {
            status,
            problem: Problem {
                error: error.into(),
                hint: hint.map(Into::into),
            },
        }
    }
}

impl From<QueryError> for ApiError {
    fn from(error: QueryError) -> Self {
        if let QueryError::Refused(why) = &error {
            return Self::with_own_hint(StatusCode::CONFLICT, why);
        }
        let new = Self::new(status(&error), error.to_string());
        match hint(&error) {
            Some(hint) => new.hint(hint),
            None => new,
        }
    }
}

fn status(error: &QueryError) -> StatusCode {
    match error {
        QueryError::NoJob(_)
        | QueryError::NoTask { .. }
        | QueryError::NoNode(_)
        | QueryError::NoLog(_)
        | QueryError::NoSecret(_) => StatusCode::NOT_FOUND,
        QueryError::Reachable { .. }
        | QueryError::NotEnded(_)
        | QueryError::Needed { .. }
        | QueryError::PutAside(_)
        | QueryError::Refused(_) => StatusCode::CONFLICT,
        QueryError::Timeout(_) | QueryError::Undecided { .. } => StatusCode::GATEWAY_TIMEOUT,
        QueryError::NoCoordinator { .. } | QueryError::Damaged(_) | QueryError::Leaving => {
            StatusCode::SERVICE_UNAVAILABLE
        }
        QueryError::Unsatisfiable(_) | QueryError::Invalid(_) => StatusCode::UNPROCESSABLE_ENTITY,
        QueryError::Storage(_) | QueryError::Full(_) => StatusCode::INSUFFICIENT_STORAGE,
        QueryError::Denied(_) => StatusCode::FORBIDDEN,
    }
}

/// What to do about it.
fn hint(error: &QueryError) -> Option<&'static str> {
    Some(match error {
        QueryError::NoJob(_) => "`nodectl jobs` lists the jobs",
        QueryError::NoTask { .. } => "`nodectl job JOB` shows how many tasks it has",
        QueryError::NoNode(_) => "`nodectl nodes` lists the nodes",
        QueryError::Reachable { .. } => {
            "`nodectl leave` there makes it leave; only a node that will not come back can be forgotten"
        }
        QueryError::NoLog(_) => "the log of a task's last attempt is kept with its result",
        QueryError::Timeout(_) => "`nodectl nodes` shows who is away; try again",
        QueryError::NoCoordinator { .. } => "start one of these nodes again; the job then goes on",
        QueryError::Unsatisfiable(_) => {
            "ask for less, or have it wait for a node that can run it: `wait = true` in a job file, `--set wait=true`, `\"wait_for_nodes\": true` in a request"
        }
        QueryError::Invalid(_) => "`nodectl init` writes a job file that works",
        QueryError::Storage(why) if why.contains("ead-only") => {
            "the node's data directory is on a file system that is read-only"
        }
        QueryError::Storage(_) => "make room in the node's data directory",
        QueryError::Damaged(_) => {
            "ask again; where no other node has the result, start this node again: the task is then done once more"
        }
        QueryError::Leaving => "ask another node, or join again",
        QueryError::Undecided { .. } => {
            "submit it again with the same key, here or elsewhere: it is the same job"
        }
        QueryError::Full(_) => "`nodectl remove --ended` makes room",
        QueryError::NotEnded(_) => "`nodectl cancel JOB` ends it",
        QueryError::Needed { .. } => "remove it when that one has ended, or cancel that one",
        QueryError::Denied(_) => {
            "only its owner can change that: by its settings, or with `nodectl drain --off` there"
        }
        QueryError::NoSecret(_) => {
            "`nodectl secret put NAME` keeps one, `nodectl secret list` shows which there are"
        }
        QueryError::PutAside(_) => {
            "`nodectl attach JOB` goes on with it, `nodectl cancel JOB` ends it, `nodectl remove JOB` forgets it"
        }
        QueryError::Refused(_) => return None,
    })
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        (self.status, Json(self.problem)).into_response()
    }
}
