//! Well-formed messages that are one element beyond a limit.

use super::{parts::*, *};

type Oversized = Vec<(Message, usize)>;

/// Well-formed messages, each one element beyond a limit.
pub fn oversized() -> Oversized {
    let mut all = secrets();
    all.extend(members());
    all.extend(heads_and_records());
    all.extend(tasks());
    all.extend(gangs());
    all.extend(impossible_jobs().into_iter().flat_map(of_job));
    all
}

fn ask(query: Query) -> Message {
    Message::Ask { id: 1, query }
}

fn secrets() -> Oversized {
    let secret = |name: &str, bytes| KeptSecret {
        name: name.into(),
        version: 1,
        changed_ms: 0,
        sealed: Some(vec![0; bytes]),
    };
    let put = |name: &str, bytes| {
        ask(Query::PutSecret {
            name: name.into(),
            sealed: Some(vec![0; bytes]),
        })
    };
    let most = limits::MAX_SEALED_SECRET_BYTES;
    let too_many = vec![secret("A", 1); limits::MAX_SECRETS + 1];
    vec![
        (Message::Secrets(too_many), limits::MAX_SECRETS),
        (Message::Secrets(vec![secret("A", most + 1)]), most),
        (Message::Secrets(vec![secret("no name", 1)]), 0),
        (put("A", most + 1), most),
        (put("", 1), 0),
    ]
}

fn gangs() -> Oversized {
    let most = limits::MAX_RANKS as usize;
    let seat = Seat {
        node: NODE,
        host: [10, 0, 0, 1].into(),
    };
    let of = |word| Message::Gang {
        job: JobId(7),
        task: 4,
        attempt: ATTEMPT,
        word,
    };
    let start = |seats, heard| {
        of(GangWord::Start {
            seats,
            port: 29_500,
            pmi: None,
            heard,
        })
    };
    let missed = Message::GangMissed {
        job: JobId(7),
        epoch: 3,
        task: 4,
        attempt: ATTEMPT,
        missed: vec![(NODE, String::new()); most + 1],
    };
    let ended = of(GangWord::Ended {
        rank: limits::MAX_RANKS,
        record: Box::new(record(Outcome::Done)),
    });
    let why = "x".repeat(limits::MAX_REASON_BYTES + 1);
    vec![
        (start(vec![seat; most + 1], Vec::new()), most),
        (start(Vec::new(), vec![0; most + 1]), most),
        (missed, most),
        (ended, most - 1),
        (of(GangWord::Gone { why }), limits::MAX_REASON_BYTES),
    ]
}

fn members() -> Oversized {
    let addrs = vec![([10, 0, 0, 1], 4000).into(); limits::MEMBER_ADDRS + 1];
    let down = News::Down {
        node: NODE,
        incarnation: 3,
    };
    let alive = News::Alive {
        node: NODE,
        incarnation: 3,
        addrs: addrs.clone(),
    };
    let join = Body::Join {
        addrs,
        answer: false,
    };
    let history = |page| Message::Answer {
        id: 1,
        answer: Ok(Answer::History(page)),
    };
    let events = |events| Message::Answer {
        id: 1,
        answer: Ok(Answer::Events(events)),
    };
    let wordy = ClusterEvent {
        text: "x".repeat(limits::EVENT_TEXT_BYTES + 1),
        ..super::events().remove(0)
    };
    let many = vec![super::events().remove(0); 2 * limits::EVENTS + 1];
    let gpus = vec![GpuPage::default(); limits::HISTORY_GPUS + 1];
    let uneven = LoadPage {
        machine: vec![vec![None]; 3],
        ..load_page(1)
    };
    let nameless = NodeInfo {
        name: "x".repeat(257),
        ..node_info()
    };
    vec![
        (
            swim(Body::Gossip, vec![down; limits::SWIM_NEWS + 1]),
            limits::SWIM_NEWS,
        ),
        (swim(Body::Gossip, vec![alive]), limits::MEMBER_ADDRS),
        (swim(join, Vec::new()), limits::MEMBER_ADDRS),
        (Message::Info(Box::new(nameless)), 256),
        (
            history(load_page(limits::HISTORY_ROWS + 1)),
            limits::HISTORY_ROWS,
        ),
        (
            history(LoadPage {
                gpus,
                ..load_page(1)
            }),
            limits::HISTORY_GPUS,
        ),
        (history(uneven), 0),
        (events(many), 2 * limits::EVENTS),
        (events(vec![wordy]), limits::EVENT_TEXT_BYTES),
    ]
}

fn heads_and_records() -> Oversized {
    let (heads, most) = (limits::HEADS_BATCH, limits::RECORD_BATCH);
    let replicate = |head: Option<JobHead>, records| Message::Replicate {
        job: JOB,
        epoch: 3,
        ticket: 1,
        head: head.map(Box::new),
        records,
        without_files: false,
    };
    let record = Arc::new(record(Outcome::Done));
    let records = vec![record; most + 1];
    let talkative_offer = Message::Offer {
        head: Box::new(talkative()),
        spec: None,
    };
    let talkative_answer = Message::Answer {
        id: 1,
        answer: Ok(Answer::Jobs(vec![talkative()])),
    };
    vec![
        (Message::Heads(vec![head(); heads + 1]), heads),
        (Message::Heads(vec![talkative()]), 0),
        (replicate(None, records), most),
        (replicate(Some(talkative()), vec![]), 0),
        (talkative_offer, 0),
        (talkative_answer, 0),
    ]
}

fn tasks() -> Oversized {
    let assignment = Assignment {
        task: 4,
        attempt: ATTEMPT,
        params: Vec::new(),
        needs: Vec::new(),
    };
    let prefetch = limits::MAX_PREFETCH as usize;
    let assign = |work, tasks| Message::Assign {
        job: JOB,
        epoch: 3,
        work,
        tasks,
    };
    let append = ask(Query::Job(
        JOB,
        JobQuery::Append {
            key: [1; 16],
            known: 0,
            value: "1".repeat(limits::MAX_RESULT_BYTES + 1),
        },
    ));
    let add = ask(Query::Job(
        JOB,
        JobQuery::Add {
            rows: vec![([1; 16], Vec::new()); limits::MAX_ADDED + 1],
        },
    ));
    let cancel = ask(Query::Job(
        JOB,
        JobQuery::CancelTasks {
            tasks: vec![1; limits::MAX_CANCELLED + 1],
        },
    ));
    let point = MetricPoint {
        step: 7,
        value: 0.25,
    };
    let metrics = Message::Metrics {
        job: JOB,
        epoch: 3,
        task: 4,
        attempt: ATTEMPT,
        points: vec![point; limits::METRIC_POINTS + 1],
    };
    let most = limits::MAX_REASON_BYTES;
    vec![
        (assign(None, vec![assignment; prefetch + 1]), prefetch),
        (assign(Some(Arc::new(without_command())), vec![]), 0),
        (append, limits::MAX_RESULT_BYTES),
        (add, limits::MAX_ADDED),
        (cancel, limits::MAX_CANCELLED),
        (metrics, limits::METRIC_POINTS),
        (refusal("x".repeat(most + 1)), most),
    ]
}

fn without_command() -> WorkSpec {
    WorkSpec {
        command: Vec::new(),
        ..work()
    }
}

/// Specifications that no job file makes.
fn impossible_jobs() -> Vec<JobSpec> {
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
    let mut all = vec![
        JobSpec {
            work: Arc::new(without_command()),
            ..spec()
        },
        JobSpec {
            repeat: 0,
            ..spec()
        },
    ];
    let nothing = ParamSpace::Search(SearchSpace {
        axes: vec![("a".into(), SearchAxis::Choice(Vec::new()))],
        count: 1,
        seed: 0,
    });
    let of_nothing = ParamSpace::Open(Vec::new());
    let spaces = [
        without_columns,
        uneven,
        endless,
        empty_axis,
        nothing,
        of_nothing,
    ];
    all.extend(spaces.map(|params| JobSpec { params, ..spec() }));
    all
}

/// The messages that bring a specification.
fn of_job(spec: JobSpec) -> Oversized {
    let spec = Arc::new(spec);
    let submit = ask(Query::Submit {
        job: None,
        asked_before: 0,
        spec: spec.clone(),
    });
    let offer = Message::Offer {
        head: Box::new(head()),
        spec: Some(spec),
    };
    vec![(submit, 0), (offer, 0)]
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
