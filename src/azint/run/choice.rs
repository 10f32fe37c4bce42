//! Who integrates here, found by trying on frames of the dataset: the processor, a GPU, or both. A
//! GPU that can decode chunks itself gets fewer bytes over its bus; but it decodes a block one
//! sequence after the other, which threads of a processor do faster where they have nothing else to
//! do. Threads that the GPU does not keep busy may integrate beside it.

use super::engine::device_batch;
use crate::{
    engine::ChunkDecoder,
    frames::{Stack, StoredFrames},
    integrators::{Integrators, WorkSplit},
    measure::{rate, units},
    plan::EngineRequest,
};
use nodectl_gpu::ops::processor_name;
use nodectl_types::{GpuKind, units::counted};
use std::{sync::Arc, time::Duration};

/// How long each way is tried, once all of its memory was used: what is begun then is ended.
const TRIAL: Duration = Duration::from_millis(100);
/// What both must bring, beside the best alone, to be worth it.
const WORTH: f64 = 1.05;
/// Where one alone is so many times as fast as the other, both are not tried.
const UNEQUAL: f64 = 10.0;

/// Has frames such as these integrated by whoever is fastest, among those that the job allows, and
/// says who that is, for people. A processor in disguise is no faster than a processor, and is not
/// tried.
pub(crate) fn choose(
    integrators: &mut Integrators,
    request: EngineRequest,
    stack: &Arc<Stack>,
) -> String {
    let threads = integrators.pool().current_num_threads();
    let Some(device) = integrators.device() else {
        return processor_name(threads);
    };
    let is_software = device.info().gpu.kind == GpuKind::Software;
    let is_fixed = request == EngineRequest::Vulkan;
    let fallback = match is_fixed {
        true => WorkSplit::Device(ChunkDecoder::Processor),
        false => WorkSplit::Processor,
    };
    // Read only where they are tried.
    let mut frames = Vec::new();
    let not_tried = if is_software {
        Some("the device here is software")
    } else if integrators.processor().is_together() {
        Some("filters and the azimuthal error model are the processor's")
    } else {
        frames = units(stack, device_batch(stack.frame_bytes())).unwrap_or_default();
        let is_unreadable = frames.is_empty();
        is_unreadable.then_some("no frame could be read to try the GPU on")
    };
    let mut trials = SplitTrials {
        integrators,
        stack,
        units: &frames,
        time: TRIAL,
        rates: Vec::new(),
        failed: None,
    };
    match not_tried {
        None => {
            trials.run(is_fixed);
            trials.end(fallback)
        }
        Some(why) => {
            trials.integrators.share(fallback);
            let name = trials.name(fallback);
            match is_fixed {
                true => name,
                false => format!("{name} ({why})"),
            }
        }
    }
}

/// Ways to integrate that are tried one after the other.
struct SplitTrials<'t> {
    integrators: &'t mut Integrators,
    stack: &'t Stack,
    units: &'t [StoredFrames],
    time: Duration,
    /// Frames a second.
    rates: Vec<(WorkSplit, f64)>,
    /// What the GPU said when it failed.
    failed: Option<String>,
}

impl SplitTrials<'_> {
    /// Tries all that may be fastest, where there is a choice; only the GPU where the job names it.
    fn run(&mut self, is_fixed: bool) {
        let can_decode = self.units.iter().all(|unit| unit.blocks().is_some());
        if is_fixed && !can_decode {
            return;
        }
        if !is_fixed {
            self.attempt(WorkSplit::Processor);
        }
        self.attempt(WorkSplit::Device(ChunkDecoder::Processor));
        if can_decode {
            self.attempt(WorkSplit::Device(ChunkDecoder::Device));
        }
        let best_of = |is_device: bool| {
            let of_kind =
                |(split, _): &&(WorkSplit, f64)| matches!(split, WorkSplit::Device(_)) == is_device;
            let rates = self.rates.iter().filter(of_kind);
            rates.max_by(|one, other| one.1.total_cmp(&other.1))
        };
        let (Some(&(WorkSplit::Device(decoder), device)), Some(&(_, processor))) =
            (best_of(true), best_of(false))
        else {
            return;
        };
        if device > UNEQUAL * processor || processor > UNEQUAL * device {
            return;
        }
        let threads = self.integrators.pool().current_num_threads();
        let feeders = (0..).map(|step| 1 << step);
        for feeders in feeders.take_while(|feeders| *feeders < threads) {
            self.attempt(WorkSplit::Both { decoder, feeders });
        }
    }

    fn attempt(&mut self, split: WorkSplit) {
        self.integrators.share(split);
        match rate(self.integrators, self.stack, self.units, self.time) {
            Ok(rate) => self.rates.push((split, rate)),
            Err(why) => self.failed = Some(why),
        }
    }

    /// Goes on with the fastest, and says what was found.
    fn end(self, fallback: WorkSplit) -> String {
        let Some((best, rate)) = fastest(&self.rates) else {
            self.integrators.share(fallback);
            return self.name(fallback);
        };
        self.integrators.share(best);
        let mut others: Vec<String> = self
            .rates
            .iter()
            .filter(|(split, _)| *split != best)
            .map(|(split, rate)| format!("{}: {rate:.0}", brief(*split)))
            .collect();
        others.extend(self.failed.as_ref().map(|why| format!("the GPU: {why}")));
        let name = self.name(best);
        match others.is_empty() {
            true => name,
            false => format!("{name} ({rate:.0} frames/s; {})", others.join("; ")),
        }
    }

    fn name(&self, split: WorkSplit) -> String {
        let threads = self.integrators.pool().current_num_threads();
        let gpu = |decoder| {
            let name = self.integrators.device().map(|on| &on.info().gpu.name);
            let name = name.map_or("no GPU", String::as_str);
            match decoder {
                ChunkDecoder::Processor => format!("Vulkan, {name}"),
                ChunkDecoder::Device => format!("Vulkan, {name}, which decodes chunks, too"),
            }
        };
        match split {
            WorkSplit::Processor => processor_name(threads),
            WorkSplit::Device(decoder) => gpu(decoder),
            WorkSplit::Both { decoder, feeders } => {
                let beside = processor_name(threads.saturating_sub(feeders));
                format!("{}, and beside it {beside}", gpu(decoder))
            }
        }
    }
}

fn brief(split: WorkSplit) -> String {
    match split {
        WorkSplit::Processor => "the processor".into(),
        WorkSplit::Device(ChunkDecoder::Processor) => "the GPU".into(),
        WorkSplit::Device(ChunkDecoder::Device) => "the GPU, which decodes".into(),
        WorkSplit::Both { feeders, .. } => {
            format!("both, {} feeding the GPU", counted(feeders, "thread"))
        }
    }
}

/// The fastest; both only where that brings something.
fn fastest(rates: &[(WorkSplit, f64)]) -> Option<(WorkSplit, f64)> {
    let weighed = |(split, rate): &(WorkSplit, f64)| match split {
        WorkSplit::Both { .. } => rate / WORTH,
        WorkSplit::Processor | WorkSplit::Device(_) => *rate,
    };
    let by_weight = |one: &&(WorkSplit, f64), other: &&(WorkSplit, f64)| {
        weighed(one).total_cmp(&weighed(other))
    };
    rates.iter().max_by(by_weight).copied()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        batch::{BatchScratch, tests::integrators_with_device},
        engine::Patterns,
        frames::tests::fixture,
    };

    const DECODED: WorkSplit = WorkSplit::Device(ChunkDecoder::Processor);
    const DECODES: WorkSplit = WorkSplit::Device(ChunkDecoder::Device);

    fn both(feeders: usize) -> WorkSplit {
        WorkSplit::Both {
            decoder: ChunkDecoder::Device,
            feeders,
        }
    }

    #[test]
    fn both_integrate_only_where_that_is_worth_it() {
        let mut rates = vec![
            (WorkSplit::Processor, 80.0),
            (DECODED, 90.0),
            (DECODES, 100.0),
        ];
        assert_eq!(fastest(&rates), Some((DECODES, 100.0)));
        rates.push((both(1), 104.0));
        assert_eq!(fastest(&rates), Some((DECODES, 100.0)));
        rates.push((both(2), 170.0));
        assert_eq!(fastest(&rates), Some((both(2), 170.0)));
        assert_eq!(fastest(&[]), None);
    }

    /// Tries frames of a fixture: in which ways, who was chosen and what was said.
    fn tried(
        integrators: &mut Integrators,
        name: &str,
        is_fixed: bool,
    ) -> (Vec<WorkSplit>, WorkSplit, String) {
        let stack = Arc::new(Stack::open(&fixture(name), None, None).expect(name));
        let units = units(&stack, 32).expect(name);
        let mut trials = SplitTrials {
            integrators: &mut *integrators,
            stack: &stack,
            units: &units,
            time: Duration::from_millis(20),
            rates: Vec::new(),
            failed: None,
        };
        trials.run(is_fixed);
        let ways = trials.rates.iter().map(|(split, _)| *split).collect();
        let told = trials.end(DECODED);
        (ways, integrators.split(), told)
    }

    #[test]
    fn all_that_can_decode_and_add_up_are_tried_and_the_fastest_stays() {
        let Some(mut integrators) = integrators_with_device(2) else {
            return;
        };
        let (ways, chosen, told) = tried(&mut integrators, "bitshuffle_lz4.h5", false);
        assert_eq!(ways[..3], [WorkSplit::Processor, DECODED, DECODES]);
        assert!(ways.contains(&chosen), "{told}");
        assert_eq!(told.starts_with("Vulkan"), integrators.is_on_device());
        let (ways, _, told) = tried(&mut integrators, "bitshuffle_lz4.h5", true);
        assert_eq!(ways, [DECODED, DECODES]);
        assert!(
            told.starts_with("Vulkan, ") && told.contains("frames/s"),
            "{told}"
        );
        // Chunks that a GPU cannot decode leave no choice.
        let (ways, chosen, told) = tried(&mut integrators, "bitshuffle_zstd.h5", true);
        assert_eq!((ways, chosen), (vec![], DECODED));
        assert!(!told.contains("frames/s"), "{told}");
    }

    #[test]
    fn a_processor_in_disguise_is_not_tried() {
        let Some(mut integrators) = integrators_with_device(1) else {
            return;
        };
        let is_software = |of: &Integrators| {
            let device = of.device().expect("it has one");
            device.info().gpu.kind == GpuKind::Software
        };
        if !is_software(&integrators) {
            return eprintln!("SKIPPED: the device here is a GPU");
        }
        let stack = Arc::new(Stack::open(&fixture("bitshuffle_lz4.h5"), None, None).expect("it"));
        let told = choose(&mut integrators, EngineRequest::Auto, &stack);
        assert!(told.ends_with("(the device here is software)"), "{told}");
        assert_eq!(integrators.split(), WorkSplit::Processor);
        let told = choose(&mut integrators, EngineRequest::Vulkan, &stack);
        assert!(told.starts_with("Vulkan, "), "{told}");
        assert_eq!(integrators.split(), DECODED);
    }

    /// Whichever thread takes frames: the same patterns.
    #[test]
    fn both_make_the_patterns_of_one() {
        let Some(mut integrators) = integrators_with_device(3) else {
            return;
        };
        let stack = Arc::new(Stack::open(&fixture("bitshuffle_lz4.h5"), None, None).expect("it"));
        let units = units(&stack, 32).expect("frames");
        integrators.share(both(2));
        let all: Vec<(bool, Patterns)> = integrators.pool().broadcast(|_| {
            let mut batches = BatchScratch::default();
            let here = integrators.of_this_thread();
            let patterns = batches.integrate(here, &stack, &units, &[]);
            (
                here.is_on_device(),
                patterns.expect("patterns").swap_remove(0),
            )
        });
        let feeding: Vec<bool> = all.iter().map(|(is_device, _)| *is_device).collect();
        assert_eq!(feeding, [true, true, false]);
        for (_, patterns) in &all {
            let mut pairs = patterns.intensity.iter().zip(&all[2].1.intensity);
            assert!(pairs.all(|(one, other)| (one - other).abs() <= 1e-6 * other.abs()));
        }
    }
}
