//! What happened to a job's nodes while it ran: what nodes noticed, and what their GPUs took.

use super::figures::Figures;
use maud::{Markup, html};
use nodectl_http::Client;
use nodectl_types::text;
use nodectl_wire::api::{EventLine, EventName, Job, NodeHistory};
use std::{
    collections::BTreeSet,
    time::{Duration, UNIX_EPOCH},
};

/// Events that are asked for, and shown.
const ASKED: u32 = 10_000;
const SHOWN: usize = 100;

/// What the cluster tells of the time in which a job ran.
#[derive(Debug, Default)]
pub struct Meanwhile {
    /// Of the job and of its nodes, oldest first.
    pub events: Vec<EventLine>,
    /// Of GPUs that tell what they take, in nodes that worked for the job.
    pub gpu_energy_wh: Option<f64>,
}

impl Meanwhile {
    /// Asks the nodes that are here. What cannot be had is left out: a report is made all the same.
    pub async fn of(client: &Client, job: &Job, figures: &Figures) -> Self {
        let events = client.cluster_events(None, ASKED).await.unwrap_or_default();
        let mut energy = None;
        for node in &figures.nodes {
            let history = client.history(&node.name, "24h", None).await;
            let here = history
                .ok()
                .and_then(|load| energy_wh(&load, figures.span_ms));
            energy = energy
                .into_iter()
                .chain(here)
                .reduce(|sum, more| sum + more);
        }
        let names = figures
            .nodes
            .iter()
            .map(|node| node.name.as_str())
            .collect();
        Self {
            events: concerned(events, job, &names, figures.span_ms),
            gpu_energy_wh: energy,
        }
    }
}

/// Those of the job, and of its nodes while it ran.
fn concerned(
    events: Vec<EventLine>,
    job: &Job,
    nodes: &BTreeSet<&str>,
    (begin, end): (u64, u64),
) -> Vec<EventLine> {
    let is_meant = |event: &EventLine| match &event.job {
        Some(id) => *id == job.line.id,
        None => {
            let is_there = (begin..=end).contains(&event.at_ms);
            is_there && event.kind != EventName::Joined && nodes.contains(event.name.as_str())
        }
    };
    let mut events: Vec<_> = events.into_iter().filter(is_meant).collect();
    events.drain(..events.len().saturating_sub(SHOWN));
    events
}

/// What a node's GPUs took from `begin` to `end`, in Wh; None where none tells, or nothing of that
/// time is remembered.
fn energy_wh(load: &NodeHistory, (begin, end): (u64, u64)) -> Option<f64> {
    let step_ms = load.step_s * 1000;
    let power = load.gpus.iter().flat_map(|gpu| {
        let values = &gpu.series.power_w;
        let first = load.end_ms.saturating_sub(values.len() as u64 * step_ms);
        values
            .iter()
            .zip((0..).map(move |step| first + step * step_ms))
    });
    let within = power.filter_map(|(watts, from)| {
        let shared = end.min(from + step_ms).saturating_sub(begin.max(from));
        watts
            .filter(|_| shared > 0)
            .map(|watts| f64::from(watts) * shared as f64 / 3.6e6)
    });
    within.reduce(|sum, more| sum + more)
}

/// The events as a list.
pub fn events(meanwhile: &Meanwhile) -> Markup {
    if meanwhile.events.is_empty() {
        return html! {};
    }
    html! {
        h2 { "What happened" }
        table {
            tbody {
                @for event in &meanwhile.events {
                    @let time = UNIX_EPOCH + Duration::from_millis(event.at_ms);
                    tr {
                        td.quiet { (humantime::format_rfc3339_seconds(time)) }
                        td { (text::one_line(&event.name)) " " (text::one_line(&event.text)) }
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{super::figures::tests::job, *};
    use nodectl_wire::api::{GpuHistory, GpuLoadSeries, MachineLoadSeries};

    #[test]
    fn energy_is_power_over_the_time_that_the_job_had() {
        let load = |power_w: Vec<Option<f32>>| NodeHistory {
            node: "a".into(),
            step_s: 10,
            end_ms: 100_000,
            series: MachineLoadSeries::default(),
            gpus: vec![GpuHistory {
                name: "g".into(),
                series: GpuLoadSeries {
                    power_w,
                    ..GpuLoadSeries::default()
                },
            }],
        };
        // From 70 s: 10 s at 360 W and half of 10 s at 720 W; nothing is known of the rest.
        let known = load(vec![Some(360.0), Some(720.0), None]);
        let energy = energy_wh(&known, (70_000, 85_000)).unwrap();
        assert!((energy - 2.0).abs() < 1e-9, "{energy}");
        assert_eq!(energy_wh(&known, (90_000, 95_000)), None);
        assert_eq!(energy_wh(&known, (200_000, 300_000)), None);
        assert_eq!(energy_wh(&load(Vec::new()), (0, 100_000)), None);
    }

    #[test]
    fn events_are_those_of_the_job_and_of_its_nodes_while_it_ran() {
        let job = job(0);
        let event = |at_ms, kind, name: &str, job: Option<&str>| EventLine {
            at_ms,
            kind,
            node: None,
            job: job.map(str::to_string),
            name: name.into(),
            text: "t".into(),
            noticed_by: Vec::new(),
        };
        let all = vec![
            event(1, EventName::Submitted, "areas", Some(&job.line.id)),
            event(2, EventName::Submitted, "other", Some("ff")),
            event(150, EventName::Died, "box-a", None),
            event(150, EventName::Joined, "box-b", None),
            event(150, EventName::Died, "box-z", None),
            event(500, EventName::Died, "box-a", None),
        ];
        let nodes = BTreeSet::from(["box-a", "box-b"]);
        let told = concerned(all, &job, &nodes, (100, 200));
        let told: Vec<_> = told
            .iter()
            .map(|event| (event.at_ms, &*event.name))
            .collect();
        assert_eq!(told, [(1, "areas"), (150, "box-a")]);
    }
}
