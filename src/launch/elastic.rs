//! How many allocations a queue of tasks deserves, by what the tasks hold while they run. Pure:
//! what is seen goes in, what to do comes out.

use nodectl_types::units::{counted, format_bytes};
use std::time::Duration;

/// Between what an elastic launch stays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    pub min: u32,
    pub max: u32,
    /// A node with nothing to do is given back after this long.
    pub idle: Duration,
}

/// What a task holds on its node while it runs; of a task of several processes, what those of one
/// node hold together.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct TaskNeed {
    pub cpus: f64,
    pub memory_bytes: u64,
    pub gpus: f64,
}

/// What a node of the launch has for tasks, as far as that is known.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct NodeOffer {
    pub cpus: Option<f64>,
    pub memory_bytes: Option<u64>,
    pub gpus: Option<f64>,
}

impl NodeOffer {
    /// What is known of either; of both, the larger.
    pub fn or_more(self, other: Self) -> Self {
        Self {
            cpus: larger(self.cpus, other.cpus),
            memory_bytes: self.memory_bytes.max(other.memory_bytes),
            gpus: larger(self.gpus, other.gpus),
        }
    }

    /// Whether it is known if such a task fits: any node has a core.
    pub fn tells_of(&self, need: &TaskNeed) -> bool {
        let cpus = self.cpus.is_some() || need.cpus <= 1.0;
        let memory = self.memory_bytes.is_some() || need.memory_bytes == 0;
        cpus && memory && (self.gpus.is_some() || need.gpus == 0.0)
    }

    /// What a task needs that a node does not have.
    pub fn lacks(&self, need: &TaskNeed) -> Option<String> {
        let lacks = |has: Option<f64>, needed: f64| has.is_some_and(|has| has + 1e-6 < needed);
        let memory = self.memory_bytes.unwrap_or(u64::MAX);
        if lacks(self.cpus, need.cpus) {
            let has = self.cpus.unwrap_or_default();
            let needed = counted(need.cpus, "core");
            return Some(format!("{needed}, and such a node has {has}"));
        }
        if memory < need.memory_bytes {
            let [needed, has] = [need.memory_bytes, memory].map(format_bytes);
            return Some(format!("{needed} of memory, and such a node has {has}"));
        }
        let has = self.gpus.unwrap_or_default();
        lacks(self.gpus, need.gpus)
            .then(|| format!("{}, and such a node has {has}", counted(need.gpus, "GPU")))
    }

    /// How many such tasks a node runs at once, 0 if it can run none; `None` if nothing is known of
    /// what they hold.
    pub fn slots(&self, need: &TaskNeed) -> Option<u32> {
        let memory = self.memory_bytes.map(|bytes| bytes as f64);
        let parts = [
            (self.cpus, need.cpus),
            (memory, need.memory_bytes as f64),
            (self.gpus, need.gpus),
        ];
        let known = parts.into_iter().filter(|(_, needed)| *needed > 0.0);
        let slots = known.filter_map(|(has, needed)| Some(has? / needed));
        // A third of a core three times is a core.
        let slots = slots.map(|slots| (slots + 1e-6).floor().min(f64::from(u32::MAX)) as u32);
        slots.min()
    }
}

fn larger(one: Option<f64>, other: Option<f64>) -> Option<f64> {
    one.into_iter().chain(other).max_by(f64::total_cmp)
}

/// Tasks of a job that nobody runs, and that a node of the launch can run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitingTasks {
    pub tasks: u64,
    /// So many run on one node at once; of tasks on several nodes, parts of them.
    pub per_node: u32,
    /// So many nodes of the launch have to be there before the tasks begin.
    pub nodes: u32,
}

/// What there is now.
#[derive(Clone, Debug, Default)]
pub struct ObservedLoad {
    pub queue: Vec<WaitingTasks>,
    /// Allocations that have not become a node yet.
    pub coming: u32,
    /// Nodes of this launch, by member, and how long each has had nothing to do, if it has nothing.
    pub nodes: Vec<(String, Option<Duration>)>,
}

impl ObservedLoad {
    /// Tasks that wait.
    pub fn waiting(&self) -> u64 {
        self.queue.iter().map(|job| job.tasks).sum()
    }

    /// Nodes beyond those of the launch that are busy, which would run them all at once.
    fn deserved(&self) -> u32 {
        let share = |job: &WaitingTasks| job.tasks as f64 / f64::from(job.per_node.max(1));
        let shares: f64 = self.queue.iter().map(share).sum();
        let least = self.queue.iter().map(|job| job.nodes).max();
        let busy = self.nodes.iter().filter(|(_, idle)| idle.is_none()).count();
        let least = least.unwrap_or(0).saturating_sub(busy as u32);
        ((shares - 1e-6).ceil().max(0.0) as u32).max(least)
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Change {
    pub submit: u32,
    /// Allocations that are coming, and that nothing waits for any more.
    pub surplus: u32,
    /// Members to give back.
    pub release: Vec<String>,
}

/// Grows with what waits, beyond what is coming already; gives back who is idle, the idlest first.
pub fn change(bounds: Bounds, seen: &ObservedLoad) -> Change {
    let have = seen.coming + seen.nodes.len() as u32;
    let free = seen.nodes.iter().filter(|(_, idle)| idle.is_some()).count() as u32;
    let grow = seen
        .deserved()
        .saturating_sub(seen.coming + free)
        .min(bounds.max.saturating_sub(have));
    let submit = grow.max(bounds.min.saturating_sub(have));
    let long_idle = |(_, idle): &&(String, Option<Duration>)| idle >= &Some(bounds.idle);
    let mut idle: Vec<_> = seen.nodes.iter().filter(long_idle).collect();
    idle.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
    let spare = if seen.waiting() > 0 {
        0
    } else {
        have.saturating_sub(bounds.min) as usize
    };
    let unwanted = (seen.coming + free).saturating_sub(seen.deserved());
    Change {
        submit,
        surplus: unwanted
            .min(seen.coming)
            .min(have.saturating_sub(bounds.min)),
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
        let node = |(index, seconds): (usize, &u64)| {
            let idle = (*seconds > 0).then(|| Duration::from_secs(*seconds));
            (format!("n{index}"), idle)
        };
        ObservedLoad {
            queue: vec![WaitingTasks {
                tasks: waiting,
                per_node: 2,
                nodes: 0,
            }],
            coming,
            nodes: idle_seconds.iter().enumerate().map(node).collect(),
        }
    }

    #[test]
    fn what_comes_and_nothing_waits_for_is_surplus() {
        let surplus =
            |waiting, coming, idle: &[u64]| change(BOUNDS, &seen(waiting, coming, idle)).surplus;
        assert_eq!(surplus(8, 4, &[]), 0);
        assert_eq!(surplus(4, 4, &[]), 2);
        assert_eq!(surplus(0, 4, &[]), 3, "the minimum comes");
        assert_eq!(surplus(0, 2, &[9]), 2);
        assert_eq!(surplus(4, 2, &[9]), 1, "one that is here takes half of it");
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
            change(BOUNDS, &seen(3, 0, &[0, 1])).submit,
            1,
            "one has just come"
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

    #[test]
    fn nodes_are_counted_by_what_each_job_needs() {
        let offer = NodeOffer {
            cpus: Some(8.0),
            memory_bytes: Some(32 << 30),
            gpus: None,
        };
        let need = |cpus, gib: u64, gpus| TaskNeed {
            cpus,
            memory_bytes: gib << 30,
            gpus,
        };
        assert_eq!(offer.slots(&need(1.0, 1, 0.0)), Some(8));
        assert_eq!(offer.slots(&need(1.0, 16, 0.0)), Some(2), "memory");
        assert_eq!(offer.slots(&need(0.1, 0, 0.0)), Some(80));
        assert_eq!(offer.slots(&need(1.0, 64, 0.0)), Some(0), "too large");
        assert_eq!(offer.slots(&need(0.0, 0, 1.0)), None, "GPUs are not known");
        let job = |tasks, per_node, nodes| WaitingTasks {
            tasks,
            per_node,
            nodes,
        };
        let bounds = Bounds {
            min: 0,
            max: 100,
            idle: MINUTE,
        };
        let submit = |queue: Vec<WaitingTasks>, coming| {
            let seen = ObservedLoad {
                queue,
                coming,
                nodes: vec![("n0".into(), None)],
            };
            change(bounds, &seen).submit
        };
        // Half a node and a quarter of one are one; three thirds, too.
        assert_eq!(submit(vec![job(4, 8, 0), job(2, 8, 0)], 0), 1);
        assert_eq!(submit(vec![job(1, 3, 0); 3], 0), 1);
        assert_eq!(submit(vec![job(16, 8, 0), job(3, 1, 0)], 0), 5);
        assert_eq!(
            submit(vec![job(2, 8, 4)], 0),
            3,
            "four at once, one is there"
        );
        assert_eq!(submit(vec![job(2, 8, 4)], 3), 0, "and three are coming");
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
