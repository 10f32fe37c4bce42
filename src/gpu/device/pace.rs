//! How long a kernel's workgroups take, learned from submissions that have ended, and how much is
//! submitted at once: enough that submitting costs nothing beside it, little enough that no
//! driver's watchdog is met (2 s on desktops, and with amdgpu's newer ones everywhere). Pure.

use serde::{Deserialize, Serialize};
use std::time::Duration;

/// What one submission is meant to take.
pub(super) const TARGET: Duration = Duration::from_millis(200);
/// What none should take.
pub(super) const LIMIT: Duration = Duration::from_millis(500);
/// What one is expected to take at most, once, to find out whether more workgroups take longer.
const BOLD: Duration = Duration::from_millis(300);
/// A dispatch has at most so many times the workgroups of the largest before: few may mislead.
const GROWTH: u64 = 8;
/// Workgroups of the first dispatch of a kernel of which nothing is known.
const FIRST_GROUPS: u64 = 64;
/// How much a submission that was faster than expected counts.
const WEIGHT: f64 = 0.25;

/// What is known of one kernel on one device.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct KernelPace {
    /// Nanoseconds a workgroup. Slow ones count more than fast ones.
    group_ns: f64,
    /// The most workgroups that one dispatch had.
    tried: u64,
}

/// What a submission did of one kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct KernelShare {
    /// Workgroups of all its dispatches.
    pub(super) groups: u64,
    /// Workgroups of the largest dispatch.
    pub(super) largest: u64,
}

impl KernelPace {
    /// Of a kernel's first submission.
    pub(super) fn first(share: KernelShare, took: Duration) -> Self {
        Self {
            group_ns: took.as_nanos() as f64 / share.groups.max(1) as f64,
            tried: share.largest,
        }
    }

    /// Whether it is what a pace can be: files are not believed.
    pub(super) fn is_plausible(&self) -> bool {
        self.group_ns.is_finite() && self.group_ns >= 0.0
    }

    /// A submission with `share` of this kernel, all of whose kernels were known, took `ratio`
    /// times what was expected.
    pub(super) fn learn(&mut self, share: KernelShare, took: Duration, ratio: f64) {
        let all = took.as_nanos() as f64 / share.groups.max(1) as f64;
        // A last, small piece takes as long as a large one, and says little about those.
        let is_rest = share.largest <= self.tried / 2 && took <= BOLD;
        if ratio > 1.0 && is_rest {
            return;
        }
        if ratio > 1.0 {
            self.group_ns = (self.group_ns * ratio).min(all.max(self.group_ns));
        } else if share.largest >= self.tried.saturating_mul(2) {
            // Few workgroups take as long as many: what is known is of fewer.
            self.group_ns = (self.group_ns * ratio).min(all);
        } else {
            self.group_ns *= 1.0 - WEIGHT + WEIGHT * ratio;
        }
        self.tried = self.tried.max(share.largest);
    }

    /// Whether no dispatch before had so many workgroups.
    pub(super) fn is_narrower(&self, share: KernelShare) -> bool {
        self.tried < share.largest
    }

    pub(super) fn time(&self, groups: u64) -> Duration {
        Duration::from_nanos((self.group_ns * groups as f64).min(1e18) as u64)
    }

    /// The most workgroups of a dispatch that is meant to take `TARGET`; at least 1.
    fn fitting(&self) -> u64 {
        ((TARGET.as_nanos() as f64 / self.group_ns.max(1e-3)) as u64).max(1)
    }
}

/// The most workgroups of a kernel's next dispatch, and whether more is known after it.
pub(super) fn most(pace: Option<KernelPace>) -> (u64, bool) {
    let Some(pace) = pace else {
        return (FIRST_GROUPS, true);
    };
    let tried = pace.tried.max(1);
    let (fitting, grown) = (pace.fitting(), tried.saturating_mul(GROWTH));
    if grown < fitting {
        return (grown, true);
    }
    // Twice as many may take as long on a device that is wide, and take no longer than they may.
    let twice = tried.saturating_mul(2);
    match fitting < twice && pace.time(twice) <= BOLD {
        true => (twice, true),
        false => (fitting, false),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn share(groups: u64) -> KernelShare {
        KernelShare {
            groups,
            largest: groups,
        }
    }

    /// Runs `groups` as pieces: how many there were, and how long the longest took.
    fn run(
        pace: &mut Option<KernelPace>,
        groups: u64,
        time: impl Fn(u64) -> Duration,
    ) -> (u64, Duration) {
        let (mut left, mut pieces, mut longest) = (groups, 0, Duration::ZERO);
        while left > 0 {
            let piece = most(*pace).0.min(left);
            let took = time(piece);
            match pace {
                None => *pace = Some(KernelPace::first(share(piece), took)),
                Some(pace) => {
                    let expected = pace.time(piece).as_secs_f64().max(1e-9);
                    pace.learn(share(piece), took, took.as_secs_f64() / expected);
                }
            }
            (left, pieces, longest) = (left - piece, pieces + 1, longest.max(took));
        }
        (pieces, longest)
    }

    proptest! {
        /// However slow a kernel, and however wide a device, none of its dispatches takes long once
        /// the first has ended, and there are not many more than needed.
        #[test]
        fn no_dispatch_takes_long_after_the_first(
            group_ns in 10u64..200_000_000, width in 1u64..5_000, groups in 1u64..1 << 22,
        ) {
            let time = |piece: u64| {
                Duration::from_micros(20) + Duration::from_nanos(group_ns * piece.div_ceil(width))
            };
            prop_assume!(time(groups) < Duration::from_secs(300));
            let mut pace = None;
            run(&mut pace, FIRST_GROUPS, time);
            let (_, longest) = run(&mut pace, groups, time);
            prop_assert!(longest <= LIMIT.max(time(1)), "{longest:?}");
            for _ in 0..30 {
                run(&mut pace, groups, time);
            }
            let (pieces, longest) = run(&mut pace, groups, time);
            prop_assert!(longest <= LIMIT.max(time(1)), "{longest:?}");
            let needed = time(groups).as_secs_f64() / TARGET.as_secs_f64();
            // Of workgroups that are long by themselves it is not found out how many fit beside
            // each other.
            let is_long = group_ns > 150_000_000;
            prop_assert!(is_long || pieces as f64 <= 4.0 * needed + 3.0, "{pieces} {needed}");
        }
    }

    #[test]
    fn what_is_slower_than_it_was_is_cut_at_once_and_what_is_faster_by_and_by() {
        let mut pace = KernelPace::first(share(1000), Duration::from_millis(10));
        assert_eq!(most(Some(pace)), (8000, true));
        pace.learn(share(1000), Duration::from_millis(1000), 100.0);
        assert_eq!(most(Some(pace)).0, 200);
        pace.learn(share(1000), Duration::from_millis(10), 0.01);
        assert!((200..300).contains(&most(Some(pace)).0), "{pace:?}");
        // Twice as many as ever say more.
        pace.learn(share(2000), Duration::from_millis(20), 0.013);
        assert_eq!(most(Some(pace)).0, 16_000);
    }
}
