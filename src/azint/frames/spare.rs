//! Memory of chunks that were read, for the next ones: to touch new memory takes longer than to
//! read a file that the system has in its own.

use std::sync::{Mutex, PoisonError};

/// What was lent, and came back.
#[derive(Default)]
pub(super) struct SpareMemory(Mutex<SpareStacks>);

#[derive(Default)]
struct SpareStacks {
    free: Vec<Vec<u8>>,
    /// Taken and not given back. No more is kept, so that there is never more memory than was in
    /// use at once.
    lent: usize,
}

impl SpareMemory {
    /// Some memory, with whatever was in it; the one that was used last.
    pub(super) fn take(&self) -> Vec<u8> {
        let mut spare = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        spare.lent += 1;
        spare.free.pop().unwrap_or_default()
    }

    pub(super) fn give(&self, memory: Vec<u8>) {
        let mut spare = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if spare.lent > 0 {
            spare.lent -= 1;
            spare.free.push(memory);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_is_kept_than_was_lent() {
        let spare = SpareMemory::default();
        spare.give(vec![1; 8]);
        assert!(spare.take().is_empty());
        let second = spare.take();
        assert!(second.is_empty());
        spare.give(vec![2; 8]);
        spare.give(vec![3; 8]);
        spare.give(vec![4; 8]);
        assert_eq!(spare.take(), [3; 8], "the one that was used last");
        assert_eq!(spare.take(), [2; 8]);
        assert!(spare.take().is_empty());
    }
}
