//! What Prometheus is told of this node: its load, its tasks, the jobs and members that it knows,
//! its own process.

mod text;

use super::{cluster, error::ApiError, history::load_over_time, state::Shared};
use axum::{extract::State, http::header::CONTENT_TYPE, response::IntoResponse};
use nodectl_ports::processes::{Stat, TICK};
use nodectl_types::{
    Answer, JobHead, NodeLoad, NodeQuery, Phase, Query,
    history::{LoadPage, LoadSpan, Series},
    query::MemberLine,
};
use std::sync::Arc;
use text::{MetricKind, Text};

/// A row of the load may be missing, or not yet over; one that is older than this says nothing of
/// now.
const FRESH_ROWS: usize = 5;

/// This node in Prometheus' text format: its load, its tasks, the jobs and members that it knows.
#[utoipa::path(get, path = "/metrics", tag = "meta", responses((status = 200, body = String, content_type = "text/plain")))]
pub(super) async fn metrics(
    State(shared): State<Arc<Shared>>,
) -> Result<impl IntoResponse, ApiError> {
    let node = shared.api.facts.id;
    let Answer::Load(load) = shared.ask(Query::Node(node, NodeQuery::Load)).await? else {
        return Err(ApiError::unexpected("the load"));
    };
    let Answer::Jobs(jobs) = shared.ask(Query::Jobs).await? else {
        return Err(ApiError::unexpected("the list of jobs"));
    };
    let seen = SeenNode {
        members: cluster::members(&shared).await?,
        page: load_over_time(&shared, node, LoadSpan::Minutes, Some(FRESH_ROWS as u32)).await?,
        process: tokio::task::spawn_blocking(OwnProcess::own)
            .await
            .map_err(|_| ApiError::unexpected("this process"))?,
        load,
        jobs,
    };
    let mut text = Text::default();
    about(&mut text, &shared);
    seen.machine(&mut text);
    seen.gpus(&mut text);
    seen.work(&mut text);
    seen.process.tell(&mut text);
    Ok(([(CONTENT_TYPE, text::CONTENT_TYPE)], text.finish()))
}

/// What there is to tell.
struct SeenNode {
    load: NodeLoad,
    jobs: Vec<JobHead>,
    members: Vec<MemberLine>,
    page: LoadPage,
    process: OwnProcess,
}

fn about(text: &mut Text, shared: &Shared) {
    let (facts, id) = (&shared.api.facts, shared.api.facts.id.to_string());
    let labels = vec![
        ("version", facts.version.as_str()),
        ("node", &facts.name),
        ("node_id", &id),
        ("cluster", &facts.cluster),
    ];
    text.family(
        "nodectl_node_info",
        MetricKind::Gauge,
        "Which node this is, and of which version.",
        [(labels, 1.0)],
    );
    text.one(
        "nodectl_node_start_time_seconds",
        MetricKind::Gauge,
        "When the node started, since 1970.",
        Some(facts.started_ms as f64 / 1e3),
    );
}

impl SeenNode {
    fn machine(&self, text: &mut Text) {
        // In the order of `MACHINE_SERIES`, whose last two are told of the tasks themselves.
        let families = [
            (
                "nodectl_node_cpu_ratio",
                "The part of all cores' time that was not idle, over a second.",
            ),
            (
                "nodectl_node_memory_used_bytes",
                "Memory that cannot be had without swapping.",
            ),
            (
                "nodectl_node_disk_free_bytes",
                "Room on the disk of the data directory.",
            ),
            (
                "nodectl_node_disk_read_bytes_per_second",
                "What all disks read, over a second.",
            ),
            (
                "nodectl_node_disk_written_bytes_per_second",
                "What all disks wrote, over a second.",
            ),
            (
                "nodectl_node_network_received_bytes_per_second",
                "What all network cards received, over a second.",
            ),
            (
                "nodectl_node_network_sent_bytes_per_second",
                "What all network cards sent, over a second.",
            ),
        ];
        for ((name, help), series) in families.into_iter().zip(&self.page.machine) {
            text.one(name, MetricKind::Gauge, help, newest(series));
        }
        let load = f64::from(self.load.load_milli) / 1e3;
        text.one(
            "nodectl_node_load_average",
            MetricKind::Gauge,
            "The kernel's one-minute load average.",
            Some(load),
        );
    }

    fn gpus(&self, text: &mut Text) {
        // In the order of `GPU_SERIES`.
        let families = [
            (
                "nodectl_gpu_utilization_ratio",
                "The part of the time in which the GPU was busy.",
            ),
            ("nodectl_gpu_memory_used_bytes", "Memory of the GPU in use."),
            ("nodectl_gpu_temperature_celsius", "The GPU's temperature."),
            ("nodectl_gpu_power_watts", "What the GPU draws."),
        ];
        for (at, (name, help)) in families.into_iter().enumerate() {
            let samples = self.page.gpus.iter().filter_map(|gpu| {
                let value = newest(gpu.series.get(at)?)?;
                Some((vec![("gpu", gpu.id.as_str()), ("name", &gpu.name)], value))
            });
            text.family(name, MetricKind::Gauge, help, samples);
        }
    }

    fn work(&self, text: &mut Text) {
        let NodeLoad {
            running, queued, ..
        } = self.load;
        text.one(
            "nodectl_tasks_running",
            MetricKind::Gauge,
            "Tasks that run on this node.",
            Some(running.into()),
        );
        text.one(
            "nodectl_tasks_queued",
            MetricKind::Gauge,
            "Tasks that wait on this node.",
            Some(queued.into()),
        );
        let ends = [("done", self.load.done), ("failed", self.load.failed)];
        text.family(
            "nodectl_results_total",
            MetricKind::Counter,
            "Attempts of tasks that ended on this node, since it started.",
            ends.map(|(outcome, count)| (vec![("outcome", outcome)], count as f64)),
        );
        let phases = [
            ("waiting", Phase::Waiting),
            ("running", Phase::Running),
            ("done", Phase::Done),
            ("failed", Phase::Failed),
            ("cancelled", Phase::Cancelled),
        ];
        let in_phase = |phase| self.jobs.iter().filter(|head| head.phase == phase).count();
        text.family(
            "nodectl_jobs",
            MetricKind::Gauge,
            "Jobs of the cluster that this node remembers.",
            phases.map(|(word, phase)| (vec![("state", word)], in_phase(phase) as f64)),
        );
        let alive = self.members.iter().filter(|member| member.alive).count();
        let states = [("alive", alive), ("away", self.members.len() - alive)];
        text.family(
            "nodectl_members",
            MetricKind::Gauge,
            "Nodes of the cluster, as this one sees them.",
            states.map(|(state, count)| (vec![("state", state)], count as f64)),
        );
    }
}

/// The newest that was measured, if that was just now.
fn newest(series: &Series) -> Option<f64> {
    let fresh = series.iter().rev().take(FRESH_ROWS);
    fresh.flatten().next().map(|value| f64::from(*value))
}

/// This program's own process, by the names that all exporters have.
struct OwnProcess {
    cpu_seconds: Option<f64>,
    rss_bytes: Option<f64>,
    open_files: Option<f64>,
}

impl OwnProcess {
    fn own() -> Self {
        let stat = Stat::own().ok();
        let ticks = stat.as_ref().and_then(Stat::ticks);
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let open = std::fs::read_dir("/proc/self/fd").ok();
        Self {
            cpu_seconds: ticks.map(|ticks| ticks as f64 * TICK.as_secs_f64()),
            rss_bytes: rss_bytes(&status),
            // Without the one that reads them.
            open_files: open.map(|files| files.count().saturating_sub(1) as f64),
        }
    }

    fn tell(&self, text: &mut Text) {
        text.one(
            "process_cpu_seconds_total",
            MetricKind::Counter,
            "Processor time of the node's own process.",
            self.cpu_seconds,
        );
        text.one(
            "process_resident_memory_bytes",
            MetricKind::Gauge,
            "Memory of the node's own process.",
            self.rss_bytes,
        );
        text.one(
            "process_open_fds",
            MetricKind::Gauge,
            "Files that the node's own process has open.",
            self.open_files,
        );
    }
}

/// `/proc/PID/status`: proc_pid_status(5).
fn rss_bytes(status: &str) -> Option<f64> {
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kibibytes: f64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kibibytes * 1024.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use nodectl_types::history::{GPU_SERIES, GpuPage, MACHINE_SERIES};

    fn seen() -> SeenNode {
        let series = |value: f32| vec![Some(value), None];
        SeenNode {
            load: NodeLoad {
                running: 2,
                queued: 1,
                done: 7,
                ..NodeLoad::default()
            },
            jobs: Vec::new(),
            members: Vec::new(),
            page: LoadPage {
                machine: vec![series(0.5); MACHINE_SERIES.len()],
                gpus: vec![GpuPage {
                    id: "00:03.0".into(),
                    name: "a \"GPU\"\\\n".into(),
                    series: [
                        vec![series(0.25); GPU_SERIES.len() - 1],
                        vec![vec![None; 2]],
                    ]
                    .concat(),
                }],
                ..LoadPage::default()
            },
            process: OwnProcess::own(),
        }
    }

    #[test]
    fn all_of_it_is_as_the_format_says() {
        let (seen, mut text) = (seen(), Text::default());
        seen.machine(&mut text);
        seen.gpus(&mut text);
        seen.work(&mut text);
        seen.process.tell(&mut text);
        let samples = text::grammar::parse(&text.finish());
        let value = |name: &str, label: Option<(&str, &str)>| {
            let has = |labels: &std::collections::BTreeMap<String, String>| {
                label.is_none_or(|(key, value)| labels.get(key).is_some_and(|had| had == value))
            };
            let found = samples
                .iter()
                .find(|(had, labels, _)| had == name && has(labels));
            found.map(|(_, _, value)| *value)
        };
        assert_eq!(value("nodectl_node_cpu_ratio", None), Some(0.5));
        assert_eq!(value("nodectl_tasks_running", None), Some(2.0));
        assert_eq!(
            value("nodectl_results_total", Some(("outcome", "done"))),
            Some(7.0)
        );
        assert_eq!(value("nodectl_jobs", Some(("state", "waiting"))), Some(0.0));
        let gpu = Some(("name", "a \"GPU\"\\\n"));
        assert_eq!(value("nodectl_gpu_utilization_ratio", gpu), Some(0.25));
        assert_eq!(
            value("nodectl_gpu_power_watts", None),
            None,
            "what cannot be measured is left out"
        );
        assert!(value("process_resident_memory_bytes", None) > Some(1e6));
        assert!(value("process_cpu_seconds_total", None) >= Some(0.0));
    }

    #[test]
    fn what_is_old_is_not_told() {
        assert_eq!(newest(&vec![Some(1.0), None, None]), Some(1.0));
        let old = [vec![Some(1.0)], vec![None; FRESH_ROWS]].concat();
        assert_eq!(newest(&old), None);
    }
}
