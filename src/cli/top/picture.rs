//! What `top` shows, as the node told it, and asking for it. Knows nothing of screens but what each
//! of them needs.

use crate::listing;
use futures::{StreamExt, TryStreamExt, stream};
use nodectl_http::{Client, ClientError, client::LogRequest};
use nodectl_ports::wall_ms;
use nodectl_types::text;
use nodectl_wire::api::{CursorView, Job, JobLine, Node, NodeHistory, TaskResult, TaskRow};
use std::collections::BTreeMap;

/// Seconds of load that are shown.
pub const STEPS: u32 = 60;
/// Nodes asked for their load at a time; those beyond `MOST_LOADS` are shown without one.
const LOADS_AT_ONCE: usize = 8;
const MOST_LOADS: usize = 64;
/// Tasks of a job that are listed.
const TASKS: u32 = 1000;
/// Lines of a log that are kept, and bytes of one line.
const LOG_LINES: usize = 1000;
/// Bytes of a log that are read at a time.
const LOG_BYTES: usize = 1 << 20;

/// What is needed beside nodes and jobs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum TopWanted {
    /// The loads of nodes.
    #[default]
    Loads,
    Nothing,
    Job(String),
    Log {
        job: String,
        task: u32,
    },
    Explanation {
        job: String,
        task: Option<u32>,
    },
}

/// All that is known.
#[derive(Clone, Debug, Default)]
pub struct TopPicture {
    pub nodes: Vec<Node>,
    /// Newest first.
    pub jobs: Vec<JobLine>,
    /// By the nodes' ids.
    pub loads: BTreeMap<String, NodeHistory>,
    pub job: Option<JobPicture>,
    /// A log or an explanation.
    pub lines: Vec<String>,
    pub now_ms: u64,
    /// Why all of this is no news, if so.
    pub problem: Option<String>,
}

#[derive(Clone, Debug)]
pub struct JobPicture {
    pub job: Job,
    pub tasks: Vec<TaskRow>,
    /// More than are listed.
    pub total: u32,
    /// Why tasks ended, in one word.
    pub reasons: BTreeMap<u32, String>,
}

/// Asks a node again and again.
pub struct TopAsker {
    client: Client,
    picture: TopPicture,
    wanted: TopWanted,
    log: LogTail,
    cursor: CursorView,
}

/// What was read of a log.
#[derive(Default)]
struct LogTail {
    read: u64,
    rest: Vec<u8>,
}

impl TopAsker {
    pub fn new(client: Client) -> Self {
        Self {
            client,
            picture: TopPicture::default(),
            wanted: TopWanted::default(),
            log: LogTail::default(),
            cursor: CursorView::default(),
        }
    }

    /// What there is now; where the node does not answer, what there was, and why.
    pub async fn look(&mut self, wanted: &TopWanted) -> &TopPicture {
        if self.wanted != *wanted {
            self.wanted = wanted.clone();
            self.picture.lines.clear();
            self.picture.job = None;
            (self.log, self.cursor) = (LogTail::default(), CursorView::default());
        }
        let asked = self.ask().await;
        self.picture.problem = asked.err().map(|error| {
            let error = error.to_string();
            text::one_line(text::split_hint(&error).0).into_owned()
        });
        self.picture.now_ms = wall_ms();
        &self.picture
    }

    async fn ask(&mut self) -> Result<(), ClientError> {
        self.picture.nodes = self.client.nodes().await?;
        self.picture.jobs = listing::of_users(self.client.jobs().await?);
        match self.wanted.clone() {
            TopWanted::Nothing => {}
            TopWanted::Loads => self.picture.loads = self.loads().await,
            TopWanted::Job(job) => self.job(&job).await?,
            TopWanted::Log { job, task } => self.log(&job, task).await?,
            TopWanted::Explanation { job, task } => {
                let task = task.map(|task| task.to_string());
                let explanation = self.client.explain(&job, task.as_deref()).await?;
                self.picture.lines = explanation.lines;
            }
        }
        Ok(())
    }

    /// Of the nodes that say so.
    async fn loads(&self) -> BTreeMap<String, NodeHistory> {
        let alive = self.picture.nodes.iter().filter(|node| node.alive);
        let ids: Vec<String> = alive.take(MOST_LOADS).map(|node| node.id.clone()).collect();
        let loads = stream::iter(ids).map(|id| {
            let client = self.client.clone();
            async move {
                let load = client.history(&id, "15m", Some(STEPS)).await;
                Some((id, load.ok()?))
            }
        });
        let loads = loads.buffer_unordered(LOADS_AT_ONCE);
        loads.filter_map(std::future::ready).collect().await
    }

    async fn job(&mut self, id: &str) -> Result<(), ClientError> {
        let job = self.client.job(id).await?;
        let list = self.client.tasks(id, None, 0, TASKS).await?;
        let mut reasons = self
            .picture
            .job
            .take()
            .map(|job| job.reasons)
            .unwrap_or_default();
        // Another user's results are not told; the tasks are.
        while let Ok(page) = self.client.results(id, self.cursor, 0).await {
            self.cursor = page.cursor;
            if page.results.is_empty() {
                break;
            }
            let reason = |result: &TaskResult| (result.task, result.reason().to_string());
            reasons.extend(
                page.results
                    .iter()
                    .filter(|result| result.task < TASKS)
                    .map(reason),
            );
        }
        self.picture.job = Some(JobPicture {
            job,
            tasks: list.tasks,
            total: list.total,
            reasons,
        });
        Ok(())
    }

    /// What has come since the last look.
    async fn log(&mut self, job: &str, task: u32) -> Result<(), ClientError> {
        let request = LogRequest {
            offset: self.log.read,
            ..LogRequest::default()
        };
        let mut bytes = self.client.log(job, task, request).await?;
        let mut came = 0;
        while came < LOG_BYTES
            && let Some(piece) = bytes.try_next().await?
        {
            came += piece.len();
            self.log.rest.extend_from_slice(&piece);
        }
        self.log.read += came as u64;
        // A line that has not ended is shown, and read on.
        self.picture.lines.pop();
        let rest = std::mem::take(&mut self.log.rest);
        let mut lines: Vec<_> = rest.split(|byte| *byte == b'\n').collect();
        let last = lines.pop().unwrap_or_default();
        let shown = |line: &[u8]| text::one_line(&String::from_utf8_lossy(line)).into_owned();
        self.picture.lines.extend(lines.into_iter().map(shown));
        self.picture.lines.push(shown(last));
        self.log.rest = last.to_vec();
        let surplus = self.picture.lines.len().saturating_sub(LOG_LINES);
        self.picture.lines.drain(..surplus);
        Ok(())
    }
}
