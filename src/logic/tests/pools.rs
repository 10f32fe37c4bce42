//! A pool's workers beside other work on one node, and a pool without its host.

use super::*;
use nodectl_types::{
    Attempt, JobHead, Outcome, PythonWorker, Resources, StartTask, TaskIndex, TaskRecord,
    WorkerRole, WorkerSpec,
};

const TOKEN: [u8; 16] = [5; 16];

/// A node of two cores, alone, whose disk always works.
struct Lone {
    state: State,
    now: Now,
    asked: u64,
    /// What runs, as (name, task, attempt), by when it started.
    running: Vec<(JobId, String, TaskIndex, Attempt)>,
    /// What the hosts of pools were asked for: `must`.
    released: Vec<bool>,
    /// What tasks of the jobs need that are submitted.
    need: Resources,
}

impl Lone {
    fn new() -> Self {
        let now = Now {
            mono: Time(1),
            wall_ms: 1_000,
        };
        Self {
            state: node(),
            now,
            asked: 0,
            running: Vec::new(),
            released: Vec::new(),
            need: spec().work.resources.clone(),
        }
    }

    fn turn(&mut self, input: Input) {
        let mut inputs = vec![input];
        while !inputs.is_empty() {
            let effects = self.state.handle(self.now, std::mem::take(&mut inputs));
            for effect in effects {
                match effect {
                    Effect::Disk(DiskEffect::Persist { ticket, .. }) => {
                        inputs.push(Input::Persisted {
                            ticket,
                            result: Ok(()),
                        })
                    }
                    Effect::Task(TaskEffect::Start(StartTask {
                        job,
                        task,
                        attempt,
                        work,
                        ..
                    })) => {
                        self.running.push((job, work.name.clone(), task, attempt));
                        inputs.push(Input::TaskStarted { job, task, attempt });
                    }
                    Effect::Task(TaskEffect::Stop {
                        job, task, attempt, ..
                    }) => {
                        self.running
                            .retain(|(of, _, number, _)| (*of, *number) != (job, task));
                        inputs.push(Input::TaskStopped { job, task, attempt });
                    }
                    Effect::Task(TaskEffect::ReleaseWorker {
                        pool: TOKEN, must, ..
                    }) => self.released.push(must),
                    _ => {}
                }
            }
        }
    }

    /// Lets time pass, timer by timer.
    fn pass(&mut self, duration: Duration) {
        let end = self.now.mono + duration;
        while self
            .state
            .next_deadline()
            .is_some_and(|deadline| deadline <= end)
        {
            self.now.mono = self
                .now
                .mono
                .max(self.state.next_deadline().expect("just seen"));
            self.turn(Input::Tick);
        }
        self.now.mono = end;
    }

    fn submit(&mut self, name: &str, worker: Option<WorkerSpec>, tasks: u32) {
        let spec = spec();
        let command = if worker.is_some() {
            Vec::new()
        } else {
            vec!["true".to_string()]
        };
        let work = WorkSpec {
            name: name.into(),
            command,
            worker,
            resources: self.need.clone(),
            ..(*spec.work).clone()
        };
        let spec = JobSpec {
            work: Arc::new(work),
            repeat: tasks,
            submitted_ms: self.now.wall_ms,
            ..(*spec).clone()
        };
        self.asked += 1;
        self.turn(Input::Ask {
            id: self.asked,
            query: Query::Submit {
                job: None,
                asked_before: 0,
                spec: Arc::new(spec),
            },
        });
    }

    fn submit_pool(&mut self, name: &str, host: NodeId) {
        let role = WorkerRole::Pool { host, token: TOKEN };
        self.submit(
            name,
            Some(WorkerSpec::Python(PythonWorker {
                python: "python3".into(),
                role,
            })),
            8,
        );
    }

    /// The first of a job's tasks that runs ends well.
    fn end(&mut self, name: &str) {
        let index = self
            .running
            .iter()
            .position(|(_, of, ..)| of == name)
            .expect("it runs");
        let (job, _, task, attempt) = self.running.remove(index);
        let record = TaskRecord::plain(task, attempt, self.state.node(), Outcome::Done);
        let record = TaskRecord {
            duration_us: 1_000_000,
            ..record
        };
        self.turn(Input::TaskEnded {
            job,
            record: Box::new(record),
        });
    }

    fn runs(&self, name: &str) -> usize {
        self.running.iter().filter(|(_, of, ..)| of == name).count()
    }

    fn head(&self, name: &str) -> JobHead {
        self.state
            .core()
            .directory
            .iter()
            .find(|head| head.name == name)
            .expect("it was submitted")
            .clone()
    }
}

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

#[test]
fn a_pool_gives_way_to_a_job_and_its_worker_loses_nothing() {
    let mut node = Lone::new();
    node.submit_pool("pool", node.state.node());
    assert_eq!(
        node.runs("pool"),
        2,
        "all of the node while nobody else is there"
    );
    node.pass(seconds(30));
    assert_eq!(node.released, [] as [bool; 0]);
    node.submit("job", None, 3);
    node.pass(Duration::from_millis(600));
    assert_eq!(node.released, [false], "its host knows if it is idle");
    node.pass(seconds(1));
    assert_eq!(node.released.iter().filter(|must| **must).count(), 1);
    node.pass(seconds(30));
    assert_eq!(
        node.released.iter().filter(|must| **must).count(),
        1,
        "one is its share"
    );
    node.end("pool");
    assert_eq!((node.runs("pool"), node.runs("job")), (1, 1));
    for _ in 0..3 {
        assert_eq!(
            node.runs("job"),
            1,
            "the slot is the job's until it is done"
        );
        node.end("job");
    }
    assert_eq!(node.runs("pool"), 2, "then it is the pool's again");
    let pool = node.head("pool");
    assert_eq!((pool.phase, pool.done, pool.failed), (Phase::Running, 0, 0));
}

#[test]
fn pools_take_turns_where_there_are_fewer_slots() {
    let mut node = Lone::new();
    let me = node.state.node();
    (0..3).for_each(|number| node.submit_pool(&format!("p{number}"), me));
    let mut turns = std::collections::BTreeMap::<String, u32>::new();
    for _ in 0..200 {
        node.pass(Duration::from_millis(500));
        let names: Vec<String> = node
            .running
            .iter()
            .map(|(_, name, ..)| name.clone())
            .collect();
        // Whoever is asked lets a worker go: the pool that has held its slots longest.
        if std::mem::take(&mut node.released).contains(&true) {
            node.end(&names[0]);
        }
        names
            .into_iter()
            .for_each(|name| *turns.entry(name).or_default() += 1);
    }
    assert!(
        turns.len() == 3 && turns.values().all(|count| *count > 60),
        "{turns:?}"
    );
}

#[test]
fn an_idle_pool_that_gave_way_rests() {
    let mut node = Lone::new();
    node.submit_pool("pool", node.state.node());
    node.submit("job", None, 30);
    while node.runs("pool") > 0 {
        node.pass(Duration::from_millis(500));
        node.end("pool");
    }
    for _ in 0..20 {
        assert_eq!((node.runs("job"), node.runs("pool")), (2, 0));
        node.end("job");
        node.pass(Duration::from_millis(100));
    }
    node.released.clear();
    (0..10).for_each(|_| node.end("job"));
    assert_eq!(node.runs("pool"), 2, "nobody else waits");
}

#[test]
fn workers_that_hold_too_little_one_by_one_give_way_together() {
    let mut node = Lone::new();
    let need = std::mem::replace(
        &mut node.need,
        Resources {
            cpu_milli: 500,
            ..Resources::default()
        },
    );
    node.submit_pool("pool", node.state.node());
    assert_eq!(node.runs("pool"), 4);
    node.need = need;
    node.submit("job", None, 1);
    node.pass(Duration::from_millis(600));
    assert_eq!(
        node.released,
        [false],
        "two of them hold what the job needs"
    );
    node.end("pool");
    assert_eq!(node.runs("pool"), 3, "it takes nothing back meanwhile");
    node.pass(Duration::from_millis(500));
    assert_eq!(node.released, [false, true]);
    node.end("pool");
    assert_eq!((node.runs("pool"), node.runs("job")), (2, 1));
    node.end("job");
    assert_eq!(node.runs("pool"), 4);
    // Workers that must go are not taken back either.
    node.submit("job", None, 1);
    node.pass(seconds(2));
    assert_eq!(node.released.iter().filter(|must| **must).count(), 3);
    node.end("pool");
    assert_eq!(node.runs("pool"), 3);
    node.end("pool");
    assert_eq!((node.runs("pool"), node.runs("job")), (2, 1));
}

/// Two may have been let go for one that waited: neither is a task that is done.
#[test]
fn whatever_workers_of_a_pool_are_let_go_it_goes_on() {
    let mut node = Lone::new();
    node.submit_pool("pool", node.state.node());
    node.submit("job", None, 1);
    node.pass(Duration::from_millis(600));
    assert_eq!(node.released, [false]);
    node.end("pool");
    node.end("pool");
    node.end("job");
    node.pass(seconds(15));
    let pool = node.head("pool");
    assert_eq!((pool.phase, pool.done), (Phase::Running, 0));
    assert_eq!(node.runs("pool"), 2);
}

#[test]
fn a_pool_ends_when_its_host_is_gone() {
    let mut node = Lone::new();
    node.submit_pool("mine", node.state.node());
    node.submit_pool("theirs", NodeId([9; 32]));
    node.pass(seconds(20));
    assert_eq!(node.head("mine").phase, Phase::Running);
    assert_eq!(node.head("theirs").phase, Phase::Cancelled);
    assert_eq!(node.runs("theirs"), 0);
}

/// The wall clock may have been set back before it was opened: it is compared with nothing.
#[test]
fn a_pool_goes_on_whatever_its_hosts_clock_says() {
    let mut node = Lone::new();
    node.now.wall_ms = 0;
    node.submit_pool("pool", node.state.node());
    assert_eq!(node.head("pool").phase, Phase::Running);
}
