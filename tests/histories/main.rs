//! Histories: real nodes in network namespaces, clients that note every call and answer, a nemesis
//! that keeps to a schedule drawn from a seed, and a checker that reads what was noted and knows
//! the promises. `docs/internals/histories.md` describes it all, with the format.
//!
//! | file | owns |
//! |---|---|
//! | `plan` | what a seed draws: nodes, faults, times |
//! | `schedule` | one schedule from beginning to end |
//! | `nemesis`, `walls`, `machines` | faults: when; of the network; of nodes and disks |
//! | `clients`, `guests` | clients of the API; pools and trainings |
//! | `history` | the lines that are written |
//! | `check` | the checker, which knows only those |
//!
//! Settings come from the environment; `tests/histories/run` sets them: `HISTORIES_MINUTES`
//! (schedules until then; without it one short one), `HISTORIES_SEED` (of the first),
//! `HISTORIES_SECONDS` (of faults in each), `HISTORIES_FAULTS` (names, with commas: no others),
//! `HISTORIES_KEEP` (a directory for every history; without it those with violations go below the
//! target directory), `HISTORIES_CHECK` (a history to check), `NODECTL` (the program).

mod check;
mod clients;
#[path = "../common/mod.rs"]
mod common;
mod guests;
mod history;
mod machines;
mod nemesis;
mod plan;
mod schedule;
mod walls;

use plan::{FaultKind, NemesisPlan};
use std::{
    collections::BTreeMap,
    env, fs,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

/// Of faults in a schedule.
const SECONDS: u64 = 75;
/// Seconds of the schedule that every run of the tests has.
const SHORT_SECONDS: u64 = 30;
/// Four nodes with kills, stalls, a partition, and two machines lost in the end.
const SHORT_SEED: u64 = 155;

pub struct HistorySettings {
    pub nodectl: String,
    pub only: Option<Vec<FaultKind>>,
    pub keep: PathBuf,
    pub keep_all: bool,
}

#[test]
fn histories_keep_every_promise() {
    let minutes = number("HISTORIES_MINUTES");
    let first = number("HISTORIES_SEED").unwrap_or(SHORT_SEED);
    let seconds = number("HISTORIES_SECONDS").unwrap_or(if minutes.is_some() {
        SECONDS
    } else {
        SHORT_SECONDS
    });
    let settings = settings();
    let end = Instant::now() + Duration::from_secs(minutes.unwrap_or(0) * 60);
    let (mut broken, mut totals, mut schedules) = (
        BTreeMap::<&str, Vec<u64>>::new(),
        BTreeMap::<&str, u64>::new(),
        0,
    );
    for seed in first.. {
        let plan = NemesisPlan::new(seed, seconds, settings.only.as_deref());
        eprintln!("seed {seed}: {}", schedule::describe(&plan));
        let begun = Instant::now();
        let Some((verdict, kept)) = schedule::run(&settings, seed, seconds) else {
            return;
        };
        eprintln!("{verdict}");
        schedules += 1;
        verdict
            .counts
            .iter()
            .for_each(|(what, count)| *totals.entry(what).or_default() += count);
        for violation in &verdict.violations {
            broken.entry(violation.promise).or_default().push(seed);
        }
        if !verdict.violations.is_empty() {
            eprintln!(
                "seed {seed}: its history and logs are in {}",
                kept.display()
            );
            let faults = env::var("HISTORIES_FAULTS")
                .map(|names| format!(" --faults {names}"))
                .unwrap_or_default();
            eprintln!("again: tests/histories/run --seed {seed} --seconds {seconds}{faults}");
        }
        // Not one that would end long after.
        if Instant::now() + begun.elapsed() / 2 > end {
            break;
        }
    }
    let counts: Vec<String> = totals
        .iter()
        .map(|(what, count)| format!("{what} {count}"))
        .collect();
    eprintln!("histories: schedules {schedules}, {}", counts.join(", "));
    assert!(
        broken.is_empty(),
        "promises that were broken, with the seeds that show it: {broken:?}"
    );
}

/// `HISTORIES_CHECK=FILE`: whoever has a history, ours or another's, can have it checked.
#[test]
fn a_history_that_is_named_keeps_every_promise() {
    let Some(path) = env::var_os("HISTORIES_CHECK") else {
        return;
    };
    let text = fs::read_to_string(&path)
        .unwrap_or_else(|error| panic!("{}: {error}", Path::new(&path).display()));
    let lines = history::read(&text)
        .unwrap_or_else(|error| panic!("{}: {error}", Path::new(&path).display()));
    let verdict = check::check(&lines);
    eprintln!("{verdict}");
    assert!(
        verdict.violations.is_empty(),
        "{} promises were broken",
        verdict.violations.len()
    );
}

fn settings() -> HistorySettings {
    let only = env::var("HISTORIES_FAULTS").ok().map(|names| {
        let kind = |name: &str| {
            FaultKind::named(name)
                .unwrap_or_else(|| panic!("HISTORIES_FAULTS: no fault is called `{name}`"))
        };
        names
            .split(',')
            .filter(|name| !name.is_empty())
            .map(kind)
            .collect()
    });
    let keep = env::var_os("HISTORIES_KEEP").map(PathBuf::from);
    HistorySettings {
        nodectl: env::var("NODECTL").unwrap_or_else(|_| env!("CARGO_BIN_EXE_nodectl").into()),
        only,
        keep_all: keep.is_some(),
        keep: keep.unwrap_or_else(|| Path::new(env!("CARGO_TARGET_TMPDIR")).join("histories")),
    }
}

fn number(variable: &str) -> Option<u64> {
    let value = env::var(variable).ok()?;
    Some(
        value
            .parse()
            .unwrap_or_else(|_| panic!("{variable}: `{value}` is no number")),
    )
}

#[test]
fn answers_are_taken_apart_and_torn_ones_are_none() {
    let whole = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
    assert_eq!(common::http::split_answer(whole), Ok((200, b"ok".to_vec())));
    assert!(common::http::split_answer(&whole[..whole.len() - 1]).is_err());
    let chunked =
        b"HTTP/1.1 404 No\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n1;x\r\n!\r\n0\r\n\r\n";
    assert_eq!(
        common::http::split_answer(chunked),
        Ok((404, b"ok!".to_vec()))
    );
    assert!(common::http::split_answer(&chunked[..chunked.len() - 8]).is_err());
}
