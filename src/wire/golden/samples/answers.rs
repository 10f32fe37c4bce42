//! What questions are answered with.

use super::*;

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
        Answer::Load(load()),
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
        Answer::Explanation(vec![ReasonLine {
            reason: Reason::NodeLacksResources,
            node: Some(NODE),
            text: "box-a: it has no GPU".into(),
        }]),
        Answer::Training(training()),
        Answer::Aside(vec![JOB]),
        Answer::Secrets(vec![SecretLine {
            name: "TOKEN".into(),
            changed_ms: 1_700_000_000_000,
        }]),
        Answer::Retried { tasks: 12 },
        Answer::Appended { entry: 12 },
        Answer::KeysUnknown { below: 11 },
        Answer::Added { tasks: vec![3, 4] },
        Answer::Roster(Box::new(roster())),
        Answer::History(load_page(2)),
        Answer::Events(events()),
        Answer::Program(Box::new(program())),
    ];
    all.extend(locations().into_iter().map(Answer::Where));
    all
}

fn load() -> NodeLoad {
    NodeLoad {
        load_milli: 1570,
        memory_used_bytes: 1 << 30,
        running: 2,
        queued: 3,
        done: 40,
        failed: 4,
        jobs: vec![(JOB, "count".into(), 2)],
        making: vec![MakingEnvironment {
            job: JOB,
            step: "pip install".into(),
            for_ms: 1500,
        }],
    }
}

fn program() -> ProgramHere {
    ProgramHere {
        hash: Some(BlobHash([9; 32])),
        version: "0.1.0".into(),
        architecture: "x86_64".into(),
        path: "/usr/bin/nodectl".into(),
        by_members: true,
        replacement: Replacement::Failed("the disk is full".into()),
    }
}

pub fn events() -> Vec<ClusterEvent> {
    let event = |kind, subject, text: &str| ClusterEvent {
        at_ms: 1_700_000_000_000,
        kind,
        subject,
        name: "n1".into(),
        text: text.into(),
    };
    vec![
        event(EventKind::Died, EventSubject::Node(NODE), "died"),
        event(EventKind::Ended, EventSubject::Job(JOB), "is done"),
    ]
}

pub fn load_page(rows: usize) -> LoadPage {
    let series = |step: f32| (0..rows).map(|row| (row != 1).then_some(step)).collect();
    LoadPage {
        first: 4711,
        end: 99_999,
        end_ms: 1_700_000_000_000,
        machine: (0..MACHINE_SERIES.len() as u8)
            .map(|at| series(f32::from(at) + 0.5))
            .collect(),
        gpus: vec![GpuPage {
            id: "0000:03:00.0".into(),
            name: "a GPU".into(),
            series: (0..GPU_SERIES.len() as u8)
                .map(|at| series(f32::from(at) + 0.25))
                .collect(),
        }],
    }
}

fn training() -> TrainingHere {
    TrainingHere {
        checkpoints: vec![CheckpointFile {
            task: Some(3),
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
    }
}

pub fn roster() -> Roster {
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
