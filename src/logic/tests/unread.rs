//! Results that a disk has lost, beside what other holders of their job have.

use super::{holders::done, *};

/// The only disk that had a result lost it, and its coordinator's job has come to another end of
/// the task: who keeps a replica takes that, too.
#[test]
fn a_replica_keeps_what_can_be_read_elsewhere_in_place_of_what_its_disk_lost() {
    let other = NodeId([2; 32]);
    let job = JobId(7);
    let mut state = State::new(Now::default(), info(1), config());
    let spec = JobSpec {
        repeat: 2,
        ..(*spec()).clone()
    };
    state.restore(job, Record::Spec(Arc::new(spec)));
    for task in [0, 1] {
        let record = Arc::new(done(task, other));
        state.restore(job, Record::Task(record));
    }
    state.records_lost(job, vec![0]);
    let cancelled = |task| {
        Arc::new(TaskRecord {
            outcome: Outcome::Cancelled,
            outputs: Vec::new(),
            ..done(task, other)
        })
    };
    state.learn(other, job, None, [0, 1].map(cancelled).into());
    let written: Vec<_> = state
        .handle(Now::default(), [])
        .into_iter()
        .filter_map(|effect| match effect {
            Effect::Disk(DiskEffect::Persist {
                ticket, records, ..
            }) => Some((ticket, records)),
            _ => None,
        })
        .collect();
    let [(ticket, records)] = written.as_slice() else {
        panic!("{written:?}");
    };
    assert_eq!(records, &[Record::Task(cancelled(0))]);
    let (ticket, result) = (*ticket, Ok(()));
    state.handle(Now::default(), [Input::Persisted { ticket, result }]);
    let lattice = &state.copy_of(job).expect("restored").lattice;
    assert_eq!(
        [0, 1].map(|task| lattice.cell(task)),
        [cancelled(0).cell(), done(1, other).cell()]
    );
    assert!(lattice.is_sound());
}
