//! Two looks at the cluster, and what happened between them.

use crate::chronicle::{Chronicle, EventKind};
use serde_json::{Value, json};

fn node(id: &str, alive: bool, more: Value) -> Value {
    let mut node = json!({ "id": id, "name": id, "alive": alive, "draining": false });
    let fields = node.as_object_mut().expect("an object");
    fields.extend(more.as_object().expect("an object").clone());
    node
}

fn job(epoch: u64, failed: u64, phase: &str, ended_ms: u64) -> Value {
    json!({
        "id": "ab", "name": "areas", "user": "ada", "submitter_name": "a", "submitted_ms": 50,
        "epoch": epoch, "coordinator": "b", "failed": failed, "phase": phase,
        "ended_ms": if ended_ms > 0 { json!(ended_ms) } else { Value::Null },
    })
}

fn told(chronicle: &Chronicle) -> Vec<(u64, EventKind, String)> {
    let events = chronicle.events();
    let line = |event: &crate::chronicle::ChronicleEvent| {
        (
            event.at_ms,
            event.kind,
            format!("{} {}", event.subject, event.text),
        )
    };
    events.map(line).collect()
}

#[test]
fn nodes_that_come_and_go_are_told() {
    let mut chronicle = Chronicle::default();
    let plain = || json!({});
    chronicle.look(
        vec![node("a", true, plain()), node("b", true, plain())],
        vec![],
        100,
    );
    assert!(told(&chronicle).is_empty(), "how things were is no event");
    let closed = json!({ "draining": true, "closed": { "why": "is paused by its owner" } });
    chronicle.look(
        vec![
            node("a", true, closed),
            node("b", false, plain()),
            node("c", true, plain()),
        ],
        vec![],
        200,
    );
    let away = json!({ "left": true });
    chronicle.look(
        vec![
            node("a", true, json!({ "problem": "its disk is full" })),
            node("b", true, plain()),
            node("c", false, away),
        ],
        vec![],
        300,
    );
    let expected = [
        (200, EventKind::Closed, "a is paused by its owner"),
        (200, EventKind::Died, "b died, or cannot be reached"),
        (200, EventKind::Joined, "c joined the cluster"),
        (300, EventKind::Opened, "a takes work again"),
        (300, EventKind::Trouble, "a its disk is full"),
        (300, EventKind::Returned, "b is back"),
        (300, EventKind::Left, "c left the cluster"),
    ];
    let expected = expected.map(|(at, kind, text)| (at, kind, text.to_string()));
    assert_eq!(told(&chronicle), expected);
}

#[test]
fn a_jobs_way_is_told_with_takeovers_failures_and_retries() {
    let mut chronicle = Chronicle::default();
    let nodes = || vec![node("b", true, json!({}))];
    for (at, job) in [
        (100, job(1, 0, "running", 0)),
        (200, job(2, 1, "running", 0)),
        (300, job(2, 0, "running", 0)),
        (400, job(2, 0, "done", 390)),
        (500, job(2, 0, "done", 390)),
    ] {
        chronicle.look(nodes(), vec![job], at);
    }
    let expected = [
        (50, EventKind::Submitted, "areas submitted by ada at a"),
        (200, EventKind::Takeover, "areas b took over (epoch 2)"),
        (200, EventKind::TaskFailed, "areas 1 task failed for good"),
        (300, EventKind::Retried, "areas 1 failed tasks run again"),
        (390, EventKind::Ended, "areas done"),
    ];
    let expected = expected.map(|(at, kind, text)| (at, kind, text.to_string()));
    assert_eq!(told(&chronicle), expected);
}

#[test]
fn no_more_than_a_thousand_are_kept() {
    let mut chronicle = Chronicle::default();
    for at in 0..1500 {
        chronicle.look(vec![node("a", at % 2 == 0, json!({}))], vec![], at);
    }
    assert_eq!(chronicle.events().count(), 1000);
    assert_eq!(
        chronicle.events().last().map(|event| event.at_ms),
        Some(1499)
    );
}
