//! What all benches share: clusters of real nodes (those of the tests), questions to a node,
//! `/proc`, and reports that print a measured value beside its bar and beside what the nearest peer
//! was measured at.
//!
//! | file | owns |
//! |---|---|
//! | `api` | a node's local API, without an async runtime around the caller |
//! | `digits` | the shipped training job |
//! | `peer` | a peer in a process of its own |
//! | `proc` | CPU time and memory of processes |
//! | `report` | percentiles, and lines with bar and reference |

// Each bench uses its own part of this.
#![allow(dead_code)]

pub mod api;
pub mod digits;
pub mod peer;
pub mod proc;
pub mod report;

#[path = "../../tests/common/mod.rs"]
pub mod common;

use common::cluster::{Cluster, Discovery};
use nodectl::gpu::device::{Device, DeviceOptions};
use std::time::{Duration, Instant};

/// Longer than anything here takes.
pub const LIMIT: Duration = Duration::from_secs(600);

/// So many nodes that know each other, each with room for one task or worker.
pub fn nodes_of_one_core(count: usize) -> Cluster {
    let mut cluster = Cluster::empty(Discovery::Beacon);
    for _ in 0..count {
        cluster.add(&[("NODECTL_NODE__CORES", "1")]);
    }
    cluster.wait_members(count);
    cluster
}

/// Asks every millisecond until there is an answer; panics, saying what was awaited, when `LIMIT`
/// is over.
pub fn wait_for<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + LIMIT;
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(Instant::now() < end, "not within {LIMIT:?}: {what}");
        pause(Duration::from_millis(1));
    }
}

/// Waits until it holds; returns how long that took from `since`.
pub fn time_until(since: Instant, what: &str, mut holds: impl FnMut() -> bool) -> Duration {
    wait_for(what, || holds().then_some(()));
    since.elapsed()
}

// Between two looks at the same condition, or the span over which something is measured.
#[allow(clippy::disallowed_methods)]
pub fn pause(duration: Duration) {
    std::thread::sleep(duration);
}

/// The device that a bench of GPUs runs on: the best one here, a software one where there is no
/// other. None, said as skipped, where there is none.
pub fn best_device() -> Option<Device> {
    let options = DeviceOptions {
        validation: false,
        software: true,
        learned: None,
    };
    Device::any(&options)
        .map_err(|error| println!("  SKIPPED: no device for shaders: {error}"))
        .ok()
}

/// Whether the command line has a flag.
pub fn is_set(flag: &str) -> bool {
    std::env::args().any(|argument| argument == flag)
}

/// The number after a flag on the command line (`cargo bench --bench join -- --trials 5`).
pub fn number(flag: &str, default: usize) -> usize {
    let mut arguments = std::env::args()
        .skip_while(|argument| argument != flag)
        .skip(1);
    match arguments.next() {
        None => default,
        Some(text) => text
            .parse()
            .unwrap_or_else(|_| panic!("{flag} takes a number, not `{text}`")),
    }
}
