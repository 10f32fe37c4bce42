//! The rings, at chosen times.

use super::{
    ring::{MeasuredGpu, MeasuredLoad, Rings},
    until_next,
};
use nodectl_types::history::{GPU_SERIES, LoadPage, LoadSpan, MACHINE_SERIES};
use proptest::prelude::*;
use std::{collections::BTreeMap, time::Duration};

fn measured(value: f32, gpus: &[&str]) -> MeasuredLoad {
    let gpu = |id: &&str| MeasuredGpu {
        id: (*id).into(),
        name: "a GPU".into(),
        values: [value; GPU_SERIES.len()],
    };
    MeasuredLoad {
        machine: [value; MACHINE_SERIES.len()],
        gpus: gpus.iter().map(gpu).collect(),
    }
}

fn at(seconds: f64) -> Duration {
    Duration::from_secs_f64(seconds)
}

fn all(rings: &Rings, now: f64, span: LoadSpan) -> LoadPage {
    rings.page((at(now), 1_000_000_000), span, 0, usize::MAX)
}

#[test]
fn a_young_node_has_what_it_measured() {
    let mut rings = Rings::new();
    let page = all(&rings, 50.2, LoadSpan::Minutes);
    assert!(page.is_sound() && page.rows() == 0 && page.end == 50);
    for second in 50..53 {
        rings.record(at(f64::from(second) + 0.5), &measured(second as f32, &[]));
    }
    let page = all(&rings, 52.7, LoadSpan::Minutes);
    assert_eq!(
        page.machine[0],
        [Some(50.0), Some(51.0)],
        "the second 52 is not over"
    );
    assert_eq!(
        (page.first, page.end, page.end_ms),
        (50, 52, 1_000_000_000 - 700)
    );
}

#[test]
fn where_the_machine_slept_nothing_was_measured() {
    let mut rings = Rings::new();
    rings.record(at(10.5), &measured(1.0, &[]));
    rings.record(at(14.5), &measured(2.0, &[]));
    let page = all(&rings, 17.0, LoadSpan::Minutes);
    let expected = [Some(1.0), None, None, None, Some(2.0), None, None];
    assert_eq!(
        page.machine[4], expected,
        "also at the end, where nobody has looked since"
    );
    // Longer than anything is kept.
    rings.record(at(100_000.5), &measured(3.0, &[]));
    let page = all(&rings, 100_001.0, LoadSpan::Minutes);
    assert_eq!(page.machine[0].iter().flatten().collect::<Vec<_>>(), [&3.0]);
    assert_eq!(page.rows(), LoadSpan::Minutes.rows() - 1);
}

#[test]
fn ten_seconds_are_averaged_and_what_is_missing_does_not_count() {
    let mut rings = Rings::new();
    for (second, value) in [
        (20, 1.0),
        (21, 2.0),
        (22, f32::NAN),
        (29, 6.0),
        (31, f32::NAN),
    ] {
        rings.record(at(f64::from(second) + 0.5), &measured(value, &[]));
    }
    let page = all(&rings, 45.0, LoadSpan::Day);
    assert_eq!(page.machine[8], [Some(3.0), None]);
    assert_eq!((page.first, page.end), (2, 4));
}

#[test]
fn a_gpu_that_comes_late_or_goes_is_not_there_before_or_after() {
    let mut rings = Rings::new();
    rings.record(at(1.5), &measured(1.0, &["a"]));
    rings.record(at(2.5), &measured(2.0, &["a", "b"]));
    rings.record(at(3.5), &measured(3.0, &["b"]));
    let page = all(&rings, 4.0, LoadSpan::Minutes);
    assert!(page.is_sound());
    assert_eq!(page.gpus[0].series[0], [Some(1.0), Some(2.0), None]);
    assert_eq!(page.gpus[1].series[3], [None, Some(2.0), Some(3.0)]);
    let many: Vec<String> = (0..100).map(|number| number.to_string()).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    rings.record(at(4.5), &measured(1.0, &many));
    assert!(
        all(&rings, 5.0, LoadSpan::Minutes).is_sound(),
        "as many as there is room for"
    );
}

#[test]
fn pages_are_bounded_and_make_up_the_whole() {
    let mut rings = Rings::new();
    for second in 0..2000 {
        rings.record(
            at(f64::from(second) + 0.5),
            &measured(second as f32, &["a"]),
        );
    }
    let now = (at(2000.0), 5_000_000);
    let mut whole = rings.page(now, LoadSpan::Minutes, 0, 400);
    assert_eq!((whole.first, whole.rows()), (1101, 400));
    while whole.next() < whole.end {
        let page = rings.page(now, LoadSpan::Minutes, whole.next(), 400);
        assert!(page.rows() > 0 && page.rows() <= 400);
        whole.append(page);
    }
    assert_eq!(
        whole,
        all(&rings, 2000.0, LoadSpan::Minutes).with_end(5_000_000)
    );
    let beyond = rings.page(now, LoadSpan::Minutes, u64::MAX, 400);
    assert!(beyond.is_sound() && beyond.rows() == 0);
}

trait WithEnd {
    fn with_end(self, end_ms: u64) -> Self;
}

impl WithEnd for LoadPage {
    fn with_end(self, end_ms: u64) -> Self {
        Self { end_ms, ..self }
    }
}

#[test]
fn looks_are_in_the_middles_of_seconds() {
    assert_eq!(until_next(at(7.0)), at(0.5));
    assert_eq!(until_next(at(7.5)), at(1.0));
    assert_eq!(until_next(at(7.75)), at(0.75));
}

proptest! {
    /// Whatever the clock does, a page is what a list of all measurements says of its rows.
    #[test]
    fn rings_are_as_a_list_that_never_forgets(
        steps in prop::collection::vec((-3_i64..3_000, 0_u8..10), 1..80),
        day: bool,
    ) {
        let span = if day { LoadSpan::Day } else { LoadSpan::Minutes };
        let mut rings = Rings::new();
        let mut kept: BTreeMap<u64, Vec<f64>> = BTreeMap::new();
        let (mut now, mut newest) = (5_000_i64, 0);
        for (step, value) in steps {
            now += step;
            let value = if value == 0 { f32::NAN } else { f32::from(value) };
            rings.record(Duration::from_secs(now as u64), &measured(value, &["a"]));
            let row = now as u64 / span.step_s();
            // What a clock that went back says is not believed.
            if row >= newest {
                newest = row;
                let row = kept.entry(row).or_default();
                row.extend(value.is_finite().then_some(f64::from(value)));
            }
        }
        let now = (newest + 1) * span.step_s();
        let page = rings.page((Duration::from_secs(now), 1 << 40), span, 0, usize::MAX);
        prop_assert!(page.is_sound());
        prop_assert_eq!(page.end, newest + 1);
        prop_assert!(page.rows() < span.rows());
        for (at, found) in page.machine[0].iter().enumerate() {
            let expected = kept
                .get(&(page.first + at as u64))
                .filter(|values| !values.is_empty())
                .map(|values| (values.iter().sum::<f64>() / values.len() as f64) as f32);
            prop_assert_eq!(*found, expected);
            prop_assert_eq!(page.gpus[0].series[0][at], expected);
        }
    }
}
