//! Pictures of a job: each task as a bar on a lane of its node, and how long tasks took.

use super::figures::{ended_ms, has_run, node_name};
use maud::{Markup, html};
use nodectl_types::units::format_duration;
use nodectl_wire::api::{StatusName, TaskResult};
use std::{collections::BTreeMap, time::Duration};

/// Bars beyond this are left out, evenly: nobody can tell them apart, and pages grow with them.
const MOST_BARS: usize = 10_000;
/// Lanes of one node beyond this share the last one.
const MOST_LANES: usize = 64;
/// Of a picture, in pixels of its own coordinates.
const WIDTH: f64 = 1000.0;
const LANE: f64 = 10.0;
const NODE_GAP: f64 = 22.0;
const HISTOGRAM_HEIGHT: f64 = 140.0;
const BINS: usize = 40;

/// A task's bar.
struct Bar<'a> {
    result: &'a TaskResult,
    lane: usize,
}

/// The tasks of a node, each on the first lane that was free when it began.
struct NodeLanes<'a> {
    name: &'a str,
    bars: Vec<Bar<'a>>,
    lanes: usize,
    /// Where its name begins in the picture.
    top: f64,
}

impl NodeLanes<'_> {
    fn height(&self) -> f64 {
        NODE_GAP + self.lanes as f64 * LANE
    }
}

/// Tasks over time, by node.
pub fn tasks(results: &[TaskResult]) -> Markup {
    let ran: Vec<&TaskResult> = results.iter().filter(|result| has_run(result)).collect();
    let Some(begin) = ran.iter().map(|result| result.started_ms).min() else {
        return html! { p.quiet { "No task has ended yet." } };
    };
    let end = ran
        .iter()
        .map(|result| ended_ms(result))
        .max()
        .unwrap_or(begin);
    let scale = WIDTH / (end - begin).max(1) as f64;
    let step = ran.len().div_ceil(MOST_BARS);
    let nodes = lanes(ran.into_iter().step_by(step));
    let height: f64 = nodes.iter().map(NodeLanes::height).sum();
    html! {
        svg.stream viewBox=(format!("0 0 {WIDTH} {:.0}", height + 4.0)) role="img" aria-label="Tasks over time, by node" {
            @for node in &nodes {
                text x="0" y=(format!("{:.0}", node.top + NODE_GAP - 7.0)) { (node.name) }
                @for bar in &node.bars {
                    @let x = (bar.result.started_ms - begin) as f64 * scale;
                    @let width = (bar.result.seconds * 1e3 * scale).max(0.5);
                    @let y = node.top + NODE_GAP + bar.lane as f64 * LANE;
                    rect.(class(bar.result.status)) x=(format!("{x:.1}")) y=(format!("{y:.0}"))
                        width=(format!("{width:.1}")) height=(format!("{:.0}", LANE - 1.0)) {
                        title { (caption(bar.result)) }
                    }
                }
            }
        }
        p.axis { span { "0" } span { (seconds((end - begin) as f64 / 1e3)) } }
        @if step > 1 {
            p.quiet { "One of " (step) " tasks is drawn." }
        }
    }
}

fn lanes<'a>(ran: impl Iterator<Item = &'a TaskResult>) -> Vec<NodeLanes<'a>> {
    let mut by_node: BTreeMap<&str, Vec<&TaskResult>> = BTreeMap::new();
    for result in ran {
        by_node.entry(node_name(result)).or_default().push(result);
    }
    let mut top = 0.0;
    let node = |(name, mut results): (&'a str, Vec<&'a TaskResult>)| {
        results.sort_by_key(|result| (result.started_ms, result.task));
        let mut free_at: Vec<u64> = Vec::new();
        let bars = results
            .into_iter()
            .map(|result| Bar {
                result,
                lane: lane(&mut free_at, result),
            })
            .collect();
        let node = NodeLanes {
            name,
            bars,
            lanes: free_at.len(),
            top,
        };
        top += node.height();
        node
    };
    by_node.into_iter().map(node).collect()
}

fn lane(free_at: &mut Vec<u64>, result: &TaskResult) -> usize {
    let is_free = |end: &u64| *end <= result.started_ms;
    let lane = match free_at.iter().position(is_free) {
        Some(lane) => lane,
        None if free_at.len() < MOST_LANES => {
            free_at.push(0);
            free_at.len() - 1
        }
        None => MOST_LANES - 1,
    };
    free_at[lane] = free_at[lane].max(ended_ms(result));
    lane
}

fn class(status: StatusName) -> &'static str {
    match status {
        StatusName::Done => "done",
        StatusName::Failed => "failed",
        StatusName::Cancelled | StatusName::Stopped => "stopped",
    }
}

fn caption(result: &TaskResult) -> String {
    let name = result.name.as_deref().map(|name| format!(" {name}"));
    format!(
        "task {}{}: {}, {} on {}",
        result.task,
        name.unwrap_or_default(),
        result.status.word(),
        seconds(result.seconds),
        node_name(result),
    )
}

pub fn seconds(seconds: f64) -> String {
    format_duration(Duration::try_from_secs_f64(seconds).unwrap_or_default())
}

/// How long tasks took: the number of tasks in each of equal parts of the time.
pub fn durations(results: &[TaskResult]) -> Markup {
    let mut times: Vec<f64> = results
        .iter()
        .filter(|result| result.status == StatusName::Done && has_run(result))
        .map(|result| result.seconds)
        .collect();
    if times.len() < 2 {
        return html! {};
    }
    times.sort_by(f64::total_cmp);
    let (least, most) = (times[0], times[times.len() - 1]);
    let counts = counts(&times, least, most);
    let tallest = counts.iter().copied().max().unwrap_or(1).max(1) as f64;
    let bin = WIDTH / BINS as f64;
    html! {
        h2 { "How long tasks took" }
        svg.histogram viewBox=(format!("0 0 {WIDTH} {HISTOGRAM_HEIGHT}")) role="img" aria-label="Distribution of the tasks' times" {
            @for (index, count) in counts.iter().enumerate() {
                @let height = HISTOGRAM_HEIGHT * *count as f64 / tallest;
                rect.done x=(format!("{:.1}", index as f64 * bin)) y=(format!("{:.1}", HISTOGRAM_HEIGHT - height))
                    width=(format!("{:.1}", bin - 1.5)) height=(format!("{height:.1}")) { title { (count) " tasks" } }
            }
        }
        p.axis {
            span { (seconds(least)) }
            span { "median " (seconds(times[times.len() / 2])) }
            span { (seconds(most)) }
        }
    }
}

fn counts(times: &[f64], least: f64, most: f64) -> [usize; BINS] {
    let mut counts = [0; BINS];
    let width = ((most - least) / BINS as f64).max(f64::MIN_POSITIVE);
    for time in times {
        counts[(((time - least) / width) as usize).min(BINS - 1)] += 1;
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::{super::figures::tests::result, *};
    use serde_json::json;

    #[test]
    fn tasks_at_once_are_on_lanes_of_their_own() {
        let at = |task, start, seconds| result(task, "box-a", start, seconds, json!({}));
        let results = [at(0, 1_000, 2.0), at(1, 2_000, 2.0), at(2, 3_000, 1.0)];
        let nodes = lanes(results.iter());
        let lanes: Vec<_> = nodes[0].bars.iter().map(|bar| bar.lane).collect();
        assert_eq!((nodes[0].lanes, lanes), (2, vec![0, 1, 0]));
    }

    #[test]
    fn each_time_counts_once() {
        let times = [1.0, 1.0, 2.0, 5.0];
        let counts = counts(&times, 1.0, 5.0);
        assert_eq!(counts.iter().sum::<usize>(), 4);
        assert_eq!((counts[0], counts[BINS - 1]), (2, 1));
        assert_eq!(super::counts(&[3.0, 3.0], 3.0, 3.0)[0], 2);
    }
}
