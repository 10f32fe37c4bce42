//! What a cluster shows of itself, on real nodes: load over time, metrics, why tasks ended, `top`.

mod common;

use common::{
    LATER, SOON,
    cluster::{Cluster, both},
    job::write_job,
    terminal::Terminal,
    wait_for, wait_until,
};
use nodectl::{http::Client, wire::api::NodeHistory};
use std::{
    fs,
    io::Write,
    process::{Command, Stdio},
};

/// What node `asked` says of the load of `node`: the answer, or the status of its refusal.
fn history(cluster: &Cluster, asked: usize, node: &str, span: &str) -> Result<NodeHistory, String> {
    let client = Client::new(cluster.data_dir(asked).join("api.sock"));
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let asked = runtime.block_on(client.history(node, span, None));
    asked.map_err(|error| error.to_string())
}

#[test]
fn any_nodes_load_is_asked_for_through_any_node() {
    let mut cluster = Cluster::of(2);
    let measured = wait_for(SOON, "n1 has looked at its machine", || {
        let history = history(&cluster, 0, "n1", "15m").ok()?;
        let series = &history.series;
        let all = [
            &series.cpu,
            &series.memory_bytes,
            &series.disk_free_bytes,
            &series.network_received_bytes_per_s,
            &series.tasks_running,
        ];
        let seen = all
            .iter()
            .all(|series| series.iter().flatten().count() >= 2);
        seen.then_some(history)
    });
    assert_eq!((measured.node.as_str(), measured.step_s), ("n1", 1));
    let rows = measured.series.cpu.len();
    assert_eq!(measured.series.tasks_queued.len(), rows);
    assert!(
        measured
            .series
            .cpu
            .iter()
            .flatten()
            .all(|part| (0.0..=1.0).contains(part))
    );
    assert!(
        measured
            .series
            .memory_bytes
            .iter()
            .flatten()
            .all(|bytes| *bytes > 1e6)
    );
    let day = history(&cluster, 0, "n0", "24h").expect("its own");
    assert_eq!((day.node.as_str(), day.step_s), ("n0", 10));
    assert!(
        history(&cluster, 0, "n7", "15m")
            .unwrap_err()
            .contains("no node `n7`")
    );
    cluster.kill9(1);
    cluster.wait_members(1);
    let away = history(&cluster, 0, "n1", "15m").unwrap_err();
    assert!(away.contains("no node"), "{away}");
}

#[test]
fn metrics_are_what_promtool_takes() {
    let cluster = Cluster::of(1);
    let has_cpu = |text: &String| text.contains("\nnodectl_node_cpu_ratio ");
    let text = wait_for(SOON, "the node has looked at its machine", || {
        Some(cluster.ok(0, &["metrics"])).filter(has_cpu)
    });
    for line in [
        "nodectl_members{state=\"alive\"} 1\n",
        "nodectl_jobs{state=\"running\"} 0\n",
        "nodectl_results_total{outcome=\"done\"} 0\n",
        "# TYPE process_cpu_seconds_total counter\n",
    ] {
        assert!(text.contains(line), "{line}{text}");
    }
    let file = cluster.dir.path().join("nodectl.prom");
    let named = file.to_str().expect("UTF-8");
    assert_eq!(cluster.ok(0, &["metrics", "-o", named]), "");
    assert!(
        fs::read_to_string(&file)
            .expect("written")
            .contains("nodectl_node_info{")
    );
    let nowhere = cluster.run(0, &["metrics", "-o", "/nonexistent/nodectl.prom"]);
    assert_eq!(nowhere.status.code(), Some(1), "{}", both(&nowhere));
    let promtool = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let Ok(mut promtool) = promtool else {
        return eprintln!("SKIPPED: no promtool");
    };
    let mut stdin = promtool.stdin.take().expect("it is piped");
    stdin.write_all(text.as_bytes()).expect("it reads");
    drop(stdin);
    let checked = promtool.wait_with_output().expect("it ends");
    assert!(checked.status.success(), "{}", both(&checked));
}

#[test]
fn results_say_when_where_and_why_tasks_ended() {
    let cluster = Cluster::of(1);
    let script = "case {x} in 1) exit 3;; 2) kill -9 $$;; 3) while :; do :; done;; esac";
    let text = format!(
        "name = \"ends\"\ncommand = [\"sh\", \"-c\", \"{script}\"]\nretries = 0\ntimeout = \"1s\"\n[params]\nx = [0, 1, 2, 3]\n"
    );
    let file = write_job(cluster.dir.path(), "ends", &text);
    let into = cluster.dir.path().join("out");
    let arguments = [
        "run",
        file.to_str().expect("UTF-8"),
        "--into",
        into.to_str().expect("UTF-8"),
    ];
    let run = cluster.run(0, &arguments);
    assert_eq!(run.status.code(), Some(1), "{}", both(&run));
    let csv = fs::read_to_string(into.join("results.csv")).expect("written");
    let head: Vec<&str> = csv.lines().next().expect("a header").split(',').collect();
    let cell = |task: usize, name: &str| {
        let row = csv
            .lines()
            .skip(1)
            .find(|line| line.starts_with(&format!("{task},")));
        let at = head
            .iter()
            .position(|column| *column == name)
            .expect("the column");
        let row = row.unwrap_or_else(|| panic!("task {task}: {csv}"));
        row.split(',').nth(at).expect("a cell").to_string()
    };
    for (task, reason) in ["ok", "exit", "signal", "timeout"].into_iter().enumerate() {
        assert_eq!(cell(task, "reason"), reason, "{csv}");
        assert_eq!(cell(task, "node"), "n0");
        let (started, ended) = (cell(task, "started"), cell(task, "ended"));
        assert!(
            started.ends_with('Z') && started.len() == 24 && started <= ended,
            "{csv}"
        );
    }
    let seconds: f64 = cell(3, "cpu_seconds").parse().expect("a number");
    assert!(
        seconds > 0.0 && cell(3, "max_rss_bytes").parse::<u64>().expect("bytes") > 0,
        "{csv}"
    );
    let metrics = cluster.ok(0, &["metrics"]);
    assert!(
        metrics.contains("nodectl_results_total{outcome=\"failed\"} 3\n"),
        "{metrics}"
    );
}

#[test]
fn top_shows_a_cluster_and_goes_on_when_the_node_is_back() {
    let mut cluster = Cluster::of(2);
    let once = cluster.ok(0, &["top", "--once"]);
    assert!(
        once.contains("2 of 2 nodes") && once.contains("n1"),
        "{once}"
    );
    assert!(
        !once.contains('\x1b') && once.contains("no jobs yet"),
        "{once}"
    );
    let mut command = cluster.command(0);
    command.arg("top").env("NO_COLOR", "1");
    let mut top = Terminal::run(command);
    top.wait_until_shown("seen by n0");
    top.wait_until_shown("ready");
    let file = write_job(
        cluster.dir.path(),
        "zqxvk",
        "name = \"zqxvk\"\ncommand = [\"echo\", \"JwZqXvK\"]\n",
    );
    let run = cluster.run(0, &["run", file.to_str().expect("UTF-8")]);
    assert!(run.status.success(), "{}", both(&run));
    top.press("2");
    top.wait_until_shown("zqxvk");
    // What Enter sends where nothing edits the line.
    top.press("\r");
    top.wait_until_shown("FAILURES");
    top.press("l");
    top.wait_until_shown("JwZqXvK");
    cluster.kill9(0);
    top.wait_until_shown("old:");
    cluster.restart(0);
    top.press("1");
    wait_until(LATER, "top goes on", || {
        let lines = top.lines();
        let shows = |text: &str| lines.iter().any(|line| line.contains(text));
        shows("seen by n0") && shows("filter") && !shows("old:")
    });
    assert!(!top.screen().contains("\x1b[31m"), "NO_COLOR is obeyed");
    top.press("q");
    assert!(top.wait_exit().success());
    assert!(
        top.screen().contains("\x1b[?1049l"),
        "the terminal is as it was"
    );
}
