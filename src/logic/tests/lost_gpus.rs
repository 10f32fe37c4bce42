//! GPUs that rest since their drivers gave them up: their tasks, and what waits for a GPU.

use super::*;
use nodectl_types::{Gpu, GpuDetails, GpuKind};

/// What the node says of itself with two GPUs, of which these rest.
fn with_gpus(version: u64, resting: &[u8]) -> NodeInfo {
    let gpu = |number: u8| Gpu {
        name: "Fast Card".into(),
        vendor: "NVIDIA".into(),
        driver: "590".into(),
        uuid: [number; 16],
        memory_bytes: 1 << 30,
        kind: GpuKind::Discrete,
        details: GpuDetails {
            rests: resting.contains(&number).then(|| "it was lost".into()),
            ..GpuDetails::default()
        },
    };
    let mut gpus = vec![gpu(1), gpu(2)];
    gpus.sort_by_key(|gpu| gpu.details.rests.is_some());
    let mut info = info(version);
    info.resources.cpu_milli = 8_000;
    info.resources.gpu_milli = 1_000 * (2 - resting.len() as u32);
    NodeInfo { gpus, ..info }
}

fn on_gpus(tasks: u32) -> JobSpec {
    let mut spec = (*spec()).clone();
    let mut work = (*spec.work).clone();
    work.resources.gpu_milli = 1_000;
    spec.work = Arc::new(work);
    JobSpec {
        repeat: tasks,
        retries: 0,
        ..spec
    }
}

fn lost() -> Outcome {
    let error = ErrorReport::without_exception("the GPU was lost");
    Outcome::Failed(Failure::DeviceLost(error))
}

fn begun(tasks: u32) -> Solo {
    let mut state = State::new(Now::default(), with_gpus(1, &[]), config());
    state.start();
    Solo::on(state, on_gpus(tasks))
}

#[test]
fn a_task_whose_gpu_is_lost_is_tried_again_on_another_and_that_is_no_failure() {
    let mut solo = begun(3);
    assert_eq!(solo.gpus, [1, 2]);
    solo.turn(vec![Input::Info(Box::new(with_gpus(2, &[1])))]);
    // The first task's.
    solo.end(lost());
    assert_eq!(
        solo.running.len(),
        1,
        "the other GPU is taken, this one rests"
    );
    solo.end(Outcome::Done);
    assert_eq!(solo.gpus, [1, 2, 2]);
    solo.end(Outcome::Done);
    assert_eq!(solo.gpus, [1, 2, 2, 2]);
    solo.turn(vec![Input::Info(Box::new(with_gpus(3, &[])))]);
    solo.end(Outcome::Done);
    assert_eq!((solo.head().phase, solo.head().failed), (Phase::Done, 0));
}

#[test]
fn work_waits_while_all_gpus_rest_and_goes_on_when_one_is_back() {
    let mut solo = begun(4);
    solo.turn(vec![Input::Info(Box::new(with_gpus(2, &[1, 2])))]);
    solo.end(lost());
    solo.end(lost());
    assert_eq!((solo.running.len(), solo.head().failed), (0, 0));
    solo.turn(vec![Input::Info(Box::new(with_gpus(3, &[2])))]);
    assert_eq!((solo.running.len(), solo.gpus.last()), (1, Some(&1)));
}

#[test]
fn a_job_that_comes_while_all_gpus_rest_waits_for_them() {
    let lacks = "it has 0 GPUs, and a task needs 1 GPU; of Fast Card, it was lost";
    for (place, why) in [("", lacks), ("gpus == 2", "it does not satisfy `where = ")] {
        let mut state = State::new(Now::default(), with_gpus(1, &[1, 2]), config());
        state.start();
        let place = place.into();
        let mut solo = Solo::on(
            state,
            JobSpec {
                place,
                ..on_gpus(1)
            },
        );
        assert!(matches!(solo.answers[0], Ok(Answer::Submitted { .. })));
        assert_eq!(solo.running.len(), 0);
        let query = Query::Job(solo.job, JobQuery::Explain { task: None });
        solo.turn(vec![Input::Ask { id: 5, query }]);
        let told = format!("{:?}", solo.answers.last());
        assert!(told.contains(why), "{told}");
        solo.turn(vec![Input::Info(Box::new(with_gpus(2, &[])))]);
        assert_eq!(solo.running.len(), 1);
    }
}

#[test]
fn a_task_that_loses_every_gpu_fails_in_the_end() {
    let mut solo = begun(1);
    for lives in 0..6 {
        assert_eq!(
            (solo.running.len(), solo.head().failed),
            (1, 0),
            "after {lives}"
        );
        solo.turn(vec![Input::Info(Box::new(with_gpus(
            2 + lives,
            &[1 + lives as u8 % 2],
        )))]);
        solo.end(lost());
    }
    assert_eq!((solo.head().phase, solo.head().failed), (Phase::Failed, 1));
}
