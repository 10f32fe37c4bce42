//! Pools on the real binary, as far as their clients' side goes: what opens one, what refuses it,
//! what is left of it.

mod common;

use common::{LATER, SOON, cluster::Cluster, wait_for};
use nodectl::wire::frames::{FromClient, HEADER_BYTES, Header, ToClient, encode};
use rustix::process::{Pid, Signal, kill_process};
use std::{
    fs,
    io::{Read, Write},
    os::unix::{fs::PermissionsExt, net::UnixStream},
};

/// A client of a node's API that speaks frames once its connection is upgraded.
struct FrameClient {
    stream: UnixStream,
}

impl FrameClient {
    /// Sends the request; gives the answer's head.
    fn request(cluster: &Cluster, node: usize, headers: &str) -> (Self, String) {
        let mut stream =
            UnixStream::connect(cluster.data_dir(node).join("api.sock")).expect("the node answers");
        stream.set_read_timeout(Some(SOON)).expect("a socket");
        let request = format!("POST /v1/pools HTTP/1.1\r\nHost: nodectl\r\n{headers}\r\n");
        stream
            .write_all(request.as_bytes())
            .expect("the node reads");
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            stream.read_exact(&mut byte).expect("an answer");
            head.push(byte[0]);
        }
        (Self { stream }, String::from_utf8(head).expect("text"))
    }

    /// Asks for a pool.
    fn open(cluster: &Cluster, node: usize, options: &str) -> Self {
        let (mut client, head) = Self::request(
            cluster,
            node,
            "Connection: Upgrade\r\nUpgrade: nodectl-pool/1\r\nContent-Length: 0\r\n",
        );
        assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
        client.send(
            FromClient::Open,
            format!("{{\"name\": \"p\"{options}}}").as_bytes(),
        );
        client.send(FromClient::Init, b"{\"mode\": \"pool\"}\n");
        client
    }

    fn send(&mut self, kind: FromClient, payload: &[u8]) {
        let mut bytes = Vec::new();
        encode(kind, 0, payload, &mut bytes);
        self.stream.write_all(&bytes).expect("the node reads");
    }

    /// The next message's kind and text; None at the end.
    fn next(&mut self) -> Option<(ToClient, String)> {
        let mut header = [0; HEADER_BYTES];
        self.stream.read_exact(&mut header).ok()?;
        let header = Header::decode(&header).expect("a frame");
        let mut payload = vec![0; header.length as usize];
        self.stream.read_exact(&mut payload).expect("its payload");
        Some((header.kind, String::from_utf8(payload).expect("text")))
    }

    fn until(&mut self, kind: ToClient) -> String {
        loop {
            let (found, text) = self
                .next()
                .unwrap_or_else(|| panic!("the stream ended before {kind:?}"));
            if found == kind {
                return text;
            }
        }
    }
}

/// Options of a pool whose one worker is none: it starts and never says a word.
fn silent_worker(cluster: &Cluster) -> String {
    let path = cluster.dir.path().join("silent");
    fs::write(&path, "#!/bin/sh\nexec sleep 600\n").expect("writable");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("ours");
    format!(", \"python\": \"{}\", \"max_workers\": 1", path.display())
}

fn phase(cluster: &Cluster, job: &str) -> String {
    common::cluster::text(&cluster.job(0, job)["phase"])
}

#[test]
fn a_request_without_upgrade_is_told_what_a_pool_is() {
    let cluster = Cluster::of(1);
    let (_, head) = FrameClient::request(&cluster, 0, "Content-Length: 0\r\n");
    assert!(head.starts_with("HTTP/1.1 426 "), "{head}");
}

#[test]
fn a_pool_that_no_node_can_serve_is_refused_with_the_reason() {
    let cluster = Cluster::of(1);
    let mut client = FrameClient::open(&cluster, 0, r#", "where": "cores > 100000""#);
    let told = client.until(ToClient::Error);
    assert!(
        told.contains("no node satisfies `where = \"cores > 100000\"`"),
        "{told}"
    );
    assert_eq!(client.next(), None);
}

#[test]
fn a_pool_is_listed_as_one_and_ends_with_its_client() {
    let cluster = Cluster::of(2);
    let mut client = FrameClient::open(&cluster, 0, &silent_worker(&cluster));
    let opened: serde_json::Value =
        serde_json::from_str(&client.until(ToClient::Opened)).expect("JSON");
    let job = common::cluster::text(&opened["job"]);
    let line = cluster.json(1, &["job", &job, "--json"]);
    assert!(line["workers"].is_u64() && line["tasks"] == 1, "{line}");
    assert!(
        cluster.ok(1, &["jobs"]).contains(" pool"),
        "{}",
        cluster.ok(1, &["jobs"])
    );
    drop(client);
    wait_for(SOON, "the pool's job ends with its client", || {
        (phase(&cluster, &job) == "done").then_some(())
    });
}

#[test]
fn a_pool_ends_when_the_node_that_serves_it_is_killed() {
    let mut cluster = Cluster::of(3);
    let mut client = FrameClient::open(&cluster, 2, &silent_worker(&cluster));
    let opened: serde_json::Value =
        serde_json::from_str(&client.until(ToClient::Opened)).expect("JSON");
    let job = common::cluster::text(&opened["job"]);
    cluster.kill9(2);
    wait_for(SOON, "its coordinator cancels the job", || {
        (phase(&cluster, &job) == "cancelled").then_some(())
    });
}

/// Whoever stands still is taken for dead. A client whose stream just ends opens its pool again, an
/// error would end its program.
#[test]
fn a_node_that_was_taken_for_dead_sends_its_client_away_without_an_error() {
    let cluster = Cluster::of(3);
    let mut client = FrameClient::open(&cluster, 2, &silent_worker(&cluster));
    let opened: serde_json::Value =
        serde_json::from_str(&client.until(ToClient::Opened)).expect("JSON");
    let job = common::cluster::text(&opened["job"]);
    let host = Pid::from_raw(cluster.pid(2) as i32).expect("a pid");
    kill_process(host, Signal::STOP).expect("ours");
    wait_for(LATER, "another node cancels the job", || {
        (phase(&cluster, &job) == "cancelled").then_some(())
    });
    kill_process(host, Signal::CONT).expect("ours");
    let told: Vec<_> = std::iter::from_fn(|| client.next())
        .filter(|(kind, _)| *kind == ToClient::Error)
        .collect();
    assert_eq!(told, []);
}
