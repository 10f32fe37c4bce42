//! Parts that several samples are made of.

use super::*;

pub fn node_info() -> NodeInfo {
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
                gemm_f32_tile: 128,
                gemm_f16_tile: 0,
            }),
            rests: (uuid == 1).then(|| "it was lost; it is tried again in 30 s".into()),
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
        returning: true,
        problem: Some("its disk cannot be written: No space left on device".into()),
        seeks_gpus: true,
    }
}

pub fn resources() -> Resources {
    let named_milli = [("licenses".to_string(), 2000)].into();
    Resources {
        cpu_milli: 16_000,
        memory_bytes: 64 << 30,
        gpu_milli: 2000,
        named_milli,
    }
}

pub fn head() -> JobHead {
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
        given_up: 3,
        reason: Some("no worker could be started".into()),
        round: 1,
        phase: Phase::Running,
        tasks: 12,
        after: vec![JobId(1)],
        is_step: true,
        is_log: true,
        voters: Some(Box::new(Voters {
            epoch: 2,
            holder: NODE,
            version: 5,
            first_own: 40,
            nodes: vec![NODE, NodeId([8; 32])],
            former: vec![NODE],
        })),
        open: Some(true),
        done: 4,
        failed: 1,
        stopped: 2,
        workers: Some(3),
        saved: Some(Box::new(Saved {
            step: 500,
            nodes: vec![NODE],
        })),
        ended_ms: 0,
    }
}

pub fn author() -> Author {
    Author {
        user: "alice".into(),
        uid: Some(1000),
        node: "box1".into(),
    }
}

pub fn work() -> WorkSpec {
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
        after: vec![
            After::named("earlier".into(), JobId(1)),
            After::Beside(JobId(2)),
        ],
        outputs: vec!["*.csv".into()],
        checkpoint_dir: Some("states".into()),
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
        task_names: Some("{file.stem}".into()),
        is_step: true,
        gang: Some(Gang {
            nodes: 2,
            most: 3,
            per_node: 4,
        }),
        kinds: Vec::new(),
        adaptive: false,
    }
}

pub fn spec() -> JobSpec {
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
        needs: Needs::default(),
        submitter: NODE,
        submitted_ms: 1_700_000_000_000,
    }
}

pub fn grid_spec() -> JobSpec {
    let axis = |name: &str, count| (name.to_string(), (0..count).map(Value::Int).collect());
    JobSpec {
        params: ParamSpace::Grid(vec![axis("x", 3), axis("y", 4)]),
        ..spec()
    }
}

/// Parameters of each kind that can be drawn while a job runs.
pub fn search_spec() -> JobSpec {
    let axes = [
        SearchAxis::Choice(vec![Value::Text("a".into()), Value::Int(2)]),
        SearchAxis::Whole {
            min: 1,
            max: 9,
            log: true,
        },
        SearchAxis::Fraction {
            min: -0.5,
            max: 0.5,
            log: false,
        },
    ];
    let named = |(name, axis): (&str, SearchAxis)| (name.to_string(), axis);
    JobSpec {
        work: Arc::new(WorkSpec {
            adaptive: true,
            ..work()
        }),
        params: ParamSpace::Search(SearchSpace {
            axes: ["x", "y", "z"].into_iter().zip(axes).map(named).collect(),
            count: 64,
            seed: 7,
        }),
        repeat: 1,
        ..spec()
    }
}

/// Tasks are added while the job runs.
pub fn open_spec() -> JobSpec {
    JobSpec {
        work: Arc::new(WorkSpec {
            adaptive: true,
            ..work()
        }),
        params: ParamSpace::Open(vec!["x".into(), "y".into()]),
        repeat: 1,
        ..spec()
    }
}

/// Three tasks of two kinds, the last of which needs the others.
pub fn graph_spec() -> JobSpec {
    let kind = |name: &str, tasks| TaskKind {
        name: name.into(),
        tasks,
        command: vec!["fit".into()],
        env: vec![("LC_ALL".into(), "C".into())],
        resources: resources(),
        timeout_ms: Some(60_000),
        retries: 1,
        outputs: vec!["*.csv".into()],
    };
    let part = |columns: &[&str], cells: Vec<Value>, rows| RowSet {
        columns: columns.iter().map(|column| (*column).into()).collect(),
        cells,
        rows,
    };
    let parts = vec![
        part(&["k"], vec![Value::Int(1), Value::Int(2)], 2),
        part(&[], Vec::new(), 1),
    ];
    JobSpec {
        work: Arc::new(WorkSpec {
            command: Vec::new(),
            gang: None,
            kinds: vec![kind("fit-{k}", 2), kind("sum", 1)],
            ..work()
        }),
        params: ParamSpace::Parts(parts),
        repeat: 1,
        needs: Needs::of_rows([vec![], vec![], vec![0, 1]]),
        ..spec()
    }
}

pub fn record(outcome: Outcome) -> TaskRecord {
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
        params: vec![("x".into(), Value::Float(0.5))],
        row: Some([7; 16]),
    }
}

pub fn progress() -> Progress {
    Progress {
        phase: Phase::Waiting,
        tasks: 12,
        done: 4,
        failed: 1,
        stopped: 2,
        running: 2,
        queued: 3,
        held: 4,
        failures: 2,
        rate_milli: 1500,
        left_ms: Some(90_000),
        waiting_for: Some("2 more nodes".into()),
        nodes: vec![(NODE, "box1".into(), 2, 3, 4)],
    }
}

/// What nodes say of gangs.
pub fn gangs() -> Vec<Message> {
    let (job, epoch, task, attempt) = (JobId(7), 3, 4, ATTEMPT);
    let assignment = Assignment {
        task,
        attempt,
        params: spec().task_params(task),
        needs: Vec::new(),
    };
    let seats = vec![Seat {
        node: NODE,
        host: [10, 0, 0, 1].into(),
    }];
    let words = [
        GangWord::Reserve {
            work: spec().work,
            params: spec().task_params(task),
            seat: 1,
            waits: true,
        },
        GangWord::Start {
            seats: seats.clone(),
            port: 29_500,
            pmi: Some(PmiServer {
                port: 41_000,
                key: [7; 16],
            }),
            heard: vec![2],
        },
        GangWord::Keep,
        GangWord::Stop,
        GangWord::Grow { nodes: vec![NODE] },
        GangWord::Probe { work: spec().work },
        GangWord::Ready,
        GangWord::Waits,
        GangWord::Abort { rank: 1, status: 7 },
        GangWord::Ended {
            rank: 3,
            record: Box::new(record(Outcome::Done)),
        },
        GangWord::Gone {
            why: "it has no room now".into(),
        },
    ];
    let mut all = vec![
        Message::AssignGang {
            job,
            epoch,
            work: spec().work,
            task: assignment,
            seats,
            waits: true,
        },
        Message::GangMissed {
            job,
            epoch,
            task,
            attempt,
            missed: vec![(NODE, "it has no room now".into())],
        },
    ];
    all.extend(words.map(|word| Message::Gang {
        job,
        task,
        attempt,
        word,
    }));
    all
}
