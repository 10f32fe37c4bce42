//! Tasks in the order in which they ended, each once, for watchers' cursors.
//!
//! Tasks end about in the order of their numbers, so each is kept as its distance from the one
//! before: mostly in one byte, in a job of ten million tasks too.

use nodectl_types::TaskIndex;
use std::collections::{BTreeMap, BTreeSet};

/// Reading begins at a mark: one in so many tasks.
const MARKED: usize = 256;

#[derive(Debug, Default)]
pub struct Ends {
    /// Of each task its distance from the one before, positive ones doubled and negative ones
    /// doubled less one, seven bits a byte from the lowest on, the last byte without its high bit.
    distances: Vec<u8>,
    marks: Vec<DistanceMark>,
    count: usize,
    last: TaskIndex,
    /// Positions of tasks that stand further on by now, or nowhere.
    anew: BTreeSet<usize>,
    /// Where tasks stand that ended without a result: they may end anew, with one or after a retry.
    without_result: BTreeMap<TaskIndex, usize>,
}

/// Where the distance of a task begins, and the task before it.
#[derive(Clone, Copy, Debug)]
struct DistanceMark {
    at: usize,
    before: TaskIndex,
}

impl Ends {
    pub fn note(&mut self, task: TaskIndex, has_result: bool) {
        let before = if has_result {
            self.without_result.remove(&task)
        } else {
            self.without_result.insert(task, self.count)
        };
        self.anew.extend(before);
        if self.count.is_multiple_of(MARKED) {
            self.marks.push(DistanceMark {
                at: self.distances.len(),
                before: self.last,
            });
        }
        push(&mut self.distances, i64::from(task) - i64::from(self.last));
        (self.count, self.last) = (self.count + 1, task);
    }

    /// Takes tasks out whose ends are known no more, since the records of them are lost. All other
    /// tasks keep their positions.
    pub fn forget(&mut self, tasks: &BTreeSet<TaskIndex>) {
        let stand = self.from(0).zip(0..);
        let lost: Vec<_> = stand
            .filter(|(task, _)| tasks.contains(task))
            .map(|(_, position)| position)
            .collect();
        self.anew.extend(lost);
        self.without_result.retain(|task, _| !tasks.contains(task));
    }

    /// The tasks from a position on, `limit` at most, up to the first that may not be told, and the
    /// position after them.
    pub fn page(
        &self,
        position: u32,
        limit: usize,
        may_tell: impl Fn(TaskIndex) -> bool,
    ) -> (Vec<TaskIndex>, u32) {
        let mut position = self.count.min(position as usize);
        let mut page = Vec::new();
        for task in self.from(position) {
            if !self.anew.contains(&position) {
                if page.len() == limit || !may_tell(task) {
                    break;
                }
                page.push(task);
            }
            position += 1;
        }
        (page, position as u32)
    }

    pub fn has_more(&self, position: u32, may_tell: impl Fn(TaskIndex) -> bool) -> bool {
        !self.page(position, 1, may_tell).0.is_empty()
    }

    /// All that stand at a position or behind it.
    fn from(&self, position: usize) -> impl Iterator<Item = TaskIndex> + '_ {
        let mark = self.marks.get(position / MARKED);
        let DistanceMark { at, before } = mark.copied().unwrap_or(DistanceMark {
            at: self.distances.len(),
            before: 0,
        });
        let mut rest = self.distances[at..].iter();
        let mut task = i64::from(before);
        std::iter::from_fn(move || {
            task += pull(&mut rest)?;
            Some(task as TaskIndex)
        })
        .skip(position % MARKED)
    }

    #[cfg(test)]
    pub fn memory_bytes(&self) -> usize {
        self.distances.len() + self.marks.len() * size_of::<DistanceMark>()
    }
}

fn push(bytes: &mut Vec<u8>, distance: i64) {
    let mut left = ((distance << 1) ^ (distance >> 63)) as u64;
    while left >= 0x80 {
        bytes.push(left as u8 | 0x80);
        left >>= 7;
    }
    bytes.push(left as u8);
}

fn pull<'a>(bytes: &mut impl Iterator<Item = &'a u8>) -> Option<i64> {
    let (mut bits, mut shift) = (0, 0);
    loop {
        let byte = *bytes.next()?;
        bits |= u64::from(byte & 0x7f) << shift;
        shift += 7;
        if byte < 0x80 {
            return Some((bits >> 1) as i64 ^ -((bits & 1) as i64));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Pages of any size, from any position, are those of a plain list.
        #[test]
        fn it_is_a_list_of_tasks_each_once(
            ended in prop::collection::vec((prop_oneof![0..40_u32, any::<u32>()], 0..8_u8), 0..1500),
            position in 0..1600_u32,
            limit in 0..600_usize,
        ) {
            let (mut ends, mut list) = (Ends::default(), Vec::<Option<TaskIndex>>::new());
            let mut done = BTreeSet::new();
            for (task, what) in ended {
                let (is_lost, has_result) = (what == 0, what > 3);
                // What has a result ends no more, unless that is lost.
                if done.contains(&task) && !is_lost {
                    continue;
                }
                list.iter_mut().filter(|known| **known == Some(task)).for_each(|known| *known = None);
                if is_lost {
                    done.remove(&task);
                    ends.forget(&[task].into());
                    continue;
                }
                done.extend(has_result.then_some(task));
                list.push(Some(task));
                ends.note(task, has_result);
            }
            let from = list.len().min(position as usize);
            let expected: Vec<_> = list[from..].iter().flatten().copied().take(limit).collect();
            let (page, behind) = ends.page(position, limit, |_| true);
            prop_assert_eq!(&page, &expected);
            let rest: Vec<_> = list[behind as usize..].iter().flatten().copied().collect();
            prop_assert_eq!(ends.page(behind, usize::MAX, |_| true).0, rest);
            prop_assert_eq!(ends.has_more(behind, |_| true), !list[behind as usize..].iter().all(Option::is_none));
        }
    }

    #[test]
    fn a_million_tasks_cost_about_a_megabyte() {
        let mut ends = Ends::default();
        // Sixteen side by side.
        (0..1_000_000).for_each(|number: u32| ends.note(number ^ 0xf, true));
        assert_eq!(
            ends.page(999_998, 9, |_| true),
            (vec![999_998 ^ 0xf, 999_999 ^ 0xf], 1_000_000)
        );
        assert!(ends.memory_bytes() <= 1_100_000, "{}", ends.memory_bytes());
    }
}
