//! Where a recording is cut into submissions, so that none takes long: between steps, and between
//! the workgroups of a dispatch. Pure.

use super::pace::{KernelPace, TARGET, most};
use std::time::Duration;

/// A kernel's name where it is remembered: a hash of all that makes it.
pub(super) type KernelId = [u8; 16];

/// A step, as far as its time goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StepSize {
    /// None of copies and fills, which are never long.
    pub(super) kernel: Option<KernelId>,
    /// Workgroups.
    pub(super) groups: [u32; 3],
    /// Whether some of them may be dispatched by themselves.
    pub(super) divides: bool,
}

/// Workgroups of a step, or a step without any.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CutPiece {
    pub(super) step: usize,
    /// The first workgroup, and how many there are.
    pub(super) base: [u32; 3],
    pub(super) count: [u32; 3],
    /// Whether it is the step's first.
    pub(super) begins: bool,
}

/// What is submitted together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CutPart {
    pub(super) pieces: Vec<CutPiece>,
    /// Whether the time that this part takes tells how the rest is to be cut.
    pub(super) tells: bool,
}

/// How far a recording has come.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RecordingPlace {
    step: usize,
    /// Workgroups of it that are done, in the order of their numbers.
    done: u64,
}

impl StepSize {
    fn count(&self) -> u64 {
        self.groups
            .iter()
            .map(|groups| u64::from(*groups))
            .product()
    }
}

/// The part after `place`, which moves behind it; None at the end.
pub(super) fn next_part(
    steps: &[StepSize],
    place: &mut RecordingPlace,
    pace: impl Fn(&KernelId) -> Option<KernelPace>,
) -> Option<CutPart> {
    let (mut pieces, mut left) = (Vec::new(), TARGET);
    while let Some(step) = steps.get(place.step) {
        let Some(kernel) = &step.kernel else {
            pieces.push(CutPiece::whole(place.step, step.groups));
            place.next();
            continue;
        };
        let pace = pace(kernel);
        let rest = step.count() - place.done;
        let (most, tells) = most(pace);
        if rest <= most || !step.divides {
            let time = pace.map_or(Duration::ZERO, |pace| pace.time(rest));
            if time > left && !pieces.is_empty() {
                break;
            }
            left = left.saturating_sub(time);
            while place.done < step.count() {
                pieces.push(place.piece(step, u64::MAX));
            }
            place.next();
            continue;
        }
        if !pieces.is_empty() {
            break;
        }
        return Some(CutPart {
            pieces: vec![place.piece(step, most)],
            tells,
        });
    }
    let tells = false;
    (!pieces.is_empty()).then_some(CutPart { pieces, tells })
}

impl RecordingPlace {
    fn next(&mut self) {
        *self = Self {
            step: self.step + 1,
            done: 0,
        };
    }

    /// The next workgroups of a step, at most so many, which are a box.
    fn piece(&mut self, step: &StepSize, most: u64) -> CutPiece {
        let [x, y, z] = step.groups.map(u64::from);
        let (row, layer) = (self.done / x, self.done / (x * y));
        let base = [self.done % x, row % y, layer];
        let fits = |unit: u64, count: u64| (most / unit).clamp(1, count);
        let count = if self.done.is_multiple_of(x * y) && most >= x * y {
            [x, y, fits(x * y, z - base[2])]
        } else if base[0] == 0 && most >= x {
            [x, fits(x, y - base[1]), 1]
        } else {
            [fits(1, x - base[0]), 1, 1]
        };
        let begins = self.done == 0;
        self.done += count.iter().product::<u64>();
        CutPiece {
            step: self.step,
            base: base.map(|at| at as u32),
            count: count.map(|count| count as u32),
            begins,
        }
    }
}

impl CutPiece {
    fn whole(step: usize, groups: [u32; 3]) -> Self {
        Self {
            step,
            base: [0; 3],
            count: groups,
            begins: true,
        }
    }

    pub(super) fn groups(&self) -> u64 {
        self.count.iter().map(|count| u64::from(*count)).product()
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::pace::{KernelShare, LIMIT},
        *,
    };
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn dispatch(kernel: u8, groups: [u32; 3], divides: bool) -> StepSize {
        StepSize {
            kernel: Some([kernel; 16]),
            groups,
            divides,
        }
    }

    /// Kernel 0 is unknown; each workgroup of another takes its number in milliseconds.
    fn pace(kernel: &KernelId) -> Option<KernelPace> {
        let share = KernelShare {
            groups: 1000,
            largest: 1000,
        };
        (kernel[0] > 0).then(|| KernelPace::first(share, Duration::from_secs(kernel[0].into())))
    }

    fn parts(steps: &[StepSize]) -> Vec<CutPart> {
        let mut place = RecordingPlace::default();
        std::iter::from_fn(|| next_part(steps, &mut place, pace)).collect()
    }

    proptest! {
        #[test]
        fn each_workgroup_is_in_one_piece_and_steps_keep_their_order(
            sizes in prop::collection::vec((0u8..4, [0u32..9, 0u32..9, 0u32..9], any::<bool>()), 0..9),
        ) {
            let steps: Vec<_> = sizes
                .iter()
                .map(|(kernel, groups, divides)| dispatch(kernel * 60, *groups, *divides))
                .collect();
            let parts = parts(&steps);
            let mut seen = BTreeSet::new();
            let mut last = 0;
            for part in &parts {
                prop_assert!(!part.pieces.is_empty());
                let mut time = Duration::ZERO;
                for piece in &part.pieces {
                    let step = &steps[piece.step];
                    prop_assert!(piece.step >= last);
                    last = piece.step;
                    let [x, y, z] = std::array::from_fn(|axis| piece.base[axis]..piece.base[axis] + piece.count[axis]);
                    for x in x { for y in y.clone() { for z in z.clone() {
                        prop_assert!(x < step.groups[0] && y < step.groups[1] && z < step.groups[2]);
                        prop_assert!(seen.insert((piece.step, x, y, z)));
                    }}}
                    if step.divides {
                        time += pace(&step.kernel.unwrap()).map_or(Duration::ZERO, |pace| pace.time(piece.groups()));
                    }
                }
                prop_assert!(time <= LIMIT, "{time:?}");
            }
            let all: u64 = steps.iter().map(StepSize::count).sum();
            prop_assert_eq!(seen.len() as u64, all);
            for (index, step) in steps.iter().enumerate().filter(|(_, step)| step.count() > 0) {
                let of_step = || parts.iter().flat_map(|part| &part.pieces).filter(|piece| piece.step == index);
                prop_assert!(of_step().filter(|piece| piece.begins).count() == 1);
                prop_assert!(step.divides || of_step().count() == 1);
            }
        }
    }

    #[test]
    fn what_is_short_stays_together_and_what_is_unknown_begins_small() {
        let copy = StepSize {
            kernel: None,
            groups: [0; 3],
            divides: false,
        };
        let short = dispatch(1, [50, 1, 1], true);
        assert_eq!(parts(&[copy, short, short, copy]).len(), 1);
        let new = dispatch(0, [1 << 20, 1, 1], true);
        let first = next_part(&[new], &mut RecordingPlace::default(), pace).unwrap();
        assert!(first.tells && first.pieces[0].groups() == 64);
        // What a kernel that cannot be divided needs is submitted by itself.
        let long = dispatch(1, [1000, 1, 1], false);
        assert_eq!(parts(&[short, long, short]).len(), 3);
    }
}
