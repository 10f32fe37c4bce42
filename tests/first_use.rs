//! What a person meets first: `nodectl` alone, the demo, what Tab proposes, the QR code.

mod common;

use common::{
    NEVER, SOON,
    cluster::{Cluster, Discovery, both},
    job::write_job,
    output_within, wait_until,
};
use std::process::Command;

/// What bash proposes for the last of these words.
fn proposed(cluster: &Cluster, words: &[&str]) -> Vec<String> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nodectl"));
    command
        .env("NODECTL_COMPLETE", "bash")
        .env("_CLAP_IFS", "\n")
        .env("_CLAP_COMPLETE_INDEX", (words.len() + 2).to_string())
        .args(["--", "nodectl", "--data-dir"])
        .arg(cluster.data_dir(0))
        .args(words);
    let output = output_within(NEVER, &mut command);
    assert!(output.status.success(), "{}", both(&output));
    both(&output).lines().map(str::to_string).collect()
}

#[test]
fn alone_it_says_what_it_is_and_whether_a_node_runs() {
    let mut cluster = Cluster::empty(Discovery::Beacon);
    cluster.prepare(&[]);
    let said = cluster.ok(0, &[]);
    assert!(said.contains("No node runs on this machine") && said.contains("nodectl demo"));
    cluster.spawn(0);
    wait_until(SOON, "the node is greeted", || {
        let said = cluster.ok(0, &[]);
        said.contains("is the node n0 of the cluster") && said.contains("1 node, 0 jobs not ended")
    });
}

#[test]
fn tab_proposes_what_the_node_knows() {
    let cluster = Cluster::of(2);
    let home = cluster.dir.path();
    for name in ["areas", "sweep"] {
        let job = format!("name = \"{name}\"\ncommand = [\"true\"]\n");
        let file = write_job(home, name, &job);
        cluster.submit(0, &file);
    }
    // On a busy machine an answer can come too late once; then nothing is proposed.
    wait_until(SOON, "jobs are proposed", || {
        let jobs = proposed(&cluster, &["job", ""]);
        ["last", "areas", "sweep"]
            .iter()
            .all(|name| jobs.iter().any(|job| job == name))
    });
    let endless = "name = \"endless\"\ncommand = [\"sleep\", \"1000\"]\n";
    cluster.submit(0, &write_job(home, "endless", endless));
    // Only what is not over can be cancelled.
    wait_until(SOON, "a job is proposed that runs", || {
        proposed(&cluster, &["cancel", ""]).contains(&"endless".to_string())
            && proposed(&cluster, &["remove", ""]).contains(&"areas".to_string())
    });
    assert!(!proposed(&cluster, &["cancel", ""]).contains(&"areas".to_string()));
    assert!(!proposed(&cluster, &["remove", ""]).contains(&"endless".to_string()));
    wait_until(SOON, "nodes are proposed", || {
        let nodes = proposed(&cluster, &["drain", "n"]);
        ["n0", "n1"]
            .iter()
            .all(|name| nodes.iter().any(|node| node == name))
    });
    assert!(proposed(&cluster, &["init", "ker"]).contains(&"kernel".to_string()));
    assert!(proposed(&cluster, &["canc"]).contains(&"cancel".to_string()));
}

#[test]
fn the_demo_runs_twice_and_ends_with_what_to_type_next() {
    let mut cluster = Cluster::empty(Discovery::Beacon);
    cluster.prepare(&[]);
    for dir in ["nodectl-demo", "nodectl-demo-2"] {
        let output = cluster.run(0, &["demo"]);
        let said = both(&output);
        assert!(output.status.success(), "{said}");
        let line = format!("$ nodectl run {dir}/train.toml --into {dir}/digits\n");
        assert!(
            said.contains(&line) && said.contains("nodectl report last"),
            "{said}"
        );
        let model = cluster
            .dir
            .path()
            .join(dir)
            .join("digits/0/model.safetensors");
        assert!(model.exists(), "{said}");
        let has_zoom = cluster
            .dir
            .path()
            .join(dir)
            .join("zoom/0/zoom-1.png")
            .exists();
        assert!(
            has_zoom || said.contains("left out, as no GPU can be used"),
            "{said}"
        );
    }
}

#[test]
fn an_invitation_can_be_scanned() {
    let cluster = Cluster::of(1);
    let said = cluster.ok(0, &["invite", "--qr"]);
    let picture: Vec<_> = said.lines().filter(|line| line.contains('█')).collect();
    let width = picture.first().map_or(0, |line| line.chars().count());
    assert!(picture.len() >= 15 && width >= 2 * 15, "{said}");
    assert!(
        picture.iter().all(|line| line.chars().count() == width),
        "{said}"
    );
    assert!(!cluster.ok(0, &["invite"]).contains('█'));
    // Where a node runs already, `join --qr` is for the next machine all the same.
    let said = cluster.ok(0, &["join", "--qr"]);
    assert!(
        said.contains("is running already") && said.contains('█'),
        "{said}"
    );
    assert!(!cluster.ok(0, &["join"]).contains('█'));
}
