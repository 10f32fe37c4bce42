//! What is in the tables of `top`: a picture and a view in, rows out. Pure.

use super::{
    picture::{JobPicture, TopPicture},
    view::{Screen, TopView},
};
use nodectl_types::{
    text,
    units::{format_bytes, format_duration},
};
use nodectl_wire::api::{JobLine, Node, NodeHistory, TaskRow};
use std::{cmp::Ordering, time::Duration};

/// From nothing to all.
const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
/// Characters of a line of the last minute.
const SPARK: usize = 12;

pub struct TopTable {
    pub head: Vec<&'static str>,
    /// Widths in characters; 0 for the rest.
    pub widths: Vec<u16>,
    pub rows: Vec<TopRow>,
}

pub struct TopRow {
    /// Of this row, whatever it shows.
    pub key: String,
    pub cells: Vec<String>,
    pub tone: Tone,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tone {
    Plain,
    Good,
    Bad,
    Faint,
}

/// The table of the screen, filtered and sorted; None where it has a text.
pub fn table(view: &TopView, picture: &TopPicture) -> Option<TopTable> {
    let mut table = match &view.place().screen {
        Screen::Cluster => nodes(picture),
        Screen::Jobs => jobs(picture),
        Screen::Gpus => gpus(picture),
        Screen::Job(_) => tasks(picture.job.as_ref()),
        Screen::Log { .. } | Screen::Explanation { .. } => return None,
    };
    let filter = view.filter.to_lowercase();
    let has = |row: &TopRow| {
        row.cells
            .iter()
            .any(|cell| cell.to_lowercase().contains(&filter))
    };
    table.rows.retain(|row| filter.is_empty() || has(row));
    if let Some(column) = view.place().sort {
        table
            .rows
            .sort_by(|a, b| in_order(&a.cells[column], &b.cells[column]));
    }
    Some(table)
}

/// Numbers before texts, the greatest first.
fn in_order(a: &str, b: &str) -> Ordering {
    let number = |text: &str| text.split([' ', '/', '%']).next()?.parse::<f64>().ok();
    match (number(a), number(b)) {
        (Some(a), Some(b)) => b.total_cmp(&a),
        (Some(_), None) => Ordering::Less,
        (None, Some(_)) => Ordering::Greater,
        (None, None) => a.cmp(b),
    }
}

fn nodes(picture: &TopPicture) -> TopTable {
    let row = |node: &Node| {
        let load = node.load.as_ref();
        let history = picture.loads.get(&node.id);
        let series =
            |pick: fn(&NodeHistory) -> Vec<Option<f32>>| history.map(pick).unwrap_or_default();
        let cpu = series(|history| history.series.cpu.clone());
        let gpu = series(busiest_gpu);
        let memory = load.map_or_else(String::new, |load| {
            let used = load.memory_used_bytes as f64 / (node.resources.memory_bytes.max(1)) as f64;
            format!("{:.0}%", used.min(1.0) * 100.0)
        });
        let (state, tone) = state(node);
        TopRow {
            key: node.id.clone(),
            cells: vec![
                text::one_line(&node.name).into_owned(),
                state.into(),
                percent(&cpu),
                spark(&cpu),
                memory,
                percent(&gpu),
                spark(&gpu),
                load.map_or_else(String::new, |load| load.running.to_string()),
                load.map_or_else(String::new, |load| load.queued.to_string()),
            ],
            tone,
        }
    };
    TopTable {
        head: vec![
            "NODE",
            "STATE",
            "CPU",
            "LAST MINUTE",
            "MEM",
            "GPU",
            "LAST MINUTE",
            "RUN",
            "WAIT",
        ],
        widths: vec![0, 8, 5, SPARK as u16, 5, 5, SPARK as u16, 5, 5],
        rows: picture.nodes.iter().map(row).collect(),
    }
}

fn state(node: &Node) -> (&'static str, Tone) {
    match node {
        Node { left: true, .. } => ("left", Tone::Faint),
        Node { alive: false, .. } => ("away", Tone::Bad),
        Node {
            problem: Some(_), ..
        } => ("trouble", Tone::Bad),
        Node { draining: true, .. } => ("no work", Tone::Faint),
        _ => ("ready", Tone::Good),
    }
}

/// Of a node's GPUs the greatest of each second.
fn busiest_gpu(history: &NodeHistory) -> Vec<Option<f32>> {
    let at = |at: usize| {
        let values = history
            .gpus
            .iter()
            .filter_map(|gpu| *gpu.series.utilization.get(at)?);
        values.max_by(f32::total_cmp)
    };
    let has_any = !history.gpus.is_empty();
    (0..history.series.cpu.len())
        .filter(|_| has_any)
        .map(at)
        .collect()
}

fn jobs(picture: &TopPicture) -> TopTable {
    let row = |job: &JobLine| {
        let ended = job.ended_ms.unwrap_or(picture.now_ms);
        let tone = match job.phase.word() {
            "running" => Tone::Good,
            "failed" => Tone::Bad,
            "waiting" => Tone::Plain,
            _ => Tone::Faint,
        };
        TopRow {
            key: job.id.clone(),
            cells: vec![
                job.id.chars().take(8).collect(),
                text::one_line(&job.name).into_owned(),
                text::one_line(&job.user).into_owned(),
                job.phase.word().into(),
                format!("{}/{}", job.done, job.tasks),
                job.failed.to_string(),
                lasted(ended.saturating_sub(job.submitted_ms)),
            ],
            tone,
        }
    };
    TopTable {
        head: vec![
            "JOB",
            "NAME",
            "USER",
            "STATE",
            "DONE",
            "FAILED",
            "SINCE SUBMITTED",
        ],
        widths: vec![9, 0, 10, 10, 14, 7, 15],
        rows: picture.jobs.iter().map(row).collect(),
    }
}

fn gpus(picture: &TopPicture) -> TopTable {
    let mut rows = Vec::new();
    for node in &picture.nodes {
        let Some(history) = picture.loads.get(&node.id) else {
            continue;
        };
        for gpu in &history.gpus {
            let bytes = newest(&gpu.series.memory_bytes);
            let with = |value: Option<f32>, unit: &str| {
                value.map_or_else(String::new, |value| format!("{value:.0} {unit}"))
            };
            rows.push(TopRow {
                key: node.id.clone(),
                cells: vec![
                    text::one_line(&node.name).into_owned(),
                    text::one_line(&gpu.name).into_owned(),
                    percent(&gpu.series.utilization),
                    spark(&gpu.series.utilization),
                    bytes.map_or_else(String::new, |bytes| format_bytes(bytes as u64)),
                    with(newest(&gpu.series.temperature_c), "°C"),
                    with(newest(&gpu.series.power_w), "W"),
                ],
                tone: Tone::Plain,
            });
        }
    }
    TopTable {
        head: vec![
            "NODE",
            "GPU",
            "BUSY",
            "LAST MINUTE",
            "MEMORY",
            "TEMP",
            "POWER",
        ],
        widths: vec![14, 0, 5, SPARK as u16, 10, 7, 7],
        rows,
    }
}

fn tasks(job: Option<&JobPicture>) -> TopTable {
    let mut tasks = job.iter().flat_map(|job| &job.tasks);
    let has_names = tasks.any(|task| task.name.is_some());
    let row = |job: &JobPicture, task: &TaskRow| {
        let node = task.node.as_ref();
        let share = node.and_then(|id| {
            job.job
                .progress
                .nodes
                .iter()
                .find(|share| share.node == *id)
        });
        let name = share.map(|share| share.name.clone());
        let short = || node.map(|id| id.chars().take(8).collect());
        let tone = match task.state.word() {
            "failed" => Tone::Bad,
            "running" => Tone::Good,
            "pending" | "queued" => Tone::Plain,
            _ => Tone::Faint,
        };
        let mut cells = vec![
            task.task.to_string(),
            task.state.word().into(),
            job.reasons.get(&task.task).cloned().unwrap_or_default(),
            task.failures.to_string(),
            text::one_line(&name.or_else(short).unwrap_or_default()).into_owned(),
            task.running_ms.map(lasted).unwrap_or_default(),
        ];
        if has_names {
            let name = task.name.as_deref().unwrap_or_default();
            cells.insert(1, text::one_line(name).into_owned());
        }
        TopRow {
            key: task.task.to_string(),
            cells,
            tone,
        }
    };
    let mut head = vec!["TASK", "STATE", "REASON", "FAILURES", "NODE", "RUNNING FOR"];
    let mut widths = vec![8, 10, 18, 8, 0, 12];
    if has_names {
        head.insert(1, "NAME");
        widths.insert(1, 14);
    }
    TopTable {
        head,
        widths,
        rows: job.map_or_else(Vec::new, |job| {
            job.tasks.iter().map(|task| row(job, task)).collect()
        }),
    }
}

fn lasted(ms: u64) -> String {
    format_duration(Duration::from_millis(ms))
}

/// The last that was measured, if it was just now.
fn newest(series: &[Option<f32>]) -> Option<f32> {
    series.iter().rev().take(5).flatten().next().copied()
}

fn percent(series: &[Option<f32>]) -> String {
    newest(series).map_or_else(String::new, |part| format!("{:.0}%", part * 100.0))
}

/// Parts from 0 to 1, the newest at the end, as bars; each is the greatest of its time. A blank is
/// where nothing was measured.
pub fn spark(series: &[Option<f32>]) -> String {
    let each = series.len().div_ceil(SPARK).max(1);
    let bar = |values: &[Option<f32>]| {
        let most = values.iter().flatten().copied().max_by(f32::total_cmp);
        most.map_or(' ', |part| {
            let height = (part.clamp(0.0, 1.0) * (BARS.len() - 1) as f32).round();
            BARS[height as usize]
        })
    };
    series.chunks(each).map(bar).collect()
}
