//! What happened in the cluster, as JSON.

use nodectl_types::{
    NodeId,
    event::{EventKind, EventSubject, NoticedEvent},
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use utoipa::ToSchema;

/// Something that happened to a node or to a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct EventLine {
    /// By the clock of the first node that noticed it.
    pub at_ms: u64,
    pub kind: EventName,
    /// Id of the node that it happened to; or `job`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job: Option<String>,
    /// The name of that node or job.
    pub name: String,
    /// The rest of a sentence that begins with the name.
    pub text: String,
    /// The names of the nodes that noticed it and are here.
    pub noticed_by: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum EventName {
    Joined,
    /// Or out of reach.
    Died,
    Left,
    Returned,
    /// The node takes no work any more.
    Closed,
    /// The node takes work again.
    Opened,
    /// The node has a problem that keeps it from running tasks.
    Trouble,
    Submitted,
    /// Another node coordinates the job.
    Takeover,
    TaskFailed,
    Retried,
    Ended,
}

impl EventName {
    /// As people read it.
    pub fn word(self) -> &'static str {
        match self {
            Self::Joined => "joined",
            Self::Died => "died",
            Self::Left => "left",
            Self::Returned => "returned",
            Self::Closed => "closed",
            Self::Opened => "opened",
            Self::Trouble => "trouble",
            Self::Submitted => "submitted",
            Self::Takeover => "takeover",
            Self::TaskFailed => "failed",
            Self::Retried => "retried",
            Self::Ended => "ended",
        }
    }
}

impl From<EventKind> for EventName {
    fn from(kind: EventKind) -> Self {
        match kind {
            EventKind::Joined => Self::Joined,
            EventKind::Died => Self::Died,
            EventKind::Left => Self::Left,
            EventKind::Returned => Self::Returned,
            EventKind::Closed => Self::Closed,
            EventKind::Opened => Self::Opened,
            EventKind::Trouble => Self::Trouble,
            EventKind::Submitted => Self::Submitted,
            EventKind::Takeover => Self::Takeover,
            EventKind::TaskFailed => Self::TaskFailed,
            EventKind::Retried => Self::Retried,
            EventKind::Ended => Self::Ended,
        }
    }
}

impl EventLine {
    /// `names` are those of nodes, by id.
    pub fn new(noticed: NoticedEvent, names: &BTreeMap<NodeId, String>) -> Self {
        let NoticedEvent { event, by } = noticed;
        let (node, job) = match event.subject {
            EventSubject::Node(node) => (Some(node.to_string()), None),
            EventSubject::Job(job) => (None, Some(job.to_string())),
        };
        let name = |node: NodeId| {
            let known = names.get(&node).cloned();
            known.unwrap_or_else(|| node.short())
        };
        let mut noticed_by: Vec<String> = by.into_iter().map(name).collect();
        noticed_by.sort_unstable();
        Self {
            at_ms: event.at_ms,
            kind: event.kind.into(),
            node,
            job,
            name: event.name,
            text: event.text,
            noticed_by,
        }
    }
}
