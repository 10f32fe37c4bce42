//! Another program for real nodes on loopback, one node after the other, while jobs run.

mod common;

use common::{
    LATER, SOON,
    cluster::{Cluster, Discovery, both},
    job::{CountedJob, assert_all_squares, write_job},
    program, wait_until,
};
use nodectl::types::BlobHash;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::{
    fs,
    io::Write,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

const BY_MEMBERS: (&str, &str) = ("NODECTL_NODE__UPGRADE_BY_MEMBERS", "true");

/// Nodes each of which has a program file of its own, and the program that they are to run: the
/// same with a byte behind its end, so that it is another file, which does the same.
struct UpgradeFleet {
    cluster: Cluster,
    new: PathBuf,
}

impl UpgradeFleet {
    fn of(settings: &[&[(&str, &str)]]) -> Self {
        let mut cluster = Cluster::empty(Discovery::Beacon);
        let old = fs::read(program()).expect("the program under test");
        let root = cluster.dir.path().to_path_buf();
        for (number, settings) in settings.iter().enumerate() {
            let file = file_of(&root, number);
            write_program(&file, &old);
            cluster.add_with_program(&file, settings);
        }
        cluster.wait_members(settings.len());
        let new = root.join("new");
        write_program(&new, &[&old[..], b"\n"].concat());
        Self { cluster, new }
    }

    fn file(&self, number: usize) -> PathBuf {
        file_of(self.cluster.dir.path(), number)
    }

    fn runs_new(&self, number: usize) -> bool {
        fs::read(self.file(number)).expect("a program") == fs::read(&self.new).expect("ours")
    }

    /// The lines about one thing in a node's audit log.
    fn audit(&self, number: usize, what: &str) -> Vec<Value> {
        let lines = self.cluster.json(number, &["audit", "--json"]);
        let mut lines: Vec<Value> = lines.as_array().expect("lines").clone();
        lines.retain(|line| line["what"] == what);
        lines
    }

    /// Exit code, and what it said.
    fn upgrade(&self, file: &Path, arguments: &[&str]) -> (Option<i32>, String) {
        let mut all = vec!["upgrade", file.to_str().expect("UTF-8")];
        all.extend(arguments);
        let output = self.cluster.run(0, &all);
        (output.status.code(), both(&output))
    }
}

fn file_of(root: &Path, number: usize) -> PathBuf {
    let directory = root.join(format!("program-{number}"));
    fs::create_dir_all(&directory).expect("writable");
    directory.join("nodectl")
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// By another process: what this one forks meanwhile would have the file open for writing until it
/// is itself another program, and nobody could start it.
fn write_program(path: &Path, bytes: &[u8]) {
    let mut writer = Command::new("sh");
    writer
        .args(["-c", "cat > \"$0\" && chmod 755 \"$0\""])
        .arg(path);
    let mut writer = writer.stdin(Stdio::piped()).spawn().expect("sh is there");
    let mut input = writer.stdin.take().expect("piped");
    input.write_all(bytes).expect("it reads");
    drop(input);
    assert!(writer.wait().expect("our child").success(), "writable");
}

#[test]
fn a_cluster_is_upgraded_while_a_job_runs_and_nothing_is_computed_twice() {
    let fleet = UpgradeFleet::of(&[&[], &[BY_MEMBERS], &[BY_MEMBERS]]);
    let cluster = &fleet.cluster;
    let pids: Vec<_> = (0..3).map(|number| cluster.pid(number)).collect();
    let job = CountedJob::new(cluster, "squares", 400, "sleep 0.3", "");
    let id = cluster.submit(1, &job.file);
    cluster.wait_done(1, &id, 3, LATER);
    let (code, said) = fleet.upgrade(&fleet.new, &["--cluster"]);
    assert_eq!(code, Some(0), "{said}");
    let order: Vec<_> = said
        .lines()
        .filter_map(|line| line.split_once(": another ").map(|(name, _)| name))
        .collect();
    assert_eq!(order, ["n1", "n2", "n0"], "{said}");
    assert!(cluster.done(0, &id) < 400, "the job ran meanwhile");
    for (number, pid) in pids.into_iter().enumerate() {
        assert!(fleet.runs_new(number), "n{number}");
        let previous = fleet.file(number).with_file_name("nodectl.previous");
        let kept = fs::read(previous).expect("the program before is kept");
        assert!(kept == fs::read(program()).expect("ours"), "n{number}");
        assert_eq!(cluster.pid(number), pid, "whoever started it has its child");
    }
    assert_eq!(cluster.wait_end(0, &id), "done");
    assert_all_squares(&cluster.results(0, &id), 400);
    let recomputed = job
        .executions()
        .values()
        .filter(|times| **times > 1)
        .count();
    assert_eq!(recomputed, 0, "of {} tasks", job.executions().len());
    let nodes = cluster.json(0, &["nodes", "--json"]);
    let takes_work = |node: &serde_json::Value| node["draining"] == false;
    assert!(
        nodes.as_array().expect("nodes").iter().all(takes_work),
        "{nodes}"
    );
    let (code, said) = fleet.upgrade(&fleet.new, &["--cluster"]);
    assert!(code == Some(0) && said.contains("nothing to do"), "{said}");
    // Where it was typed, and where the program was replaced.
    let program = BlobHash::of(&fs::read(&fleet.new).expect("ours")).to_string();
    let typed = fleet.audit(0, "upgrade");
    assert_eq!(typed.len(), 3, "{typed:?}");
    for line in typed {
        assert!(text(&line["about"]).ends_with(&program), "{line}");
    }
    for number in 0..3 {
        let [line] = &fleet.audit(number, "replace")[..] else {
            panic!("n{number} was replaced once");
        };
        assert!(text(&line["about"]).ends_with(&program), "{line}");
        assert_eq!(
            (&line["user"], &line["refused"]),
            (&"node n0".into(), &Value::Null)
        );
    }
}

#[test]
fn a_program_that_a_node_refuses_is_told_from_one_that_it_took() {
    let fleet = UpgradeFleet::of(&[&[]]);
    // What nobody may execute here is not tried before the node has it.
    let other = fleet.new.with_file_name("other");
    fs::copy("/bin/true", &other).expect("every machine has it");
    fs::set_permissions(&other, fs::Permissions::from_mode(0o644)).expect("ours");
    let (code, said) = fleet.upgrade(&other, &[]);
    assert!(
        code == Some(1) && said.contains("goes on with the program that it has"),
        "{said}"
    );
    let [line] = &fleet.audit(0, "replace")[..] else {
        panic!("it is noted once");
    };
    assert!(text(&line["refused"]).contains("not nodectl"), "{line}");
    assert!(!fleet.runs_new(0));
}

#[test]
fn what_is_known_to_fail_is_said_before_anything_is_changed() {
    let fleet = UpgradeFleet::of(&[&[], &[]]);
    let (code, said) = fleet.upgrade(&fleet.new, &["--cluster"]);
    assert_eq!(code, Some(1), "{said}");
    assert!(
        said.contains("n1: its owner lets no other member"),
        "{said}"
    );
    let mut foreign = fs::read(&fleet.new).expect("ours");
    // AArch64 (elf(5)).
    foreign[18] = if foreign[18] == 183 { 62 } else { 183 };
    let other = fleet.new.with_file_name("foreign");
    write_program(&other, &foreign);
    let (code, said) = fleet.upgrade(&other, &[]);
    assert!(
        code == Some(1) && said.contains("n0 has the architecture"),
        "{said}"
    );
    let (code, said) = fleet.upgrade(Path::new("/etc/passwd"), &[]);
    assert!(code == Some(2) && said.contains("is no program"), "{said}");
    let (code, said) = fleet.upgrade(Path::new("/bin/true"), &[]);
    assert!(
        code == Some(2) && said.contains("but not nodectl"),
        "{said}"
    );
    let whole = fs::read(&fleet.new).expect("ours");
    let cut = fleet.new.with_file_name("cut");
    write_program(&cut, &whole[..whole.len() * 2 / 3]);
    // As `packaging/build` ends it, but with the hash of another one.
    let flipped = fleet.new.with_file_name("flipped");
    let line = format!("nodectl-sha256:{}\n", "0".repeat(64));
    write_program(&flipped, &[&whole[..], line.as_bytes()].concat());
    for file in [cut, flipped] {
        let (code, said) = fleet.upgrade(&file, &[]);
        assert!(code == Some(2) && said.contains("it is damaged"), "{said}");
    }
    assert!(!fleet.runs_new(0) && !fleet.runs_new(1));
    // Whoever sits there needs no permission.
    let (code, said) = fleet.upgrade(&fleet.new, &["--cluster", "--except", "n1"]);
    assert_eq!(code, Some(0), "{said}");
    assert!(fleet.runs_new(0) && !fleet.runs_new(1));
}

#[test]
fn a_node_that_does_not_end_its_tasks_in_time_goes_on_as_before() {
    let fleet = UpgradeFleet::of(&[&[]]);
    let cluster = &fleet.cluster;
    let text = "name = \"long\"\ncommand = [\"sleep\", \"1000\"]\n";
    let id = cluster.submit(0, &write_job(cluster.dir.path(), "long", text));
    wait_until(SOON, "the task runs", || {
        cluster.job(0, &id)["progress"]["running"] == 1
    });
    let (code, said) = fleet.upgrade(&fleet.new, &["--wait", "1s"]);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("still runs 1 task (long)"), "{said}");
    assert!(!fleet.runs_new(0));
    assert!(cluster.json(0, &["nodes", "--json"])[0]["draining"] == false);
    let (code, said) = fleet.upgrade(&fleet.new, &["--give-back"]);
    assert_eq!(code, Some(0), "{said}");
    assert!(fleet.runs_new(0));
    wait_until(SOON, "the task runs again", || {
        cluster.phase(0, &id).as_deref() == Some("running")
    });
    cluster.ok(0, &["cancel", &id]);
}

/// It says the version of a nodectl, and nothing else works.
const BROKEN: &str = r#"
#include <stdio.h>
#include <string.h>
int main(int count, char **words) {
    if (count == 2 && strcmp(words[1], "--version") == 0) return puts("nodectl 9.9.9") < 0;
    return 1;
}
"#;

#[test]
fn run_goes_on_where_its_own_node_takes_another_program() {
    let fleet = UpgradeFleet::of(&[&[], &[]]);
    let cluster = &fleet.cluster;
    let job = CountedJob::new(cluster, "squares", 60, "sleep 0.2", "");
    let mut run = cluster.command(0);
    run.args([
        "run",
        job.file.to_str().expect("UTF-8"),
        "--into",
        "results",
    ]);
    let run = run
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let run = run.spawn().expect("nodectl starts");
    wait_until(LATER, "some tasks are done", || job.executions().len() > 5);
    let (code, said) = fleet.upgrade(&fleet.new, &[]);
    assert_eq!(code, Some(0), "{said}");
    let output = run.wait_with_output().expect("our child");
    assert_eq!(output.status.code(), Some(0), "{}", both(&output));
    let table = fs::read_to_string(cluster.dir.path().join("results/results.csv"));
    assert_eq!(table.expect("results").lines().count(), 61);
}

#[test]
fn a_node_whose_upgrade_is_interrupted_takes_tasks_again() {
    let fleet = UpgradeFleet::of(&[&[]]);
    let cluster = &fleet.cluster;
    let text = "name = \"long\"\ncommand = [\"sleep\", \"600\"]\n";
    let id = cluster.submit(0, &write_job(cluster.dir.path(), "long", text));
    wait_until(SOON, "the task runs", || {
        cluster.job(0, &id)["progress"]["running"] == 1
    });
    let mut upgrade = cluster.command(0);
    upgrade
        .arg("upgrade")
        .arg(&fleet.new)
        .stderr(Stdio::piped());
    let mut upgrade = upgrade.spawn().expect("nodectl starts");
    let is_draining = || cluster.answer(0, "/v1/nodes")[0]["draining"] == true;
    wait_until(SOON, "it takes no tasks", is_draining);
    kill_process(Pid::from_child(&upgrade), Signal::INT).expect("our child");
    assert_eq!(upgrade.wait().expect("our child").code(), Some(130));
    assert!(!is_draining() && !fleet.runs_new(0));
    cluster.ok(0, &["cancel", &id]);
}

#[test]
fn a_node_that_does_not_come_back_stops_the_upgrade_and_its_old_program_is_there() {
    let mut fleet = UpgradeFleet::of(&[&[], &[BY_MEMBERS], &[BY_MEMBERS]]);
    let source = fleet.new.with_file_name("broken.c");
    fs::write(&source, BROKEN).expect("writable");
    let broken = fleet.new.with_file_name("broken");
    match Command::new("cc")
        .arg("-o")
        .arg(&broken)
        .arg(&source)
        .status()
    {
        Ok(status) if status.success() => {}
        other => return println!("SKIPPED: no C compiler here: {other:?}"),
    }
    let job = CountedJob::new(&fleet.cluster, "squares", 60, "sleep 0.2", "");
    let id = fleet.cluster.submit(0, &job.file);
    let (code, said) = fleet.upgrade(&broken, &["--cluster", "--away", "3s"]);
    assert_eq!(code, Some(1), "{said}");
    assert!(
        said.contains("n1: it has not come back within 3.0 s"),
        "{said}"
    );
    assert!(
        said.contains("0 of 3 have the new program; 2 nodes not tried"),
        "{said}"
    );
    let file = fleet.file(1);
    let line = format!("mv {0}.previous {0}", file.display());
    assert!(said.contains(&line), "{said}");
    assert_eq!(fleet.cluster.wait_exit(1, SOON).code(), Some(1));
    for other in [0, 2] {
        let untouched = fs::read(fleet.file(other)).expect("a program");
        assert!(untouched == fs::read(program()).expect("ours"), "n{other}");
    }
    // As the message says.
    fs::rename(file.with_file_name("nodectl.previous"), &file).expect("it is kept");
    fleet.cluster.restart(1);
    fleet.cluster.wait_members(3);
    assert_eq!(fleet.cluster.wait_end(0, &id), "done");
    assert_all_squares(&fleet.cluster.results(0, &id), 60);
    assert!(job.executions().values().all(|times| *times == 1));
}
