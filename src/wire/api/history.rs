//! A node's load over time, as JSON.

use nodectl_types::history::{GpuPage, LoadPage, LoadSpan, Series};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// What a node's load was: every series has one value for each step of `step_s` seconds, the oldest
/// first, `null` where nothing was measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct NodeHistory {
    /// The node's name.
    pub node: String,
    pub step_s: u64,
    /// When the last step ended, by the node's clock.
    pub end_ms: u64,
    pub series: MachineLoadSeries,
    /// GPUs that tell how busy they are.
    pub gpus: Vec<GpuHistory>,
}

/// What is measured of a machine.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct MachineLoadSeries {
    /// The part of all cores' time that was not idle: from 0 to 1.
    pub cpu: Series,
    pub memory_bytes: Series,
    /// Of the disk that has the node's data directory.
    pub disk_free_bytes: Series,
    /// Of all disks.
    pub disk_read_bytes_per_s: Series,
    pub disk_written_bytes_per_s: Series,
    /// Of all network cards.
    pub network_received_bytes_per_s: Series,
    pub network_sent_bytes_per_s: Series,
    /// Tasks of this node.
    pub tasks_running: Series,
    pub tasks_queued: Series,
}

/// The load of a GPU.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct GpuHistory {
    pub name: String,
    pub series: GpuLoadSeries,
}

/// What is measured of a GPU.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct GpuLoadSeries {
    /// The part of the time in which it was busy: from 0 to 1.
    pub utilization: Series,
    pub memory_bytes: Series,
    pub temperature_c: Series,
    pub power_w: Series,
}

impl NodeHistory {
    pub fn new(node: String, span: LoadSpan, page: LoadPage) -> Self {
        let mut series = page.machine.into_iter();
        let mut next = || series.next().unwrap_or_default();
        Self {
            node,
            step_s: span.step_s(),
            end_ms: page.end_ms,
            // As `MACHINE_SERIES` has them.
            series: MachineLoadSeries {
                cpu: next(),
                memory_bytes: next(),
                disk_free_bytes: next(),
                disk_read_bytes_per_s: next(),
                disk_written_bytes_per_s: next(),
                network_received_bytes_per_s: next(),
                network_sent_bytes_per_s: next(),
                tasks_running: next(),
                tasks_queued: next(),
            },
            gpus: page.gpus.into_iter().map(GpuHistory::new).collect(),
        }
    }
}

impl GpuHistory {
    fn new(gpu: GpuPage) -> Self {
        let mut series = gpu.series.into_iter();
        let mut next = || series.next().unwrap_or_default();
        Self {
            name: gpu.name,
            // As `GPU_SERIES` has them.
            series: GpuLoadSeries {
                utilization: next(),
                memory_bytes: next(),
                temperature_c: next(),
                power_w: next(),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nodectl_types::history::{GPU_SERIES, MACHINE_SERIES};

    #[test]
    fn series_have_the_names_that_they_are_kept_by() {
        let numbered = |count: usize| (0..count).map(|at| vec![Some(at as f32), None]).collect();
        let page = LoadPage {
            end_ms: 5,
            machine: numbered(MACHINE_SERIES.len()),
            gpus: vec![GpuPage {
                name: "a GPU".into(),
                series: numbered(GPU_SERIES.len()),
                ..GpuPage::default()
            }],
            ..LoadPage::default()
        };
        let view =
            serde_json::to_value(NodeHistory::new("n1".into(), LoadSpan::Day, page)).unwrap();
        assert_eq!(
            (&view["node"], &view["step_s"], &view["end_ms"]),
            (&"n1".into(), &10.into(), &5.into())
        );
        for (names, found) in [
            (&MACHINE_SERIES[..], &view["series"]),
            (&GPU_SERIES[..], &view["gpus"][0]["series"]),
        ] {
            assert_eq!(found.as_object().unwrap().len(), names.len());
            for (at, name) in names.iter().enumerate() {
                assert_eq!(found[name], serde_json::json!([at as f32, null]), "{name}");
            }
        }
    }
}
