//! A history's lines, put together: jobs with their calls and executions, faults with their nodes
//! and times.

use super::jobs::COUNTED;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

/// A node that was away is given as long to hear of what it missed.
pub const MARGIN: u64 = 15_000;

pub struct Model<'a> {
    pub lines: &'a [Value],
    pub jobs: BTreeMap<&'a str, LoggedJob<'a>>,
    pub faults: Vec<LoggedFault<'a>>,
    /// From `quiet` to `read`: when everything has to be there, with what index in `lines` it
    /// begins.
    pub quiet: Vec<(u64, u64)>,
    pub calls: Vec<LoggedCall<'a>>,
    /// The run came to its end.
    pub is_over: bool,
}

/// A call and its answer.
pub struct LoggedCall<'a> {
    pub at: u64,
    pub line: &'a Value,
    /// When, and what.
    pub answer: Option<(u64, &'a Value)>,
}

#[derive(Default)]
pub struct LoggedJob<'a> {
    pub name: &'a str,
    pub calls: Vec<usize>,
    pub runs: Vec<LoggedRun<'a>>,
    /// Lines that are about it and are neither.
    pub notes: Vec<&'a Value>,
}

/// Something that a task noted.
pub struct LoggedRun<'a> {
    pub at: u64,
    pub event: &'a str,
    pub task: u64,
    pub attempt: &'a str,
    pub node: &'a str,
}

pub struct LoggedFault<'a> {
    pub from: u64,
    /// None: for good, or until the run's end.
    pub to: Option<u64>,
    pub kind: &'a str,
    pub nodes: Vec<&'a str>,
    pub detail: &'a str,
}

/// A row of results that was told, and when.
#[derive(Clone, Copy)]
pub struct LoggedRow<'a> {
    pub at: u64,
    pub row: &'a Value,
}

impl<'a> Model<'a> {
    pub fn new(lines: &'a [Value]) -> Self {
        let mut model = Self {
            lines,
            jobs: BTreeMap::new(),
            faults: Vec::new(),
            quiet: Vec::new(),
            calls: Vec::new(),
            is_over: false,
        };
        let (mut calls, mut faults) = (BTreeMap::new(), BTreeMap::new());
        for line in lines {
            let at = line["at"].as_u64().unwrap_or(0);
            match line["what"].as_str().unwrap_or_default() {
                "call" => {
                    calls.insert(line["call"].as_u64(), model.calls.len());
                    model.call(at, line);
                }
                "answer" => {
                    if let Some(call) = calls.get(&line["call"].as_u64()) {
                        model.calls[*call].answer = Some((at, line));
                    }
                }
                "run" => model.run(at, line),
                "fault" => {
                    faults.insert(line["fault"].as_u64(), model.faults.len());
                    model.fault(at, line);
                }
                "detail" => {
                    if let Some(fault) = faults.get(&line["fault"].as_u64()) {
                        model.faults[*fault].detail = text(&line["text"]);
                    }
                }
                "end" => {
                    if let Some(fault) = faults.get(&line["fault"].as_u64()) {
                        model.faults[*fault].to = Some(at);
                    }
                }
                "quiet" => model.quiet.push((at, u64::MAX)),
                "read" => {
                    if let Some(last) = model.quiet.last_mut() {
                        last.1 = at;
                    }
                }
                "over" => model.is_over = true,
                "found" | "open" => model.job(text(&line["job"])).notes.push(line),
                _ => {}
            }
        }
        model
    }

    fn call(&mut self, at: u64, line: &'a Value) {
        if let Some(name) = line["job"].as_str() {
            let index = self.calls.len();
            self.job(name).calls.push(index);
        }
        self.calls.push(LoggedCall {
            at,
            line,
            answer: None,
        });
    }

    fn run(&mut self, at: u64, line: &'a Value) {
        let run = LoggedRun {
            at,
            event: text(&line["event"]),
            task: line["task"].as_u64().unwrap_or(0),
            attempt: text(&line["attempt"]),
            node: text(&line["node"]),
        };
        self.job(text(&line["job"])).runs.push(run);
    }

    fn fault(&mut self, at: u64, line: &'a Value) {
        let nodes = line["nodes"].as_array().into_iter().flatten();
        self.faults.push(LoggedFault {
            from: at,
            to: None,
            kind: text(&line["kind"]),
            nodes: nodes.map(text).collect(),
            detail: "",
        });
    }

    fn job(&mut self, name: &'a str) -> &mut LoggedJob<'a> {
        self.jobs.entry(name).or_insert_with(|| LoggedJob {
            name,
            ..LoggedJob::default()
        })
    }

    /// Calls about a job with this `op`, with their index.
    pub fn calls_of<'m>(
        &'m self,
        job: &'m LoggedJob<'a>,
        op: &'m str,
    ) -> impl Iterator<Item = (usize, &'m LoggedCall<'a>)> {
        let calls = job.calls.iter().map(|index| (*index, &self.calls[*index]));
        calls.filter(move |(_, call)| call.line["op"] == op)
    }

    /// Every row of results of a job that anybody was told, in order of the answers.
    pub fn told(&self, job: &LoggedJob<'a>) -> Vec<LoggedRow<'a>> {
        let mut told: Vec<LoggedRow> = Vec::new();
        for index in &job.calls {
            let Some((at, answer)) = self.calls[*index].answer else {
                continue;
            };
            let rows = answer["results"].as_array().into_iter().flatten();
            told.extend(rows.map(|row| LoggedRow { at, row }));
        }
        told.sort_by_key(|told| told.at);
        told
    }

    /// Whether a time lies where everything has to be there.
    pub fn is_quiet(&self, at: u64) -> bool {
        self.quiet
            .iter()
            .any(|(from, to)| (*from..=*to).contains(&at))
    }

    /// Nodes that were away at some moment between, with a margin.
    pub fn away_between(&self, from: u64, to: u64) -> BTreeSet<&'a str> {
        let faults = self
            .faults
            .iter()
            .filter(|fault| fault.takes_away() && fault.touches(from, to));
        faults.flat_map(|fault| fault.nodes.clone()).collect()
    }

    /// Whether the network was parted at some moment between: then both sides may go on without
    /// each other.
    pub fn parted_between(&self, from: u64, to: u64) -> bool {
        self.faults
            .iter()
            .any(|fault| fault.parts() && fault.touches(from, to))
    }

    /// Whether the network was parted at both moments, by one and the same fault.
    pub fn parted_at_both(&self, one: u64, other: u64) -> bool {
        let at = |fault: &LoggedFault, at| fault.parts() && fault.touches(at, at);
        self.faults
            .iter()
            .any(|fault| at(fault, one) && at(fault, other))
    }

    pub fn counts(&self) -> BTreeMap<&'static str, u64> {
        let mut counts: BTreeMap<&'static str, u64> =
            COUNTED.iter().map(|what| (*what, 0)).collect();
        counts.insert("calls", self.calls.len() as u64);
        counts.insert(
            "calls without an answer",
            self.calls.iter().filter(|call| !call.is_answered()).count() as u64,
        );
        counts.insert("faults", self.faults.len() as u64);
        counts.insert("jobs", self.jobs.len() as u64);
        let starts = self
            .jobs
            .values()
            .flat_map(|job| &job.runs)
            .filter(|run| run.event == "start");
        counts.insert("executions", starts.count() as u64);
        counts
    }
}

impl LoggedCall<'_> {
    pub fn is_answered(&self) -> bool {
        self.answer.is_some_and(|(_, answer)| answer["ok"] == true)
    }
}

impl LoggedFault<'_> {
    /// Whether the fault's nodes do not take part for a while.
    fn takes_away(&self) -> bool {
        !matches!(self.kind, "full" | "clock" | "loss" | "delay" | "slow")
    }

    /// Nodes that live do not hear of each other. What slows or loses packets may do so, too.
    fn parts(&self) -> bool {
        matches!(
            self.kind,
            "cut" | "part" | "oneway" | "reset" | "loss" | "delay" | "slow"
        )
    }

    /// Whether the fault goes on, or its consequences may, at some moment between.
    pub fn touches(&self, from: u64, to: u64) -> bool {
        // What is gone for good is repaired some time later, and away no more.
        let end = self.to.unwrap_or(if self.kind == "lost" {
            self.from
        } else {
            u64::MAX - MARGIN
        });
        self.from <= to && end + MARGIN >= from
    }
}

pub fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}
