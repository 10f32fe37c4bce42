//! Tasks as calls. A worker is a thread and a process for the tasks of one job on one set of GPUs,
//! one after the other: the thread prepares a task's directory, has the process run it, collects
//! what it left and tells the node, all without waking anybody else. A worker whose process ends is
//! over; the next task gets another.

use super::{
    call::AttemptCall,
    idle::IdleWorker,
    process::WorkerProcess,
    start,
    talk::{Talk, WorkerMessage},
    workers::{CountedThread, PersistentWorkers},
};
use crate::{
    attempt::{self, AttemptContext, Equipment, NeverRan, Remains},
    collect::Verdict,
    directory, environment,
    expand::Expander,
    metrics::Meter,
    protocol::{ProcessEnd, Usage},
    staging::Staged,
    streams, supervisor,
};
use nodectl_ports::Event;
use nodectl_types::{ErrorReport, Failure, WorkerSpec};
use nodectl_wire::frames::{FromWorker, ToWorker};
use serde_json::{Map, json};
use std::{
    io,
    path::{Path, PathBuf},
    sync::{Arc, mpsc},
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

/// A process that has said `READY`, and what its calls share.
struct ReadyWorker {
    workers: Arc<PersistentWorkers>,
    context: Arc<AttemptContext>,
    process: WorkerProcess,
    talk: Talk,
    /// Held while the process uses it.
    equipment: Equipment,
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
enum AfterCall {
    /// The worker waits for the next call.
    Goes(mpsc::Receiver<AttemptCall>),
    Over,
    /// The process had ended before the call began: it is another's.
    Untouched,
}

impl PersistentWorkers {
    /// Gives an attempt to a worker that waits, or to a new one. Returns at once.
    pub fn call(self: &Arc<Self>, call: AttemptCall) {
        let waiting = self.idle().take(call.task.job, &call.task.gpus);
        let call = match waiting.map(|worker| worker.calls.send(call.clone())) {
            Some(Ok(())) => return,
            Some(Err(mpsc::SendError(call))) => call,
            None => call,
        };
        let (workers, theirs) = (self.clone(), call.clone());
        let started = thread::Builder::new()
            .name("worker".into())
            .spawn(move || live(&workers, theirs));
        if let Err(error) = started {
            let context = self.context.clone();
            let why = Failure::Inputs(format!("no thread for a worker: {error}")).into();
            self.context.runtime.spawn(async move {
                context.running().remove(&attempt::key(&call.task));
                let event = context.never_ran(&call.task, call.started_ms, why);
                context.node.tell(Event::Worker(event)).await;
            });
        }
    }
}

/// A worker from its first call to its end.
fn live(workers: &Arc<PersistentWorkers>, mut call: AttemptCall) {
    let _counted = CountedThread::new(workers);
    loop {
        let worker = match ReadyWorker::start(workers, &call) {
            Ok(worker) => worker,
            Err(why) => return tell_no_worker(&workers.context, &call, why),
        };
        match worker.serve(call) {
            // Its process ended while it waited.
            Some(next) => call = next,
            None => return,
        }
    }
}

fn tell_no_worker(context: &AttemptContext, call: &AttemptCall, why: NeverRan) {
    call.stop.let_go();
    let remains = Remains {
        dir: call.dir(context),
        outputs: Vec::new(),
        started_ms: call.started_ms,
        verdict: why.into(),
        usage: Usage::default(),
    };
    let event = context.ended_event(&call.task, &Staged::default(), &remains);
    context.remover.remove(remains.dir);
    context.tell_end(&call.task, event);
}

impl ReadyWorker {
    /// Has a process ready for the call's job, with the call's directory in place: what `__init__`
    /// prints goes to the log of the task that it is started for.
    fn start(workers: &Arc<PersistentWorkers>, call: &AttemptCall) -> Result<Self, NeverRan> {
        let begun = Instant::now();
        let context = &workers.context;
        let equipping = context.equip(&call.task, &call.stop);
        let equipment = context.runtime.block_on(equipping)?;
        let dir = context.layout.worker(call.task.job, workers.next_number());
        start::make_directories(&call.dir(context), &dir, &equipment.staged, call)
            .map_err(|error| context.no_directory(&dir, &error))?;
        let own = start::own_variables(&call.task)?;
        let python = equipment.environment.as_deref();
        let mut process = workers.launch(&call.task, &dir, &own, python, None)?;
        call.stop.ends(&process.link, process.launched.id);
        let (talk, pid) = match start::ready(context, call, &mut process) {
            Ok(ready) => ready,
            Err(error) => {
                context.runtime.block_on(process.end());
                context.remover.remove(dir);
                if call.stop.is_asked() {
                    return Err(NeverRan::Stopped);
                }
                return Err(Failure::Init(error).into());
            }
        };
        Ok(Self {
            workers: workers.clone(),
            context: context.clone(),
            process,
            talk,
            equipment,
            dir,
            pid,
            peak_rss_bytes: 0,
            startup: begun.elapsed(),
            spare: None,
            of_call: start::variables_of_calls(&call.task),
        })
    }

    /// Runs its calls until it is no longer needed or its process has ended. Gives back one that it
    /// could not begin.
    fn serve(mut self, first: AttemptCall) -> Option<AttemptCall> {
        let mut call = first;
        let mut is_first = true;
        let untouched = loop {
            let inbox = match self.run(&call, is_first) {
                AfterCall::Goes(inbox) => inbox,
                AfterCall::Over => break None,
                AfterCall::Untouched => break Some(call),
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

    fn run(&mut self, call: &AttemptCall, is_first: bool) -> AfterCall {
        if !is_first && self.process.is_over() {
            return AfterCall::Untouched;
        }
        let context = self.context.clone();
        let dir = call.dir(&context);
        let begun = context.clock.now();
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
                        return AfterCall::Untouched;
                    }
                    _ => self.answer(call, &dir, begun, is_first),
                }
            }
        };
        let usage = self.usage(begun, cpu_before);
        let is_stopped = call.stop.let_go();
        let is_broken = matches!(
            verdict,
            Verdict::Failed(Failure::Device(_) | Failure::DeviceLost(_))
        );
        if let Verdict::Failed(Failure::DeviceLost(error)) = &verdict {
            // Before the end is told: what is ordered then is for the GPUs that are left.
            context.gpus.lost(&call.task.gpus, &error.message);
        }
        let remains = Remains {
            dir,
            outputs,
            started_ms: call.started_ms,
            verdict,
            usage,
        };
        let event = context.ended_event(&call.task, &self.equipment.staged, &remains);
        let dir = remains.dir;
        let after = if is_stopped || is_broken || self.process.is_over() {
            AfterCall::Over
        } else {
            self.wait_for_more(call)
        };
        // What it waited for comes sooner if it is told now, and the directory is cleared
        // meanwhile.
        context.tell_end(&call.task, event);
        // The first one's streams are the worker's too. What a call left running may write where it
        // stands.
        let can_be_passed_on = !is_first && !supervisor::has_children(self.pid);
        if can_be_passed_on && directory::is_as_made(&dir, &self.equipment.staged) {
            self.spare = Some(dir);
        } else {
            context
                .remover
                .remove_attempt(dir, &self.equipment.staged, true);
        }
        after
    }

    /// Before the end of the call is told, so that the next one finds it.
    fn wait_for_more(&self, call: &AttemptCall) -> AfterCall {
        let (calls, inbox) = mpsc::sync_channel(1);
        let (gpus, startup) = (call.task.gpus.clone(), self.startup);
        self.workers.idle().put(
            call.task.job,
            IdleWorker {
                calls,
                gpus,
                since: Instant::now(),
                startup,
            },
        );
        AfterCall::Goes(inbox)
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
            directory::make(dir, &self.equipment.staged, &call.task.params)
                .map_err(|error| self.context.no_directory(dir, &error))?;
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
            self.context.remover.remove(spare);
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
            let taken = self.context.clock.now().saturating_sub(begun);
            let left = work
                .timeout_ms
                .map(|limit| Duration::from_millis(limit).saturating_sub(taken));
            let patience = if is_told { LOOK } else { TOLD };
            let is_soon = !is_late && !self.context.clock.is_suspended();
            let patience = left
                .filter(|_| is_soon)
                .map_or(patience, |left| left.min(patience));
            match self.talk.receive(patience) {
                Ok(Some(message)) => match answered(message, u64::from(call.task.task)) {
                    Some(verdict) => {
                        // The last words count: a call may be over before it is looked at.
                        self.context.tell_metrics(&call.task, &mut meter, dir);
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
                call.tell_started(&self.context);
            }
            self.context.tell_metrics(&call.task, &mut meter, dir);
            streams::trim(dir, work.log_limit_bytes);
            if left.is_some_and(|left| left.is_zero()) && !std::mem::replace(&mut is_late, true) {
                self.process.link.stop(self.process.launched.id);
            }
        }
    }

    /// The stream ended before an answer came.
    fn died(&mut self, is_late: bool, call: &AttemptCall) -> Verdict {
        let (end, usage) = self.context.runtime.block_on(self.process.end());
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
        self.context.runtime.block_on(self.process.end());
        let message = format!(
            "the connection to the worker broke: {why}\nhint: does the task's code write to descriptors that it did not open?"
        );
        Verdict::Failed(Failure::Raised(ErrorReport::without_exception(message)))
    }

    fn usage(&mut self, begun: Duration, cpu_before: Option<u64>) -> Usage {
        let duration = self.context.clock.now().saturating_sub(begun);
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
        self.context.runtime.block_on(self.process.end());
        for dir in self.spare.into_iter().chain([self.dir]) {
            self.context.remover.remove(dir);
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
