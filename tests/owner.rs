//! The machine's owner and its users, on the real binary: what is paused stays so, and what is
//! others' is not one's own.

mod common;

use common::{
    NEVER, SOON,
    cluster::{Cluster, Discovery, both},
    is_root,
    job::{CountedJob, assert_all_squares, write_job},
    output_within, wait_until,
};
use serde_json::Value;
use std::{
    fs,
    io::Write,
    os::unix::{fs::PermissionsExt, process::CommandExt},
    path::Path,
    process::{Command, Output},
};

/// What a node is shown as by another.
fn closed(cluster: &Cluster, name: &str) -> Option<String> {
    let nodes = cluster.json(0, &["nodes", "--json"]);
    let node = nodes
        .as_array()?
        .iter()
        .find(|node| node["name"] == name)?
        .clone();
    node["closed"]["state"].as_str().map(str::to_string)
}

#[test]
fn a_paused_node_gets_nothing_and_its_next_life_keeps_to_it() {
    let mut cluster = Cluster::of(2);
    cluster.ok(1, &["pause", "--for", "2h"]);
    let is_paused = |cluster: &Cluster| closed(cluster, "n1").as_deref() == Some("paused");
    wait_until(SOON, "n1 is shown as paused", || is_paused(&cluster));
    let table = cluster.ok(0, &["nodes"]);
    assert!(
        table.contains("n1 was paused by its owner, for another 1h 5"),
        "{table}"
    );
    // Nobody ends it elsewhere.
    cluster.ok(0, &["drain", "--off", "n1"]);
    let job = CountedJob::new(&cluster, "squares", 8, "true", "");
    let id = cluster.submit(0, &job.file);
    assert_eq!(cluster.wait_end(0, &id), "done");
    let results = cluster.results(0, &id);
    assert_all_squares(&results, 8);
    assert!(
        results.values().all(|result| result["node"] == "n0"),
        "{results:?}"
    );
    cluster.kill9(1);
    cluster.restart(1);
    wait_until(SOON, "n1 is shown as paused again", || is_paused(&cluster));
    cluster.ok(1, &["resume"]);
    wait_until(SOON, "n1 takes work", || closed(&cluster, "n1").is_none());
    let audit = cluster.json(1, &["audit", "--json"]);
    let told: Vec<_> = audit
        .as_array()
        .expect("a list")
        .iter()
        .map(|line| line["what"].as_str())
        .collect();
    assert_eq!(told, [Some("pause"), Some("resume")]);
}

#[test]
fn what_is_said_to_be_done_holds_after_a_kill_at_that_moment() {
    let mut cluster = Cluster::of(1);
    let job = CountedJob::new(&cluster, "squares", 2, "true", "");
    let id = cluster.submit(0, &job.file);
    assert_eq!(cluster.wait_end(0, &id), "done");
    let said = [
        (vec!["drain"], Some("drained")),
        (vec!["drain", "--off"], None),
        (vec!["pause"], Some("paused")),
        (vec!["resume"], None),
        (vec!["remove", &id], None),
    ];
    for (arguments, is_closed) in said {
        cluster.ok(0, &arguments);
        cluster.kill9(0);
        cluster.restart(0);
        assert_eq!(
            closed(&cluster, "n0").as_deref(),
            is_closed,
            "{arguments:?}"
        );
    }
    let jobs = cluster.ok(0, &["jobs", "--json"]);
    assert!(!jobs.contains(&id), "{jobs}");
}

#[test]
fn what_is_not_on_the_disk_is_not_said_to_be_done() {
    let cluster = Cluster::of(1);
    let job = CountedJob::new(&cluster, "squares", 2, "true", "");
    let id = cluster.submit(0, &job.file);
    assert_eq!(cluster.wait_end(0, &id), "done");
    let blocked: Vec<_> = ["owner.json", "retention.json", "secrets", "membership"]
        .map(|name| cluster.data_dir(0).join(name))
        .into();
    for path in &blocked {
        // What an earlier command wrote may be there.
        let _ = fs::remove_file(path);
        fs::create_dir_all(path.join("in the way")).expect("the directory is ours");
    }
    let value = cluster.dir.path().join("value");
    fs::write(&value, "1").expect("the directory is ours");
    let commands: [&[&str]; 5] = [
        &["pause"],
        &["drain"],
        &["remove", &id],
        &["secret", "put", "TOKEN"],
        &["admission", "approve"],
    ];
    for arguments in commands {
        let mut command = cluster.command(0);
        let value = fs::File::open(&value).expect("it was just written");
        command.args(arguments).stdin(value);
        let output = command.output().expect("nodectl starts");
        let told = both(&output);
        assert!(
            !output.status.success() && told.contains("not after this node has started again"),
            "{arguments:?}: {told}"
        );
    }
    // What was said holds all the same, and is written when the disk is well again.
    assert_eq!(closed(&cluster, "n0").as_deref(), Some("drained"));
    for path in &blocked {
        fs::remove_dir_all(path).expect("the directory is ours");
    }
    for path in &blocked[..3] {
        wait_until(SOON, "what was said is on the disk", || path.is_file());
    }
    cluster.ok(0, &["admission", "open"]);
    assert!(blocked[3].is_file());
}

/// Another user of the machine, without rights over the node.
struct Nobody<'c> {
    cluster: &'c Cluster,
    socket: &'c Path,
    dir: &'c Path,
}

impl Nobody<'_> {
    fn run(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_nodectl"));
        command
            .args(arguments)
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default());
        command
            .env("HOME", "/nonexistent")
            .env("NODECTL_API__SOCKET", self.socket)
            .current_dir(self.dir);
        output_within(NEVER, command.uid(65_534).gid(65_534))
    }

    fn ok(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        assert!(
            output.status.success(),
            "nodectl {arguments:?}: {}\n{}",
            both(&output),
            self.cluster.log(0)
        );
        String::from_utf8(output.stdout).expect("UTF-8")
    }
}

#[test]
fn users_of_a_shared_node_have_their_own_jobs() {
    let group = fs::read_to_string("/etc/group").unwrap_or_default();
    let group = group
        .lines()
        .find(|line| line.split(':').nth(2) == Some("65534"))
        .and_then(|line| line.split(':').next());
    let (true, Some(group)) = (is_root(), group) else {
        return eprintln!("SKIPPED: needs root, to be another user, and a group 65534");
    };
    let dir = tempfile::tempdir().expect("a temporary directory");
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).expect("it is ours");
    let program = Path::new(env!("CARGO_BIN_EXE_nodectl"));
    let may_run = Command::new(program)
        .arg("--version")
        .env_clear()
        .uid(65_534)
        .gid(65_534)
        .output();
    if !may_run.is_ok_and(|tried| tried.status.success()) {
        return eprintln!("SKIPPED: another user may not run {}", program.display());
    }
    let socket = dir.path().join("api.sock");
    let mut cluster = Cluster::empty(Discovery::Peers);
    let socket_text = socket.to_str().expect("UTF-8").to_string();
    cluster.add(&[
        ("NODECTL_API__GROUP", group),
        ("NODECTL_API__SOCKET", &socket_text),
    ]);
    let nobody = Nobody {
        cluster: &cluster,
        socket: &socket,
        dir: dir.path(),
    };
    let roots = CountedJob::new(&cluster, "roots", 2, "true", "");
    let roots = cluster.submit(0, &roots.file);
    assert_eq!(cluster.wait_end(0, &roots), "done");
    let file = write_job(
        dir.path(),
        "own",
        "name = \"own\"\ncommand = [\"sleep\", \"1000\"]\n",
    );
    fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).expect("it is ours");
    let own = nobody.ok(&["run", "--detach", "--quiet", file.to_str().expect("UTF-8")]);
    let own = own.split_whitespace().last().expect("an id").to_string();
    let jobs: Value = serde_json::from_str(&nobody.ok(&["jobs", "--json"])).expect("JSON");
    let user = |id: &str| {
        jobs.as_array()
            .expect("a list")
            .iter()
            .find(|job| job["id"] == id)
            .expect("it is there")["user"]
            .clone()
    };
    assert_eq!((user(&roots), user(&own)), ("root".into(), "nobody".into()));
    refused(&nobody, &roots);
    is_told_who_may_upgrade(&nobody);
    // What is told of a node is told of that node, and not of this user's own place for one.
    let told = nobody.ok(&["doctor"]);
    assert!(
        told.contains("isolation") && !told.contains("data_dir"),
        "{told}"
    );
    let shown = both(&nobody.run(&["secret", "show"]));
    assert!(shown.contains("is another user's"), "{shown}");
    nobody.ok(&["cancel", &own]);
    assert_eq!(cluster.wait_end(0, &own), "cancelled");
    let audit = cluster.json(0, &["audit", "--json"]);
    let told = audit.as_array().expect("a list").iter();
    let refused = told
        .filter(|line| line["user"] == "nobody" && line["refused"].is_string())
        .count();
    assert_eq!(refused, 9, "{audit:#}");
}

/// What is another user's, or the owner's, is not this user's to do.
fn refused(nobody: &Nobody, roots: &str) {
    for refused in [
        vec!["logs", roots, "0"],
        vec!["results", roots],
        vec!["remove", roots],
        vec!["cancel", roots],
        vec!["drain"],
        vec!["pause"],
        vec!["leave"],
        vec!["ban", "n0"],
        vec!["invite"],
        vec!["secret", "drop", "TOKEN"],
        vec!["audit"],
    ] {
        let output = nobody.run(&refused);
        assert_eq!(
            output.status.code(),
            Some(1),
            "{refused:?}: {}",
            both(&output)
        );
        assert!(
            both(&output).contains("nobody may not "),
            "{refused:?}: {}",
            both(&output)
        );
    }
}

fn is_told_who_may_upgrade(nobody: &Nobody) {
    let other = nobody.dir.join("other");
    fs::copy(env!("CARGO_BIN_EXE_nodectl"), &other).expect("it is ours");
    let file = fs::File::options().append(true).open(&other);
    file.and_then(|mut file| file.write_all(b"\n"))
        .expect("it is ours");
    let said = both(&nobody.run(&["upgrade", other.to_str().expect("UTF-8")]));
    assert!(
        said.contains("an upgrade is for those who may") && said.contains("api.admins"),
        "{said}"
    );
}
