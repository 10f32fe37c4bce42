//! Results that came together, in the parts in which they are written: each waits for its own files
//! and those of few more, not for all. So of large files those that are here count, and need not
//! come again after a restart, which removes files that no journal names.

use nodectl_types::TaskRecord;
use std::{collections::VecDeque, sync::Arc};

/// Files of so many bytes are enough for a part.
const PART_BYTES: u64 = 16 << 20;

pub type Parts = VecDeque<Vec<Arc<TaskRecord>>>;

/// Records without files are first, and wait for nothing.
pub fn in_parts(records: Vec<Arc<TaskRecord>>) -> Parts {
    let (with_files, mut part): (Vec<_>, Vec<_>) = records
        .into_iter()
        .partition(|record| record.blobs().next().is_some());
    let (mut parts, mut bytes) = (Parts::new(), PART_BYTES);
    for record in with_files {
        if bytes >= PART_BYTES {
            parts.push_back(std::mem::take(&mut part));
            bytes = 0;
        }
        bytes += record.file_bytes();
        part.push(record);
    }
    parts.push_back(part);
    parts.retain(|part| !part.is_empty());
    parts
}

#[cfg(test)]
mod tests {
    use super::*;
    use nodectl_types::{Attempt, BlobHash, NodeId, Outcome, OutputFile};

    #[test]
    fn large_files_are_waited_for_one_by_one_and_small_ones_together() {
        let record = |task: u32, bytes: u64| {
            let attempt = Attempt {
                epoch: 1,
                claim: 0,
                number: 1,
            };
            let plain = TaskRecord::plain(task, attempt, NodeId([1; 32]), Outcome::Done);
            let file = OutputFile {
                path: "a".into(),
                bytes,
                hash: BlobHash([task as u8; 32]),
                executable: false,
            };
            let outputs = (bytes > 0).then_some(file).into_iter().collect();
            Arc::new(TaskRecord { outputs, ..plain })
        };
        let sizes = [0, 1 << 30, 5, 0, PART_BYTES, 1 << 20, 7, PART_BYTES];
        let records = (0..).zip(sizes).map(|(task, bytes)| record(task, bytes));
        let parts: Vec<Vec<u32>> = in_parts(records.collect())
            .iter()
            .map(|part| part.iter().map(|record| record.task).collect())
            .collect();
        assert_eq!(parts, [vec![0, 3], vec![1], vec![2, 4], vec![5, 6, 7]]);
        assert!(in_parts(Vec::new()).is_empty());
    }
}
