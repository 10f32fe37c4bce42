//! Screens on a terminal of paper, and where keys lead.

use super::{
    draw,
    picture::{JobPicture, TopPicture, TopWanted},
    rows::spark,
    snapshot,
    view::{Action, Screen, TopView},
};
use nodectl_wire::api::{
    GpuHistory, GpuLoadSeries, Job, JobLine, MachineLoadSeries, Node, NodeHistory,
};
use ratatui::{
    Terminal,
    backend::TestBackend,
    crossterm::event::{KeyCode, KeyEvent, KeyModifiers},
};
use serde_json::json;

fn node(name: &str, alive: bool) -> Node {
    let load = json!({
        "load_average": 1.0, "memory_used_bytes": 8_u64 << 30, "running": 3, "queued": 1,
        "jobs": [{"job": "00000000000000aa", "name": "areas", "running": 3}],
    });
    serde_json::from_value(json!({
        "id": format!("id-{name}"), "name": name, "alive": alive, "this_node": name == "alpha",
        "draining": false, "version": "0.1.0", "model": "", "addrs": [], "gpus": [], "labels": {},
        "resources": {"cpus": 8.0, "memory_bytes": 16_u64 << 30, "gpus": 1.0},
        "load": alive.then_some(load),
    }))
    .unwrap()
}

fn job_line(id: &str, name: &str, phase: &str, done: u32) -> JobLine {
    serde_json::from_value(json!({
        "id": id, "name": name, "phase": phase, "cancelled": false, "tasks": 4, "done": done,
        "failed": 1, "stopped": 0, "submitter": "id-alpha", "user": "ana", "submitted_ms": 1_000_000,
        "epoch": 1, "replicas": [],
    }))
    .unwrap()
}

fn job() -> JobPicture {
    let line = serde_json::to_value(job_line("00000000000000aa", "areas", "running", 2)).unwrap();
    let mut job = json!({
        "progress": {
            "phase": "running", "tasks": 4, "done": 2, "failed": 1, "stopped": 0, "running": 1,
            "queued": 0, "failures": 1, "rate": 0.5,
            "nodes": [{"node": "id-alpha", "name": "alpha", "running": 1, "queued": 0, "done": 2}],
        },
        "work": {
            "command": ["sh"], "params": [], "repeat": 1, "retries": 0, "priority": 0, "min_nodes": 1,
            "resources": {"cpus": 1.0, "memory_bytes": 0, "gpus": 0.0}, "where": "", "outputs": [],
            "after": [],
        },
    });
    job.as_object_mut()
        .unwrap()
        .extend(line.as_object().unwrap().clone());
    let job: Job = serde_json::from_value(job).unwrap();
    let task = |task: u32, state: &str, failures: u32| json!({"task": task, "state": state, "failures": failures, "node": "id-alpha"});
    let tasks = [
        task(0, "done", 0),
        task(1, "failed", 1),
        task(2, "running", 0),
        task(3, "done", 0),
    ];
    JobPicture {
        job,
        tasks: tasks
            .map(|task| serde_json::from_value(task).unwrap())
            .to_vec(),
        total: 4,
        reasons: [
            (0, "ok".into()),
            (1, "out_of_memory".into()),
            (3, "ok".into()),
        ]
        .into(),
    }
}

fn load() -> NodeHistory {
    let ramp: Vec<_> = (0..12)
        .map(|step| (step != 5).then_some(step as f32 / 11.0))
        .collect();
    NodeHistory {
        node: "alpha".into(),
        step_s: 1,
        end_ms: 1,
        series: MachineLoadSeries {
            cpu: ramp.clone(),
            ..MachineLoadSeries::default()
        },
        gpus: vec![GpuHistory {
            name: "NVIDIA H100".into(),
            series: GpuLoadSeries {
                utilization: ramp.into_iter().rev().collect(),
                memory_bytes: vec![Some(65_536.0 * 1_048_576.0); 12],
                temperature_c: vec![Some(61.0); 12],
                power_w: vec![None; 12],
            },
        }],
    }
}

fn picture() -> TopPicture {
    TopPicture {
        nodes: vec![
            node("alpha", true),
            node("beta", true),
            node("gamma", false),
        ],
        jobs: vec![
            job_line("00000000000000aa", "areas", "running", 2),
            job_line("00000000000000bb", "fit", "failed", 3),
        ],
        loads: [("id-alpha".to_string(), load())].into(),
        job: Some(job()),
        lines: (1..=40).map(|line| format!("line {line}")).collect(),
        now_ms: 1_060_000,
        problem: None,
    }
}

fn screen(view: &TopView, picture: &TopPicture, (width, height): (u16, u16)) -> String {
    let Ok(mut terminal) = Terminal::new(TestBackend::new(width, height));
    let Ok(_) = terminal.draw(|frame| draw::draw(frame, view, picture));
    let buffer = terminal.backend().buffer();
    let lines = buffer.content.chunks(usize::from(width)).map(|cells| {
        let line: String = cells.iter().map(|cell| cell.symbol()).collect();
        line.trim_end().to_string()
    });
    lines.collect::<Vec<_>>().join("\n")
}

fn press(view: &mut TopView, keys: &str) -> Action {
    let mut last = Action::Draw;
    for key in keys.chars() {
        let code = match key {
            '\n' => KeyCode::Enter,
            '\x1b' => KeyCode::Esc,
            '\t' => KeyCode::Tab,
            c => KeyCode::Char(c),
        };
        last = view.key(KeyEvent::new(code, KeyModifiers::NONE), &picture());
    }
    last
}

#[test]
fn the_cluster() {
    let shown = screen(&TopView::new(false), &picture(), draw::LEAST);
    let lines: Vec<&str> = shown.lines().collect();
    assert!(
        lines[0].contains("1 Cluster")
            && lines[0].contains("2 of 3 nodes, 1 open job, seen by alpha"),
        "{shown}"
    );
    for (line, words) in [
        (
            1,
            &["NODE", "STATE", "CPU", "LAST MINUTE", "GPU", "RUN", "WAIT"][..],
        ),
        (
            2,
            &[
                "alpha",
                "ready",
                "100%",
                "▁▂▂▃▄ ▅▅▆▇▇█",
                "50%",
                "0%",
                "█▇▇▆▅▅ ▄▃▂▂▁",
                "3",
                "1",
            ],
        ),
        (3, &["beta", "ready", "50%"]),
        (4, &["gamma", "away"]),
        (23, &["Enter job", "/ filter", "q quit"]),
    ] {
        for word in words {
            assert!(
                lines[line].contains(word),
                "`{word}` in {}\n{shown}",
                lines[line]
            );
        }
    }
    let narrow = screen(&TopView::new(true), &picture(), (79, 24));
    assert!(
        narrow.contains("has 79 columns and 24 lines; top needs 80 and 24"),
        "{narrow}"
    );
}

#[test]
fn a_job_its_tasks_their_logs_and_out_again() {
    let (mut view, picture) = (TopView::new(true), picture());
    assert_eq!(press(&mut view, "2"), Action::Ask);
    let shown = screen(&view, &picture, draw::LEAST);
    assert!(
        shown.contains("00000000  areas") && shown.contains("2/4") && shown.contains("failed"),
        "{shown}"
    );
    assert_eq!(press(&mut view, "\n"), Action::Ask);
    assert_eq!(view.wanted(), TopWanted::Job("00000000000000aa".into()));
    let shown = screen(&view, &picture, draw::LEAST);
    let failed = shown
        .lines()
        .find(|line| line.contains("out_of_memory"))
        .expect("the reason");
    assert!(
        failed.contains("failed") && failed.contains("alpha"),
        "{shown}"
    );
    assert!(
        shown.contains("running: 2/4 done") && shown.contains('░'),
        "{shown}"
    );
    press(&mut view, "jl");
    let (job, task) = ("00000000000000aa".to_string(), 1);
    assert_eq!(
        view.wanted(),
        TopWanted::Log {
            job: job.clone(),
            task
        }
    );
    let shown = screen(&view, &picture, draw::LEAST);
    assert!(
        shown.contains("Log of task 1") && shown.contains("line 40") && !shown.contains("line 19"),
        "{shown}"
    );
    press(&mut view, "kkk");
    let shown = screen(&view, &picture, draw::LEAST);
    assert!(
        shown.contains("line 37") && !shown.contains("line 38"),
        "{shown}"
    );
    press(&mut view, "\x1be");
    assert_eq!(
        view.wanted(),
        TopWanted::Explanation {
            job,
            task: Some(task)
        }
    );
    press(&mut view, "\x1b\x1b\x1b\x1b");
    assert_eq!(view.places.len(), 1);
    assert_eq!(press(&mut view, "q"), Action::Quit);
}

#[test]
fn rows_are_filtered_and_sorted() {
    let (mut view, picture) = (TopView::new(false), picture());
    press(&mut view, "2/FI");
    assert!(view.typing && screen(&view, &picture, draw::LEAST).contains("/FI_"));
    press(&mut view, "\n");
    let shown = screen(&view, &picture, draw::LEAST);
    assert!(
        shown.contains("fit") && !shown.contains("areas") && shown.contains("only with `FI`"),
        "{shown}"
    );
    // The row that is left is the one that is entered.
    press(&mut view, "\n");
    assert_eq!(view.place().screen, Screen::Job("00000000000000bb".into()));
    press(&mut view, "\x1bsssss");
    let shown = screen(&view, &picture, draw::LEAST);
    let at = |word| shown.find(word).unwrap();
    assert!(
        shown.contains("DONE*") && at("fit") < at("areas"),
        "most is first:\n{shown}"
    );
    press(&mut view, "/nothing\n");
    assert!(screen(&view, &picture, draw::LEAST).contains("nothing has that in it"));
}

#[test]
fn gpus_help_and_a_node_that_is_away() {
    let (mut view, mut picture) = (TopView::new(false), picture());
    press(&mut view, "\t\t");
    let shown = screen(&view, &picture, draw::LEAST);
    let gpu = shown
        .lines()
        .find(|line| line.contains("NVIDIA H100"))
        .expect("the GPU");
    assert!(
        gpu.contains("64") && gpu.contains("61 °C") && !gpu.contains(" W"),
        "{shown}"
    );
    press(&mut view, "?");
    assert!(screen(&view, &picture, draw::LEAST).contains("shows only rows with the text"));
    press(&mut view, "?");
    picture.problem = Some("no node runs here".into());
    let shown = screen(&view, &picture, draw::LEAST);
    assert!(
        shown.contains("what you see is old: no node runs here") && shown.contains("NVIDIA H100"),
        "{shown}"
    );
    let empty = screen(&view, &TopPicture::default(), draw::LEAST);
    assert!(empty.contains("no node has a GPU"), "{empty}");
}

/// Whatever is pressed, on whatever is there.
#[test]
fn no_key_on_no_screen_breaks_anything() {
    let keys = "123\t\nlejkGgs/?\x1bq";
    for picture in [picture(), TopPicture::default()] {
        let mut view = TopView::new(true);
        let mut seed = 1_u64;
        for _ in 0..3000 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let key = keys.as_bytes()[(seed >> 33) as usize % keys.len()];
            press(&mut view, char::from(key).encode_utf8(&mut [0; 4]));
            view.step((seed >> 40) as isize % 7 - 3, &picture);
            screen(&view, &picture, draw::LEAST);
        }
    }
}

#[test]
fn a_snapshot_is_text_alone() {
    let text = snapshot(&picture());
    assert!(
        text.contains("alpha") && text.contains("areas") && !text.contains('\x1b'),
        "{text}"
    );
    assert!(!text.contains("q quit") && text.ends_with('\n'), "{text}");
    assert_eq!(text.lines().count(), 5 + 1 + 3, "{text}");
}

#[test]
fn bars_are_of_what_was_measured() {
    assert_eq!(spark(&[]), "");
    assert_eq!(spark(&[Some(0.0), None, Some(2.0)]), "▁ █");
    assert_eq!(spark(&[Some(0.1); 60]).chars().count(), 12);
}
