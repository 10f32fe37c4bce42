//! One value of every variant that travels or is stored. Fixed: the golden files hold their bytes.

mod answers;
mod oversized;
mod parts;

pub use answers::{answers, locations};
pub use oversized::oversized;

use answers::{events, load_page, roster};
use nodectl_types::explain::{Reason, ReasonLine};
use nodectl_types::{
    Admits, After, Answer, Attempt, Author, Ballot, Beginning, BlobHash, Captured, Cell, Closed,
    CopyDigest, Decision, ErrorReport, Failure, Gang, GangWord, Gpu, GpuDetails, GpuKind, GpuRates,
    Isolation, JobHead, JobId, JobQuery, JobSpec, KeptSecret, Key, MakingEnvironment, Message,
    Need, Needs, NodeId, NodeInfo, NodeLoad, NodeQuery, Outcome, OutputFile, ParamSpace, Pause,
    Phase, ProgramHere, Query, QueryError, Record, Replacement, Resources, Roster, RowSet, Saved,
    SearchAxis, SearchSpace, Standing, TaskKind, TaskRecord, Value, Voters, WorkSpec,
    event::{ClusterEvent, EventKind, EventSubject},
    gang::{PmiServer, Seat},
    history::{GPU_SERIES, GpuPage, LoadPage, LoadSpan, MACHINE_SERIES},
    limits,
    membership::{Body, Census, MemberRecord, News, Packet},
    message::{Assignment, Inventory},
    policy::WorkKind,
    query::{
        CheckpointFile, CheckpointOwner, Cursor, JobDetail, LateWorker, Location, LogPlace,
        MemberLine, Progress, SecretLine, Stream, TaskFilter, TaskLine, TaskState, TrainingHere,
    },
    roster::{Admission, Rotation, SecretText, Word},
    spec::{Builtin, BuiltinWorker, PythonWorker, WorkerRole, WorkerSpec},
    sweep::{Goal, MetricPoint, StopRule, Sweep},
};
use parts::{
    graph_spec, grid_spec, head, node_info, open_spec, progress, record, search_spec, spec, work,
};
use std::sync::Arc;

const JOB: JobId = JobId(0x0123_4567_89ab_cdef);
const NODE: NodeId = NodeId([7; 32]);
const HASH: BlobHash = BlobHash([9; 32]);
const ATTEMPT: Attempt = Attempt {
    epoch: 3,
    claim: 9,
    number: 2,
};

fn ballots() -> Vec<Message> {
    let ballot = Ballot {
        round: 4,
        node: Some(NODE),
        claim: 9,
    };
    let known = Beginning {
        promised: ballot,
        accepted: Some((Ballot::default(), vec![NODE, NodeId([8; 32])])),
    };
    let record = MemberRecord {
        name: "gpu01".into(),
        incarnation: 5,
        left: true,
    };
    let ask = |voters| Message::AskBallot {
        job: JOB,
        ballot,
        voters,
    };
    vec![
        ask(None),
        ask(Some(vec![NODE])),
        Message::BallotTold {
            job: JOB,
            ballot,
            known,
            members: [(NODE, record)].into(),
        },
    ]
}

pub fn messages() -> Vec<Message> {
    let mut all = membership();
    all.extend(replication());
    all.extend(comparing());
    all.push(Message::VoteRefused { job: JOB, epoch: 3 });
    all.extend(ballots());
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
    all.extend(parts::gangs());
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
                answer: true,
            },
            Vec::new(),
        ),
        swim(Body::Feed, Vec::new()),
        Message::Info(Box::new(node_info())),
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
        census: Census {
            members: 9,
            digest: u64::MAX,
        },
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
    let records = || vec![Arc::new(record(Outcome::Done))];
    vec![
        Message::Offer {
            head: Box::new(head()),
            spec: Some(Arc::new(spec())),
        },
        Message::Offer {
            head: Box::new(head()),
            spec: None,
        },
        Message::OfferKept {
            job: JOB,
            lacks_inputs: false,
        },
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
            without_files: true,
        },
        Message::Replicate {
            job: JOB,
            epoch: 3,
            ticket: 12,
            head: Some(Box::new(head())),
            records: Vec::new(),
            without_files: false,
        },
        Message::ReplicateKept {
            job: JOB,
            epoch: 3,
            ticket: 11,
        },
    ]
}

fn comparing() -> Vec<Message> {
    let records = || vec![Arc::new(record(Outcome::Done))];
    vec![
        Message::Digests {
            job: JOB,
            epoch: 3,
            mark: 7,
            reply: true,
            shown: CopyDigest::Chunks(vec![u64::MAX, 0]),
        },
        Message::Digests {
            job: JOB,
            epoch: 3,
            mark: 8,
            reply: false,
            shown: CopyDigest::Whole(7),
        },
        Message::Pull {
            job: JOB,
            epoch: 3,
            chunk: 1,
            left: 2,
            cells: cells(),
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

fn cells() -> Vec<Cell> {
    let key = Key {
        accepted: 3,
        attempt: ATTEMPT,
        stamp: u32::MAX,
    };
    let failed = Cell::Failed {
        count: 2,
        attempt: ATTEMPT,
    };
    vec![
        Cell::Unknown,
        Cell::Added(key),
        failed,
        Cell::Cancelled,
        Cell::Done(key),
    ]
}

fn assignment() -> Assignment {
    Assignment {
        task: 4,
        attempt: ATTEMPT,
        params: spec().task_params(4),
        needs: vec![Need {
            task: 2,
            name: "load".into(),
        }],
    }
}

fn execution() -> Vec<Message> {
    let inventory = Inventory {
        queued: vec![(4, ATTEMPT)],
        running: vec![(5, ATTEMPT)],
        drawn: vec![(5, ATTEMPT, vec![("x".into(), Value::Float(0.5))])],
        seated: vec![(5, ATTEMPT, vec![NODE])],
    };
    let work = Some(spec().work);
    let mut messages: Vec<_> = workers().map(order_for).collect();
    messages.extend([
        Message::Assign {
            job: JOB,
            epoch: 3,
            work,
            tasks: vec![assignment()],
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
    let others = [
        WorkerSpec::Log,
        python(calls),
        python(WorkerRole::Pool {
            host: NODE,
            token: [5; 16],
        }),
    ];
    Builtin::ALL.into_iter().map(builtin).chain(others)
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
    let to_coordinators = job_queries()
        .into_iter()
        .map(|query| Query::Job(JOB, query));
    let to_nodes = node_queries()
        .into_iter()
        .map(|query| Query::Node(NODE, query));
    let to_any = to_any_node().into_iter();
    to_any.chain(to_coordinators).chain(to_nodes).collect()
}

fn to_any_node() -> Vec<Query> {
    vec![
        Query::Submit {
            job: None,
            asked_before: 0,
            spec: Arc::new(spec()),
        },
        Query::Nodes,
        Query::Jobs,
        Query::Submit {
            job: Some(JOB),
            asked_before: 0,
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

pub fn job_queries() -> Vec<JobQuery> {
    vec![
        JobQuery::Detail,
        JobQuery::Tasks {
            filter: TaskFilter::Failed,
            offset: 10,
            limit: 20,
        },
        JobQuery::Watch {
            cursor: Cursor {
                claim: 3,
                position: 40,
            },
            wait_ms: 5000,
            limit: 100,
        },
        JobQuery::Locate { task: 4, rank: 1 },
        JobQuery::Explain { task: Some(4) },
        JobQuery::Cancel,
        JobQuery::CancelTasks { tasks: vec![4, 5] },
        JobQuery::Append {
            key: [7; 16],
            known: 3,
            value: "{\"key\":\"a\",\"entry\":1}".into(),
        },
        JobQuery::Add {
            rows: vec![([7; 16], vec![("x".into(), Value::Int(3))])],
        },
        JobQuery::Close,
        JobQuery::Retry,
        JobQuery::Saved {
            step: 500,
            node: NODE,
        },
    ]
}

pub fn node_queries() -> Vec<NodeQuery> {
    vec![
        NodeQuery::Load,
        NodeQuery::Log(LogPlace {
            job: JOB,
            task: 4,
            attempt: ATTEMPT,
            stream: Stream::Stderr,
            offset: 300,
        }),
        NodeQuery::Training { job: JOB },
        NodeQuery::CopyCheckpoint {
            of: CheckpointOwner {
                job: JOB,
                task: Some(3),
            },
            step: 500,
            from: NodeId([8; 32]),
            keep: 2,
        },
        NodeQuery::Drain { on: true },
        NodeQuery::Forget {
            lost: NodeId([8; 32]),
            sure: true,
        },
        NodeQuery::History {
            span: LoadSpan::Day,
            from: 4711,
        },
        NodeQuery::Events {
            within_ms: Some(120_000),
        },
        NodeQuery::Program {
            replace: Some(BlobHash([9; 32])),
        },
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
        QueryError::Damaged("a checksum is wrong".into()),
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
        Failure::Rank {
            rank: 3,
            node: "box2".into(),
            why: "exit status 1".into(),
        },
        Failure::Need {
            name: "load".into(),
        },
        Failure::DeviceLost(ErrorReport::without_exception("the driver gave it up")),
    ]
}

pub fn records() -> Vec<Record> {
    let ends = failures().into_iter().map(Outcome::Failed).chain([
        Outcome::Done,
        Outcome::Cancelled,
        Outcome::Stopped("loss 3".into()),
        Outcome::Added,
    ]);
    let mut all = vec![
        Record::Spec(Arc::new(spec())),
        Record::Spec(Arc::new(grid_spec())),
        Record::Spec(Arc::new(graph_spec())),
        Record::Spec(Arc::new(search_spec())),
        Record::Spec(Arc::new(open_spec())),
        Record::Head(head()),
    ];
    all.extend(ends.map(|end| Record::Task(Arc::new(record(end)))));
    all
}
