//! Promises about nodes, pools and trainings: nodes do not end by themselves and find each other
//! again; a pool's updates come in order, each once, and its tasks give each a result; a training
//! in `bsp` learns from each sample once an epoch.

use super::{
    HistoryVerdict,
    model::{Model, text},
    story,
};
use serde_json::Value;
use std::collections::BTreeMap;

pub fn check(model: &Model, verdict: &mut HistoryVerdict) {
    nodes(model, verdict);
    pools(model, verdict);
    trainings(model, verdict);
}

fn lines<'m>(model: &'m Model, what: &'m str) -> impl Iterator<Item = (u64, &'m Value)> {
    let of_kind = model.lines.iter().filter(move |line| line["what"] == what);
    of_kind.map(|line| (line["at"].as_u64().unwrap_or(0), line))
}

fn nodes(model: &Model, verdict: &mut HistoryVerdict) {
    for (at, line) in lines(model, "exited") {
        let text = format!(
            "{} ended by itself while {}: {}",
            text(&line["node"]),
            text(&line["while"]),
            text(&line["status"])
        );
        verdict.add(
            "stays up",
            text,
            story::with_faults(model, Vec::new(), at.saturating_sub(20_000), at),
        );
    }
    for (at, line) in lines(model, "parted") {
        let text = format!(
            "without any fault, nodes do not find each other again: {}",
            line["missing"]
        );
        verdict.add(
            "meets again",
            text,
            story::with_faults(model, Vec::new(), at.saturating_sub(120_000), at),
        );
    }
    for (at, _) in lines(model, "silent") {
        let text = "a cluster that is whole did not say all that it was asked".to_string();
        verdict.add(
            "answers",
            text,
            story::with_faults(model, Vec::new(), at.saturating_sub(60_000), at),
        );
    }
    for (at, line) in lines(model, "unusable") {
        verdict.add(
            "meets again",
            format!("no cluster came up: {}", text(&line["why"])),
            story::with_faults(model, Vec::new(), 0, at),
        );
    }
    if !model.is_over && lines(model, "unusable").next().is_none() {
        verdict.add(
            "complete",
            "the history ends before its run did".into(),
            Vec::new(),
        );
    }
}

fn pools(model: &Model, verdict: &mut HistoryVerdict) {
    let mut seen = PoolSeen::default();
    for (at, line) in lines(model, "pool") {
        let Some((promise, text)) = seen.note(line) else {
            continue;
        };
        let concerns = |line: &&Value| {
            ["opened", "closed", "failed", "hangs"].contains(&self::text(&line["event"]))
        };
        let about = lines(model, "pool").map(|(_, line)| line).filter(concerns);
        let about = about
            .map(|line| (line["at"].as_u64().unwrap_or(0), line.to_string()))
            .collect();
        verdict.add(promise, text, story::with_faults(model, about, 0, at));
        // What follows a broken order is broken, too.
        let event = self::text(&line["event"]);
        if ["applied", "result"].contains(&event) {
            return;
        }
    }
}

/// What a pool's client and its workers noted so far.
#[derive(Default)]
struct PoolSeen<'a> {
    /// Updates that each worker has applied.
    applied: BTreeMap<&'a str, Vec<u64>>,
    /// After how many updates each item was asked for.
    asked: BTreeMap<u64, u64>,
    /// How often the result of each item came.
    results: BTreeMap<u64, u64>,
}

impl<'a> PoolSeen<'a> {
    /// The promise that a line breaks, if it does, and how.
    fn note(&mut self, line: &'a Value) -> Option<(&'static str, String)> {
        let number = |key: &str| line[key].as_u64().unwrap_or(0);
        match text(&line["event"]) {
            "applied" => {
                let worker = text(&line["worker"]);
                let before = self.applied.entry(worker).or_default();
                let (update, count) = (number("update"), before.len());
                before.push(update);
                let broken = format!("worker {worker} got update {update} after {count}");
                (update != count as u64 + 1).then_some(("updates in order", broken))
            }
            "asked" => {
                self.asked.insert(number("item"), number("after"));
                None
            }
            "result" => self.result(line),
            event @ ("failed" | "hangs") => {
                let error = text(&line["error"]);
                Some(("pool results", format!("the pool {event}: {error}")))
            }
            "closed" => {
                let (items, results) = (number("items"), self.results.len());
                let broken = format!("{results} results of {items} items");
                (results as u64 != items).then_some(("pool results", broken))
            }
            _ => None,
        }
    }

    fn result(&mut self, line: &Value) -> Option<(&'static str, String)> {
        let item = line["item"].as_u64().unwrap_or(0);
        let times = self.results.entry(item).or_default();
        *times += 1;
        let is_right = line["told"] == item && line["value"] == item * item;
        if !is_right || *times > 1 {
            let broken =
                format!("the result of item {item} is not its own, or not its first: {line}");
            return Some(("pool results", broken));
        }
        let seen = line["seen"].as_u64().unwrap_or(0);
        let asked = self.asked.get(&item).copied().unwrap_or(0);
        let broken =
            format!("item {item} ran after {seen} updates, it was asked for after {asked}");
        (seen < asked).then_some(("updates in order", broken))
    }
}

/// Counts come from a rate and a time, both rounded; a batch that is missing or counted twice is
/// far more.
const ROUNDING: u64 = 5;

fn trainings(model: &Model, verdict: &mut HistoryVerdict) {
    for (at, line) in lines(model, "trained") {
        let (epochs, samples) = (
            line["epochs"].as_u64().unwrap_or(0),
            line["samples"].as_u64().unwrap_or(0),
        );
        let counts: Vec<u64> = line["counts"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(Value::as_u64)
            .collect();
        let is_whole = |count: &u64| count.abs_diff(samples) <= ROUNDING;
        let is_right = counts.len() as u64 == epochs && counts.iter().all(is_whole);
        if is_right {
            continue;
        }
        let wrong: Vec<(usize, &u64)> = counts
            .iter()
            .enumerate()
            .filter(|(_, count)| !is_whole(count))
            .collect();
        let text = format!(
            "{} epochs of {epochs}, of which {} have not {samples} samples: {wrong:?} {}",
            counts.len(),
            wrong.len(),
            text(&line["error"])
        );
        let story = model
            .jobs
            .get(self::text(&line["job"]))
            .map(|job| story::of_task(model, job, None, at));
        verdict.add("samples", text, story.unwrap_or_default());
    }
}
