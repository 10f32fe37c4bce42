//! How large a part of a clock's samples each worker has: the same for all, or by its measured
//! pace, so that all end a clock at about the same time.

use super::{Part, group::Group};
use nodectl_types::{
    NodeId,
    servers::{
        Shares,
        message::{Clock, View, Worker, WorkerLife},
    },
};
use std::collections::{BTreeMap, VecDeque};

/// About what the shares of all workers add up to where they follow pace.
const WHOLE: f64 = 65_536.0;
/// The largest share that may be told of.
pub(super) const MOST: u32 = 1 << 19;
/// A pace is the median of so many clocks: two in which the machine was busy with something else
/// change nothing.
const REMEMBERED: usize = 5;
/// Clocks of each worker that are measured before shares change, and again before they change next.
const MEASURED: usize = 3;
/// Shares change only where a clock is expected to take so many times longer without.
const GAIN: f64 = 1.1;

/// How fast workers compute, as far as this node has heard.
#[derive(Default)]
pub(super) struct Paces(BTreeMap<Worker, WorkerPace>);

#[derive(Default)]
struct WorkerPace {
    /// Microseconds for a sample, in clocks since shares changed last.
    recent: VecDeque<f64>,
    /// Their median, or what it was before.
    usual: Option<f64>,
}

impl Paces {
    /// A worker has computed for so long on samples of a clock.
    pub fn add(&mut self, worker: Worker, samples: u32, computed_us: u64) {
        if samples == 0 || computed_us == 0 {
            return;
        }
        let pace = self.0.entry(worker).or_default();
        if pace.recent.len() == REMEMBERED {
            pace.recent.pop_front();
        }
        pace.recent
            .push_back(computed_us as f64 / f64::from(samples));
        let mut sorted: Vec<f64> = pace.recent.iter().copied().collect();
        sorted.sort_by(f64::total_cmp);
        if sorted.len() >= MEASURED {
            pace.usual = Some(sorted[sorted.len() / 2]);
        }
    }

    /// Shares have changed: with another share a sample may take another time.
    fn measure_anew(&mut self) {
        self.0.values_mut().for_each(|pace| pace.recent.clear());
    }

    /// Forgets processes that do not compute any more, or on another node.
    fn forget(&mut self, before: &[(WorkerLife, NodeId)], now: &[(WorkerLife, NodeId)]) {
        self.0.retain(|worker, _| {
            let of = |(life, _): &&(WorkerLife, NodeId)| life.worker == *worker;
            before.iter().find(of) == now.iter().find(of)
        });
    }

    /// What is known of each of these workers; of the others the mean.
    fn shares(&self, workers: &[(WorkerLife, NodeId)]) -> Vec<u32> {
        let usual = |life: &WorkerLife| self.0.get(&life.worker).and_then(|pace| pace.usual);
        let speeds: Vec<Option<f64>> = workers
            .iter()
            .map(|(life, _)| usual(life).map(|pace| 1.0 / pace))
            .collect();
        let known: Vec<f64> = speeds.iter().copied().flatten().collect();
        if known.is_empty() {
            return equal(workers.len());
        }
        let mean = known.iter().sum::<f64>() / known.len() as f64;
        let speeds: Vec<f64> = speeds.into_iter().map(|own| own.unwrap_or(mean)).collect();
        proportional(&speeds, None)
    }

    /// The shares that are worth a change, for a clock of so many samples.
    fn changed(
        &self,
        workers: &[(WorkerLife, NodeId)],
        shares: &[u32],
        samples: u64,
    ) -> Option<Vec<u32>> {
        let pace = |(life, _): &(WorkerLife, NodeId)| {
            let pace = self.0.get(&life.worker)?;
            pace.usual.filter(|_| pace.recent.len() >= MEASURED)
        };
        let paces: Vec<f64> = workers.iter().map(pace).collect::<Option<_>>()?;
        let speeds: Vec<f64> = paces.iter().map(|pace| 1.0 / pace).collect();
        let changed = proportional(&speeds, Some(samples));
        let is_worth = clock_time(shares, &paces) > GAIN * clock_time(&changed, &paces);
        is_worth.then_some(changed)
    }
}

fn equal(workers: usize) -> Vec<u32> {
    vec![1; workers]
}

/// Of clocks of so many samples each worker keeps one or two, or nobody would know when it has
/// become faster.
fn proportional(speeds: &[f64], samples: Option<u64>) -> Vec<u32> {
    let all: f64 = speeds.iter().sum();
    let least = samples.map_or(1.0, |samples| 2.0 * WHOLE / samples.max(1) as f64);
    let share = |speed: &f64| (WHOLE * speed / all).max(least).ceil() as u32;
    speeds.iter().map(share).collect()
}

/// Until the last one has ended a clock of one sample.
fn clock_time(shares: &[u32], paces: &[f64]) -> f64 {
    let all: f64 = shares.iter().map(|share| f64::from(*share)).sum();
    let times = shares.iter().zip(paces);
    times.fold(0.0, |most, (share, pace)| {
        (f64::from(*share) * pace / all).max(most)
    })
}

/// What the worker at this place among all has.
pub(super) fn part(shares: &[u32], index: usize) -> Part {
    let before = shares.iter().take(index).sum();
    Part {
        index: index as u32,
        of: shares.len() as u32,
        begin: before,
        end: before + shares.get(index).copied().unwrap_or(0),
        total: shares.iter().sum(),
    }
}

impl Group {
    pub(super) fn follows_pace(&self) -> bool {
        self.config.settings.shares == Shares::Pace
    }

    /// The shares of a view's workers. Those who went on together keep theirs.
    pub(super) fn shares_of_view(&self, workers: &[(WorkerLife, NodeId)]) -> Vec<u32> {
        if !self.follows_pace() {
            return Vec::new();
        }
        match self.installed.view.workers == workers {
            true => self.installed.shares.clone(),
            false => self.paces.shares(workers),
        }
    }

    /// The shares from the clock on that follows this one, which is about to count; none where they
    /// stay as they are.
    pub(super) fn shares_after(&self, clock: Clock) -> Vec<u32> {
        if !self.follows_pace() {
            return Vec::new();
        }
        let ended = self.clocks.ended.get(&clock).into_iter().flatten();
        let samples = ended.map(|(_, (samples, _))| u64::from(*samples)).sum();
        let (workers, shares) = (&self.installed.view.workers, &self.installed.shares);
        self.paces
            .changed(workers, shares, samples)
            .unwrap_or_default()
    }

    /// The leader has said from when on shares are others.
    pub(super) fn take_shares(&mut self, shares: Vec<u32>) {
        if !shares.is_empty() {
            self.installed.shares = shares;
            self.paces.measure_anew();
        }
    }

    /// A view begins with the shares that it says. Called before it is installed.
    pub(super) fn begin_shares(&mut self, view: &View) {
        let before = &self.installed.view.workers;
        self.paces.forget(before, &view.workers);
        self.installed.shares = match view.shares.is_empty() {
            true => equal(view.workers.len()),
            false => view.shares.clone(),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn workers(count: u32) -> Vec<(WorkerLife, NodeId)> {
        let life = |worker| WorkerLife { worker, life: 1 };
        (0..count)
            .map(|worker| (life(worker), NodeId([worker as u8; 32])))
            .collect()
    }

    /// Clocks of so many samples, whose workers need so many microseconds for each and so many
    /// beside: how long each clock takes, and how often shares change.
    fn clocks(count: usize, samples: u64, costs: &[(u64, u64)]) -> (Vec<u64>, usize) {
        let (workers, mut paces) = (workers(costs.len() as u32), Paces::default());
        let (mut shares, mut times, mut changes) = (equal(costs.len()), Vec::new(), 0);
        for _ in 0..count {
            let mut longest = 0;
            for (index, (each, beside)) in costs.iter().enumerate() {
                let Part {
                    begin, end, total, ..
                } = part(&shares, index);
                let edge = |at: u32| samples * u64::from(at) / u64::from(total);
                let own = edge(end) - edge(begin);
                assert!(own > 0, "each has some samples");
                let taken = own * each + beside;
                paces.add(index as u32, own as u32, taken);
                longest = longest.max(taken);
            }
            times.push(longest);
            if let Some(changed) = paces.changed(&workers, &shares, samples) {
                shares = changed;
                paces.measure_anew();
                changes += 1;
            }
        }
        (times, changes)
    }

    #[test]
    fn a_clock_is_a_quarter_shorter_where_one_of_two_is_half_as_fast() {
        for beside in [0, 5_000] {
            let (times, changes) = clocks(40, 64, &[(1_000, beside), (2_000, beside)]);
            let (first, last) = (times[0] as f64, times[39] as f64);
            println!("beside {beside} us: {first} us, then {last} us");
            assert!(last <= 0.75 * first, "{times:?}");
            assert!(changes <= 2, "{changes} changes");
        }
    }

    #[test]
    fn shares_stay_where_all_are_about_as_fast_and_where_a_clock_or_two_are_slow() {
        let (_, changes) = clocks(40, 64, &[(1_000, 0), (1_080, 0), (950, 0)]);
        assert_eq!(changes, 0);
        let (workers, mut paces) = (workers(2), Paces::default());
        for clock in 0..20 {
            let slow = if clock % 5 < 2 { 10 } else { 1 };
            paces.add(0, 32, 32_000 * slow);
            paces.add(1, 32, 32_000);
            if clock % 5 == 4 {
                assert_eq!(paces.changed(&workers, &equal(2), 64), None);
            }
        }
    }

    #[test]
    fn who_comes_is_taken_to_be_as_fast_as_the_others_are_in_the_mean() {
        let mut paces = Paces::default();
        (0..3).for_each(|_| paces.add(0, 10, 10_000));
        (0..3).for_each(|_| paces.add(1, 10, 30_000));
        let shares = paces.shares(&workers(3));
        assert!(shares[1] < shares[2] && shares[2] < shares[0], "{shares:?}");
        let now = workers(1);
        paces.forget(&workers(3), &now);
        let back = paces.shares(&workers(2));
        assert_eq!(
            back[0], back[1],
            "what was known of a worker that left is not known any more"
        );
    }

    proptest! {
        #[test]
        fn every_worker_has_samples_and_shares_settle(
            costs in prop::collection::vec((1u64..100_000, 0u64..10_000), 1..9), samples in 32u64..4096
        ) {
            let (times, changes) = clocks(60, samples, &costs);
            prop_assert!(changes <= 12, "{} changes, {:?}", changes, times);
            prop_assert!(times[59] <= times[0] + times[0] / 4);
        }
    }
}
