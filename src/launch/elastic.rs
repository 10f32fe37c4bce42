//! How many allocations a queue of tasks deserves. Pure: what is seen goes in, what to do comes
//! out.

use std::time::Duration;

/// Between what an elastic launch stays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    pub min: u32,
    pub max: u32,
    /// A node with nothing to do is given back after this long.
    pub idle: Duration,
}

/// What there is now.
#[derive(Clone, Debug, Default)]
pub struct ObservedLoad {
    /// Tasks that nobody runs, of jobs that have not ended.
    pub waiting: u64,
    /// Tasks that a new node would run at once.
    pub per_node: u32,
    /// Allocations that have not become a node yet.
    pub coming: u32,
    /// Nodes of this launch, by member, and how long each has had nothing to do.
    pub nodes: Vec<(String, Duration)>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Change {
    pub submit: u32,
    /// Members to give back.
    pub release: Vec<String>,
}

/// Grows with what waits, beyond what is coming already; gives back who is idle, the idlest first.
pub fn change(bounds: Bounds, seen: &ObservedLoad) -> Change {
    let have = seen.coming + seen.nodes.len() as u32;
    let deserved = seen.waiting.div_ceil(u64::from(seen.per_node.max(1)));
    let deserved = u32::try_from(deserved).unwrap_or(u32::MAX);
    let grow = deserved
        .saturating_sub(seen.coming)
        .min(bounds.max.saturating_sub(have));
    let submit = grow.max(bounds.min.saturating_sub(have));
    let mut idle: Vec<_> = seen
        .nodes
        .iter()
        .filter(|(_, idle)| *idle >= bounds.idle)
        .collect();
    idle.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
    let spare = if seen.waiting > 0 {
        0
    } else {
        have.saturating_sub(bounds.min) as usize
    };
    Change {
        submit,
        release: idle
            .into_iter()
            .take(spare)
            .map(|(member, _)| member.clone())
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MINUTE: Duration = Duration::from_secs(60);
    const BOUNDS: Bounds = Bounds {
        min: 1,
        max: 4,
        idle: MINUTE,
    };

    fn seen(waiting: u64, coming: u32, idle_seconds: &[u64]) -> ObservedLoad {
        let node =
            |(index, seconds): (usize, &u64)| (format!("n{index}"), Duration::from_secs(*seconds));
        ObservedLoad {
            waiting,
            per_node: 2,
            coming,
            nodes: idle_seconds.iter().enumerate().map(node).collect(),
        }
    }

    #[test]
    fn it_grows_with_the_queue_and_gives_back_when_idle() {
        assert_eq!(change(BOUNDS, &seen(0, 0, &[])).submit, 1, "the least");
        assert_eq!(
            change(BOUNDS, &seen(3, 0, &[0])).submit,
            2,
            "two tasks a node"
        );
        assert_eq!(
            change(BOUNDS, &seen(3, 2, &[0])).submit,
            0,
            "they are coming"
        );
        assert_eq!(
            change(BOUNDS, &seen(1000, 1, &[0, 0])).submit,
            1,
            "the most"
        );
        let quiet = change(BOUNDS, &seen(0, 0, &[70, 5, 80]));
        assert_eq!(
            (quiet.submit, quiet.release),
            (0, vec!["n2".to_string(), "n0".into()])
        );
        assert_eq!(
            change(BOUNDS, &seen(0, 0, &[70])).release,
            Vec::<String>::new(),
            "the least stays"
        );
        assert_eq!(
            change(BOUNDS, &seen(1, 0, &[70, 70])).release,
            Vec::<String>::new(),
            "not while something waits"
        );
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
        #[test]
        fn it_stays_within_its_bounds(waiting in 0u64..50, coming in 0u32..6, idle in prop::collection::vec(0u64..120, 0..6), min in 0u32..4, extra in 0u32..4) {
            let bounds = Bounds { min, max: min + extra, idle: MINUTE };
            let seen = seen(waiting, coming, &idle);
            let have = coming + idle.len() as u32;
            let change = change(bounds, &seen);
            prop_assert!(change.submit == 0 || have + change.submit <= bounds.max);
            prop_assert!(change.release.is_empty() || have - change.release.len() as u32 >= bounds.min);
            prop_assert!(change.submit == 0 || change.release.is_empty() );
        }
    }
}
