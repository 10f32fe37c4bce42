//! Clients of the cluster: they submit, watch, cancel, retry, read and drain, at whatever node they
//! like, and note each call and each answer. What a client does is drawn from the run's seed; what
//! comes of it is not.

use crate::{
    common::http::{CallFailure, NodeApi},
    history::HistoryLog,
    plan::Rng,
};
use serde_json::{Value, json};
use std::{
    collections::BTreeSet,
    fs,
    path::PathBuf,
    sync::{
        Mutex, RwLock,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

/// A node that does not answer within it is asked nothing more for now.
const CALL_LIMIT: Duration = Duration::from_secs(12);
/// For how long clients ask again for what they must know.
const PATIENCE: Duration = Duration::from_secs(90);

/// What all clients share.
pub struct Crowd {
    pub history: HistoryLog,
    /// Machines that are not lost, by name.
    pub nodes: RwLock<Vec<(String, NodeApi)>>,
    pub jobs: Mutex<Vec<ClientJob>>,
    /// Clients come to an end.
    pub over: AtomicBool,
    /// Submissions take a key of the client's.
    pub keyed: AtomicBool,
    pub dir: PathBuf,
}

/// A job that a client submitted.
#[derive(Clone, Debug)]
pub struct ClientJob {
    pub name: String,
    pub id: String,
    pub tasks: u64,
    /// Of each task's file; 0 if it has none.
    pub bytes: u64,
    /// The job's tasks fail until a file is there.
    pub gated: bool,
}

/// What jobs there are; histories have these names for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum JobSort {
    Plain,
    Long,
    Cancel,
    CancelTasks,
    Gate,
}

/// What is noted of a call before it: the client, the node, what is called, with what.
struct CallNote<'a>(&'a str, &'a str, &'a str, Value);

impl Crowd {
    fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }

    pub fn names(&self) -> Vec<(String, NodeApi)> {
        self.nodes.read().expect("nobody panics with it").clone()
    }

    fn any_node(&self, rng: &mut Rng) -> (String, NodeApi) {
        let nodes = self.names();
        rng.pick(&nodes).clone()
    }

    /// Calls with a note before and one after; `said` makes the note of an answer.
    fn noted<T>(
        &self,
        about: CallNote,
        call: impl FnOnce() -> Result<T, CallFailure>,
        said: impl FnOnce(&T) -> Value,
    ) -> Result<T, CallFailure> {
        let CallNote(client, node, op, fields) = about;
        let number = self.history.call(client, node, op, fields);
        let result = call();
        let note = match &result {
            Ok(answer) => Ok(said(answer)),
            Err(failure) if failure.refused => Err(format!("refused: {}", failure.text)),
            Err(failure) => Err(failure.text.clone()),
        };
        self.history.answer(number, &note);
        result
    }

    /// Submits one job after the other and sees each to its end, until it is over.
    pub fn submit_jobs(&self, client: &str, rng: &mut Rng) {
        for number in 0.. {
            if self.is_over() {
                return;
            }
            let sorts = [
                JobSort::Plain,
                JobSort::Plain,
                JobSort::Long,
                JobSort::Cancel,
                JobSort::CancelTasks,
                JobSort::Gate,
            ];
            let sort = *rng.pick(&sorts);
            let name = format!("{client}-{number}");
            if let Some(job) = self.submit(client, &name, sort, rng) {
                self.jobs
                    .lock()
                    .expect("nobody panics with it")
                    .push(job.clone());
                self.attend(client, &job, sort, rng);
            } else {
                pause(Duration::from_millis(500));
            }
        }
    }

    fn submit(&self, client: &str, name: &str, sort: JobSort, rng: &mut Rng) -> Option<ClientJob> {
        let (tasks, ms) = match sort {
            JobSort::Plain => (rng.between(8, 40), rng.between(200, 1_500)),
            JobSort::Long => (rng.between(3, 6), rng.between(6_000, 14_000)),
            JobSort::Cancel | JobSort::CancelTasks => {
                (rng.between(10, 30), rng.between(500, 2_500))
            }
            JobSort::Gate => (rng.between(2, 8), rng.between(100, 600)),
        };
        let bytes = rng.between(1_000, 60_000);
        let path = |name: &str| self.dir.join(name).display().to_string();
        let gate = if sort == JobSort::Gate {
            path(&format!("gate-{name}"))
        } else {
            String::new()
        };
        let seconds = format!("{}.{:03}", ms / 1000, ms % 1000);
        let mut request = json!({
            "name": name,
            "command": ["sh", path("task.sh"), name, "{task}", "{attempt}", seconds, bytes.to_string(), path("tasks.notes"), gate],
            "repeat": tasks,
            "outputs": ["out"],
            "resources": { "cpus": 1 },
            "speculate": rng.chance(50),
        });
        // Tasks without a gate never fail of themselves, so that none needs a retry.
        if sort == JobSort::Gate || rng.chance(40) {
            request["retries"] = 0.into();
        }
        let mut about = json!({ "job": name, "tasks": tasks, "bytes": bytes, "ms": ms, "sort": format!("{sort:?}").to_lowercase() });
        let keyed = self.keyed.load(Ordering::Relaxed);
        if keyed {
            let key = format!("{name}-{:08x}", rng.next() as u32);
            about["key"] = key.clone().into();
            request["key"] = key.into();
        }
        let job = |id| ClientJob {
            name: name.into(),
            id,
            tasks,
            bytes,
            gated: sort == JobSort::Gate,
        };
        let end = Instant::now() + PATIENCE;
        loop {
            let (node, api) = self.any_node(rng);
            let ask = || api.post("/v1/jobs", Some(&request), Duration::from_secs(30));
            let answer = self.noted(
                CallNote(client, &node, "submit", about.clone()),
                ask,
                |answer| json!({ "id": answer["job"] }),
            );
            match answer {
                Ok(answer) => {
                    return Some(job(answer["job"].as_str().unwrap_or_default().to_string()));
                }
                Err(failure) if failure.refused => return None,
                // Without a key a second try could be a second job: it is looked for by its name.
                Err(_) if !keyed => return self.found(client, job(String::new()), rng),
                Err(_) if Instant::now() > end || self.is_over() => return None,
                Err(_) => pause(Duration::from_millis(300)),
            }
        }
    }

    /// The job of a submission whose answer was lost, if it was submitted.
    fn found(&self, client: &str, job: ClientJob, rng: &mut Rng) -> Option<ClientJob> {
        let end = Instant::now() + Duration::from_secs(15);
        while Instant::now() < end && !self.is_over() {
            let (node, api) = self.any_node(rng);
            if let Ok(list) = api.get("/v1/jobs", CALL_LIMIT) {
                let line = list
                    .as_array()
                    .into_iter()
                    .flatten()
                    .find(|line| line["name"] == job.name.as_str());
                if let Some(id) = line.and_then(|line| line["id"].as_str()) {
                    self.history.note(
                        "found",
                        json!({ "client": client, "node": node, "job": job.name, "id": id }),
                    );
                    return Some(ClientJob {
                        id: id.into(),
                        ..job
                    });
                }
            }
            pause(Duration::from_millis(500));
        }
        None
    }

    /// Follows a job's results to its end, and does on the way what is to be done with a job of
    /// this sort.
    fn attend(&self, client: &str, job: &ClientJob, sort: JobSort, rng: &mut Rng) {
        let begun = Instant::now();
        let acts_after = Duration::from_millis(rng.between(300, 8_000));
        let (mut acted, mut cursor, mut target) = (
            false,
            json!({ "claim": 0, "position": 0 }),
            self.any_node(rng),
        );
        while !self.is_over() {
            if !acted && begun.elapsed() > acts_after {
                acted = match sort {
                    JobSort::Plain | JobSort::Long => true,
                    JobSort::Cancel => self.cancel(client, job, None, rng),
                    JobSort::CancelTasks => {
                        let tasks: BTreeSet<u64> = (0..3).map(|_| rng.next() % job.tasks).collect();
                        self.cancel(client, job, Some(tasks), rng)
                    }
                    JobSort::Gate => self.open_gate(client, job, rng),
                };
            }
            match self.page(client, job, &cursor, &target) {
                Ok(page) => {
                    let is_empty = page["results"].as_array().is_none_or(Vec::is_empty);
                    if ended(&page) && is_empty && (acted || sort != JobSort::Gate) {
                        return;
                    }
                    cursor = page["cursor"].clone();
                    if ended(&page) && is_empty {
                        pause(Duration::from_millis(200));
                    }
                }
                Err(_) => {
                    target = self.any_node(rng);
                    pause(Duration::from_millis(300));
                }
            }
        }
    }

    /// A page of results as they come.
    fn page(
        &self,
        client: &str,
        job: &ClientJob,
        cursor: &Value,
        (node, api): &(String, NodeApi),
    ) -> Result<Value, CallFailure> {
        let path = format!(
            "/v1/jobs/{}/results?claim={}&position={}&wait_ms=1000",
            job.id, cursor["claim"], cursor["position"]
        );
        let fields = json!({ "job": job.name });
        let said = |page: &Value| json!({ "progress": progress(page), "results": rows(page) });
        self.noted(
            CallNote(client, node, "watch", fields),
            || api.get(&path, CALL_LIMIT),
            said,
        )
    }

    /// True when there is nothing left to try.
    fn cancel(
        &self,
        client: &str,
        job: &ClientJob,
        tasks: Option<BTreeSet<u64>>,
        rng: &mut Rng,
    ) -> bool {
        let (node, api) = self.any_node(rng);
        let body = tasks.as_ref().map(|tasks| json!({ "tasks": tasks }));
        let fields = json!({ "job": job.name, "tasks": tasks });
        let path = format!("/v1/jobs/{}/cancel", job.id);
        self.noted(
            CallNote(client, &node, "cancel", fields),
            || api.post(&path, body.as_ref(), CALL_LIMIT),
            |_| json!({}),
        )
        .is_ok()
    }

    /// Lets a job's tasks succeed, and asks for those that have failed to be tried again. True when
    /// all have succeeded.
    pub fn open_gate(&self, client: &str, job: &ClientJob, rng: &mut Rng) -> bool {
        let _ = fs::write(self.dir.join(format!("gate-{}", job.name)), "");
        if self.phase_of(job, rng).is_some_and(|phase| phase == "done") {
            return true;
        }
        let (node, api) = self.any_node(rng);
        let path = format!("/v1/jobs/{}/retry", job.id);
        let fields = json!({ "job": job.name });
        let ask = || api.post(&path, None, CALL_LIMIT);
        let _ = self.noted(
            CallNote(client, &node, "retry", fields),
            ask,
            |answer| json!({ "tasks": answer["tasks"] }),
        );
        false
    }

    pub fn phase_of(&self, job: &ClientJob, rng: &mut Rng) -> Option<String> {
        let (_, api) = self.any_node(rng);
        let line = api.get(&format!("/v1/jobs/{}", job.id), CALL_LIMIT).ok()?;
        line["phase"].as_str().map(str::to_string)
    }

    /// Reads jobs from the beginning and fetches files, now and then, at any node.
    pub fn read_jobs(&self, client: &str, rng: &mut Rng) {
        while !self.is_over() {
            pause(Duration::from_millis(rng.between(300, 1_500)));
            let jobs = self.jobs.lock().expect("nobody panics with it").clone();
            if jobs.is_empty() {
                continue;
            }
            let (job, target) = (rng.pick(&jobs), self.any_node(rng));
            let Ok(whole) = self.read(client, job, &target) else {
                continue;
            };
            let rows: Vec<&Value> = whole.iter().filter(|row| row["status"] == "done").collect();
            if !rows.is_empty() && job.bytes > 0 {
                let (row, target) = (*rng.pick(&rows), self.any_node(rng));
                let _ = self.fetch(client, job, row, &target);
            }
        }
    }

    /// All results that a node knows of a job now, page by page, as one call.
    pub fn read(
        &self,
        client: &str,
        job: &ClientJob,
        (node, api): &(String, NodeApi),
    ) -> Result<Vec<Value>, CallFailure> {
        let mut last = json!({});
        let mut claims = BTreeSet::new();
        let mut ask = || {
            let (mut all, mut cursor) = (Vec::new(), json!({ "claim": 0, "position": 0 }));
            let end = Instant::now() + CALL_LIMIT;
            loop {
                let (claim, position) = (&cursor["claim"], &cursor["position"]);
                let path = format!(
                    "/v1/jobs/{}/results?claim={claim}&position={position}&wait_ms=0",
                    job.id
                );
                let page = api.get(
                    &path,
                    end.saturating_duration_since(Instant::now())
                        .max(Duration::from_millis(1)),
                )?;
                let found = rows(&page);
                claims.insert(page["cursor"]["claim"].as_u64());
                cursor = page["cursor"].clone();
                last = progress(&page);
                if found.is_empty() {
                    return Ok(all);
                }
                all.extend(found);
            }
        };
        let number = self
            .history
            .call(client, node, "read", json!({ "job": job.name }));
        let result: Result<Vec<Value>, CallFailure> = ask();
        let note = match &result {
            Ok(all) => Ok(json!({ "progress": last, "claims": claims.len(), "results": all })),
            Err(failure) => Err(failure.text.clone()),
        };
        self.history.answer(number, &note);
        result
    }

    /// A result's file and its stream, and what they are.
    pub fn fetch(
        &self,
        client: &str,
        job: &ClientJob,
        row: &Value,
        target: &(String, NodeApi),
    ) -> Result<(), CallFailure> {
        let (node, api) = target;
        let said = |bytes: &Vec<u8>| json!({ "bytes": bytes.len(), "sum": format!("{:016x}", sum(bytes)) });
        let out = &row["files"]["out"];
        let hash = out["hash"].as_str().unwrap_or_default();
        let fields = json!({ "job": job.name, "task": row["task"], "file": "out", "hash": hash });
        let path = format!("/v1/blobs/{hash}");
        self.noted(
            CallNote(client, node, "fetch", fields),
            || api.bytes(&path, CALL_LIMIT),
            said,
        )?;
        let fields = json!({ "job": job.name, "task": row["task"], "file": "stdout" });
        let path = format!(
            "/v1/jobs/{}/tasks/{}/log?stream=stdout",
            job.id, row["task"]
        );
        self.noted(
            CallNote(client, node, "fetch", fields),
            || api.bytes(&path, CALL_LIMIT),
            said,
        )
        .map(|_| ())
    }

    /// Drains a node for a while, again and again.
    pub fn drain_nodes(&self, client: &str, rng: &mut Rng) {
        while !self.is_over() {
            self.rest(Duration::from_millis(rng.between(4_000, 12_000)));
            let (node, api) = self.any_node(rng);
            if self.drain(client, &node, &api, true) {
                self.rest(Duration::from_millis(rng.between(2_000, 8_000)));
                self.drain(client, &node, &api, false);
            }
        }
    }

    pub fn drain(&self, client: &str, node: &str, api: &NodeApi, on: bool) -> bool {
        let body = json!({ "on": on });
        let ask = || api.post("/v1/drain", Some(&body), CALL_LIMIT);
        let note = CallNote(client, node, "drain", json!({ "on": on }));
        self.noted(note, ask, |_| json!({})).is_ok()
    }

    fn rest(&self, time: Duration) {
        let end = Instant::now() + time;
        while Instant::now() < end && !self.is_over() {
            pause(Duration::from_millis(50));
        }
    }
}

fn ended(page: &Value) -> bool {
    matches!(
        page["progress"]["phase"].as_str(),
        Some("done" | "failed" | "cancelled")
    )
}

fn progress(page: &Value) -> Value {
    let progress = &page["progress"];
    json!({ "phase": progress["phase"], "tasks": progress["tasks"], "done": progress["done"], "failed": progress["failed"] })
}

/// What a history keeps of results.
fn rows(page: &Value) -> Vec<Value> {
    let row = |result: &Value| {
        let files = result["outputs"].as_array().into_iter().flatten();
        let files = files.map(|file| {
            (
                file["path"].as_str().unwrap_or_default().to_string(),
                json!({ "hash": file["hash"], "bytes": file["bytes"] }),
            )
        });
        let mut row = json!({
            "task": result["task"], "status": result["status"], "attempt": result["attempt"], "by": result["node_name"],
            "value": result["value"]["of"], "files": files.collect::<serde_json::Map<_, _>>(),
        });
        if !result["failure"].is_null() {
            row["failure"] = result["failure"].clone();
        }
        row
    };
    page["results"]
        .as_array()
        .into_iter()
        .flatten()
        .map(row)
        .collect()
}

/// FNV-1a, 64 bits.
pub fn sum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |sum, byte| {
        (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// Faults and clients keep to a schedule: here time itself is what is waited for.
#[allow(clippy::disallowed_methods)]
pub fn pause(time: Duration) {
    std::thread::sleep(time);
}
