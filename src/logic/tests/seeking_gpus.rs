//! A node that has just started and whose driver has not said yet which GPUs there are.

use super::*;
use nodectl_types::{Builtin, BuiltinWorker, Gang, Gpu, GpuKind, WorkerSpec};

/// What the node says of itself before it knows.
fn seeking() -> NodeInfo {
    NodeInfo {
        seeks_gpus: true,
        ..info(1)
    }
}

/// What it says of itself then.
fn found(gpus: u32) -> Input {
    let gpu = |number| Gpu {
        name: "Fast Card".into(),
        vendor: "NVIDIA".into(),
        driver: "590".into(),
        uuid: [number as u8; 16],
        memory_bytes: 16 << 30,
        kind: GpuKind::Discrete,
        details: Default::default(),
    };
    let mut info = info(2);
    info.resources.gpu_milli = 1_000 * gpus;
    info.gpus = (1..=gpus).map(gpu).collect();
    Input::Info(Box::new(info))
}

fn job(change: impl FnOnce(&mut JobSpec, &mut WorkSpec)) -> JobSpec {
    let mut spec = (*spec()).clone();
    let mut work = (*spec.work).clone();
    change(&mut spec, &mut work);
    JobSpec {
        work: Arc::new(work),
        ..spec
    }
}

fn submitted(spec: JobSpec) -> Solo {
    let mut state = State::new(Now::default(), seeking(), config());
    state.start();
    Solo::on(state, spec)
}

/// What users are told of the job.
fn explained(solo: &mut Solo) -> String {
    let query = Query::Job(solo.job, JobQuery::Explain { task: None });
    solo.turn(vec![Input::Ask { id: 5, query }]);
    format!("{:?}", solo.answers.last())
}

#[test]
fn what_needs_gpus_waits_for_a_node_that_looks_for_them() {
    let jobs = [
        job(|_, work| work.resources.gpu_milli = 1_000),
        job(|spec, _| spec.place = "gpu.memory >= 8 GiB and cores < 9".into()),
        job(|spec, _| spec.place = "not gpus == 0".into()),
        // It gets a GPU where there are some.
        job(|_, work| {
            (work.command, work.resources) = Default::default();
            work.worker = Some(WorkerSpec::Builtin(BuiltinWorker {
                part: Builtin::Kernel,
                init: "{}".into(),
            }));
        }),
    ];
    for spec in jobs {
        let mut solo = submitted(spec.clone());
        let answer = &solo.answers[0];
        assert!(matches!(answer, Ok(Answer::Submitted { .. })), "{answer:?}");
        assert_eq!(solo.running, [], "{spec:?}");
        let told = explained(&mut solo);
        for line in [
            "waiting for alpha, which is still looking for its GPUs;",
            "alpha: cannot take it: it is still looking for its GPUs",
        ] {
            assert!(told.contains(line), "{told}");
        }
        solo.turn(vec![found(1)]);
        assert_eq!(solo.running.len(), 1, "{spec:?}");
    }
}

#[test]
fn what_needs_gpus_that_were_not_found_waits_and_its_users_are_told_why() {
    let mut solo = submitted(job(|_, work| work.resources.gpu_milli = 1_000));
    solo.turn(vec![found(0)]);
    let told = explained(&mut solo);
    let why = "a node that can run it: a task needs 1 GPU, and no node has more than 0 GPUs;";
    assert!(told.contains(why), "{told}");
    assert_eq!((solo.running.len(), solo.head().phase), (0, Phase::Running));
    solo.turn(vec![found(1)]);
    assert_eq!(solo.running.len(), 1);
}

#[test]
fn what_no_gpu_would_help_is_refused_and_what_needs_none_runs() {
    let refused = |spec: JobSpec| match submitted(spec).answers.first() {
        Some(Err(error)) => error.to_string(),
        other => panic!("{other:?}"),
    };
    let cores = refused(job(|_, work| {
        (work.resources.cpu_milli, work.resources.gpu_milli) = (640_000, 1_000);
    }));
    assert!(
        cores.ends_with("a task needs 640 cores, and no node has more than 2 cores"),
        "{cores}"
    );
    let place = refused(job(|spec, _| {
        spec.place = "gpus > 0 and cores > 9".into();
    }));
    assert!(place.contains("no node satisfies"), "{place}");
    let both = refused(job(|_, work| {
        work.resources.gpu_milli = 1_000;
        work.gang = Gang::of(Some((2, 2)), None);
    }));
    assert!(
        both.ends_with("2 nodes at the same time, and 1 can take part"),
        "{both}"
    );
    assert_eq!(submitted(job(|_, _| {})).running.len(), 1);
}
