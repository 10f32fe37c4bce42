//! Tasks as calls. A worker is a thread and a process for the tasks of one job on one set of GPUs,
//! one after the other: the thread prepares a task's directory, has the process run it, collects
//! what it left and tells the node, all without waking anybody else. A worker whose process ends is
//! over; the next task gets another.

use super::{
    super::{
        collect::{self, EndedAttempt, Verdict},
        directory, environment,
        environments::MadeEnvironment,
        expand::Expander,
        metrics::Meter,
        protocol::{ProcessEnd, Usage},
        runner::{Inner, ended_event, metric_event, stopped},
        staging::Staged,
        stop::Stop,
        streams, supervisor,
    },
    Persistent,
    idle::{IdleWorker, IdleWorkers},
    process::WorkerProcess,
    start,
    talk::{Talk, WorkerMessage},
};
use nodectl_ports::{Event, StartTask, WorkerEvent};
use nodectl_types::{ErrorReport, Failure, WorkerSpec, template};
use nodectl_wire::frames::{FromWorker, ToWorker};
use serde_json::{Map, json};
use std::{
    io,
    path::{Path, PathBuf},
    sync::{Arc, MutexGuard, PoisonError, mpsc},
    thread,
    time::{Duration, Instant},
};

/// A call that takes longer is told to have started. To tell it of every short one costs more than
/// the call.
const TOLD: Duration = Duration::from_millis(20);
/// How often a call that goes on is looked at.
const LOOK: Duration = Duration::from_millis(250);
/// A shorter call is not worth asking how much memory its process has had.
const MEMORY_LOOK: Duration = Duration::from_millis(50);

/// An attempt.
#[derive(Clone)]
pub struct AttemptCall {
    pub task: Arc<StartTask>,
    pub stop: Arc<Stop>,
    pub started_ms: u64,
}

/// A process that has said `READY`, and what its calls share.
struct ReadyWorker {
    inner: Arc<Inner>,
    process: WorkerProcess,
    talk: Talk,
    staged: Arc<Staged>,
    /// Held while its process uses it.
    _environment: Option<Arc<MadeEnvironment>>,
    dir: PathBuf,
    pid: u32,
    peak_rss_bytes: u64,
    startup: Duration,
    /// The directory of a call that left it as it was.
    spare: Option<PathBuf>,
    /// The job's variables with placeholders, which differ between tasks.
    of_call: Vec<(String, String)>,
}

/// What a call left of its worker.
enum After {
    /// The worker waits for the next call.
    Goes(mpsc::Receiver<AttemptCall>),
    Over,
    /// The process had ended before the call began: it is another's.
    Untouched,
}

/// Why there is no worker.
enum NoWorker {
    Stopped,
    Failed(Failure),
}

impl From<Failure> for NoWorker {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

impl Inner {
    /// Gives an attempt to a worker that waits, or to a new one. Returns at once.
    pub(in super::super) fn call(self: &Arc<Self>, call: AttemptCall) {
        let waiting = self.idle().take(call.task.job, &call.task.gpus);
        let call = match waiting.map(|worker| worker.calls.send(call.clone())) {
            Some(Ok(())) => return,
            Some(Err(mpsc::SendError(call))) => call,
            None => call,
        };
        let (inner, theirs) = (self.clone(), call.clone());
        let started = thread::Builder::new()
            .name("worker".into())
            .spawn(move || live(&inner, theirs));
        if let Err(error) = started {
            let inner = self.clone();
            let failure = Failure::Inputs(format!("no thread for a worker: {error}"));
            self.runtime.spawn(async move {
                inner.running().remove(&call.key());
                inner
                    .node
                    .tell(Event::Worker(inner.never_ran(
                        &call.task,
                        call.started_ms,
                        failure,
                    )))
                    .await;
            });
        }
    }

    pub(in super::super) fn idle(&self) -> MutexGuard<'_, IdleWorkers> {
        self.persistent
            .idle
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

/// Counts a thread while it lives.
struct Counted<'a>(&'a Persistent);

impl<'a> Counted<'a> {
    fn new(workers: &'a Persistent) -> Self {
        *workers
            .threads
            .lock()
            .unwrap_or_else(PoisonError::into_inner) += 1;
        Self(workers)
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        *self
            .0
            .threads
            .lock()
            .unwrap_or_else(PoisonError::into_inner) -= 1;
        self.0.thread_ended.notify_all();
    }
}

/// A worker from its first call to its end.
fn live(inner: &Arc<Inner>, mut call: AttemptCall) {
    let _counted = Counted::new(&inner.persistent);
    loop {
        let worker = match ReadyWorker::start(inner, &call) {
            Ok(worker) => worker,
            Err(why) => return tell_no_worker(inner, &call, why),
        };
        match worker.serve(call) {
            // Its process ended while it waited.
            Some(next) => call = next,
            None => return,
        }
    }
}

fn tell_no_worker(inner: &Inner, call: &AttemptCall, why: NoWorker) {
    let dir = call.dir(inner);
    call.stop.let_go();
    let event = match why {
        NoWorker::Stopped => stopped(&call.task),
        NoWorker::Failed(failure) => {
            let ended = (Verdict::Failed(failure), Usage::default());
            call.record(inner, &dir, &Staged::default(), &[], ended)
        }
    };
    inner.remover.remove(dir);
    call.tell(inner, event);
}

impl AttemptCall {
    fn key(&self) -> super::super::runner::AttemptKey {
        (self.task.job, self.task.task, self.task.attempt)
    }

    pub(super) fn dir(&self, inner: &Inner) -> PathBuf {
        inner
            .layout
            .task(self.task.job, self.task.task, self.task.attempt)
    }

    /// The event of its end.
    fn record(
        &self,
        inner: &Inner,
        dir: &Path,
        staged: &Staged,
        outputs: &[String],
        (verdict, usage): (Verdict, Usage),
    ) -> WorkerEvent {
        let (task, node, disk, started_ms) =
            (&*self.task, inner.node_id, &*inner.disk, self.started_ms);
        let ended = EndedAttempt {
            task,
            node,
            disk,
            staged,
            outputs,
            started_ms,
            verdict,
            usage,
        };
        ended_event(task.job, collect::collect(&ended, dir, &*inner.blobs))
    }

    fn tell(&self, inner: &Inner, event: WorkerEvent) {
        inner.running().remove(&self.key());
        inner.node.blocking_tell(Event::Worker(event));
    }

    /// What a sweep's task has reported since the last look.
    fn tell_metrics(&self, inner: &Inner, meter: &mut Option<Meter>, dir: &Path) {
        let points = meter
            .as_mut()
            .map(|meter| meter.read(dir))
            .unwrap_or_default();
        if !points.is_empty() {
            inner
                .node
                .blocking_tell(Event::Worker(metric_event(&self.task, points)));
        }
    }

    pub(super) fn tell_started(&self, inner: &Inner) {
        let (job, task, attempt) = self.key();
        inner
            .node
            .blocking_tell(Event::Worker(WorkerEvent::Started { job, task, attempt }));
    }

    pub(super) fn worker(&self) -> &WorkerSpec {
        self.task
            .work
            .worker
            .as_ref()
            .expect("a call is one of a worker's")
    }
}

impl ReadyWorker {
    /// Has a process ready for the call's job, with the call's directory in place: what `__init__`
    /// prints goes to the log of the task that it is started for.
    fn start(inner: &Arc<Inner>, call: &AttemptCall) -> Result<Self, NoWorker> {
        let begun = Instant::now();
        let equipped = inner.runtime.block_on(async {
            tokio::select! {
                equipped = inner.equip(&call.task) => Some(equipped),
                () = call.stop.asked() => None,
            }
        });
        let (staged, environment) = equipped.ok_or(NoWorker::Stopped)??;
        let dir = inner
            .layout
            .worker(call.task.job, inner.persistent.next_number());
        start::make_directories(&call.dir(inner), &dir, &staged, call)
            .map_err(|error| inner.no_directory(&dir, &error))?;
        let own = start::own_variables(&call.task)?;
        let mut process = inner.launch_worker(&call.task, &dir, &own, environment.as_deref())?;
        call.stop.ends(&process.link, process.launched.id);
        let (talk, pid) = match start::ready(inner, call, &mut process) {
            Ok(ready) => ready,
            Err(error) => {
                inner.runtime.block_on(process.end());
                inner.remover.remove(dir);
                if call.stop.is_asked() {
                    return Err(NoWorker::Stopped);
                }
                return Err(Failure::Init(error).into());
            }
        };
        let of_call = call
            .task
            .work
            .env
            .iter()
            .filter(|(_, value)| has_placeholders(value))
            .cloned()
            .collect();
        let (inner, startup) = (inner.clone(), begun.elapsed());
        Ok(Self {
            inner,
            process,
            talk,
            staged,
            _environment: environment,
            dir,
            pid,
            peak_rss_bytes: 0,
            startup,
            spare: None,
            of_call,
        })
    }

    /// Runs its calls until it is no longer needed or its process has ended. Gives back one that it
    /// could not begin.
    fn serve(mut self, first: AttemptCall) -> Option<AttemptCall> {
        let mut call = first;
        let mut is_first = true;
        let untouched = loop {
            let inbox = match self.run(&call, is_first) {
                After::Goes(inbox) => inbox,
                After::Over => break None,
                After::Untouched => break Some(call),
            };
            is_first = false;
            match inbox.recv() {
                Ok(next) => call = next,
                Err(mpsc::RecvError) => break None,
            }
        };
        self.end();
        untouched
    }

    fn run(&mut self, call: &AttemptCall, is_first: bool) -> After {
        if !is_first && self.process.is_over() {
            return After::Untouched;
        }
        let inner = self.inner.clone();
        let dir = call.dir(&inner);
        let begun = inner.clock.now();
        let cpu_before = supervisor::cpu_us(self.pid);
        let mut outputs = Vec::new();
        let mut expander = Expander::new(&call.task);
        let prepared = self
            .prepare(call, &dir, is_first, &mut expander)
            .and_then(|message| {
                outputs = expander.all(&call.task.work.outputs)?;
                Ok(message)
            });
        let verdict = match prepared {
            Err(failure) => Verdict::Failed(failure),
            Ok(message) => {
                call.stop.ends(&self.process.link, self.process.launched.id);
                match self
                    .talk
                    .send(ToWorker::Run, u64::from(call.task.task), &message)
                {
                    Err(_) if !is_first && !call.stop.is_asked() => {
                        call.stop.let_go();
                        return After::Untouched;
                    }
                    _ => self.answer(call, &dir, begun, is_first),
                }
            }
        };
        let usage = self.usage(begun, cpu_before);
        let is_stopped = call.stop.let_go();
        let is_broken = matches!(verdict, Verdict::Failed(Failure::Device(_)));
        let event = match verdict {
            Verdict::Process(ProcessEnd::Stopped) => stopped(&call.task),
            verdict => call.record(&inner, &dir, &self.staged, &outputs, (verdict, usage)),
        };
        let after = if is_stopped || is_broken || self.process.is_over() {
            After::Over
        } else {
            self.wait_for_more(call)
        };
        // What it waited for comes sooner if it is told now, and the directory is cleared
        // meanwhile.
        call.tell(&inner, event);
        // The first one's streams are the worker's too. What a call left running may write where it
        // stands.
        let can_be_passed_on = !is_first && !supervisor::has_children(self.pid);
        if can_be_passed_on && directory::is_as_made(&dir, &self.staged) {
            self.spare = Some(dir);
        } else {
            inner.remover.remove_attempt(dir, &self.staged);
        }
        after
    }

    /// Before the end of the call is told, so that the next one finds it.
    fn wait_for_more(&self, call: &AttemptCall) -> After {
        let (calls, inbox) = mpsc::sync_channel(1);
        let (gpus, startup) = (call.task.gpus.clone(), self.startup);
        self.inner.idle().put(
            call.task.job,
            IdleWorker {
                calls,
                gpus,
                since: Instant::now(),
                startup,
            },
        );
        After::Goes(inbox)
    }

    /// Makes the call's directory, unless that is done, and the message that begins it.
    fn prepare(
        &mut self,
        call: &AttemptCall,
        dir: &Path,
        is_made: bool,
        expander: &mut Expander<'_>,
    ) -> Result<Vec<u8>, Failure> {
        if !is_made && !self.reuse(call, dir) {
            directory::make(dir, &self.staged, &call.task.params)
                .map_err(|error| self.inner.no_directory(dir, &error))?;
        }
        let place = dir.to_string_lossy();
        let task = &call.task;
        let ours = [
            task.task.to_string(),
            task.attempt.number.to_string(),
            place.to_string(),
        ];
        let mut env: Map<_, _> = environment::OF_CALL
            .iter()
            .zip(ours)
            .map(|(name, value)| ((*name).into(), value.into()))
            .collect();
        env.extend(
            expander
                .env(&self.of_call)?
                .into_iter()
                .map(|(name, value)| (name, value.into())),
        );
        let is_ours = matches!(task.work.worker, Some(WorkerSpec::Builtin(_)));
        let kwargs = if is_ours {
            directory::spelled_json
        } else {
            directory::params_json
        }(&task.params);
        let message = json!({ "dir": place, "env": env, "kwargs": kwargs });
        Ok(message.to_string().into_bytes())
    }

    /// Whether the spare directory has become the call's.
    fn reuse(&mut self, call: &AttemptCall, dir: &Path) -> bool {
        let Some(spare) = self.spare.take() else {
            return false;
        };
        let passed_on = directory::pass_on(&spare, dir, &call.task.params);
        if passed_on.is_err() {
            self.inner.remover.remove(spare);
        }
        passed_on.is_ok()
    }

    /// Waits for what becomes of the call.
    fn answer(
        &mut self,
        call: &AttemptCall,
        dir: &Path,
        begun: Duration,
        is_told: bool,
    ) -> Verdict {
        let work = &call.task.work;
        let mut is_told = is_told;
        let mut is_late = false;
        let mut meter = work.sweep.as_ref().map(|sweep| Meter::new(&sweep.metric));
        loop {
            let taken = self.inner.clock.now().saturating_sub(begun);
            let left = work
                .timeout_ms
                .map(|limit| Duration::from_millis(limit).saturating_sub(taken));
            let patience = if is_told { LOOK } else { TOLD };
            let is_soon = !is_late && !self.inner.clock.is_suspended();
            let patience = left
                .filter(|_| is_soon)
                .map_or(patience, |left| left.min(patience));
            match self.talk.receive(patience) {
                Ok(Some(message)) => match answered(message, u64::from(call.task.task)) {
                    Some(verdict) => {
                        // The last words count: a call may be over before it is looked at.
                        call.tell_metrics(&self.inner, &mut meter, dir);
                        return verdict;
                    }
                    None => return self.broken("an answer to nothing that was asked"),
                },
                Ok(None) => {}
                Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                    return self.broken(&error.to_string());
                }
                Err(_) => return self.died(is_late, call),
            }
            if !std::mem::replace(&mut is_told, true) {
                call.tell_started(&self.inner);
            }
            call.tell_metrics(&self.inner, &mut meter, dir);
            streams::trim(dir, work.log_limit_bytes);
            if left.is_some_and(|left| left.is_zero()) && !std::mem::replace(&mut is_late, true) {
                self.process.link.stop(self.process.launched.id);
            }
        }
    }

    /// The stream ended before an answer came.
    fn died(&mut self, is_late: bool, call: &AttemptCall) -> Verdict {
        let (end, usage) = self.inner.runtime.block_on(self.process.end());
        self.peak_rss_bytes = self.peak_rss_bytes.max(usage.max_rss_bytes);
        match end {
            ProcessEnd::Stopped if is_late && !call.stop.is_asked() => {
                Verdict::Process(ProcessEnd::TimedOut)
            }
            // No answer is no success, whatever status it ended with.
            ProcessEnd::Exited(status) => Verdict::Failed(Failure::Exit(status)),
            end => Verdict::Process(end),
        }
    }

    /// The process wrote to its stream what the shim does not.
    fn broken(&mut self, why: &str) -> Verdict {
        self.process.link.stop(self.process.launched.id);
        self.inner.runtime.block_on(self.process.end());
        let message = format!(
            "the worker broke off: {why}\nhint: does the task's code write to descriptors that it did not open?"
        );
        Verdict::Failed(Failure::Raised(ErrorReport::without_exception(message)))
    }

    fn usage(&mut self, begun: Duration, cpu_before: Option<u64>) -> Usage {
        let duration = self.inner.clock.now().saturating_sub(begun);
        if duration >= MEMORY_LOOK || self.peak_rss_bytes == 0 {
            let peak = supervisor::peak_rss_bytes(self.pid).unwrap_or(0);
            self.peak_rss_bytes = self.peak_rss_bytes.max(peak);
        }
        let cpu_us = supervisor::cpu_us(self.pid)
            .zip(cpu_before)
            .map_or(0, |(now, before)| now.saturating_sub(before));
        let duration_us = u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
        Usage {
            duration_us,
            cpu_us,
            max_rss_bytes: self.peak_rss_bytes,
        }
    }

    /// Ends the process and clears its directory.
    fn end(mut self) {
        // It may have ended already.
        let _ = self.talk.send(ToWorker::Exit, 0, &[]);
        drop(self.talk);
        self.inner.runtime.block_on(self.process.end());
        for dir in self.spare.into_iter().chain([self.dir]) {
            self.inner.remover.remove(dir);
        }
    }
}

fn answered(message: WorkerMessage, id: u64) -> Option<Verdict> {
    match message.kind {
        FromWorker::Done if message.id == id => Some(Verdict::Returned {
            json: message.payload,
            total_bytes: message.total_bytes,
        }),
        FromWorker::Failed if message.id == id => {
            Some(Verdict::Failed(start::failure_of(&message.payload)))
        }
        _ => None,
    }
}

pub(super) fn has_placeholders(value: &str) -> bool {
    template::placeholders(value).is_ok_and(|found| !found.is_empty())
}
