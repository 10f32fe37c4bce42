//! Outer steps of a round of `local`, fragment by fragment, while the worker goes on with its own
//! steps (Streaming DiLoCo, Douillard et al., arXiv 2501.18512): when a fragment is sent, when what
//! came of it is taken up, and how that is mixed with what the worker has come to meanwhile.

use crate::plan::Streaming;
use std::ops::Range;

/// What is done with a fragment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FragmentEvent {
    /// What it has moved by goes out.
    Send(usize),
    /// What came of it is taken up.
    TakeUp(usize),
}

/// A round of so many steps: for each fragment after which of them it is sent, and after which what
/// came of it is taken up.
pub struct RoundSchedule(Vec<(u64, FragmentEvent)>);

impl RoundSchedule {
    /// Fragments follow each other in equal parts of the round. One is sent `delay` steps before
    /// the end of its part, or at its beginning.
    pub fn new(streaming: Streaming, fragments: usize, steps: u64) -> Self {
        let edge = |fragment: usize| (steps * fragment as u64).div_ceil(fragments as u64);
        let of_fragment = |fragment| {
            let (begin, end) = (edge(fragment), edge(fragment + 1));
            let sent = end.saturating_sub(streaming.delay.into()).max(begin);
            [
                (sent, FragmentEvent::Send(fragment)),
                (end, FragmentEvent::TakeUp(fragment)),
            ]
        };
        Self((0..fragments).flat_map(of_fragment).collect())
    }

    /// What is done after so many steps, in order.
    pub fn after(&self, steps: u64) -> impl Iterator<Item = FragmentEvent> + '_ {
        let now = self.0.iter().filter(move |(at, _)| *at == steps);
        now.map(|(_, event)| *event)
    }
}

/// Cuts tensors of so many numbers into as many fragments, about equally large, each of some that
/// follow each other; into fewer where there are fewer tensors.
pub fn fragments(numbers: &[u64], count: u32) -> Vec<Range<usize>> {
    let count = (count as usize).clamp(1, numbers.len().max(1));
    let all: u64 = numbers.iter().sum();
    let (mut fragments, mut begin, mut before) = (Vec::new(), 0, 0);
    for (tensor, len) in numbers.iter().enumerate() {
        before += len;
        let left = numbers.len() - tensor - 1;
        let others = count - fragments.len() - 1;
        let is_full = before * count as u64 >= all * (fragments.len() as u64 + 1);
        if others > 0 && (is_full || left == others) {
            fragments.push(begin..tensor + 1);
            begin = tensor + 1;
        }
    }
    fragments.push(begin..numbers.len());
    fragments
}

/// By what a worker's values have moved from those of the last outer step, backwards: the outer
/// gradient.
pub fn moved(outer: &[f32], own: &[f32]) -> Vec<f32> {
    outer
        .iter()
        .zip(own)
        .map(|(outer, own)| outer - own)
        .collect()
}

/// The values that a worker goes on with: the share `mix` of its own, the rest of the outer step's.
pub fn mixed(outer: &[f32], own: &[f32], mix: f32) -> Vec<f32> {
    let mixed = |(outer, own): (&f32, &f32)| mix * own + (1.0 - mix) * outer;
    outer.iter().zip(own).map(mixed).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::Value;
    use std::{fs, path::Path};

    proptest! {
        #[test]
        fn every_fragment_is_sent_and_then_taken_up_once_in_a_round(count in 1u32..20, delay in 0u32..30, steps in 1u64..60) {
            let streaming = Streaming { fragments: count, delay, mix: 0.0 };
            let schedule = RoundSchedule::new(streaming, count as usize, steps);
            let events: Vec<FragmentEvent> = (0..=steps).flat_map(|step| schedule.after(step).collect::<Vec<_>>()).collect();
            let all: Vec<FragmentEvent> = (0..count as usize)
                .flat_map(|fragment| [FragmentEvent::Send(fragment), FragmentEvent::TakeUp(fragment)])
                .collect();
            prop_assert_eq!(events, all);
        }

        #[test]
        fn fragments_are_all_tensors_and_none_twice(numbers in prop::collection::vec(0u64..1000, 1..40), count in 1u32..12) {
            let found = fragments(&numbers, count);
            prop_assert_eq!(found.len(), (count as usize).min(numbers.len()));
            prop_assert_eq!(found[0].start, 0);
            prop_assert!(found.windows(2).all(|two| two[0].end == two[1].start));
            prop_assert!(found.iter().all(|fragment| !fragment.is_empty()));
            prop_assert_eq!(found[found.len() - 1].end, numbers.len());
        }
    }

    #[test]
    fn fragments_are_about_equally_large() {
        assert_eq!(fragments(&[10, 10, 10, 10], 2), [0..2, 2..4]);
        assert_eq!(fragments(&[100, 1, 1, 98], 2), [0..1, 1..4]);
        assert_eq!(fragments(&[1, 1, 100], 2), [0..2, 2..3]);
    }

    /// A worker of torchft's mocked training, all of which do the same: each step moves its values
    /// by -2, each outer step the shared ones by twice the mean gradient.
    struct MockedWorker {
        streaming: Streaming,
        own: [f32; 2],
        outer: [f32; 2],
        sent: [f32; 2],
        steps: u64,
    }

    impl MockedWorker {
        /// After `SYNC` steps all fragments have had their turn.
        const SYNC: u64 = 6;

        fn step(&mut self) {
            self.own.iter_mut().for_each(|own| *own -= 2.0);
            self.steps = self.steps % Self::SYNC + 1;
            let round = RoundSchedule::new(self.streaming, 2, Self::SYNC);
            for event in round.after(self.steps) {
                match event {
                    FragmentEvent::Send(at) => {
                        self.sent[at] = moved(&[self.outer[at]], &[self.own[at]])[0];
                    }
                    FragmentEvent::TakeUp(at) => {
                        self.outer[at] -= 2.0 * self.sent[at];
                        let mix = self.streaming.mix;
                        self.own[at] = mixed(&[self.outer[at]], &[self.own[at]], mix)[0];
                    }
                }
            }
        }
    }

    fn mocked(streaming: Streaming) -> MockedWorker {
        MockedWorker {
            streaming,
            own: [1.0; 2],
            outer: [1.0; 2],
            sent: [0.0; 2],
            steps: 0,
        }
    }

    fn fixture(name: &str) -> Value {
        let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/torchft");
        serde_json::from_slice(&fs::read(directory.join(name)).unwrap()).unwrap()
    }

    /// Takes a worker through a replica's history from a step on. Returns how many steps it has.
    fn compare(worker: &mut MockedWorker, replica: &Value, from: u64, what: &str) -> u64 {
        for step in from.. {
            let Some(own) = layers(&replica["history"], step) else {
                return step - from;
            };
            assert_eq!(worker.own, own, "{what}, step {step}");
            if let Some(outer) = layers(&replica["global_parameter_history"], step) {
                assert_eq!(worker.outer, outer, "{what}, step {step}");
            }
            worker.step();
        }
        unreachable!("histories end")
    }

    /// The layers' values in the history of a replica after so many steps.
    fn layers(history: &Value, step: u64) -> Option<[f32; 2]> {
        let of = |layer: usize| {
            let value = &history[step.to_string()][format!("layers.{layer}.weight")][0][0];
            value.as_f64().map(|value| value as f32)
        };
        Some([of(0)?, of(1)?])
    }

    #[test]
    fn torchft_comes_to_the_same_values_step_by_step() {
        let of = |delay, mix| Streaming {
            fragments: 2,
            delay,
            mix,
        };
        let cases = [
            of(0, 0.0),
            of(0, 0.5),
            of(0, 1.0),
            of(1, 0.0),
            of(1, 0.5),
            of(1, 1.0),
        ];
        let mut compared = 0;
        for (case, streaming) in cases.into_iter().enumerate() {
            let replicas = fixture(&format!("mocked_updates_{case}.json"));
            for replica in replicas.as_array().unwrap() {
                let worker = &mut mocked(streaming);
                compared += compare(worker, &replica[0], 0, &format!("case {case}"));
            }
        }
        assert!(compared > 100, "{compared} steps were compared");
    }

    /// In torchft a replica that begins again copies what another one has at that moment, that
    /// one's own steps included; here it begins with the outer values of a round. Both define what
    /// becomes of whoever goes on, which no failure may change, and of the copy from then on.
    #[test]
    fn torchft_comes_to_the_same_values_where_a_replica_fails_and_begins_again() {
        let streaming = Streaming {
            fragments: 2,
            delay: 0,
            mix: 0.0,
        };
        let replicas = fixture("mocked_failure_recovery_0.json");
        let [survivor, failed] = [0, 1].map(|replica| &replicas[replica][0]);
        assert_eq!(compare(&mut mocked(streaming), survivor, 0, "survivor"), 22);
        // The third step of the one that began again is the ninth of the other.
        let mut recovered = mocked(streaming);
        (0..9).for_each(|_| recovered.step());
        assert_eq!(compare(&mut recovered, failed, 3, "recovered"), 13);
    }
}
