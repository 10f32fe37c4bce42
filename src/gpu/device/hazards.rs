//! Which steps of a recording must wait for earlier ones. Pure.

use std::{collections::BTreeMap, ops::Range};

/// One use of a buffer by a step: bytes of the buffer, by its number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct BufferAccess {
    pub(super) buffer: u64,
    pub(super) range: Range<u64>,
    pub(super) writes: bool,
}

/// What was accessed since the last barrier.
#[derive(Default)]
pub(super) struct Hazards {
    since: BTreeMap<u64, Vec<(Range<u64>, bool)>>,
}

impl Hazards {
    /// Adds a step. True: it reads or writes what a step since the last barrier wrote, or writes
    /// what one read, so that a barrier must stand before it.
    pub(super) fn add(&mut self, step: &[BufferAccess]) -> bool {
        let conflict = step.iter().any(|access| self.conflicts(access));
        if conflict {
            self.since.clear();
        }
        for access in step {
            let of_buffer = self.since.entry(access.buffer).or_default();
            let entry = (access.range.clone(), access.writes);
            if !of_buffer.contains(&entry) {
                of_buffer.push(entry);
            }
        }
        conflict
    }

    fn conflicts(&self, access: &BufferAccess) -> bool {
        let Some(earlier) = self.since.get(&access.buffer) else {
            return false;
        };
        earlier.iter().any(|(range, wrote)| {
            let overlap = range.start < access.range.end && access.range.start < range.end;
            overlap && (*wrote || access.writes)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn access(buffer: u64, range: Range<u64>, writes: bool) -> BufferAccess {
        BufferAccess {
            buffer,
            range,
            writes,
        }
    }

    #[test]
    fn only_what_depends_waits() {
        let mut hazards = Hazards::default();
        assert!(!hazards.add(&[access(0, 0..8, false), access(1, 0..8, true)]));
        assert!(
            !hazards.add(&[access(0, 0..8, false), access(1, 8..16, true)]),
            "other bytes"
        );
        assert!(
            hazards.add(&[access(1, 4..12, false), access(2, 0..4, true)]),
            "read after write"
        );
        assert!(!hazards.add(&[access(1, 0..16, false)]), "read after read");
        assert!(hazards.add(&[access(1, 15..16, true)]), "write after read");
        assert!(hazards.add(&[access(1, 15..16, true)]), "write after write");
    }

    proptest! {
        /// Whatever the steps: between two that conflict there is a barrier.
        #[test]
        fn conflicting_steps_are_separated(steps in proptest::collection::vec(
            proptest::collection::vec((0u64..3, 0u64..8, 1u64..5, any::<bool>()), 1..4), 1..20)) {
            let steps: Vec<Vec<BufferAccess>> = steps.into_iter().map(|step| {
                step.into_iter().map(|(buffer, start, length, writes)| access(buffer, start..start + length, writes)).collect()
            }).collect();
            let mut hazards = Hazards::default();
            let barriers: Vec<bool> = steps.iter().map(|step| hazards.add(step)).collect();
            for (later, step) in steps.iter().enumerate() {
                for (earlier, before) in steps[..later].iter().enumerate() {
                    let conflict = before.iter().any(|a| step.iter().any(|b| {
                        a.buffer == b.buffer && (a.writes || b.writes)
                            && a.range.clone().any(|byte| b.range.contains(&byte))
                    }));
                    if conflict {
                        prop_assert!(barriers[earlier + 1..=later].contains(&true));
                    }
                }
            }
        }
    }
}
