//! Records whose job's specification was lost with the beginning of its journal.

use super::{trio::done, *};
use nodectl_types::{BlobHash, Cell};

#[test]
fn results_without_files_are_not_whole_when_their_specification_is_back() {
    let mut state = State::new(Now::default(), info(1), config());
    let job = JobId(7);
    let records = [0, 1].map(|task| Arc::new(done(task, NodeId([1; 32]))));
    for record in &records {
        state.restore(job, Record::Task(record.clone()));
    }
    let missing = |record: &Arc<TaskRecord>| {
        let hash = record.blobs().next().expect("it has a file");
        (job, record.task, Cell::of(record), hash)
    };
    state.files_lost(records.iter().map(missing));
    state.file_came(BlobHash([1; 32]));
    let spec = Arc::new(JobSpec {
        repeat: 2,
        ..(*spec()).clone()
    });
    state.restore(job, Record::Spec(spec));
    for record in state.adopt_orphans(job) {
        let copy = state.copies.get_mut(&job).expect("specified");
        copy.lattice.merge(&record);
    }
    let lattice = &state.copy_of(job).expect("specified").lattice;
    assert_eq!(
        [0, 1].map(|task| (lattice.is_done(task), lattice.is_whole(task))),
        [(true, false), (true, true)],
        "the file of the second has come meanwhile"
    );
}
