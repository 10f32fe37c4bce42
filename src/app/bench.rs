//! What deciding costs: the real core drives a whole job of tasks that end at once, over a journal
//! that answers at once. No process, disk or network takes part, and the clock is made up, so that
//! nothing but the core's own work is measured.

use anyhow::{Context, bail};
use nodectl_logic::{Config, DiskEffect, Effect, Input, Lookup, Now, State, TaskEffect};
use nodectl_ports::processes::{Stat, TICK};
use nodectl_types::{
    Attempt, JobId, JobQuery, JobSpec, Needs, NodeId, NodeInfo, Outcome, Query, Record, Resources,
    StartTask, TaskIndex, TaskRecord, Terms, Time, WorkSpec, limits::RECORD_BATCH, query::Cursor,
};
use std::{collections::BTreeMap, sync::Arc, time::Duration};

/// Inputs that the core takes in one turn, as the node's loop has it.
const TURN: usize = 256;
/// What one turn advances the clock by.
const TURN_TIME: Duration = Duration::from_micros(100);
/// How long every task is said to have taken: what an empty process takes.
const TASK_US: u64 = 1000;
/// Longer than a job of instant tasks can take, in turns a task.
const TURNS_A_TASK: u64 = 8;
const THIS_NODE: NodeId = NodeId([7; 32]);

/// What one job cost.
#[derive(Clone, Copy, Debug)]
pub struct SchedulerCost {
    pub tasks: u32,
    pub slots: u32,
    /// Whether tasks of the measured job needed each other.
    pub graph: bool,
    /// CPU time of the whole job in the core, as coordinator and as executor.
    pub cpu: Duration,
    /// Appends to the journal, each of which costs a disk something.
    pub appends: u32,
}

impl SchedulerCost {
    pub fn ms_a_task(&self) -> f64 {
        self.cpu.as_secs_f64() * 1e3 / f64::from(self.tasks.max(1))
    }
}

/// Runs `tasks` tasks through the core of a node that runs `slots` of them at a time, with one user
/// following the job. As a `graph` each of them but the first needs another one.
pub fn scheduler(tasks: u32, slots: u32, graph: bool) -> anyhow::Result<SchedulerCost> {
    let mut drive = Drive::new(slots);
    drive.ask(Query::Submit {
        job: None,
        asked_before: 0,
        spec: Arc::new(spec(tasks, graph)),
    });
    let before = cpu_time()?;
    let mut turns = 0;
    while !drive.ended {
        turns += 1;
        if turns > u64::from(tasks) * TURNS_A_TASK + 1000 {
            bail!(
                "the job did not end within {turns} turns: {} of {tasks} tasks did",
                drive.done
            );
        }
        drive.turn();
    }
    if drive.done != tasks {
        bail!(
            "{} of {tasks} tasks were done when the job ended",
            drive.done
        );
    }
    Ok(SchedulerCost {
        tasks,
        slots,
        graph,
        cpu: cpu_time()?.saturating_sub(before),
        appends: drive.appends,
    })
}

/// CPU time of this process so far.
fn cpu_time() -> anyhow::Result<Duration> {
    let ticks = Stat::own()
        .context("reading this process's CPU time")?
        .ticks();
    let ticks = ticks.context("/proc/self/stat has no CPU times")?;
    Ok(TICK * u32::try_from(ticks)?)
}

/// A core and what is still to be told to it.
struct Drive {
    state: State,
    inbox: Vec<Input>,
    time: Time,
    asked: u64,
    done: u32,
    appends: u32,
    ended: bool,
}

impl Drive {
    fn new(slots: u32) -> Self {
        let time = Time(1_000_000);
        let info = NodeInfo {
            id: THIS_NODE,
            version: 1,
            name: "bench".into(),
            software: env!("CARGO_PKG_VERSION").into(),
            model: String::new(),
            addrs: Vec::new(),
            resources: Resources {
                cpu_milli: slots.saturating_mul(1000),
                ..Resources::default()
            },
            gpus: Vec::new(),
            labels: BTreeMap::new(),
            draining: false,
            closed: None,
            admits: Default::default(),
            leaving: false,
            returning: false,
            problem: None,
            seeks_gpus: false,
        };
        let (keep_jobs, terms) = (Duration::from_secs(3600), Terms::default());
        let config = Config {
            seed: 1,
            generation: 1,
            keep_jobs,
            lifetime: None,
            terms,
            alone: false,
        };
        let mut state = State::new(
            Now {
                mono: time,
                wall_ms: 0,
            },
            info,
            config,
        );
        // The first timers; nothing else comes of a start without peers.
        state.start();
        Self {
            state,
            inbox: Vec::new(),
            time,
            asked: 0,
            done: 0,
            appends: 0,
            ended: false,
        }
    }

    fn ask(&mut self, query: Query) {
        self.asked += 1;
        self.inbox.push(Input::Ask {
            id: self.asked,
            query,
        });
    }

    fn watch(&mut self, job: JobId, cursor: Cursor) {
        self.ask(Query::Job(
            job,
            JobQuery::Watch {
                cursor,
                wait_ms: 8000,
                limit: RECORD_BATCH as u32,
            },
        ));
    }

    /// Everything that happened, at most a turn's worth; with nothing to tell, the next timer.
    fn turn(&mut self) {
        self.time = self.time + TURN_TIME;
        if self.inbox.is_empty() {
            self.time = self
                .state
                .next_deadline()
                .map_or(self.time, |deadline| deadline.max(self.time));
        }
        let rest = self.inbox.split_off(self.inbox.len().min(TURN));
        let inputs = std::mem::replace(&mut self.inbox, rest);
        let now = Now {
            mono: self.time,
            wall_ms: self.time.0 / 1000,
        };
        for effect in self.state.handle(now, inputs) {
            self.follow(effect);
        }
    }

    fn follow(&mut self, effect: Effect) {
        match effect {
            Effect::Disk(DiskEffect::Persist {
                job,
                records,
                ticket,
            }) => {
                self.appends += 1;
                records.iter().for_each(|record| self.note(job, record));
                self.inbox.push(Input::Persisted {
                    ticket,
                    result: Ok(()),
                });
            }
            Effect::Task(TaskEffect::Start(StartTask {
                job, task, attempt, ..
            })) => {
                self.inbox.push(Input::TaskStarted { job, task, attempt });
                self.inbox.push(Input::TaskEnded {
                    job,
                    record: Box::new(record(task, attempt)),
                });
            }
            Effect::LookUp {
                lookup:
                    Lookup::Watch {
                        job,
                        cursor,
                        progress,
                        ..
                    },
                ..
            } if !progress.phase.is_ended() => self.watch(job, cursor),
            _ => {}
        }
    }

    fn note(&mut self, job: JobId, record: &Record) {
        match record {
            Record::Spec(_) => self.watch(job, Cursor::default()),
            Record::Head(head) => {
                self.done = head.done;
                self.ended = head.phase.is_ended();
            }
            Record::Task(_) => {}
        }
    }
}

/// A tree of tasks that are all alike: each needs the one that is half as far from the first.
fn tree(tasks: u32) -> Needs {
    Needs::of_rows((0..tasks).map(|task| task.checked_sub(1).map(|before| before / 2)))
}

fn spec(tasks: u32, graph: bool) -> JobSpec {
    let work = WorkSpec::plain("bench", &["true"]);
    JobSpec {
        repeat: tasks,
        speculate: true,
        needs: match graph {
            true => tree(tasks),
            false => Needs::default(),
        },
        ..JobSpec::plain(work, THIS_NODE)
    }
}

fn record(task: TaskIndex, attempt: Attempt) -> TaskRecord {
    TaskRecord {
        duration_us: TASK_US,
        ..TaskRecord::plain(task, attempt, THIS_NODE, Outcome::Done)
    }
}
