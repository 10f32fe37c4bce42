//! What a run came to: what it found that must not be, and what it did.

use std::{collections::BTreeMap, fmt};

/// The first finding of each rule.
#[derive(Debug, Default)]
pub struct RunVerdict {
    pub findings: BTreeMap<&'static str, String>,
    /// Go on after a finding, for those that come later.
    pub keep_going: bool,
    /// Rules that are not looked at.
    pub ignored: Vec<String>,
}

impl RunVerdict {
    pub fn add(&mut self, rule: &'static str, text: String) {
        if !self
            .ignored
            .iter()
            .any(|ignored| rule.contains(ignored.as_str()))
        {
            self.findings.entry(rule).or_insert(text);
        }
    }

    pub fn is_final(&self) -> bool {
        !self.keep_going && !self.findings.is_empty()
    }
}

/// What happened, of which some must have happened for the checks to mean anything.
#[derive(Debug, Default)]
pub struct Statistics {
    pub events: u64,
    pub messages: u64,
    pub crashes: u64,
    pub takeovers: u64,
    pub tasks: u64,
    pub executions: u64,
    /// Results that were told, of tasks that were done more than once.
    pub repeated: u64,
    /// Jobs that run though their submitter never heard of them, since the node it had asked died.
    pub unheard: u64,
    pub branches: BTreeMap<&'static str, u64>,
}

/// Branches that a long run must have reached.
pub const SOMETIMES: &[&str] = &[
    "a farewell is noted",
    "a gang finds no room",
    "a gang runs on several nodes",
    "a gang waits for room",
    "a rank aborts",
    "a job of many tasks",
    "a node takes over while files are on their way",
    "a queue overflows",
    "a replica is lost before it has all",
    "a replica joins a job that runs",
    "a result is told by a lone node",
    "a submission's answer is lost",
    "a takeover",
    "a task runs twice at once",
    "a wall answers for a live node",
    "a write is durable and nobody heard",
    "an attempt of an earlier epoch ends after a takeover",
    "files are healed from another holder",
    "cancelled right before a crash",
    "results are learned from another holder",
    "two claims in one epoch",
    "a copy of an ended job rests",
    "the cells of a job that rests are read again",
    "a coordinator's disk is full",
    "a journal is damaged",
    "a record turns bad",
    "a lost machine held the last copy but one",
    "a stalled coordinator comes back to another's claim",
    "a cut never heals",
    "a data directory is copied",
    "a cluster is upgraded node by node",
    "a large specification is fetched",
    "a sweep gives a task up",
    "a task is tried again",
    "a task begins that needs others",
    "a task ends because another failed",
    "a job waits for another",
    "a job comes after the end of one that was done",
    "a job comes after the end of one that was not done",
    "a writer of a log finds its key",
    "a writer of a log looks for its key",
    "an ended job is forgotten",
    "a pool is opened anew",
    "a pool makes room",
    "a pool's call ends its workers too often",
    "a pool's host dies",
    "a pool's stream falls silent",
    "a pool's worker dies at a call",
    "the job of a closed pool is found",
    "everything is down at once",
];

impl Statistics {
    pub fn add(&mut self, other: &Statistics) {
        self.events += other.events;
        self.messages += other.messages;
        self.crashes += other.crashes;
        self.takeovers += other.takeovers;
        self.tasks += other.tasks;
        self.executions += other.executions;
        self.repeated += other.repeated;
        self.unheard += other.unheard;
        for (name, count) in &other.branches {
            *self.branches.entry(name).or_default() += count;
        }
    }

    /// Branches that were never reached.
    pub fn missed(&self) -> Vec<&'static str> {
        SOMETIMES
            .iter()
            .copied()
            .filter(|name| !self.branches.contains_key(name))
            .collect()
    }
}

impl fmt::Display for Statistics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            events,
            messages,
            crashes,
            takeovers,
            tasks,
            executions,
            repeated,
            unheard,
            branches: _,
        } = self;
        write!(
            f,
            "{events} events, {messages} messages, {crashes} crashes, {takeovers} takeovers, {tasks} tasks, \
             {executions} executions, {repeated} tasks done more than once, {unheard} jobs whose users never heard of them"
        )
    }
}
