//! What happened in the cluster, as one node sees it: the API tells how things are, and two looks
//! at it, one after the other, what happened between them. Bounded; it begins with the server. Jobs
//! that are known tell of their own past.

use super::live::{self, CHRONICLE, Hub};
use nodectl_http::Client;
use serde::Serialize;
use serde_json::{Value, json};
use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};
use tokio::time::sleep;

const LOOK_EVERY: Duration = Duration::from_secs(2);
const MOST_EVENTS: usize = 1000;

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ChronicleEvent {
    pub at_ms: u64,
    pub kind: EventKind,
    /// The node or the job that it happened to, by name.
    pub subject: String,
    /// The job's id; empty for nodes.
    pub job: String,
    pub text: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum EventKind {
    Joined,
    Died,
    Left,
    Returned,
    Closed,
    Opened,
    Trouble,
    Submitted,
    Takeover,
    TaskFailed,
    Retried,
    Ended,
}

/// The events so far, and how things were at the last look.
#[derive(Default)]
pub struct Chronicle {
    events: VecDeque<ChronicleEvent>,
    nodes: Option<BTreeMap<String, Value>>,
    jobs: Option<BTreeMap<String, Value>>,
}

impl Chronicle {
    /// Looks for as long as it is polled.
    pub async fn keep(client: Client, hub: Arc<Hub>) {
        let mut chronicle = Self::default();
        loop {
            let (nodes, jobs) = tokio::join!(
                live::ask(&client, "/v1/nodes"),
                live::ask(&client, "/v1/jobs")
            );
            if let ((200, Value::Array(nodes)), (200, Value::Array(jobs))) = (nodes, jobs) {
                chronicle.look(nodes, jobs, now_ms());
                hub.publish(CHRONICLE, &json!(chronicle.events));
            }
            sleep(LOOK_EVERY).await;
        }
    }

    /// Takes in how things are now.
    pub fn look(&mut self, nodes: Vec<Value>, jobs: Vec<Value>, now_ms: u64) {
        let nodes = by_id(nodes);
        let names: BTreeMap<&str, &str> = nodes
            .iter()
            .map(|(id, node)| (id.as_str(), text(node, "name")))
            .collect();
        let jobs = by_id(jobs);
        let mut news = Vec::new();
        for (id, job) in &jobs {
            let before = self.jobs.as_ref().map(|jobs| jobs.get(id));
            job_news(before, job, &names, now_ms, &mut news);
        }
        if let Some(before) = &self.nodes {
            for (id, node) in &nodes {
                node_news(before.get(id), node, now_ms, &mut news);
            }
        }
        news.sort_by_key(|event| event.at_ms);
        self.events.extend(news);
        let surplus = self.events.len().saturating_sub(MOST_EVENTS);
        self.events.drain(..surplus);
        self.nodes = Some(nodes);
        self.jobs = Some(jobs);
    }

    #[cfg(test)]
    pub fn events(&self) -> impl Iterator<Item = &ChronicleEvent> {
        self.events.iter()
    }
}

fn node_news(before: Option<&Value>, node: &Value, now_ms: u64, news: &mut Vec<ChronicleEvent>) {
    let mut tell = |kind, text: String| {
        news.push(ChronicleEvent {
            at_ms: now_ms,
            kind,
            subject: self::text(node, "name").to_string(),
            job: String::new(),
            text,
        });
    };
    let Some(before) = before else {
        tell(EventKind::Joined, "joined the cluster".into());
        return;
    };
    match (flag(before, "alive"), flag(node, "alive")) {
        (true, false) if flag(node, "left") => tell(EventKind::Left, "left the cluster".into()),
        (true, false) => tell(EventKind::Died, "died, or cannot be reached".into()),
        (false, true) => tell(EventKind::Returned, "is back".into()),
        _ => {}
    }
    match (flag(before, "draining"), flag(node, "draining")) {
        (false, true) => {
            let why = node["closed"]["why"]
                .as_str()
                .unwrap_or("takes no new work");
            tell(EventKind::Closed, why.into());
        }
        (true, false) => tell(EventKind::Opened, "takes work again".into()),
        _ => {}
    }
    if let (true, Some(why)) = (
        before["problem"] != node["problem"],
        node["problem"].as_str(),
    ) {
        tell(EventKind::Trouble, why.into());
    }
}

/// `before`: nothing at the first look, then the job as it was, if it was there.
fn job_news(
    before: Option<Option<&Value>>,
    job: &Value,
    names: &BTreeMap<&str, &str>,
    now_ms: u64,
    news: &mut Vec<ChronicleEvent>,
) {
    let mut tell = |at_ms, kind, text: String| {
        news.push(ChronicleEvent {
            at_ms,
            kind,
            subject: self::text(job, "name").to_string(),
            job: self::text(job, "id").to_string(),
            text,
        });
    };
    let before = before.flatten();
    if before.is_none() {
        let from = [self::text(job, "user"), self::text(job, "submitter_name")];
        let at_ms = number(job, "submitted_ms").min(now_ms);
        tell(
            at_ms,
            EventKind::Submitted,
            format!("submitted by {} at {}", from[0], from[1]),
        );
    }
    let epochs = [
        before.map_or(1, |before| number(before, "epoch")).max(1),
        number(job, "epoch"),
    ];
    if epochs[1] > epochs[0] {
        let holder = self::text(job, "coordinator");
        let who = names.get(holder).copied().unwrap_or("another node");
        // Of takeovers before the first look it is not known when they were.
        if before.is_some() {
            tell(
                now_ms,
                EventKind::Takeover,
                format!("{who} took over (epoch {})", epochs[1]),
            );
        }
    }
    let failed = [
        before.map_or(0, |before| number(before, "failed")),
        number(job, "failed"),
    ];
    if before.is_some() && failed[1] > failed[0] {
        let more = failed[1] - failed[0];
        let noun = if more == 1 { "task" } else { "tasks" };
        tell(
            now_ms,
            EventKind::TaskFailed,
            format!("{more} {noun} failed for good"),
        );
    } else if failed[1] < failed[0] {
        let again = failed[0] - failed[1];
        tell(
            now_ms,
            EventKind::Retried,
            format!("{again} failed tasks run again"),
        );
    }
    let ended = number(job, "ended_ms");
    if ended > 0 && before.is_none_or(|before| number(before, "ended_ms") == 0) {
        let word = match self::text(job, "phase") {
            "done" => "done".to_string(),
            "failed" => format!("over, with {} failed tasks", failed[1]),
            other => other.to_string(),
        };
        tell(ended.min(now_ms), EventKind::Ended, word);
    }
}

fn by_id(all: Vec<Value>) -> BTreeMap<String, Value> {
    let keyed = all.into_iter().filter_map(|mut one| {
        let id = one["id"].as_str()?.to_string();
        // It changes all the time and is not looked at.
        if let Some(fields) = one.as_object_mut() {
            fields.remove("load");
        }
        Some((id, one))
    });
    keyed.collect()
}

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or_default()
}

fn flag(value: &Value, key: &str) -> bool {
    value[key].as_bool().unwrap_or_default()
}

fn number(value: &Value, key: &str) -> u64 {
    value[key].as_u64().unwrap_or_default()
}

fn now_ms() -> u64 {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
