//! Tables for people. No colour carries meaning; what a program should read is `--json`.

use super::{
    cells::{ago, cut, short_id, since},
    columns::{Look, TableColumn, layout},
    failures::{failure_text, indented},
    model::{ClusterStatus, Output, RunSummary},
    progress::progress_line,
    tasks::{self, ListedTask},
};
use nodectl_ports::wall_ms;
use nodectl_types::{
    text,
    units::{counted, format_bytes, format_duration},
};
use nodectl_wire::api::{
    AuditLine, CheckpointView, ClosedName, Device, EventLine, ExchangeView, ExchangeWay,
    GpuKindName, GpuRatesView, GpuView, Job, JobLine, LateView, Node, NodeShare, SecretView,
    TaskKindView, TaskResult, TrainingView, WaitingView, WorkView,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, UNIX_EPOCH},
};

/// Of a value that has a line of its own; `--json` has all of it.
const ROW_CHARS: usize = 1000;

const NODES: [TableColumn; 12] = [
    TableColumn::kept("NODE"),
    TableColumn::dropped("ID", 5),
    TableColumn::state("STATE"),
    TableColumn::dropped("MODEL", 7),
    TableColumn::dropped("CORES", 1),
    TableColumn::dropped("MEMORY", 2),
    TableColumn::dropped("GPUS", 1),
    TableColumn::dropped("DRIVER", 8),
    TableColumn::dropped("LOAD", 3),
    TableColumn::dropped("RUNS", 1),
    TableColumn::dropped("QUEUED", 4),
    TableColumn::dropped("ADDRESS", 6),
];
const JOBS: [TableColumn; 9] = [
    TableColumn::kept("JOB"),
    TableColumn::kept("NAME"),
    TableColumn::dropped("USER", 3),
    TableColumn::state("STATE"),
    TableColumn::kept("TASKS"),
    TableColumn::dropped("DONE", 1),
    TableColumn::dropped("FAILED", 1),
    TableColumn::dropped("SUBMITTED", 2),
    TableColumn::dropped("TOOK", 3),
];
/// Where tasks that were stopped are counted among those columns, if some were.
const STOPPED_AT: usize = 7;
const DEVICES: [TableColumn; 14] = [
    TableColumn::kept("NODE"),
    TableColumn::kept("GPU"),
    TableColumn::dropped("VENDOR", 6),
    TableColumn::dropped("KIND", 7),
    TableColumn::dropped("USED", 1),
    TableColumn::dropped("MEMORY", 1),
    TableColumn::dropped("FREE", 3),
    TableColumn::dropped("COPY", 4),
    TableColumn::dropped("GEMM F32", 2),
    TableColumn::dropped("GEMM F16", 5),
    TableColumn::dropped("TILES", 8),
    TableColumn::dropped("DRIVER", 8),
    TableColumn::dropped("UUID", 10),
    TableColumn::dropped("FEATURES", 9),
];
const RESULTS: [TableColumn; 6] = [
    TableColumn::kept("TASK"),
    TableColumn::state("STATUS"),
    TableColumn::dropped("SECONDS", 2),
    TableColumn::dropped("NODE", 1),
    TableColumn::kept("PARAMETERS"),
    TableColumn::kept("RESULT"),
];

pub struct Table {
    pub look: Look,
}

impl Output for Table {
    fn status(&self, status: &ClusterStatus) -> String {
        let alive = status.nodes.iter().filter(|node| node.alive).count();
        let gpus: usize = status
            .nodes
            .iter()
            .filter(|node| node.alive)
            .map(|node| real_gpus(node).count())
            .sum();
        let cpus: f64 = status
            .nodes
            .iter()
            .filter(|node| node.alive)
            .map(|node| node.resources.cpus)
            .sum();
        let open = status
            .jobs
            .iter()
            .filter(|job| !job.phase.is_ended())
            .count();
        let mut text = format!(
            "cluster {}: {alive} of {} alive, {}, {}; {open} of {} open\n\n",
            status.node.cluster,
            counted(status.nodes.len(), "node"),
            counted(cpus, "core"),
            counted(gpus, "GPU"),
            counted(status.jobs.len(), "job")
        );
        text += &self.nodes(&status.nodes);
        let open: Vec<_> = status
            .jobs
            .iter()
            .filter(|job| !job.phase.is_ended())
            .cloned()
            .collect();
        if !open.is_empty() {
            text += "\n";
            text += &self.jobs(&open, wall_ms());
        }
        text
    }

    fn nodes(&self, nodes: &[Node]) -> String {
        let rows = nodes
            .iter()
            .map(|node| {
                let load = |text: fn(&nodectl_wire::api::Load) -> String| {
                    node.load.as_ref().map_or("?".into(), text)
                };
                vec![
                    format!("{}{}", node.name, if node.this_node { " *" } else { "" }),
                    short_id(&node.id),
                    node_state(node).into(),
                    if node.model.is_empty() {
                        "?".into()
                    } else {
                        cut(&node.model)
                    },
                    node.resources.cpus.to_string(),
                    format_bytes(node.resources.memory_bytes),
                    gpus(node),
                    drivers(node),
                    load(|load| format!("{:.2}", load.load_average)),
                    load(runs),
                    load(|load| load.queued.to_string()),
                    node.addrs.first().cloned().unwrap_or_default(),
                ]
            })
            .collect();
        layout(self.look, &NODES, true, rows) + &closed_notes(nodes, wall_ms())
    }

    fn jobs(&self, jobs: &[JobLine], now_ms: u64) -> String {
        if jobs.is_empty() {
            return "no jobs\n".into();
        }
        // Of most jobs, no task was.
        let stops = jobs.iter().any(|job| job.stopped > 0);
        let rows = jobs
            .iter()
            .map(|job| {
                let took = job
                    .ended_ms
                    .map(|ended| since(job.submitted_ms, ended))
                    .unwrap_or_default();
                let counts = match job.workers {
                    Some(0) => ["pool".into(), "-".into(), "-".into()],
                    Some(workers) => [format!("pool of {workers}"), "-".into(), "-".into()],
                    None => [job.tasks, job.done, job.failed].map(|count| count.to_string()),
                };
                let [tasks, done, failed] = counts;
                let mut row = vec![
                    job.id.clone(),
                    cut(&job.name),
                    cut(&job.user),
                    if job.aside {
                        "put aside".into()
                    } else {
                        job.phase.word().into()
                    },
                    tasks,
                    done,
                    failed,
                    ago(job.submitted_ms, now_ms),
                    took,
                ];
                if stops {
                    row.insert(STOPPED_AT, job.stopped.to_string());
                }
                row
            })
            .collect();
        let mut columns = JOBS.to_vec();
        if stops {
            columns.insert(STOPPED_AT, TableColumn::dropped("STOPPED", 1));
        }
        layout(self.look, &columns, true, rows)
    }

    fn secrets(&self, secrets: &[SecretView], now_ms: u64) -> String {
        if secrets.is_empty() {
            return "no secrets; `nodectl secret put NAME` keeps one\n".into();
        }
        let row = |secret: &SecretView| vec![secret.name.clone(), since(secret.changed_ms, now_ms)];
        columns(&["SECRET", "AGE"], secrets.iter().map(row))
    }

    fn devices(&self, devices: &[Device]) -> String {
        if devices.is_empty() {
            return "no GPUs; `nodectl doctor` on a machine that has one says why\n".into();
        }
        let rows = devices
            .iter()
            .map(|device| {
                let gpu = &device.gpu;
                let rate =
                    |text: fn(&GpuRatesView) -> String| gpu.rates.as_ref().map_or("?".into(), text);
                vec![
                    device.node_name.clone(),
                    cut(&gpu.name),
                    gpu.vendor.clone(),
                    gpu_kind(gpu.kind).into(),
                    if gpu.used { "yes" } else { "no" }.into(),
                    format_bytes(gpu.memory_bytes),
                    gpu.memory_free.map_or("?".into(), format_bytes),
                    rate(|rates| format!("{:.1} GB/s", rates.copy_bytes_per_s as f64 / 1e9)),
                    rate(|rates| format!("{:.3} TFLOP/s", rates.gemm_f32_flops as f64 / 1e12)),
                    rate(|rates| format!("{:.3} TFLOP/s", rates.gemm_f16_flops as f64 / 1e12)),
                    rate(tiles),
                    cut(&gpu.driver),
                    gpu.uuid.clone(),
                    if gpu.features.is_empty() {
                        "-".into()
                    } else {
                        gpu.features.join(",")
                    },
                ]
            })
            .collect();
        layout(self.look, &DEVICES, true, rows) + &device_notes(self.look, devices)
    }

    fn job(&self, job: &Job, now_ms: u64) -> String {
        let mut rows = facts(job, now_ms);
        rows.extend(job.training.iter().flat_map(training));
        let exchange = job.work.exchange.iter();
        rows.extend(exchange.map(|layer| ("gradients", exchange_row(layer))));
        let row = |(key, value): &(&str, String)| {
            format!("{key:<12} {}\n", text::shortened(value, ROW_CHARS))
        };
        let mut text: String = rows.iter().map(row).collect();
        if let Some(reason) = &job.line.reason {
            text += "given up\n";
            text += &indented(reason, "  ");
        }
        if !job.progress.nodes.is_empty() {
            text += "\n";
            text += &shares(&job.progress.nodes);
            text += &done_elsewhere(job);
        }
        text
    }

    fn tasks(&self, tasks: &[ListedTask], now_ms: u64, first: bool) -> String {
        tasks::table(self.look, tasks, now_ms, first)
    }

    fn results(&self, results: &[TaskResult], first: bool) -> String {
        if results.is_empty() {
            return if first {
                "no results yet\n".into()
            } else {
                String::new()
            };
        }
        let rows = results
            .iter()
            .map(|result| {
                let params: Vec<_> = result
                    .params
                    .iter()
                    .map(|(name, value)| format!("{name}={value}"))
                    .collect();
                let outcome = match (&result.failure, &result.value) {
                    (Some(failure), _) => failure_text(failure, &result.stderr.tail),
                    (None, Some(value)) => value.to_string(),
                    (None, None) => String::new(),
                };
                let node = result
                    .node_name
                    .clone()
                    .unwrap_or_else(|| short_id(&result.node));
                vec![
                    result.task.to_string(),
                    result.status.word().into(),
                    format!("{:.3}", result.seconds),
                    node,
                    cut(&params.join(" ")),
                    cut(&outcome),
                ]
            })
            .collect();
        layout(self.look, &RESULTS, first, rows)
    }

    fn submitted(&self, job: &str, _: &str) -> String {
        format!("{job}\n")
    }

    /// The table's summary is a remark, and goes to stderr beside the progress: see `run::summary`.
    fn summary(&self, _: &[RunSummary]) -> String {
        String::new()
    }
}

/// Left-aligned columns with two spaces between them, however wide. No heads if `header` is empty.
pub fn columns(header: &[&'static str], rows: impl Iterator<Item = Vec<String>>) -> String {
    let rows: Vec<_> = rows.collect();
    let count = rows.first().map_or(header.len(), Vec::len);
    let head = |index| TableColumn::kept(header.get(index).copied().unwrap_or_default());
    let columns: Vec<TableColumn> = (0..count).map(head).collect();
    layout(Look::default(), &columns, !header.is_empty(), rows)
}

fn state(job: &Job) -> String {
    match job.line.workers {
        Some(_) => format!(
            "{}: a pool with {}",
            job.progress.phase.word(),
            counted(job.progress.running, "worker")
        ),
        None => progress_line(&job.progress),
    }
}

fn shares(nodes: &[NodeShare]) -> String {
    let row = |share: &NodeShare| {
        vec![
            share.name.clone(),
            share.running.to_string(),
            share.queued.to_string(),
            share.done.to_string(),
        ]
    };
    columns(
        &["NODE", "RUNNING", "QUEUED", "DONE"],
        nodes.iter().map(row),
    )
}

/// How many tasks are in no node's row: a coordinator knows of the nodes that it has, since it took
/// the job over. Empty where none is.
fn done_elsewhere(job: &Job) -> String {
    let listed: u32 = job.progress.nodes.iter().map(|share| share.done).sum();
    match job.progress.done.saturating_sub(listed) {
        // What a log has are entries, and who keeps them has no share of them.
        _ if job.line.is_log => String::new(),
        0 => String::new(),
        more => format!(
            "{} done on nodes that are gone, or before a coordinator changed: `--tasks` lists all\n",
            counted(more, "more task")
        ),
    }
}

fn real_gpus(node: &Node) -> impl Iterator<Item = &GpuView> {
    node.gpus
        .iter()
        .filter(|gpu| gpu.kind != GpuKindName::Software)
}

/// `2 GeForce GTX 1080, 1 Radeon VII (1 resting)`, `0`, or that they are not known yet.
fn gpus(node: &Node) -> String {
    let mut counts: BTreeMap<&str, u32> = BTreeMap::new();
    real_gpus(node).for_each(|gpu| *counts.entry(&gpu.name).or_default() += 1);
    let named: Vec<_> = counts
        .iter()
        .map(|(name, count)| format!("{count} {name}"))
        .collect();
    let resting = real_gpus(node).filter(|gpu| gpu.rests).count();
    match (named.is_empty(), resting) {
        (true, _) if node.seeks_gpus => "looking".into(),
        (true, _) => "0".into(),
        (false, 0) => cut(&named.join(", ")),
        (false, resting) => cut(&format!("{} ({resting} resting)", named.join(", "))),
    }
}

/// How products of f32 and of f16 matrices are fastest: `128/coop`.
fn tiles(rates: &GpuRatesView) -> String {
    let way = |tile: u16| match tile {
        0 => "coop".into(),
        tile => tile.to_string(),
    };
    format!("{}/{}", way(rates.gemm_f32_tile), way(rates.gemm_f16_tile))
}

fn drivers(node: &Node) -> String {
    let drivers: BTreeSet<&str> = real_gpus(node).map(|gpu| gpu.driver.as_str()).collect();
    cut(&drivers.into_iter().collect::<Vec<_>>().join(", "))
}

/// Running tasks, and of which jobs: `3 (sweep 2, table 1)`.
fn runs(load: &nodectl_wire::api::Load) -> String {
    let jobs: Vec<_> = load
        .jobs
        .iter()
        .map(|job| format!("{} {}", job.name, job.running))
        .collect();
    if jobs.is_empty() {
        load.running.to_string()
    } else {
        cut(&format!("{} ({})", load.running, jobs.join(", ")))
    }
}

/// What there is to say of every job.
fn facts(job: &Job, now_ms: u64) -> Vec<(&'static str, String)> {
    let line = &job.line;
    let ended = line
        .ended_ms
        .map(|ended| format!(", took {}", since(line.submitted_ms, ended)));
    let command = || text::ends(&job.work.command.join(" "), ROW_CHARS - 1).into_owned();
    let coordinator = match (&job.coordinator_name, &line.coordinator) {
        (Some(name), _) => cut(name),
        (None, Some(id)) => short_id(id),
        (None, None) => "none yet".into(),
    };
    let mut rows = vec![
        ("job", format!("{} {}", line.id, line.name)),
        (
            "state",
            format!("{}{}", state(job), ended.unwrap_or_default()),
        ),
        ("user", user(line)),
        ("age", since(line.submitted_ms, now_ms)),
        match &job.work.worker {
            Some(worker) => ("worker", worker.clone()),
            None if !job.work.tasks.is_empty() => ("tasks", kinds(&job.work)),
            None => ("command", command()),
        },
        ("needs", needs(&job.work)),
        ("coordinator", coordinator),
    ];
    if !job.work.params.is_empty() {
        rows.push(("parameters", job.work.params.join(", ")));
    }
    if !job.work.place.is_empty() {
        rows.push(("where", job.work.place.clone()));
    }
    if let Some(why) = &job.progress.waiting_for {
        rows.push(("waits for", why.clone()));
    }
    rows
}

/// What there is to say of one that trains.
fn training(training: &TrainingView) -> Vec<(&'static str, String)> {
    let checkpoint = |file: &CheckpointView| {
        let (step, size) = (file.step, format_bytes(file.bytes));
        let place = format!("{}:{}", file.node_name, file.path);
        ("checkpoint", format!("step {step}, {size}, {place}"))
    };
    let waiting = |node: &WaitingView| ("on hold", format!("{}: {}", node.node_name, node.why));
    let late = |late: &LateView| {
        let [taken, usual] = [late.taken_ms, late.usual_ms].map(|ms| since(0, ms));
        let (worker, node, clock) = (late.worker, &late.node_name, late.clock);
        (
            "slow",
            format!("worker {worker} on {node}: {taken} at clock {clock}, as a rule {usual}"),
        )
    };
    let checkpoints = training.checkpoints.iter().map(checkpoint);
    checkpoints
        .chain(training.waiting.iter().map(waiting))
        .chain(training.late.iter().map(late))
        .collect()
}

fn node_state(node: &Node) -> &'static str {
    let closed = node.closed.as_ref().map(|closed| match closed.state {
        ClosedName::TakesNone => "takes no work",
        ClosedName::Drained => "drained (owner)",
        ClosedName::Paused => "paused",
        ClosedName::Looking => "looking",
        ClosedName::Hours => "not now",
        ClosedName::Keyboard | ClosedName::Busy => "in use",
    });
    match (node.alive, closed, node.draining, &node.problem) {
        (false, ..) if node.left => "left",
        (false, ..) => "away",
        (true, Some(closed), ..) => closed,
        (true, None, true, _) => "draining",
        (true, None, false, Some(_)) => "in trouble",
        (true, None, false, None) => "alive",
    }
}

/// `alice@box-1`.
fn user(line: &JobLine) -> String {
    match line.submitter_name.as_str() {
        "" => line.user.clone(),
        node => format!("{}@{node}", line.user),
    }
}

/// Who did what.
pub fn audit(lines: &[AuditLine]) -> String {
    if lines.is_empty() {
        return "nothing yet\n".into();
    }
    columns(
        &["TIME", "USER", "NODE", "WHAT", "ABOUT", "REFUSED"],
        lines.iter().map(|line| {
            let time = UNIX_EPOCH + Duration::from_millis(line.at_ms);
            vec![
                humantime::format_rfc3339_seconds(time).to_string(),
                cut(&line.user),
                cut(&line.node),
                line.what.word().into(),
                cut(line.about.as_deref().unwrap_or_default()),
                text::shortened(line.refused.as_deref().unwrap_or_default(), ROW_CHARS)
                    .into_owned(),
            ]
        }),
    )
}

/// What happened.
pub fn events(events: &[EventLine]) -> String {
    if events.is_empty() {
        return "nothing yet\n".into();
    }
    columns(
        &["TIME", "WHAT", "EVENT", "NOTICED BY"],
        events.iter().map(|event| {
            let time = UNIX_EPOCH + Duration::from_millis(event.at_ms);
            let sentence = format!("{} {}", event.name, event.text);
            vec![
                humantime::format_rfc3339_seconds(time).to_string(),
                event.kind.word().into(),
                text::shortened(&sentence, ROW_CHARS).into_owned(),
                cut(&event.noticed_by.join(", ")),
            ]
        }),
    )
}

/// Why owners let their nodes take no work.
fn closed_notes(nodes: &[Node], now_ms: u64) -> String {
    let note = |node: &Node| {
        let closed = node.closed.as_ref().filter(|_| node.alive)?;
        let left = closed
            .until_ms
            .map(|until| Duration::from_millis(until.saturating_sub(now_ms)));
        let left = left
            .map(|left| format!(", for another {}", format_duration(left)))
            .unwrap_or_default();
        Some(format!(
            "{} {}{left}\n",
            text::one_line(&node.name),
            text::one_line(&closed.why)
        ))
    };
    nodes.iter().filter_map(note).collect()
}

fn gpu_kind(kind: GpuKindName) -> &'static str {
    match kind {
        GpuKindName::Discrete => "discrete",
        GpuKindName::Integrated => "integrated",
        GpuKindName::Virtual => "virtual",
        GpuKindName::Software => "software",
    }
}

fn exchange_row(layer: &ExchangeView) -> String {
    let ExchangeView {
        layer,
        shape: [outputs, inputs],
        exchange,
        servers_bytes,
        factors_bytes,
    } = layer;
    let [servers, factors] = [servers_bytes, factors_bytes].map(|bytes| format_bytes(*bytes));
    let costs = match exchange {
        ExchangeWay::Servers => {
            format!("by servers, {servers} a step and node; as factors {factors}")
        }
        ExchangeWay::Factors => {
            format!("as factors, {factors} a step and node; by servers {servers}")
        }
    };
    format!("{layer}, {outputs} x {inputs}: {costs}")
}

/// The tasks of a graph, kind by kind.
fn kinds(work: &WorkView) -> String {
    let kind = |kind: &TaskKindView| match kind.tasks {
        1 => kind.name.clone(),
        tasks => format!("{} ({tasks})", kind.name),
    };
    cut(&work.tasks.iter().map(kind).collect::<Vec<_>>().join(", "))
}

fn needs(work: &WorkView) -> String {
    let resources = &work.resources;
    let nothing = resources.cpus == 0.0
        && resources.gpus == 0.0
        && resources.memory_bytes == 0
        && resources.named.is_empty();
    if nothing && work.command.is_empty() {
        return "a GPU where there is one, else a core".into();
    }
    let named: BTreeMap<_, _> = resources.named.iter().collect();
    let mut parts = vec![counted(resources.cpus, "core")];
    if resources.memory_bytes > 0 {
        parts.push(format!(
            "{} of memory",
            format_bytes(resources.memory_bytes)
        ));
    }
    if resources.gpus > 0.0 {
        parts.push(counted(resources.gpus, "GPU"));
    }
    parts.extend(
        named
            .iter()
            .map(|(name, amount)| format!("{amount} {name}")),
    );
    let one = parts.join(", ");
    match gang(work) {
        Some(gang) => format!("{gang}, each with {one}"),
        None => one,
    }
}

/// The processes that a task is, if it is several.
fn gang(work: &WorkView) -> Option<String> {
    if work.nodes.is_none() && work.per_node.is_none() {
        return None;
    }
    let least = work.nodes.unwrap_or(1);
    let nodes = match work.most_nodes {
        Some(most) => format!("{least} to {most} nodes"),
        None => counted(f64::from(least), "node"),
    };
    let processes = counted(f64::from(work.per_node.unwrap_or(1)), "process");
    Some(format!("{processes} on each of {nodes} at once"))
}

/// Why some GPUs are not used, and how to know what is not known.
fn device_notes(look: Look, devices: &[Device]) -> String {
    let mut notes: Vec<String> = Vec::new();
    for gpu in devices
        .iter()
        .map(|device| &device.gpu)
        .filter(|gpu| !gpu.used)
    {
        let note = format!("not used: {}: {}", gpu.name, gpu.why);
        if !notes.contains(&note) {
            notes.push(note);
        }
    }
    let unmeasured = devices
        .iter()
        .filter(|device| device.gpu.used && device.gpu.rates.is_none());
    let mut nodes: Vec<String> = unmeasured
        .map(|device| text::one_line(&device.node_name).into_owned())
        .collect();
    nodes.dedup();
    if !nodes.is_empty() {
        notes.push(format!(
            "not measured: `nodectl devices --measure` on {} does it",
            nodes.join(", ")
        ));
    }
    notes.iter().map(|note| look.wrap(note, 2)).collect()
}
