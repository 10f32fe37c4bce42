//! What tasks save of themselves, and find when they run again.

use super::{env_with, job_file, python_job, read, run, runs_one_of};
use crate::common::{
    LATER,
    cluster::{Cluster, both},
    job::write_job,
    wait_until,
};
use std::{fs, path::PathBuf};

/// What every rank of these programs does first: it says from where it begins.
const BEGIN: &str = r#"
import os, pathlib, time
rank, go = os.environ["RANK"], pathlib.Path("GO")
states = pathlib.Path(os.environ["NODECTL_CHECKPOINT_DIR"])
state, half = states / "steps" / "state", states / ".half.state"
def begin(steps):
    with open("NOTES", "a") as notes:
        notes.write(f"{rank} {os.getpid()} {steps}\n")
    return steps
"#;

/// Counts in its checkpoint's directory as rank 0, to which the others are connected: they fail at
/// once when it dies, as programs do that wait for each other.
const COUNTING: &str = r#"
import socket
at = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
family = socket.AF_INET6 if ":" in at[0] else socket.AF_INET
begun = begin(int(state.read_text()) if state.exists() else 0)
if rank == "0":
    server = socket.create_server(at, family=family)
    peer = server.accept()[0]
else:
    end = time.monotonic() + 60
    while True:
        try:
            peer = socket.create_connection(at)
            if peer.getsockname() != peer.getpeername():
                break
        except OSError:
            assert time.monotonic() < end
        time.sleep(0.05)
peer.setblocking(False)
count = begun
while not go.exists():
    try:
        raise ConnectionError("the other rank is gone" if peer.recv(1) == b"" else "what?")
    except BlockingIOError:
        pass
    if rank == "0" and count < begun + 5:
        count += 1
        state.parent.mkdir(exist_ok=True)
        half.write_text(str(count))
        half.replace(state)
    time.sleep(0.05)
"#;

/// Fits a line with DDP, and saves the model as rank 0.
const FITTING: &str = r#"
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
torch.manual_seed(0)
linear = torch.nn.Linear(1, 1)
saved = torch.load(state, weights_only=True) if state.exists() else {"steps": 0, "model": linear.state_dict()}
linear.load_state_dict(saved["model"])
begun = begin(saved["steps"])
dist.init_process_group("gloo")
model = DistributedDataParallel(linear)
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
x, count = torch.rand(256, 1), begun
while True:
    over = torch.tensor([float(go.exists())])
    dist.broadcast(over, 0)
    if over.item():
        break
    optimizer.zero_grad()
    torch.nn.functional.mse_loss(model(x), 3 * x + 1).backward()
    optimizer.step()
    if rank == "0" and count < begun + 5:
        count += 1
        state.parent.mkdir(exist_ok=True)
        torch.save({"steps": count, "model": linear.state_dict()}, half)
        half.replace(state)
    time.sleep(0.05)
dist.destroy_process_group()
"#;

/// Waits for something that a job's only task does, as long as that has not failed.
fn wait_while_it_runs(
    cluster: &Cluster,
    (asked, id): (usize, &str),
    what: &str,
    holds: impl Fn() -> bool,
) {
    wait_until(LATER, what, || {
        let has_failed = cluster.phase(asked, id).as_deref() == Some("failed");
        let said = || both(&cluster.run(asked, &["logs", id, "0", "--stderr"]));
        assert!(!has_failed, "{}", said());
        holds()
    });
}

/// A gang of so many ranks, on as many nodes, of which one dies.
fn goes_on_after_a_node_has_died(
    name: &str,
    (dying, ranks): (u32, usize),
    script: &str,
    more: &str,
) {
    let mut cluster = Cluster::of(ranks + 1);
    let [notes, go] = ["notes", "go"].map(|word| cluster.dir.path().join(word));
    let script = (BEGIN.to_string() + script)
        .replace("GO", go.to_str().expect("UTF-8"))
        .replace("NOTES", notes.to_str().expect("UTF-8"));
    let more = format!(
        "nodes = {ranks}\nretries = 0\ncheckpoint_dir = \"states\"\nresources = {{ cpus = 0.5 }}\n{more}"
    );
    let id = cluster.submit(0, &python_job(&cluster, name, &script, &more));
    // Rank, process and step of each that has begun.
    let begun = || {
        let text = fs::read_to_string(&notes).unwrap_or_default();
        let numbers = |line: &str| line.split(' ').map(|word| word.parse().ok()).collect();
        let lines = text.lines().map(numbers);
        lines.collect::<Option<Vec<Vec<u32>>>>().unwrap_or_default()
    };
    let has_checkpoint = |number: &usize| {
        let kept = fs::read_dir(cluster.data_dir(*number).join("checkpoints").join(&id));
        let is_whole = |path: PathBuf| path.extension().is_some_and(|kind| kind == "tar");
        let mut entries = kept.into_iter().flatten().flatten();
        entries.any(|entry| is_whole(entry.path()))
    };
    wait_while_it_runs(&cluster, (0, &id), "two nodes have a checkpoint", || {
        (0..=ranks).filter(has_checkpoint).count() == 2
    });
    let first = begun();
    let first = first.iter().find(|line| line[0] == dying);
    let first = first.map(|line| (line[0], line[1])).expect("it has begun");
    // With rank 0, its own checkpoint goes.
    let dead = (0..=ranks)
        .find(|number| runs_one_of(&cluster, *number, &[first]))
        .expect("a node runs it");
    let asked = (dead + 1) % (ranks + 1);
    cluster.kill9(dead);
    wait_while_it_runs(&cluster, (asked, &id), "all ranks run again", || {
        begun().len() == 2 * ranks
    });
    let from: Vec<u32> = begun()[ranks..].iter().map(|line| line[2]).collect();
    let is_saved = (1..=5).contains(&from[0]);
    assert!(
        is_saved && from.iter().all(|step| *step == from[0]),
        "{from:?}"
    );
    fs::write(&go, "").expect("writable");
    assert_eq!(cluster.wait_end(asked, &id), "done");
}

#[test]
fn a_gang_whose_node_dies_goes_on_from_its_newest_checkpoint() {
    goes_on_after_a_node_has_died("counting", (0, 2), COUNTING, "");
    goes_on_after_a_node_has_died("counting", (1, 2), COUNTING, "");
}

#[test]
fn so_does_pytorchs_ddp_on_three_nodes() {
    if let Some(more) = env_with("torch", "OMP_NUM_THREADS = \"1\"") {
        goes_on_after_a_node_has_died("fitting", (1, 3), FITTING, &more);
    }
}

#[test]
fn what_a_task_saves_before_it_fails_is_there_when_it_is_tried_again() {
    let cluster = Cluster::of(1);
    let script = "[ -e \"$NODECTL_CHECKPOINT_DIR/state\" ] && exec cat states/state; echo saved > states/state; exit 3";
    let text = format!(
        "name = \"failing\"\ncommand = [\"sh\", \"-c\", '''{script}''']\nretries = 1\ncheckpoint_dir = \"states\"\n"
    );
    write_job(cluster.dir.path(), "failing", &text);
    let into = run(&cluster, &job_file(&cluster, "failing"), "failing");
    assert_eq!(read(&into.join("0/stdout")), "saved\n");
}

/// Saves when it is asked to end, and has nothing to do once that is there.
const SAVES_AT_ITS_END: &str = "[ -e \"$NODECTL_CHECKPOINT_DIR/state\" ] && exit 0\n\
     trap 'echo saved > states/state; exit 1' TERM\n\
     echo begun >> NOTES\nwhile :; do sleep 0.05; done";

#[test]
fn what_a_task_saves_last_is_kept_where_it_goes_on_and_not_where_it_was_cancelled() {
    for (name, more, ranks) in [("alone", "", 1), ("gang", "nodes = 2", 2)] {
        let cluster = Cluster::of(3);
        let begin = |what: &str| {
            let [name, notes] = [format!("{name}-{what}"), format!("{name}-{what}.notes")];
            let notes = cluster.dir.path().join(notes);
            let script = SAVES_AT_ITS_END.replace("NOTES", notes.to_str().expect("UTF-8"));
            let text = format!(
                "name = \"{name}\"\ncommand = [\"sh\", \"-c\", \"\"\"{}\"\"\"]\n\
                 retries = 0\ncheckpoint_dir = \"states\"\nresources = {{ cpus = 0.1 }}\n{more}\n",
                script.replace('"', "\\\"")
            );
            let id = cluster.submit(0, &write_job(cluster.dir.path(), &name, &text));
            wait_until(LATER, "all ranks run", || {
                fs::read_to_string(&notes).is_ok_and(|text| text.lines().count() == ranks)
            });
            id
        };
        let is_kept = |id: &str| {
            let dirs = (0..3).map(|number| cluster.data_dir(number).join("checkpoints").join(id));
            let files = dirs
                .filter_map(|dir| fs::read_dir(dir).ok())
                .flatten()
                .flatten();
            files.count() > 0
        };
        let works = |node: usize| cluster.dir.path().join(format!("n{node}/jobs"));
        let cancelled = begin("cancelled");
        cluster.ok(0, &["cancel", &cancelled]);
        wait_until(LATER, "nothing of it is left", || {
            let tasks = |node| fs::read_dir(works(node).join(&cancelled).join("tasks"));
            (0..3)
                .all(|node| tasks(node).is_ok_and(|left| left.count() == 0) || tasks(node).is_err())
        });
        assert!(!is_kept(&cancelled), "{name}");
        let moved = begin("moved");
        let job = cluster.job(0, &moved);
        let nodes = job["progress"]["nodes"].as_array().expect("a list");
        let busy = nodes.iter().find(|node| node["running"] != 0);
        let leaving = busy.and_then(|node| node["name"].as_str()?.strip_prefix('n')?.parse().ok());
        let leaving: usize = leaving.expect("a node runs it");
        cluster.ok(leaving, &["leave"]);
        assert_eq!(
            cluster.wait_end((leaving + 1) % 3, &moved),
            "done",
            "{name}"
        );
        assert!(is_kept(&moved), "{name}");
    }
}
