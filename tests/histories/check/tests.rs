//! Histories made by hand: good ones, which must pass, and one for each promise that breaks it.

use super::{HistoryVerdict, check, jobs::expected_sum};
use serde_json::{Value, json};

/// A history that is written line by line; each call is answered 5 ms later.
struct Made {
    lines: Vec<Value>,
    at: u64,
    calls: u64,
}

impl Made {
    /// A job of four tasks, `a`, was submitted.
    fn new() -> Self {
        let begin = json!({ "at": 0, "what": "begin", "format": 1 });
        let mut made = Self {
            lines: vec![begin],
            at: 1_000,
            calls: 0,
        };
        made.submit("a", "id-a");
        made
    }

    fn line(&mut self, mut line: Value) -> &mut Self {
        line["at"] = self.at.into();
        self.lines.push(line);
        self
    }

    fn wait(&mut self, ms: u64) -> &mut Self {
        self.at += ms;
        self
    }

    fn call(&mut self, op: &str, mut asked: Value, mut answer: Value) -> &mut Self {
        for (line, what) in [(&mut asked, "call"), (&mut answer, "answer")] {
            line["what"] = what.into();
            line["call"] = self.calls.into();
        }
        asked["op"] = op.into();
        asked["client"] = "c".into();
        if asked["node"].is_null() {
            asked["node"] = "n0".into();
        }
        if answer["ok"].is_null() {
            answer["ok"] = answer["error"].is_null().into();
        }
        self.calls += 1;
        self.line(asked).wait(5).line(answer)
    }

    fn submit(&mut self, name: &str, id: &str) -> &mut Self {
        let asked = json!({ "job": name, "tasks": 4, "bytes": 100, "ms": 10, "sort": "plain" });
        self.call("submit", asked, json!({ "id": id }))
    }

    fn run(&mut self, task: u64, attempt: &str, node: &str, event: &str) -> &mut Self {
        self.line(json!({ "what": "run", "job": "a", "task": task, "attempt": attempt, "node": node, "event": event }))
    }

    fn read(&mut self, phase: &str, rows: &[Value]) -> &mut Self {
        let progress = json!({ "phase": phase, "tasks": 4, "done": rows.len(), "failed": 0 });
        self.call(
            "read",
            json!({ "job": "a" }),
            json!({ "progress": progress, "claims": 1, "results": rows }),
        )
    }

    fn fetch(&mut self, task: u64, answer: Value) -> &mut Self {
        self.call(
            "fetch",
            json!({ "job": "a", "task": task, "file": "out", "hash": "h" }),
            answer,
        )
    }

    fn fault(&mut self, number: u64, kind: &str, nodes: &[&str]) -> &mut Self {
        self.line(json!({ "what": "fault", "fault": number, "kind": kind, "nodes": nodes }))
    }

    fn end(&mut self, number: u64) -> &mut Self {
        self.line(json!({ "what": "end", "fault": number }))
    }

    fn quiet(&mut self) -> &mut Self {
        self.wait(30_000).line(json!({ "what": "quiet" }))
    }

    /// Everybody has been asked, and the run is over.
    fn over(&mut self) -> HistoryVerdict {
        self.line(json!({ "what": "read" }))
            .line(json!({ "what": "over" }));
        check(&self.lines)
    }
}

fn done(task: u64, attempt: &str) -> Value {
    json!({ "task": task, "status": "done", "attempt": attempt, "by": "n1", "value": format!("a:{task}"),
        "files": { "out": { "hash": "h", "bytes": 100 } } })
}

fn all() -> Vec<Value> {
    (0..4).map(|task| done(task, "1.1")).collect()
}

fn promises(verdict: &HistoryVerdict) -> Vec<&'static str> {
    verdict
        .violations
        .iter()
        .map(|violation| violation.promise)
        .collect()
}

#[track_caller]
fn assert_breaks(verdict: &HistoryVerdict, promise: &str) {
    assert_eq!(promises(verdict), [promise], "{verdict}");
}

#[track_caller]
fn assert_good(verdict: &HistoryVerdict) {
    assert_eq!(promises(verdict), Vec::<&str>::new(), "{verdict}");
}

#[test]
fn a_history_in_which_all_is_well_passes() {
    let mut made = Made::new();
    for task in 0..4 {
        made.run(task, "1.1", "n1", "start")
            .wait(10)
            .run(task, "1.1", "n1", "end");
    }
    made.read("running", &all()[..2])
        .fault(0, "kill", &["n1"])
        .wait(1_000)
        .end(0);
    made.quiet().read("done", &all()).fetch(
        0,
        json!({ "bytes": 100, "sum": expected_sum("a", 0, "out", 100) }),
    );
    made.call(
        "list",
        json!({}),
        json!({ "jobs": [{ "id": "id-a", "job": "a", "phase": "done" }] }),
    );
    let verdict = made.over();
    assert_good(&verdict);
    assert_eq!(
        (
            verdict.counts["executions"],
            verdict.counts["results told"],
            verdict.counts["faults"]
        ),
        (4, 4, 1)
    );
}

#[test]
fn a_result_that_was_told_and_is_gone_is_found_with_its_story() {
    let mut made = Made::new();
    made.run(3, "1.1", "n1", "start")
        .wait(10)
        .run(3, "1.1", "n1", "end");
    made.run(2, "1.1", "n2", "start").read("done", &all());
    made.wait(5_000).fault(0, "lost", &["n1"]).end(0);
    let verdict = made.quiet().read("done", &all()[..3]).over();
    // The job is short of a result, too.
    assert_eq!(promises(&verdict), ["kept", "ends"], "{verdict}");
    let told = verdict.violations[0].to_string();
    let in_order = [
        "submit",
        "attempt 1.1 of task 3: end",
        "task 3 is done",
        "FAULT lost of n1",
        "no result of task 3",
    ];
    let places: Vec<_> = in_order
        .iter()
        .map(|words| {
            told.find(words)
                .unwrap_or_else(|| panic!("{words}: {told}"))
        })
        .collect();
    assert!(places.is_sorted(), "{told}");
    assert!(
        !told.contains("task 2:"),
        "other tasks do not belong here: {told}"
    );
}

#[test]
fn a_node_that_does_not_answer_where_all_is_whole_is_found() {
    let mut made = Made::new();
    made.quiet().read("done", &all());
    let verdict = made
        .call(
            "read",
            json!({ "job": "a", "node": "n2" }),
            json!({ "error": "nobody coordinates" }),
        )
        .over();
    assert_breaks(&verdict, "kept");
    // One that does so later has only been slow.
    let mut made = Made::new();
    made.quiet().call(
        "read",
        json!({ "job": "a" }),
        json!({ "error": "no whole answer" }),
    );
    assert_good(&made.read("done", &all()).over());
}

#[test]
fn wrong_contents_are_found() {
    let mut other = done(3, "1.1");
    other["value"] = "a:2".into();
    assert_breaks(
        &Made::new()
            .quiet()
            .read("done", &[&all()[..3], &[other]].concat())
            .over(),
        "content",
    );
    let mut short = done(3, "1.1");
    short["files"]["out"]["bytes"] = 99.into();
    assert_breaks(
        &Made::new()
            .quiet()
            .read("done", &[&all()[..3], &[short]].concat())
            .over(),
        "content",
    );
}

#[test]
fn a_told_result_that_becomes_another_attempts_is_found_unless_sides_were_parted() {
    let other = [&all()[..3], &[done(3, "2.7")]].concat();
    assert_breaks(
        &Made::new()
            .read("done", &all())
            .quiet()
            .read("done", &other)
            .over(),
        "changed",
    );
    let mut made = Made::new();
    made.fault(0, "cut", &["n1"])
        .read("done", &all())
        .wait(10)
        .end(0);
    let verdict = made.quiet().read("done", &other).over();
    assert_good(&verdict);
    assert_eq!(verdict.counts["told another attempt after a partition"], 1);
}

#[test]
fn two_results_of_a_task_and_too_many_are_found() {
    let twice = [all(), vec![done(3, "1.1")]].concat();
    assert_breaks(
        &Made::new()
            .read("done", &twice)
            .quiet()
            .read("done", &all())
            .over(),
        "once",
    );
    // After a retry, or when the coordinator changed in the middle, they are told again.
    let mut made = Made::new();
    made.call("retry", json!({ "job": "a" }), json!({ "tasks": 1 }))
        .read("done", &twice[1..]);
    assert_good(&made.quiet().read("done", &all()).over());
}

#[test]
fn files_that_are_wrong_or_gone_are_found() {
    let made = |answer: Value| {
        Made::new()
            .quiet()
            .read("done", &all())
            .fetch(2, answer)
            .over()
    };
    assert_breaks(
        &made(json!({ "bytes": 100, "sum": "0000000000000000" })),
        "file content",
    );
    assert_breaks(&made(json!({ "error": "404" })), "files kept");
    let mut made = Made::new();
    made.quiet()
        .read("done", &all())
        .fetch(2, json!({ "error": "no whole answer" }));
    assert_good(
        &made
            .fetch(
                2,
                json!({ "bytes": 100, "sum": expected_sum("a", 2, "out", 100) }),
            )
            .over(),
    );
    // What was had once and not later is gone.
    let mut made = Made::new();
    made.quiet().read("done", &all()).fetch(
        2,
        json!({ "bytes": 100, "sum": expected_sum("a", 2, "out", 100) }),
    );
    made.line(json!({ "what": "read" }))
        .fault(0, "lost", &["n1"])
        .end(0)
        .quiet()
        .read("done", &all());
    assert_breaks(
        &made.fetch(2, json!({ "error": "404" })).over(),
        "files kept",
    );
    assert_good(
        &Made::new()
            .fetch(2, json!({ "error": "404" }))
            .quiet()
            .read("done", &all())
            .over(),
    );
}

#[test]
fn a_cancellation_that_is_undone_is_found() {
    let cancel = |made: &mut Made| {
        made.call("cancel", json!({ "job": "a" }), json!({}));
    };
    let mut made = Made::new();
    cancel(&mut made);
    assert_breaks(&made.quiet().read("done", &all()).over(), "cancelled");
    // It had ended before.
    let mut made = Made::new();
    (0..4).for_each(|task| {
        made.run(task, "1.1", "n1", "start")
            .run(task, "1.1", "n1", "end");
    });
    cancel(&mut made);
    assert_good(&made.quiet().read("done", &all()).over());
    // All tasks ended on the other side of a cut, while that lasted.
    let ended_elsewhere = |after_the_cut: u64| {
        let mut made = Made::new();
        made.fault(0, "cut", &["n2"]);
        cancel(&mut made);
        made.wait(100);
        (0..3).for_each(|task| {
            made.run(task, "1.1", "n1", "start")
                .run(task, "1.1", "n1", "end");
        });
        made.run(3, "1.1", "n1", "start").end(0);
        made.wait(after_the_cut).run(3, "1.1", "n1", "end");
        made.quiet().read("done", &all()).over()
    };
    assert_good(&ended_elsewhere(100));
    assert_breaks(&ended_elsewhere(60_000), "cancelled");
    // One that was not answered may have come to nothing.
    let mut made = Made::new();
    made.call(
        "cancel",
        json!({ "job": "a" }),
        json!({ "error": "no whole answer" }),
    );
    assert_good(&made.quiet().read("done", &all()).over());
    // It stands, but tasks go on to begin.
    let mut made = Made::new();
    cancel(&mut made);
    made.wait(8_000).run(0, "1.1", "n1", "start");
    assert_breaks(&made.quiet().read("cancelled", &[]).over(), "cancelled");
}

#[test]
fn single_tasks_that_run_after_they_were_cancelled_are_found() {
    let mut made = Made::new();
    made.call("cancel", json!({ "job": "a", "tasks": [1] }), json!({}))
        .wait(8_000)
        .run(2, "1.1", "n1", "start");
    assert_good(&made.quiet().read("done", &all()).over());
    let mut made = Made::new();
    made.call("cancel", json!({ "job": "a", "tasks": [1] }), json!({}))
        .wait(8_000)
        .run(1, "1.1", "n1", "start");
    assert_breaks(&made.quiet().read("done", &all()).over(), "cancelled");
}

#[test]
fn jobs_that_do_not_end_or_fail_for_no_reason_are_found() {
    assert_breaks(
        &Made::new().quiet().read("running", &all()[..3]).over(),
        "ends",
    );
    let failed = json!({ "task": 3, "status": "failed", "attempt": "1.1", "by": "n1", "failure": { "kind": "disk" }, "files": {} });
    assert_breaks(
        &Made::new()
            .quiet()
            .read("failed", &[&all()[..3], &[failed]].concat())
            .over(),
        "fails",
    );
    assert_breaks(
        &Made::new().quiet().read("cancelled", &all()[..3]).over(),
        "ends",
    );
}

#[test]
fn a_submission_that_became_two_jobs_or_none_is_found() {
    let list = |jobs: Value| {
        let mut made = Made::new();
        made.quiet()
            .read("done", &all())
            .call("list", json!({}), json!({ "jobs": jobs }))
            .over()
    };
    let line = |id: &str| json!({ "id": id, "job": "a", "phase": "done" });
    assert_good(&list(json!([line("id-a")])));
    assert_breaks(&list(json!([line("id-a"), line("id-b")])), "submitted once");
    assert_breaks(&list(json!([])), "submitted once");
    assert_breaks(&list(json!([line("id-b")])), "submitted once");
}

#[test]
fn a_result_that_is_computed_again_is_found_unless_nobody_could_know() {
    let again = |made: &mut Made| {
        made.wait(10_000)
            .run(0, "2.1", "n2", "start")
            .quiet()
            .read("done", &all())
            .over()
    };
    assert_breaks(
        &again(Made::new().read("running", &all()[..1])),
        "computed once",
    );
    assert_breaks(
        &again(
            Made::new()
                .read("running", &all()[..1])
                .fault(0, "kill", &["n1"])
                .wait(100)
                .end(0),
        ),
        "computed once",
    );
    let both = ["n1", "n3"];
    let verdict = again(
        Made::new()
            .read("running", &all()[..1])
            .fault(0, "kill-all", &both)
            .wait(100)
            .end(0),
    );
    assert_good(&verdict);
    assert_eq!(verdict.counts["executions after the result was told"], 1);
    assert_good(&again(
        Made::new()
            .read("running", &all()[..1])
            .fault(0, "oneway", &["n1"])
            .wait(100)
            .end(0),
    ));
    // It was away itself.
    assert_good(&again(
        Made::new()
            .read("running", &all()[..1])
            .fault(0, "stop", &["n2"])
            .wait(100)
            .end(0),
    ));
    // An order that was on its way.
    let mut made = Made::new();
    made.read("running", &all()[..1])
        .wait(1_000)
        .run(0, "1.2", "n2", "start");
    assert_good(&made.quiet().read("done", &all()).over());
}

#[test]
fn what_is_stopped_without_need_is_found() {
    let stopped = |made: &mut Made| {
        made.wait(100)
            .run(0, "1.1", "n1", "stopped")
            .wait(10)
            .run(0, "1.2", "n2", "end")
            .quiet()
            .read("done", &all())
            .over()
    };
    assert_breaks(
        &stopped(Made::new().run(0, "1.1", "n1", "start")),
        "let run",
    );
    let verdict = stopped(
        Made::new()
            .run(0, "1.1", "n1", "start")
            .run(0, "1.2", "n2", "start"),
    );
    assert_breaks(&verdict, "let run");
    assert_eq!(verdict.counts["older attempts stopped for younger ones"], 1);
    // One that was ordered before its task had failed for good; not one that a retry asked for.
    let failed = json!({ "task": 0, "status": "failed", "attempt": "1.4", "by": "n2", "failure": { "kind": "exit" }, "files": {} });
    let after = |attempt| {
        let mut made = Made::new();
        made.read("running", std::slice::from_ref(&failed)).call(
            "retry",
            json!({ "job": "a" }),
            json!({ "tasks": 1 }),
        );
        made.run(0, attempt, "n1", "start")
            .run(0, attempt, "n1", "stopped")
            .wait(10)
            .run(0, "6@9", "n2", "end");
        made.quiet().read("done", &all()).over()
    };
    assert_good(&after("3@7"));
    assert_breaks(&after("5@7"), "let run");
    // Not without need: done elsewhere, cancelled, one too many, or its node was killed.
    let mut made = Made::new();
    made.run(0, "1.1", "n1", "start")
        .run(0, "1.2", "n2", "start")
        .run(0, "1.2", "n2", "end");
    assert_good(&stopped(&mut made));
    let mut made = Made::new();
    made.run(0, "1.1", "n1", "start").call(
        "cancel",
        json!({ "job": "a", "tasks": [0] }),
        json!({}),
    );
    assert_good(&stopped(&mut made));
    let mut made = Made::new();
    made.run(0, "1.1", "n1", "start")
        .run(0, "1.2", "n2", "start")
        .run(0, "1.3", "n3", "start");
    assert_good(&stopped(&mut made));
    assert_good(&stopped(Made::new().run(0, "1.1", "n1", "start").fault(
        0,
        "kill",
        &["n1"],
    )));
}

/// One whose task had failed as it should elsewhere; not after a retry.
#[test]
fn what_is_stopped_since_its_task_has_failed_was_not_wanted() {
    let gated = |retried: bool| {
        let mut made = Made::new();
        made.run(0, "1@7", "n2", "start")
            .run(0, "1@7", "n2", "gated")
            .wait(10);
        if retried {
            made.call("retry", json!({ "job": "a" }), json!({ "tasks": 1 }));
        }
        made.run(0, "2@8", "n1", "start")
            .wait(10)
            .run(0, "2@8", "n1", "stopped")
            .wait(10)
            .run(0, "6@9", "n2", "end");
        made.quiet().read("done", &all()).over()
    };
    assert_good(&gated(false));
    assert_breaks(&gated(true), "let run");
}

#[test]
fn nodes_that_end_by_themselves_or_stay_apart_are_found() {
    let made = |line: Value| Made::new().line(line).quiet().read("done", &all()).over();
    assert_breaks(
        &made(json!({ "what": "exited", "node": "n1", "status": "signal: 6", "while": "running" })),
        "stays up",
    );
    assert_breaks(
        &made(json!({ "what": "parted", "missing": ["n1 sees n2"] })),
        "meets again",
    );
    assert_breaks(&made(json!({ "what": "silent" })), "answers");
    let mut cut_short = Made::new();
    assert_breaks(
        &check(&cut_short.quiet().read("done", &all()).lines),
        "complete",
    );
}

#[test]
fn a_pool_whose_updates_or_results_are_not_in_order_is_found() {
    let pool = |lines: &[Value]| {
        let mut made = Made::new();
        for line in lines {
            let mut line = line.clone();
            line["what"] = "pool".into();
            line["pool"] = "pool".into();
            made.wait(1).line(line);
        }
        made.quiet().read("done", &all()).over()
    };
    let applied = |worker: &str, update: u64| json!({ "event": "applied", "worker": worker, "update": update });
    let asked = |item: u64, after: u64| json!({ "event": "asked", "item": item, "after": after });
    let result = |item: u64, value: u64, seen: u64| json!({ "event": "result", "item": item, "told": item, "value": value, "by": "w", "seen": seen });
    let closed = json!({ "event": "closed", "items": 1 });
    assert_good(&pool(&[
        applied("w", 1),
        applied("w", 2),
        applied("v", 1),
        asked(0, 1),
        result(0, 0, 2),
        closed.clone(),
    ]));
    assert_breaks(&pool(&[applied("w", 2)]), "updates in order");
    assert_breaks(
        &pool(&[applied("w", 1), applied("w", 1)]),
        "updates in order",
    );
    assert_breaks(&pool(&[asked(0, 3), result(0, 0, 2)]), "updates in order");
    assert_breaks(&pool(&[asked(3, 0), result(3, 8, 2)]), "pool results");
    assert_breaks(
        &pool(&[asked(0, 0), result(0, 0, 0), result(0, 0, 0)]),
        "pool results",
    );
    assert_breaks(&pool(&[asked(0, 0), closed]), "pool results");
    assert_breaks(
        &pool(&[json!({ "event": "failed", "error": "lost" })]),
        "pool results",
    );
}

#[test]
fn epochs_without_all_samples_are_found() {
    let trained = |counts: &[u64]| {
        let line =
            json!({ "what": "trained", "job": "a", "epochs": 3, "samples": 540, "counts": counts });
        Made::new().line(line).quiet().read("done", &all()).over()
    };
    assert_good(&trained(&[540, 539, 541]));
    assert_breaks(&trained(&[540, 515, 540]), "samples");
    assert_breaks(&trained(&[540, 540]), "samples");
}

#[test]
fn what_is_no_history_is_refused() {
    use crate::history::read;
    let begin = r#"{"at": 0, "what": "begin", "format": 1}"#;
    assert_eq!(
        read(&format!("{begin}\n{{\"at\": 5, \"what\": \"over\"}}\n")).map(|lines| lines.len()),
        Ok(2)
    );
    for text in [
        "",
        "{}",
        "x",
        r#"{"at": 0, "what": "over"}"#,
        r#"{"at": 0, "what": "begin", "format": 99}"#,
    ] {
        assert!(read(text).is_err(), "{text}");
    }
}
