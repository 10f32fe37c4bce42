//! What workers hear of a job's thread that panics.

use super::*;
use crate::{arena::Arena, frames::receive};
use nodectl_ports::NodeHandle;
use nodectl_pserver_logic::{ArenaLayout, Others};
use nodectl_types::servers::{ServerSettings, TensorSpec};
use nodectl_wire::frames::ToTrainer;
use serde_json::json;
use std::{io, os::unix::net::UnixStream, path::Path, thread};

/// The limit of what is waited for.
const SOON: Duration = Duration::from_secs(60);

fn settings() -> ServerSettings {
    let schedule = json!({"warmup_steps": 0, "decay": "constant"});
    let training =
        json!({"optimizer": "sgd", "rate": 0.1, "schedule": schedule, "weight_decay": 0});
    serde_json::from_value(json!({"workers": 1, "training": training})).unwrap()
}

/// The parts of a job that the cluster does not know, with one tensor of so many numbers.
fn parts(numbers: u64, directory: &Path) -> (GroupConfig, KeptParameters) {
    let tensors = vec![TensorSpec {
        name: "w".into(),
        shape: vec![numbers],
    }];
    let settings = settings();
    let layout = Arc::new(ArenaLayout::with_factored(&tensors, settings.block_bytes, &[]).unwrap());
    let me = NodeId([1; 32]);
    let form = Form::new(layout.clone(), tensors, 0, 0, None);
    let node = NodeHandle::new(mpsc::channel(1).0);
    let checkpoints = Arc::new(CheckpointStore::new(directory, me, node));
    let kept = KeptParameters {
        job: None,
        form,
        checkpoints,
        resume_from: None,
        runtime: Handle::current(),
    };
    (
        GroupConfig {
            me,
            group: [2; 16],
            settings,
            layout,
            digest: [3; 32],
            weight: 1,
        },
        kept,
    )
}

#[tokio::test]
async fn a_thread_that_panics_ends_its_workers_with_a_reason() {
    let directory = tempfile::tempdir().unwrap();
    let (config, kept) = parts(1000, directory.path());
    let (events, inbox) = mpsc::channel(4);
    let (ours, theirs) = UnixStream::pair().unwrap();
    theirs.set_read_timeout(Some(SOON)).unwrap();
    // Memory that has not room for the parameters is never made: what writes there breaks an
    // invariant.
    let arena = Arc::new(Arena::new(1).unwrap());
    let nobody = ServiceEvent::Others(Others::default());
    events.send(nobody).await.unwrap();
    events
        .send(ServiceEvent::Joined {
            worker: 0,
            life: 1,
            link: WorkerLink::new(ours),
            arena,
        })
        .await
        .unwrap();
    let back = events.downgrade();
    let job = thread::spawn(move || run(config, kept, (back, inbox), &ServiceFlags::default()));
    let (header, why) = receive::<ToTrainer>(&theirs, 1 << 10).unwrap();
    let why = String::from_utf8(why).unwrap();
    assert!(
        header.kind == ToTrainer::Error && why.contains("a defect in nodectl"),
        "{:?}: {why}",
        header.kind
    );
    let then = receive::<ToTrainer>(&theirs, 0).unwrap_err();
    assert_eq!(
        then.kind(),
        io::ErrorKind::UnexpectedEof,
        "the connection is at its end"
    );
    assert!(job.join().is_err(), "it panicked");
    assert!(
        events.is_closed(),
        "whoever registers next finds that it is gone"
    );
}
