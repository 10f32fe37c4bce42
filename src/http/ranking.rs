//! Results sorted by what they hold. A ranking reads all results of a job once, as pages of
//! `JobQuery::Watch`, and keeps which tasks come first: who asks again, or for the next page, has
//! only what is new read. A question reads for a moment and then says how far it got, so that of a
//! job of millions nobody waits without a word.

use super::{
    caller::Caller,
    error::ApiError,
    extract::{Args, Path},
    resolve,
    results::{self, located, task_results},
    state::Shared,
};
use axum::{Extension, Json, extract::State};
use futures::{StreamExt, TryStreamExt, stream};
use nodectl_types::{
    JobId, JobSpec, TaskIndex, TaskRecord, limits,
    query::{Cursor, Location, Progress},
};
use nodectl_wire::api::{Problem, ProgressView, StatusName, TaskResult, record_params};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::{
    cmp::{Ordering, Reverse},
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};
use tokio::sync::Semaphore;
use utoipa::{IntoParams, ToSchema};

/// So many results of a ranking can be read, from its first on.
const MOST_RANKED: usize = 10_000;
const MOST_RESULTS: u32 = 500;
const RESULTS: u32 = 100;
/// Rankings that are kept. Of a job of 10,000,000 tasks one has some 3 MB.
const KEPT: usize = 8;
/// Rankings that are read for at the same time.
const AT_ONCE: usize = 2;
/// How long a question reads before it answers with what it has.
const READ_FOR: Duration = Duration::from_millis(700);
/// Records that are asked for beside each other.
const RECORDS_AT_ONCE: usize = 16;
/// Characters of a text that count.
const KEY_CHARS: usize = 64;

/// Results in an order.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(super) struct RankedResults {
    pub progress: ProgressView,
    /// Results of the page, the first first.
    pub results: Vec<TaskResult>,
    /// Tasks in the ranking, as far as results have been read.
    pub total: u32,
    /// Results that have been read.
    pub read: u32,
    /// All results that there are have been read. If not, ask again: that goes on reading.
    pub complete: bool,
}

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct RankArgs {
    /// What to sort by: `ended` (the order in which tasks ended), `task`, `status`, `seconds`,
    /// `cpu_seconds`, `max_rss_bytes`, `started_ms`, `value`, `params.NAME` or `value.NAME`.
    /// Numbers come before texts, and results without it last.
    by: String,
    /// The largest first.
    #[serde(default)]
    descending: bool,
    /// Only results of this status: `done`, `failed`, `cancelled` or `stopped`.
    status: Option<StatusName>,
    /// Results to skip.
    #[serde(default)]
    offset: u32,
    /// At most 500; 100 if missing. Of a ranking the first 10,000 can be read.
    limit: Option<u32>,
}

/// The results of a job sorted by one of their columns, page by page. Of a job with many results
/// the first answers are of those that have been read until then.
#[utoipa::path(get, path = "/v1/jobs/{job}/results/ranked", tag = "results", params(("job" = String, Path, min_length = 1), RankArgs),
    responses((status = 200, body = RankedResults), (status = 400, description = "There is no such column.", body = Problem),
    (status = 404, description = "No such job.", body = Problem)))]
pub(super) async fn ranked(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
    Path(reference): Path<String>,
    Args(args): Args<RankArgs>,
) -> Result<Json<RankedResults>, ApiError> {
    let order = RankOrder {
        column: column(&args.by)?,
        is_descending: args.descending,
        status: args.status,
    };
    let job = resolve::own_job(&shared, &caller, &reference, "read").await?;
    let ranking = shared.rankings.of(job, &order);
    let mut ranking = ranking.lock().await;
    let spec = shared.spec(job).await;
    let (progress, complete) = {
        let room = shared.rankings.readers.acquire().await;
        let _room = room.map_err(|_| ApiError::unexpected("a ranking"))?;
        ranking.read_on(&shared, job, spec.as_deref()).await?
    };
    let limit = args.limit.unwrap_or(RESULTS).clamp(1, MOST_RESULTS);
    let page = ranking.first.iter().skip(args.offset as usize);
    let tasks: Vec<_> = page.take(limit as usize).map(|(_, task)| *task).collect();
    let (total, read) = (ranking.ranked.count, ranking.cursor.position);
    drop(ranking);
    let records = records(&shared, job, tasks).await?;
    Ok(Json(RankedResults {
        results: task_results(&shared, job, &progress, &records).await,
        progress: ProgressView::from(&progress),
        total,
        read,
        complete,
    }))
}

/// How these tasks ended, in their order. One that runs again is left out.
async fn records(
    shared: &Shared,
    job: JobId,
    tasks: Vec<TaskIndex>,
) -> Result<Vec<Arc<TaskRecord>>, ApiError> {
    let found: Vec<_> = stream::iter(tasks)
        .map(|task| located(shared, job, task, 0))
        .buffered(RECORDS_AT_ONCE)
        .try_collect()
        .await?;
    let ended = found.into_iter().filter_map(|location| match location {
        Location::Ended(record) => Some(record),
        Location::Nowhere | Location::Running { .. } => None,
    });
    Ok(ended.collect())
}

/// What results are sorted by.
#[derive(Clone, Debug, PartialEq, Eq)]
enum RankColumn {
    Ended,
    Task,
    Status,
    Seconds,
    CpuSeconds,
    MaxRss,
    Started,
    Value,
    ValueOf(String),
    ParamOf(String),
}

fn column(name: &str) -> Result<RankColumn, ApiError> {
    Ok(match name {
        "ended" => RankColumn::Ended,
        "task" => RankColumn::Task,
        "status" => RankColumn::Status,
        "seconds" => RankColumn::Seconds,
        "cpu_seconds" => RankColumn::CpuSeconds,
        "max_rss_bytes" => RankColumn::MaxRss,
        "started_ms" => RankColumn::Started,
        "value" => RankColumn::Value,
        other => match other.split_once('.') {
            Some(("value", key)) => RankColumn::ValueOf(key.into()),
            Some(("params", key)) => RankColumn::ParamOf(key.into()),
            _ => {
                let error = format!("results cannot be sorted by `{other}`");
                let hint = "`by` can be ended, task, status, seconds, cpu_seconds, \
                            max_rss_bytes, started_ms, value, params.NAME or value.NAME";
                return Err(ApiError::bad_request(error).hint(hint));
            }
        },
    })
}

/// A number as it is sorted.
#[derive(Clone, Copy, Debug)]
struct Sorted(f64);

impl Ord for Sorted {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.total_cmp(&other.0)
    }
}

impl PartialOrd for Sorted {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Sorted {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Sorted {}

/// What a result has in a column.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum RankKey {
    Number(Sorted),
    Text(String),
}

/// Where a result stands in a ranking; one of the first two occurs in it, and what has nothing in
/// the column is last either way.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    Ascending(RankKey),
    Descending(Reverse<RankKey>),
    Last,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct RankOrder {
    column: RankColumn,
    is_descending: bool,
    status: Option<StatusName>,
}

impl RankOrder {
    /// Where the result stands that was read at a position of the cursor; none if it is left out.
    fn rank(&self, record: &TaskRecord, spec: Option<&JobSpec>, position: u32) -> Option<Rank> {
        let status = StatusName::from(&record.outcome);
        if self.status.is_some_and(|wanted| wanted != status) {
            return None;
        }
        let number = |number: f64| Some(RankKey::Number(Sorted(number)));
        let text = |text: &str| Some(RankKey::Text(text.chars().take(KEY_CHARS).collect()));
        let json = |value: &Value| match value {
            Value::Null => None,
            Value::Number(value) => number(value.as_f64()?),
            Value::String(value) => text(value),
            Value::Bool(_) | Value::Array(_) | Value::Object(_) => text(&value.to_string()),
        };
        let value = || -> Option<Value> { serde_json::from_str(record.value.as_deref()?).ok() };
        let key = match &self.column {
            RankColumn::Ended => number(f64::from(position)),
            RankColumn::Task => number(f64::from(record.task)),
            RankColumn::Status => text(status.word()),
            RankColumn::Seconds => number(record.duration_us as f64),
            RankColumn::CpuSeconds => number(record.cpu_us as f64),
            RankColumn::MaxRss => number(record.max_rss_bytes as f64),
            RankColumn::Started => number(record.started_ms as f64),
            RankColumn::Value => value().and_then(|value| json(&value)),
            RankColumn::ValueOf(name) => value().and_then(|value| json(value.get(name)?)),
            RankColumn::ParamOf(name) => record_params(record, spec).get(name).and_then(json),
        };
        Some(match (key, self.is_descending) {
            (None, _) => Rank::Last,
            (Some(key), false) => Rank::Ascending(key),
            (Some(key), true) => Rank::Descending(Reverse(key)),
        })
    }
}

/// Tasks, a bit each.
#[derive(Default)]
struct TaskSet {
    words: Vec<u64>,
    count: u32,
}

impl TaskSet {
    fn put(&mut self, task: TaskIndex, is_in: bool) {
        let (word, bit) = (task as usize / 64, 1 << (task % 64));
        if self.words.len() <= word {
            self.words.resize(word + 1, 0);
        }
        let was_in = self.words[word] & bit != 0;
        match (was_in, is_in) {
            (false, true) => self.count += 1,
            (true, false) => self.count -= 1,
            (true, true) | (false, false) => return,
        }
        self.words[word] ^= bit;
    }
}

/// The first results of a job in an order, as far as its results have been read.
struct Ranking {
    order: RankOrder,
    /// Behind what has been read.
    cursor: Cursor,
    first: BTreeSet<(Rank, TaskIndex)>,
    /// Where those of `first` stand.
    ranks: BTreeMap<TaskIndex, Rank>,
    /// All that are in it, also behind `first`.
    ranked: TaskSet,
}

impl Ranking {
    fn new(order: RankOrder) -> Self {
        Self {
            order,
            cursor: Cursor::default(),
            first: BTreeSet::new(),
            ranks: BTreeMap::new(),
            ranked: TaskSet::default(),
        }
    }

    /// Reads results that have not been read yet, for a moment. How far the job is, and whether
    /// these were all.
    async fn read_on(
        &mut self,
        shared: &Shared,
        job: JobId,
        spec: Option<&JobSpec>,
    ) -> Result<(Progress, bool), ApiError> {
        let begun = Instant::now();
        loop {
            let limit = limits::RECORD_BATCH as u32;
            let (cursor, progress, records) =
                results::look(shared, job, self.cursor, 0, limit).await?;
            if cursor.claim != self.cursor.claim {
                // Another coordinator's order: what was read is read anew.
                *self = Self::new(self.order.clone());
            }
            self.cursor = cursor;
            let behind = records.len() as u32;
            for (place, record) in records.iter().enumerate() {
                let position = (cursor.position + place as u32).saturating_sub(behind);
                self.add(record, spec, position);
            }
            if records.is_empty() || begun.elapsed() >= READ_FOR {
                return Ok((progress, records.is_empty()));
            }
        }
    }

    fn add(&mut self, record: &TaskRecord, spec: Option<&JobSpec>, position: u32) {
        let task = record.task;
        if let Some(before) = self.ranks.remove(&task) {
            self.first.remove(&(before, task));
        }
        let rank = self.order.rank(record, spec, position);
        self.ranked.put(task, rank.is_some());
        let Some(rank) = rank else { return };
        self.ranks.insert(task, rank.clone());
        self.first.insert((rank, task));
        if self.first.len() > MOST_RANKED
            && let Some((_, last)) = self.first.pop_last()
        {
            self.ranks.remove(&last);
        }
    }
}

type SharedRanking = Arc<tokio::sync::Mutex<Ranking>>;

/// The rankings that were asked for last, the newest last.
pub(super) struct Rankings {
    kept: Mutex<VecDeque<(JobId, RankOrder, SharedRanking)>>,
    readers: Semaphore,
}

impl Default for Rankings {
    fn default() -> Self {
        Self {
            kept: Mutex::default(),
            readers: Semaphore::new(AT_ONCE),
        }
    }
}

impl Rankings {
    fn of(&self, job: JobId, order: &RankOrder) -> SharedRanking {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let is_it = |(of, by, _): &(JobId, RankOrder, SharedRanking)| *of == job && by == order;
        let found = kept.iter().position(is_it).and_then(|at| kept.remove(at));
        let ranking = match found {
            Some((.., ranking)) => ranking,
            None => Arc::new(tokio::sync::Mutex::new(Ranking::new(order.clone()))),
        };
        kept.push_back((job, order.clone(), Arc::clone(&ranking)));
        if kept.len() > KEPT {
            kept.pop_front();
        }
        ranking
    }
}
