//! Who belongs to the cluster, with the real program: bans, the change of the secret, invitations.

mod common;

use common::{
    SOON,
    cluster::{Cluster, Discovery, both},
    job::write_job,
    wait_until,
};
use std::{fs, io::Write, process::Stdio};

#[test]
fn a_banned_node_is_out_until_it_is_pardoned_also_after_restarts() {
    let mut cluster = Cluster::of(3);
    let banned = cluster.run(0, &["ban", "n2"]);
    assert!(
        banned.status.success() && both(&banned).contains("secret rotate"),
        "{}",
        both(&banned)
    );
    for node in 0..2 {
        wait_until(SOON, "the others are alone", || {
            cluster.members(node) == ["n0", "n1"]
        });
        wait_until(SOON, "it is listed", || {
            cluster.ok(node, &["nodes"]).contains("is banned")
        });
    }
    cluster.kill9(0);
    cluster.restart(0);
    wait_until(SOON, "it is told", || {
        both(&cluster.run(2, &["doctor"])).contains("banned")
    });
    assert!(cluster.ok(0, &["nodes"]).contains("is banned"));
    wait_until(SOON, "it is alone", || cluster.members(2) == ["n2"]);
    cluster.ok(1, &["unban", "n2"]);
    cluster.wait_members(3);
}

#[test]
fn the_secret_is_changed_while_nodes_run_and_restarts_know_it() {
    let mut cluster = Cluster::of(2);
    let old = fs::read_to_string(cluster.dir.path().join("secret")).expect("the cluster's");
    let said = cluster.ok(0, &["secret", "rotate"]);
    assert!(
        said.contains("2 nodes have") && said.contains("the old one is refused"),
        "{said}"
    );
    let new = said
        .lines()
        .find_map(|line| line.strip_prefix("  "))
        .expect("the secret")
        .to_string();
    // Its file has the old one still.
    cluster.kill9(1);
    cluster.restart(1);
    cluster.wait_members(2);
    assert_eq!(cluster.ok(1, &["secret", "show"]).trim(), new);
    assert_ne!(new, old.trim());
    // Who has the old one and was no member gains nothing by it, and is told.
    let thief = cluster.add(&[]);
    wait_until(SOON, "it is told", || {
        both(&cluster.run(thief, &["doctor"])).contains("secret was changed")
    });
    assert_eq!(cluster.members(0), ["n0", "n1"]);
    let security = both(&cluster.run(0, &["doctor", "--security"]));
    for (check, message) in [
        ("security.handshake", "noise(XXpsk0"),
        ("security.secret", "it withstands"),
        ("security.api", "only the user"),
    ] {
        let is = |line: &str| line.contains(check) && line.contains(message);
        assert!(
            security.lines().any(is),
            "`{check}: {message}` is missing in:\n{security}"
        );
    }
}

fn put_secret(cluster: &Cluster, node: usize, name: &str, value: &str) {
    let mut command = cluster.command(node);
    let command = command
        .args(["secret", "put", name])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut put = command.spawn().expect("nodectl starts");
    put.stdin
        .take()
        .expect("piped")
        .write_all(value.as_bytes())
        .expect("it reads");
    let put = put.wait_with_output().expect("our child");
    assert!(put.status.success(), "{}", both(&put));
}

/// What a task on a node finds as a secret.
fn secret_of_a_task(cluster: &Cluster, node: usize, name: &str) -> String {
    let job = format!(
        "name = \"reader\"\ncommand = [\"sh\", \"-c\", \"cat <$NODECTL_SECRET_FILE_{name}\"]\nsecrets = [\"{name}\"]\n\
         where = \"name == 'n{node}'\"\n"
    );
    let job = write_job(cluster.dir.path(), "reader", &job);
    cluster.ok(node, &["run", job.to_str().expect("UTF-8")]);
    cluster.ok(node, &["logs", "last", "0"])
}

#[test]
fn named_secrets_are_there_after_the_clusters_secret_was_changed() {
    let mut cluster = Cluster::of(3);
    put_secret(&cluster, 0, "TOKEN", "the first token");
    put_secret(&cluster, 0, "KEY", "the first key");
    let listed = |cluster: &Cluster, node| cluster.ok(node, &["secret", "list", "--json"]);
    for node in 1..3 {
        wait_until(SOON, "all know both", || {
            listed(&cluster, node) == listed(&cluster, 0)
        });
    }
    cluster.kill9(2);
    wait_until(SOON, "it is gone", || cluster.members(0).len() == 2);
    let said = cluster.ok(0, &["secret", "rotate"]);
    assert!(
        said.contains("2 nodes have") && said.contains("n2"),
        "{said}"
    );
    // While nodes run, and when they have no key but the new one's.
    assert_eq!(secret_of_a_task(&cluster, 1, "TOKEN"), "the first token");
    cluster.kill9(1);
    cluster.restart(1);
    cluster.wait_members(2);
    assert_eq!(secret_of_a_task(&cluster, 1, "TOKEN"), "the first token");
    put_secret(&cluster, 0, "NEW", "put after the change");
    // The one that was away is given a value of its own, sealed with the key that it has, before it
    // hears of the change.
    cluster.kill9(0);
    cluster.kill9(1);
    cluster.restart(2);
    put_secret(&cluster, 2, "TOKEN", "the second token");
    let put = cluster.json(2, &["secret", "list", "--json"])[1].clone();
    cluster.restart(0);
    cluster.restart(1);
    cluster.wait_members(3);
    for node in 0..3 {
        wait_until(SOON, "all know all", || {
            let listed = cluster.json(node, &["secret", "list", "--json"]);
            listed[1]["name"] == "NEW" && listed[2] == put
        });
        let found = ["KEY", "NEW", "TOKEN"].map(|name| secret_of_a_task(&cluster, node, name));
        assert_eq!(
            found,
            ["the first key", "put after the change", "the second token"],
            "on n{node}"
        );
    }
    // Once more, and all begin anew: what they kept is sealed with the newest key.
    let said = cluster.ok(1, &["secret", "rotate"]);
    assert!(
        said.contains("3 nodes have") && said.contains("the old one is refused"),
        "{said}"
    );
    for node in 0..3 {
        cluster.kill9(node);
    }
    for node in 0..3 {
        cluster.restart(node);
    }
    cluster.wait_members(3);
    for node in 0..3 {
        let found = ["KEY", "NEW", "TOKEN"].map(|name| secret_of_a_task(&cluster, node, name));
        assert_eq!(
            found,
            ["the first key", "put after the change", "the second token"],
            "on n{node}"
        );
    }
}

#[test]
fn a_node_that_missed_two_changes_reads_named_secrets_once_it_has_joined_again() {
    let mut cluster = Cluster::of(2);
    put_secret(&cluster, 0, "TOKEN", "the token");
    wait_until(SOON, "both know it", || {
        cluster.ok(1, &["secret", "list", "--quiet"]) == "TOKEN\n"
    });
    cluster.kill9(1);
    wait_until(SOON, "it is gone", || cluster.members(0).len() == 1);
    for _ in 0..2 {
        cluster.ok(0, &["secret", "rotate"]);
        cluster.ok(0, &["secret", "rotate", "--finish"]);
    }
    // What it kept is sealed with a key that nobody has any more.
    fs::write(
        cluster.dir.path().join("secret"),
        cluster.ok(0, &["secret", "show"]),
    )
    .expect("writable");
    cluster.restart(1);
    cluster.wait_members(2);
    wait_until(SOON, "it knows it", || {
        cluster.ok(1, &["secret", "list", "--quiet"]) == "TOKEN\n"
    });
    assert!(
        cluster.log(1).contains("of no use: TOKEN"),
        "{}",
        cluster.log(1)
    );
    assert_eq!(secret_of_a_task(&cluster, 1, "TOKEN"), "the token");
    assert_eq!(secret_of_a_task(&cluster, 0, "TOKEN"), "the token");
}

#[test]
fn a_machine_joins_by_an_invitation_and_keeps_the_secret_to_itself() {
    let mut cluster = Cluster::of(1);
    let invited = cluster.ok(0, &["invite"]);
    let code = invited.lines().nth(2).expect("the code").trim().to_string();
    let guest = cluster.prepare(&[]);
    let joined = cluster.run(
        guest,
        &["join", "--detach", "--name", "n1", "--invite", &code],
    );
    assert!(joined.status.success(), "{}", both(&joined));
    let secret = fs::read_to_string(cluster.dir.path().join("secret")).expect("the cluster's");
    assert!(
        !both(&joined).contains(secret.trim()),
        "the secret is shown: {}",
        both(&joined)
    );
    wait_until(SOON, "it is a member", || {
        cluster.members(0) == ["n0", "n1"]
    });
    assert_eq!(
        fs::read_to_string(cluster.data_dir(guest).join("secret"))
            .expect("kept")
            .trim(),
        secret.trim()
    );
    cluster.ok(guest, &["leave"]);
}

#[test]
fn who_has_to_be_admitted_waits_and_is_let_in() {
    let mut cluster = Cluster::of(1);
    cluster.ok(0, &["admission", "approve"]);
    let other = cluster.add(&[]);
    wait_until(SOON, "it waits", || {
        cluster.ok(0, &["nodes"]).contains("waits to be admitted")
    });
    assert_eq!(cluster.members(0), ["n0"]);
    let id = cluster.json(other, &["nodes", "--json"])[0]["id"]
        .as_str()
        .expect("an id")
        .to_string();
    cluster.ok(0, &["admit", &id]);
    cluster.wait_members(2);
}

/// Who joins with another secret learns it from `join` itself, within seconds.
#[test]
fn join_says_whom_it_found_and_whom_it_may_not_meet() {
    let mut cluster = Cluster::empty(Discovery::Beacon);
    cluster.add(&[]);
    let right = cluster.dir.path().join("secret");
    let wrong = cluster.dir.path().join("another");
    fs::write(&wrong, "7R2QK-another-secret-of-enough-letters").expect("writable");
    let join = |cluster: &mut Cluster, secret: &std::path::Path| {
        let guest = cluster.prepare(&[]);
        let name = format!("guest{guest}");
        let secret = secret.to_str().expect("UTF-8");
        let said = cluster.ok(
            guest,
            &["join", "--detach", "--name", &name, "--secret-file", secret],
        );
        cluster.ok(guest, &["leave"]);
        said
    };
    let said = join(&mut cluster, &right);
    assert!(said.contains("with     n0"), "{said}");
    let said = join(&mut cluster, &wrong);
    assert!(said.contains("no other node so far"), "{said}");
    assert!(
        said.contains("1 node here does not share this secret"),
        "{said}"
    );
}

/// After a reboot `join` asks nothing; a secret that others refuse is not kept.
#[test]
fn a_secret_that_was_typed_is_kept_for_the_next_start() {
    let mut cluster = Cluster::empty(Discovery::Beacon);
    cluster.add(&[]);
    let right = fs::read_to_string(cluster.dir.path().join("secret")).expect("the cluster's");
    let guest = cluster.prepare(&[]);
    let kept = cluster.data_dir(guest).join("secret");
    let join = |more: &[&str]| {
        let said = cluster.ok(
            guest,
            &[&["join", "--detach", "--name", "guest"], more].concat(),
        );
        cluster.ok(guest, &["leave"]);
        said
    };
    let said = join(&["--secret", "7R2QK-another-secret-of-enough-letters"]);
    assert!(said.contains("does not share this secret"), "{said}");
    assert!(!kept.exists(), "the secret of a mistake is kept");
    join(&["--secret", right.trim()]);
    let said = join(&[]);
    assert!(said.contains("with     n0"), "{said}");
}
