//! One seed, many seeds.

use crate::world::{Statistics, World};

/// Runs `count` seeds; the first failure panics and names its seed.
pub fn many(from: u64, count: u64) -> Statistics {
    let mut total = Statistics::default();
    for seed in from..from + count {
        total.add(&one(seed));
    }
    total
}

fn one(seed: u64) -> Statistics {
    let result = std::panic::catch_unwind(|| World::new(seed).run());
    result.unwrap_or_else(|panic| {
        eprintln!(
            "seed {seed} failed; replay: SIM_TRACE=1 cargo run --release --example sim -- --from {seed} --seeds 1"
        );
        std::panic::resume_unwind(panic)
    })
}
