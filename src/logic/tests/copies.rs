//! What a replica does to have the results that another holder shows it.

use super::{holders::done, *};
use nodectl_types::BlobHash;

const OTHER: NodeId = NodeId([2; 32]);
const JOB: JobId = JobId(7);

/// The result of a task, whose file makes it a part of its own.
fn large(task: TaskIndex) -> Arc<TaskRecord> {
    let mut record = done(task, OTHER);
    record.outputs[0].bytes = 1 << 30;
    Arc::new(record)
}

/// Which files are fetched.
fn fetched(effects: &[Effect]) -> Vec<(u64, BlobHash)> {
    let fetch = |effect: &Effect| match effect {
        Effect::Disk(DiskEffect::FetchBlobs { ticket, hashes, .. }) => Some((*ticket, hashes[0])),
        _ => None,
    };
    effects.iter().filter_map(fetch).collect()
}

/// A connection is lost while large files are on their way, and what was pulled is pulled again.
#[test]
fn what_is_pulled_twice_is_not_all_fetched_twice() {
    let mut state = node();
    let spec = JobSpec {
        repeat: 4,
        ..(*spec()).clone()
    };
    state.restore(JOB, Record::Spec(Arc::new(spec)));
    for _ in 0..2 {
        state.learn(OTHER, JOB, None, (0..4).map(large).collect());
    }
    let mut effects = state.handle(Now::default(), []);
    let mut files = Vec::new();
    while !effects.is_empty() {
        let coming = fetched(&effects);
        files.extend(coming.iter().map(|(_, hash)| hash.0[0]));
        let come = coming.into_iter().map(|(ticket, _)| Input::Fetched {
            ticket,
            result: Ok(()),
        });
        let written = effects.iter().filter_map(|effect| match effect {
            Effect::Disk(DiskEffect::Persist { ticket, .. }) => Some(Input::Persisted {
                ticket: *ticket,
                result: Ok(()),
            }),
            _ => None,
        });
        let inputs: Vec<_> = come.chain(written).collect();
        effects = state.handle(Now::default(), inputs);
    }
    // Whoever has nothing else left to do waits for no other.
    assert_eq!(files, [0, 1, 2, 3, 3]);
    let lattice = &state.copy_of(JOB).expect("restored").lattice;
    assert!((0..4).all(|task| lattice.cell(task) == large(task).cell()));
}
