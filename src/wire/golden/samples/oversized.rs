//! Well-formed messages that are one element beyond a limit.

use super::{parts::*, *};

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
