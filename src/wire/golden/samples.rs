//! One value of every variant that travels or is stored. Fixed: the golden files hold their bytes.

use crate::journal::Record;
use nodectl_types::{
    Admits, Answer, Attempt, Author, BlobHash, Captured, Cell, Closed, Decision, ErrorReport,
    Failure, Gpu, GpuDetails, GpuKind, GpuRates, Isolation, JobHead, JobId, JobSpec, KeptSecret,
    Key, Message, NodeId, NodeInfo, NodeLoad, Outcome, OutputFile, ParamSpace, Pause, Phase, Query,
    QueryError, Resources, Roster, Saved, Standing, TaskRecord, Value, WorkSpec, limits,
    membership::{Body, News, Packet},
    message::{Assignment, Inventory},
    policy::WorkKind,
    query::{
        CheckpointFile, Cursor, JobDetail, LateWorker, Location, MemberLine, Progress, SecretLine,
        Stream, TaskFilter, TaskLine, TaskState, TrainingHere,
    },
    roster::{Admission, Rotation, SecretText, Word},
    spec::{Builtin, BuiltinWorker, PythonWorker, WorkerRole, WorkerSpec},
    sweep::{Goal, MetricPoint, StopRule, Sweep},
};
use std::sync::Arc;

const JOB: JobId = JobId(0x0123_4567_89ab_cdef);
const NODE: NodeId = NodeId([7; 32]);
const HASH: BlobHash = BlobHash([9; 32]);
const ATTEMPT: Attempt = Attempt {
    epoch: 3,
    number: 2,
};

pub fn messages() -> Vec<Message> {
    let mut all = membership();
    all.extend(replication());
    all.extend(execution());
    all.extend(
        queries()
            .into_iter()
            .map(|query| Message::Ask { id: 5, query }),
    );
    all.extend(answers().into_iter().map(|answer| Message::Answer {
        id: 5,
        answer: Ok(answer),
    }));
    all.extend(query_errors().into_iter().map(|error| Message::Answer {
        id: 5,
        answer: Err(error),
    }));
    all.push(Message::Leaving);
    all.push(Message::Release {
        pool: [8; 16],
        must: true,
    });
    all.push(Message::Removed(vec![(JOB, 1_700_000_000_000)]));
    all.push(Message::SecretsDigest([9; 32]));
    let secret = |sealed| KeptSecret {
        name: "TOKEN".into(),
        version: 2,
        changed_ms: 1_700_000_000_000,
        sealed,
    };
    all.push(Message::Secrets(vec![
        secret(Some(vec![1, 2, 3])),
        secret(None),
    ]));
    all.push(Message::Roster(Box::new(roster())));
    all
}

fn membership() -> Vec<Message> {
    vec![
        swim(Body::Gossip, news()),
        swim(Body::Ping { number: 300 }, Vec::new()),
        swim(Body::Ack { number: 300 }, Vec::new()),
        swim(
            Body::PingFor {
                number: 300,
                target: NODE,
            },
            Vec::new(),
        ),
        swim(Body::Nack { number: 300 }, Vec::new()),
        swim(
            Body::Join {
                addrs: node_info().addrs,
                members: 9,
                answer: true,
            },
            Vec::new(),
        ),
        swim(Body::Feed, Vec::new()),
        Message::Info(node_info()),
        Message::Describe,
        Message::Heads(vec![head()]),
        Message::HeadsDigests {
            digests: vec![u64::MAX, 1],
            reply: true,
        },
    ]
}

fn swim(body: Body, news: Vec<News>) -> Message {
    Message::Swim(Packet {
        incarnation: 1_700_000_000_000,
        slowness: 2,
        body,
        news,
    })
}

fn news() -> Vec<News> {
    vec![
        News::Alive {
            node: NODE,
            incarnation: 3,
            addrs: node_info().addrs,
        },
        News::Suspect {
            node: NODE,
            incarnation: 3,
            by: NODE,
        },
        News::Down {
            node: NODE,
            incarnation: 3,
        },
    ]
}

fn replication() -> Vec<Message> {
    let key = Key {
        accepted: 3,
        attempt: ATTEMPT,
        stamp: u32::MAX,
    };
    let failed = Cell::Failed {
        count: 2,
        attempt: ATTEMPT,
    };
    let cells = vec![Cell::Unknown, failed, Cell::Cancelled, Cell::Done(key)];
    let records = || vec![Arc::new(record(Outcome::Done))];
    vec![
        Message::Offer {
            head: head(),
            spec: Some(Arc::new(spec())),
        },
        Message::Offer {
            head: head(),
            spec: None,
        },
        Message::OfferKept { job: JOB },
        Message::Declined {
            job: JOB,
            error: "No space left on device".into(),
        },
        Message::Replicate {
            job: JOB,
            epoch: 3,
            ticket: 11,
            head: None,
            records: records(),
        },
        Message::Replicate {
            job: JOB,
            epoch: 3,
            ticket: 12,
            head: Some(Box::new(head())),
            records: Vec::new(),
        },
        Message::ReplicateKept {
            job: JOB,
            epoch: 3,
            ticket: 11,
        },
        Message::Digests {
            job: JOB,
            epoch: 3,
            mark: 7,
            reply: true,
            digests: vec![u64::MAX, 0],
        },
        Message::Pull {
            job: JOB,
            epoch: 3,
            chunk: 1,
            left: 2,
            cells,
        },
        Message::Pulled {
            job: JOB,
            epoch: 3,
            chunk: 1,
            records: records(),
            more: true,
            error: None,
        },
        Message::CaughtUp {
            job: JOB,
            epoch: 3,
            mark: 7,
        },
        Message::NoCopy { job: JOB, epoch: 3 },
    ]
}

fn execution() -> Vec<Message> {
    let assignment = Assignment {
        task: 4,
        attempt: ATTEMPT,
        params: spec().task_params(4),
    };
    let inventory = Inventory {
        queued: vec![(4, ATTEMPT)],
        running: vec![(5, ATTEMPT)],
    };
    let work = Some(spec().work);
    let mut messages: Vec<_> = workers().map(order_for).collect();
    messages.extend([
        Message::Assign {
            job: JOB,
            epoch: 3,
            work,
            tasks: vec![assignment],
        },
        Message::Recall {
            job: JOB,
            epoch: 3,
            count: 8,
        },
        Message::Stop {
            job: JOB,
            epoch: 3,
            waiting: false,
            tasks: vec![(4, ATTEMPT)],
        },
        Message::NeedWork { job: JOB, epoch: 3 },
        Message::Report {
            job: JOB,
            epoch: 3,
            started: vec![(4, ATTEMPT)],
            finished: failures()
                .into_iter()
                .map(|failure| Arc::new(record(Outcome::Failed(failure))))
                .collect(),
            returned: vec![(6, ATTEMPT)],
            free: 2,
            refuses: Some("was drained by its owner".into()),
        },
        Message::Metrics {
            job: JOB,
            epoch: 3,
            task: 4,
            attempt: ATTEMPT,
            points: vec![MetricPoint {
                step: 7,
                value: 0.25,
            }],
        },
        Message::ReportKept {
            job: JOB,
            tasks: vec![(4, ATTEMPT)],
        },
        Message::Sync {
            job: JOB,
            epoch: 3,
            sequence: 6,
        },
        Message::Holding {
            job: JOB,
            epoch: 3,
            sequence: 6,
            inventory,
            copy: true,
        },
    ]);
    messages
}

/// Every worker that a job can have in place of a command.
fn workers() -> impl Iterator<Item = WorkerSpec> {
    let builtin = |part| {
        WorkerSpec::Builtin(BuiltinWorker {
            part,
            init: "{}".into(),
        })
    };
    let python = |role| {
        WorkerSpec::Python(PythonWorker {
            python: "python3".into(),
            role,
        })
    };
    let calls = WorkerRole::Calls {
        class: "fit.py:Fit".into(),
        init: "{\"args\": [1]}".into(),
    };
    [
        builtin(Builtin::Kernel),
        builtin(Builtin::Train),
        builtin(Builtin::Integrate),
        python(calls),
        python(WorkerRole::Pool {
            host: NODE,
            token: [5; 16],
        }),
    ]
    .into_iter()
}

fn order_for(worker: WorkerSpec) -> Message {
    let work = WorkSpec {
        command: Vec::new(),
        worker: Some(worker),
        ..work()
    };
    Message::Assign {
        job: JOB,
        epoch: 3,
        work: Some(Arc::new(work)),
        tasks: Vec::new(),
    }
}

fn python_error(kind: &str) -> ErrorReport {
    let traceback = "Traceback (most recent call last):\n".into();
    ErrorReport {
        kind: kind.into(),
        message: "no such thing".into(),
        traceback,
    }
}

pub fn queries() -> Vec<Query> {
    vec![
        Query::Submit {
            job: None,
            spec: Arc::new(spec()),
        },
        Query::Nodes,
        Query::Jobs,
        Query::Load { node: NODE },
        Query::Job { job: JOB },
        Query::Tasks {
            job: JOB,
            filter: TaskFilter::Failed,
            offset: 10,
            limit: 20,
        },
        Query::Watch {
            job: JOB,
            cursor: Cursor {
                claim: 3,
                position: 40,
            },
            wait_ms: 5000,
            limit: 100,
        },
        Query::Locate { job: JOB, task: 4 },
        Query::Log {
            node: NODE,
            job: JOB,
            task: 4,
            attempt: ATTEMPT,
            stream: Stream::Stderr,
            offset: 300,
        },
        Query::Explain {
            job: JOB,
            task: Some(4),
        },
        Query::Cancel { job: JOB },
        Query::CancelTasks {
            job: JOB,
            tasks: vec![4, 5],
        },
        Query::Retry { job: JOB },
        Query::Saved {
            job: JOB,
            step: 500,
            node: NODE,
        },
        Query::Training {
            node: NODE,
            job: JOB,
        },
        Query::CopyCheckpoint {
            node: NODE,
            job: JOB,
            step: 500,
            from: NodeId([8; 32]),
            keep: 2,
        },
        Query::Drain {
            node: NODE,
            on: true,
        },
        Query::Forget {
            node: NODE,
            lost: NodeId([8; 32]),
            sure: true,
        },
        Query::Submit {
            job: Some(JOB),
            spec: Arc::new(spec()),
        },
        Query::Remove { job: JOB },
        Query::Resume { job: JOB },
        Query::Aside,
        Query::Pause(Some(Pause {
            until_ms: None,
            finish: true,
        })),
        Query::PutSecret {
            name: "TOKEN".into(),
            sealed: Some(vec![1, 2, 3]),
        },
        Query::Secrets,
        Query::Roster(None),
        Query::Roster(Some(Decision::Judge {
            node: NODE,
            standing: Standing::Banned,
        })),
        Query::Roster(Some(Decision::Admission { approve: true })),
        Query::Roster(Some(Decision::Rotate {
            secret: SecretText("a secret".into()),
        })),
        Query::Roster(Some(Decision::Finish)),
    ]
}

pub fn answers() -> Vec<Answer> {
    let detail = JobDetail {
        head: head(),
        progress: progress(),
        spec: Arc::new(spec()),
    };
    let line = TaskLine {
        task: 4,
        state: TaskState::Running,
        failures: 1,
        node: Some(NODE),
        running_ms: Some(1500),
    };
    let load = NodeLoad {
        load_milli: 1570,
        memory_used_bytes: 1 << 30,
        running: 2,
        queued: 3,
        jobs: vec![(JOB, "count".into(), 2)],
    };
    let mut all = vec![
        Answer::Ok,
        Answer::Submitted { job: JOB },
        Answer::Nodes(vec![MemberLine {
            info: node_info(),
            alive: true,
            gone: false,
            this_node: false,
        }]),
        Answer::Jobs(vec![head()]),
        Answer::Load(load),
        Answer::Job(Box::new(detail)),
        Answer::Tasks {
            lines: vec![line],
            total: 100,
        },
        Answer::Watch {
            cursor: Cursor {
                claim: 3,
                position: 41,
            },
            progress: progress(),
            records: vec![Arc::new(record(Outcome::Done))],
        },
        Answer::Log {
            bytes: b"a line\n".to_vec(),
            ended: true,
        },
        Answer::Explanation(vec!["no node has 8 GPUs".into()]),
        Answer::Training(TrainingHere {
            checkpoints: vec![CheckpointFile {
                step: 500,
                bytes: 1 << 30,
                path: "/data/step-500".into(),
            }],
            late: vec![LateWorker {
                worker: 3,
                clock: 501,
                taken_ms: 9000,
                usual_ms: 200,
            }],
            waits_for: Some("waiting: 1 nodes are out of reach".into()),
        }),
        Answer::Aside(vec![JOB]),
        Answer::Secrets(vec![SecretLine {
            name: "TOKEN".into(),
            changed_ms: 1_700_000_000_000,
        }]),
        Answer::Retried { tasks: 12 },
        Answer::Roster(Box::new(roster())),
    ];
    all.extend(locations().into_iter().map(Answer::Where));
    all
}

fn roster() -> Roster {
    let word = |standing, name: &str| Word {
        version: 2,
        standing,
        name: name.into(),
        at_ms: 1_700_000_000_000,
    };
    Roster {
        admission: Admission {
            version: 3,
            approve: true,
        },
        words: [
            (NODE, word(Standing::Banned, "box1")),
            (NodeId([8; 32]), word(Standing::Admitted, "box2")),
        ]
        .into(),
        rotation: Some(Rotation {
            number: 2,
            secret: SecretText("a secret".into()),
            listed: [NODE, NodeId([8; 32])].into(),
            changed: [NODE].into(),
            finished: false,
            at_ms: 1_700_000_000_000,
        }),
    }
}

pub fn locations() -> Vec<Location> {
    vec![
        Location::Nowhere,
        Location::Running {
            node: NODE,
            attempt: ATTEMPT,
        },
        Location::Ended(Arc::new(record(Outcome::Done))),
    ]
}

pub fn query_errors() -> Vec<QueryError> {
    vec![
        QueryError::NoJob(JOB),
        QueryError::NoTask {
            job: JOB,
            task: 100,
            tasks: 12,
        },
        QueryError::NoNode(NODE),
        QueryError::Reachable {
            node: "box1".into(),
            by: "box2".into(),
        },
        QueryError::Timeout("box1".into()),
        QueryError::NoCoordinator {
            job: JOB,
            holders: "box1, box2".into(),
        },
        QueryError::Unsatisfiable("no node has 8 GPUs".into()),
        QueryError::Invalid("no command".into()),
        QueryError::Storage("disk full".into()),
        QueryError::Leaving,
        QueryError::NoLog("box1 died".into()),
        QueryError::Undecided {
            job: JOB,
            why: "no node has taken it yet".into(),
        },
        QueryError::Full(16_384),
        QueryError::NotEnded(JOB),
        QueryError::Needed {
            job: JOB,
            by: JobId(1),
        },
        QueryError::PutAside(JOB),
        QueryError::Denied("box1 was drained by its owner".into()),
        QueryError::NoSecret("TOKEN".into()),
        QueryError::Refused("a node does not ban itself".into()),
    ]
}

pub fn failures() -> Vec<Failure> {
    vec![
        Failure::Exit(3),
        Failure::Signal(11),
        Failure::Timeout { limit_ms: 90_000 },
        Failure::Spawn("no such file".into()),
        Failure::Inputs("no holder".into()),
        Failure::OutputMissing("*.csv".into()),
        Failure::OutputTooLarge {
            name: "big.bin".into(),
            limit_bytes: 1 << 30,
        },
        Failure::OutputUnreadable("permission denied".into()),
        Failure::OutOfMemory {
            limit_bytes: 1 << 31,
        },
        Failure::Raised(python_error("ValueError")),
        Failure::Init(python_error("ImportError")),
        Failure::Device(ErrorReport::without_exception("the device is lost")),
        Failure::Storage("No space left on device".into()),
    ]
}

pub fn records() -> Vec<Record> {
    let ends = failures().into_iter().map(Outcome::Failed).chain([
        Outcome::Done,
        Outcome::Cancelled,
        Outcome::Stopped("loss 3".into()),
    ]);
    let mut all = vec![
        Record::Spec(Arc::new(spec())),
        Record::Spec(Arc::new(grid_spec())),
        Record::Head(head()),
    ];
    all.extend(ends.map(|end| Record::Task(Arc::new(record(end)))));
    all
}

/// Well-formed messages, each one element beyond a limit.
pub fn oversized() -> Vec<(Message, usize)> {
    let record = Arc::new(record(Outcome::Done));
    let assignment = Assignment {
        task: 4,
        attempt: ATTEMPT,
        params: Vec::new(),
    };
    let (heads, records, prefetch) = (
        limits::HEADS_BATCH,
        limits::RECORD_BATCH,
        limits::MAX_PREFETCH as usize,
    );
    let tasks = vec![assignment; prefetch + 1];
    let cancelled = vec![1; limits::MAX_CANCELLED + 1];
    let points = vec![
        MetricPoint {
            step: 7,
            value: 0.25
        };
        limits::METRIC_POINTS + 1
    ];
    let without_command = JobSpec {
        work: Arc::new(WorkSpec {
            command: Vec::new(),
            ..work()
        }),
        ..spec()
    };
    let without_columns = ParamSpace::Rows {
        columns: Vec::new(),
        cells: vec![Value::Bool(true)],
    };
    let uneven = ParamSpace::Rows {
        columns: vec!["a".into(), "b".into()],
        cells: vec![Value::Bool(true); 3],
    };
    let wide_axis = |name: &str| (name.to_string(), vec![Value::Bool(true); 10_001]);
    let endless = ParamSpace::Grid(vec![wide_axis("a"), wide_axis("b"), wide_axis("c")]);
    let empty_axis = ParamSpace::Grid(vec![("a".into(), Vec::new())]);
    let addrs = vec![([10, 0, 0, 1], 4000).into(); limits::MEMBER_ADDRS + 1];
    let secret = |name: &str, bytes| KeptSecret {
        name: name.into(),
        version: 1,
        changed_ms: 0,
        sealed: Some(vec![0; bytes]),
    };
    let put = |name: &str, bytes| Query::PutSecret {
        name: name.into(),
        sealed: Some(vec![0; bytes]),
    };
    let most = limits::MAX_SEALED_SECRET_BYTES;
    let mut all = vec![
        (
            Message::Secrets(vec![secret("A", 1); limits::MAX_SECRETS + 1]),
            limits::MAX_SECRETS,
        ),
        (Message::Secrets(vec![secret("A", most + 1)]), most),
        (Message::Secrets(vec![secret("no name", 1)]), 0),
        (
            Message::Ask {
                id: 1,
                query: put("A", most + 1),
            },
            most,
        ),
        (
            Message::Ask {
                id: 1,
                query: put("", 1),
            },
            0,
        ),
        (
            swim(
                Body::Gossip,
                vec![
                    News::Down {
                        node: NODE,
                        incarnation: 3
                    };
                    limits::SWIM_NEWS + 1
                ],
            ),
            limits::SWIM_NEWS,
        ),
        (
            swim(
                Body::Gossip,
                vec![News::Alive {
                    node: NODE,
                    incarnation: 3,
                    addrs: addrs.clone(),
                }],
            ),
            limits::MEMBER_ADDRS,
        ),
        (
            swim(
                Body::Join {
                    addrs,
                    members: 1,
                    answer: false,
                },
                Vec::new(),
            ),
            limits::MEMBER_ADDRS,
        ),
        (
            Message::Info(NodeInfo {
                name: "x".repeat(257),
                ..node_info()
            }),
            256,
        ),
        (Message::Heads(vec![head(); heads + 1]), heads),
        (Message::Heads(vec![talkative()]), 0),
        (
            Message::Replicate {
                job: JOB,
                epoch: 3,
                ticket: 1,
                head: None,
                records: vec![record; records + 1],
            },
            records,
        ),
        (
            Message::Replicate {
                job: JOB,
                epoch: 3,
                ticket: 1,
                head: Some(Box::new(talkative())),
                records: vec![],
            },
            0,
        ),
        (
            Message::Offer {
                head: talkative(),
                spec: None,
            },
            0,
        ),
        (
            Message::Answer {
                id: 1,
                answer: Ok(Answer::Jobs(vec![talkative()])),
            },
            0,
        ),
        (
            Message::Assign {
                job: JOB,
                epoch: 3,
                work: None,
                tasks,
            },
            prefetch,
        ),
        (
            Message::Assign {
                job: JOB,
                epoch: 3,
                work: Some(without_command.work.clone()),
                tasks: vec![],
            },
            0,
        ),
        (
            Message::Ask {
                id: 1,
                query: Query::CancelTasks {
                    job: JOB,
                    tasks: cancelled,
                },
            },
            limits::MAX_CANCELLED,
        ),
        (
            Message::Metrics {
                job: JOB,
                epoch: 3,
                task: 4,
                attempt: ATTEMPT,
                points,
            },
            limits::METRIC_POINTS,
        ),
        (
            refusal("x".repeat(limits::MAX_REASON_BYTES + 1)),
            limits::MAX_REASON_BYTES,
        ),
        (
            Message::Offer {
                head: head(),
                spec: Some(Arc::new(without_command)),
            },
            0,
        ),
        (
            Message::Offer {
                head: head(),
                spec: Some(Arc::new(JobSpec {
                    repeat: 0,
                    ..spec()
                })),
            },
            0,
        ),
    ];
    for params in [without_columns, uneven, endless, empty_axis] {
        let spec = Arc::new(JobSpec { params, ..spec() });
        all.push((
            Message::Ask {
                id: 1,
                query: Query::Submit {
                    job: None,
                    spec: spec.clone(),
                },
            },
            0,
        ));
        all.push((
            Message::Offer {
                head: head(),
                spec: Some(spec),
            },
            0,
        ));
    }
    all
}

fn talkative() -> JobHead {
    JobHead {
        reason: Some("x".repeat(limits::MAX_REASON_BYTES + 1)),
        ..head()
    }
}

fn refusal(why: String) -> Message {
    let refuses = Some(why);
    Message::Report {
        job: JOB,
        epoch: 3,
        started: vec![],
        finished: vec![],
        returned: vec![],
        free: 0,
        refuses,
    }
}

fn node_info() -> NodeInfo {
    let gpu = |kind, uuid| Gpu {
        name: "Fast Card 9000".into(),
        vendor: "NVIDIA".into(),
        driver: "NVIDIA 590.1".into(),
        uuid: [uuid; 16],
        memory_bytes: 24 << 30,
        kind,
        details: GpuDetails {
            features: vec!["f16".into(), "cooperative_matrix".into()],
            memory_free: Some(23 << 30),
            rates: (uuid == 1).then_some(GpuRates {
                copy_bytes_per_s: 900 << 30,
                gemm_f32_flops: 20 << 40,
                gemm_f16_flops: 300 << 40,
            }),
        },
    };
    NodeInfo {
        id: NODE,
        version: 1_700_000_000_000,
        name: "box1".into(),
        software: "0.1.0".into(),
        model: "Alienware Aurora R6".into(),
        addrs: vec![
            "10.0.0.7:4001".parse().expect("an address"),
            "[fd00::7]:4001".parse().expect("an address"),
        ],
        resources: resources(),
        gpus: vec![
            gpu(GpuKind::Discrete, 1),
            gpu(GpuKind::Integrated, 2),
            gpu(GpuKind::Virtual, 3),
            gpu(GpuKind::Software, 4),
        ],
        labels: [("room".to_string(), "B12".to_string())].into(),
        draining: false,
        closed: Some(Closed::Paused(Pause {
            until_ms: Some(1_700_000_000_000),
            finish: false,
        })),
        admits: Admits {
            users: vec!["ali*".into()],
            nodes: vec!["box?".into()],
            kinds: vec![WorkKind::Command, WorkKind::Train],
            commands: vec!["/opt/*".into()],
        },
        leaving: false,
        problem: Some("its disk cannot be written: No space left on device".into()),
    }
}

fn resources() -> Resources {
    let named_milli = [("licenses".to_string(), 2000)].into();
    Resources {
        cpu_milli: 16_000,
        memory_bytes: 64 << 30,
        gpu_milli: 2000,
        named_milli,
    }
}

fn head() -> JobHead {
    JobHead {
        job: JOB,
        name: "count".into(),
        spec: HASH,
        submitter: NODE,
        author: author(),
        submitted_ms: 1_700_000_000_000,
        epoch: 3,
        holder: NODE,
        version: 17,
        replicas: vec![NODE, NodeId([8; 32])],
        cancelled: false,
        reason: Some("no worker could be started".into()),
        round: 1,
        phase: Phase::Running,
        tasks: 12,
        after: vec![JobId(1)],
        done: 4,
        failed: 1,
        stopped: 2,
        workers: Some(3),
        saved: Some(Saved {
            step: 500,
            nodes: vec![NODE],
        }),
        ended_ms: 0,
    }
}

fn author() -> Author {
    Author {
        user: "alice".into(),
        uid: Some(1000),
        node: "box1".into(),
    }
}

fn work() -> WorkSpec {
    WorkSpec {
        name: "count".into(),
        command: vec!["python3".into(), "count.py".into(), "{file}".into()],
        worker: None,
        env: vec![("LC_ALL".into(), "C".into())],
        resources: resources(),
        priority: -5,
        timeout_ms: Some(90_000),
        grace_ms: 5000,
        inputs: Some(HASH),
        after: vec![("earlier".into(), JobId(1))],
        outputs: vec!["*.csv".into()],
        output_limit_bytes: 1 << 30,
        log_limit_bytes: 1 << 20,
        sweep: Some(Sweep {
            metric: "loss".into(),
            goal: Goal::Min,
            stop: Some(StopRule::Asha {
                min_steps: 3,
                reduction: 3,
            }),
        }),
        author: author(),
        isolation: Isolation {
            setuid: Some(false),
            hides_node: Some(true),
            core_dumps: true,
            offline: true,
            read_only: true,
            image: Some("tools.sif".into()),
        },
        secrets: vec!["TOKEN".into()],
    }
}

fn spec() -> JobSpec {
    let cells = vec![
        Value::Bool(true),
        Value::Int(-3),
        Value::Float(0.25),
        Value::Text("a b".into()),
    ];
    JobSpec {
        work: Arc::new(work()),
        params: ParamSpace::Rows {
            columns: vec!["x".into()],
            cells,
        },
        repeat: 3,
        retries: 2,
        min_nodes: 1,
        place: "gpu.memory >= 8 GiB".into(),
        speculate: true,
        at_once: Some(40),
        wait_for_nodes: false,
        extends: Some(JobId(2)),
        submitter: NODE,
        submitted_ms: 1_700_000_000_000,
    }
}

fn grid_spec() -> JobSpec {
    let axis = |name: &str, count| (name.to_string(), (0..count).map(Value::Int).collect());
    JobSpec {
        params: ParamSpace::Grid(vec![axis("x", 3), axis("y", 4)]),
        ..spec()
    }
}

fn record(outcome: Outcome) -> TaskRecord {
    let output = OutputFile {
        path: "out/table.csv".into(),
        bytes: 12,
        hash: HASH,
        executable: false,
    };
    TaskRecord {
        task: 4,
        attempt: ATTEMPT,
        node: NODE,
        outcome,
        accepted: 3,
        failures: 1,
        started_ms: 1_700_000_000_000,
        duration_us: 12_345,
        cpu_us: 10_000,
        max_rss_bytes: 8 << 20,
        stdout: Captured {
            tail: b"42\n".to_vec(),
            total_bytes: 3,
            blob: None,
        },
        stderr: Captured {
            tail: b"end".to_vec(),
            total_bytes: 100_000,
            blob: Some(HASH),
        },
        value: Some("{\"n\":42}".into()),
        outputs: vec![output],
    }
}

fn progress() -> Progress {
    Progress {
        phase: Phase::Waiting,
        tasks: 12,
        done: 4,
        failed: 1,
        stopped: 2,
        running: 2,
        queued: 3,
        failures: 2,
        rate_milli: 1500,
        waiting_for: Some("2 more nodes".into()),
        nodes: vec![(NODE, "box1".into(), 2, 3, 4)],
    }
}
