//! What a kernel job's results say of its GPUs: how much they did a second, and which part of the
//! time they computed. Its tasks give `{"items", "gpu_seconds", "gpu", "software"}` as their value;
//! those of an integration `{"integrated"}`, in frames. Pure.

use crate::output::ComputeRate;
use nodectl_wire::api::{StatusName, TaskResult};
use serde_json::Value as Json;
use std::collections::BTreeSet;

#[derive(Default)]
pub struct Throughput {
    items: f64,
    gpu_seconds: f64,
    /// (node, GPU).
    gpus: BTreeSet<(String, String)>,
    /// At least one of them is no GPU but a processor that stands in for one.
    software: bool,
    /// From the first task's start to the last one's end, by the nodes' wall clocks: for people.
    span_ms: Option<(f64, f64)>,
}

impl Throughput {
    /// Takes a result that was not taken before. Those of other jobs say nothing.
    pub fn take(&mut self, result: &TaskResult) {
        let number = |name: &str| {
            result
                .value
                .as_ref()
                .and_then(|value| value.get(name))
                .and_then(Json::as_f64)
        };
        let gpu = result
            .value
            .as_ref()
            .and_then(|value| value.get("gpu"))
            .and_then(Json::as_str);
        match (
            result.status,
            number("items"),
            number("gpu_seconds"),
            gpu,
            number("integrated"),
        ) {
            (StatusName::Done, Some(items), Some(gpu_seconds), Some(gpu), _) => {
                self.items += items;
                self.gpu_seconds += gpu_seconds;
                self.gpus.insert((result.node.clone(), gpu.to_string()));
                let value = result.value.as_ref();
                let software = value.and_then(|value| value.get("software"));
                self.software |= software.and_then(Json::as_bool).unwrap_or(false);
            }
            (StatusName::Done, .., Some(frames)) if frames > 0.0 => self.items += frames,
            _ => return,
        }
        let begin = result.started_ms as f64;
        let end = begin + result.seconds * 1e3;
        let (first, last) = self.span_ms.unwrap_or((begin, end));
        self.span_ms = Some((first.min(begin), last.max(end)));
    }

    /// None for jobs that tell neither of GPUs nor of frames.
    pub fn rate(&self) -> Option<ComputeRate> {
        let (first, last) = self.span_ms?;
        let seconds = ((last - first) / 1e3).max(1e-6);
        Some(ComputeRate {
            items_per_second: self.items / seconds,
            gpus: self.gpus.len() as u32,
            software: self.software,
            gpu_busy: (self.gpu_seconds / (seconds * self.gpus.len().max(1) as f64)).min(1.0),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn result(task: u32, node: &str, started_ms: u64, value: Json) -> TaskResult {
        serde_json::from_value(json!({
            "task": task, "params": {}, "status": "done", "attempt": "1.1", "node": node, "started_ms": started_ms,
            "seconds": 1.0, "cpu_seconds": 0.5, "max_rss_bytes": 0, "value": value, "outputs": [],
            "stdout": { "total_bytes": 0, "complete": true, "tail": "" },
            "stderr": { "total_bytes": 0, "complete": true, "tail": "" },
        }))
        .unwrap()
    }

    #[test]
    fn busy_is_a_part_of_the_time_of_all_gpus() {
        let mut throughput = Throughput::default();
        assert_eq!(throughput.rate(), None);
        throughput.take(&result(0, "a", 1000, json!({ "accuracy": 0.9 })));
        assert_eq!(throughput.rate(), None, "not a kernel's");
        for (task, node, start) in [
            (1, "a", 1000),
            (2, "b", 1000),
            (3, "a", 2000),
            (4, "b", 2000),
        ] {
            throughput.take(&result(
                task,
                node,
                start,
                json!({ "items": 100, "gpu_seconds": 0.75, "gpu": "x" }),
            ));
        }
        let rate = throughput.rate().unwrap();
        assert_eq!(
            (rate.items_per_second, rate.gpus, rate.gpu_busy),
            (200.0, 2, 0.75)
        );
        assert!(!rate.software);
        let stand_in = json!({ "items": 1, "gpu_seconds": 0.1, "gpu": "y", "software": true });
        throughput.take(&result(5, "c", 3000, stand_in));
        assert!(throughput.rate().unwrap().software);
    }

    #[test]
    fn frames_are_counted_over_the_time_of_all_tasks() {
        let mut throughput = Throughput::default();
        for (task, start) in [(0, 1000), (1, 1500)] {
            throughput.take(&result(
                task,
                "a",
                start,
                json!({ "dataset": "x", "integrated": 30 }),
            ));
        }
        let rate = throughput.rate().unwrap();
        assert_eq!((rate.items_per_second, rate.gpus), (40.0, 0));
    }
}
