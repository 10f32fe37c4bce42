//! `[node.policy]`: when the machine is lent, to whom, and how much of it.

use super::{NodeSettings, Period, Size};
use nodectl_types::{
    Admits, Policy, Terms, WhenClosed,
    limits::{MAX_ADMITS, MAX_LABEL_BYTES},
    policy::{Idle, Span, WorkKind},
};
use serde::{Deserialize, Serialize};

/// Nothing in it limits anything unless it is set.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PolicySettings {
    /// Patterns of the users whose jobs are taken; empty for everybody's.
    pub users: Vec<String>,
    /// Patterns of the nodes whose users' jobs are taken.
    pub nodes: Vec<String>,
    /// Kinds of jobs that are taken.
    pub kinds: Vec<WorkKind>,
    /// Patterns of programs that commands may begin with.
    pub commands: Vec<String>,
    /// Parts of the week in local time, such as `Mon-Fri 20:00-08:00`.
    pub hours: Vec<String>,
    /// Tasks run only while nobody uses the machine.
    pub only_when_idle: bool,
    /// So long nobody must have pressed a key.
    pub idle_after: Period,
    /// Cores that other programs may keep busy.
    pub idle_load: f64,
    /// Cores that tasks leave alone.
    pub keep_cores: f64,
    /// Memory that tasks leave alone.
    pub keep_memory: Size,
    /// What becomes of running tasks when they may run no longer.
    pub when_closed: WhenClosed,
    /// How long they may stay then, running (`stop`) or standing still (`suspend`).
    pub grace: Period,
}

impl Default for PolicySettings {
    fn default() -> Self {
        Self {
            users: Vec::new(),
            nodes: Vec::new(),
            kinds: Vec::new(),
            commands: Vec::new(),
            hours: Vec::new(),
            only_when_idle: false,
            idle_after: Period::minutes(10),
            idle_load: 0.5,
            keep_cores: 0.0,
            keep_memory: Size(0),
            when_closed: WhenClosed::Finish,
            grace: Period::minutes(10),
        }
    }
}

impl NodeSettings {
    /// What the owner says by settings. They were checked.
    pub fn terms(&self) -> Terms {
        let PolicySettings {
            users,
            nodes,
            kinds,
            commands,
            ..
        } = self.policy.clone();
        let idle = Idle {
            after: self.policy.idle_after.0,
            load_milli: (self.policy.idle_load * 1000.0).round() as u32,
        };
        let policy = Policy {
            admits: Admits {
                users,
                nodes,
                kinds,
                commands,
            },
            hours: self
                .policy
                .hours
                .iter()
                .filter_map(|span| span.parse().ok())
                .collect(),
            idle: self.policy.only_when_idle.then_some(idle),
            when_closed: self.policy.when_closed,
            grace: self.policy.grace.0,
        };
        Terms {
            takes_work: self.takes_work,
            policy,
        }
    }
}

/// The first key whose value makes no sense, and what is wrong with it.
pub(super) fn check(policy: &PolicySettings) -> Result<(), (String, String)> {
    let fail = |key: &str, problem: String| Err((format!("node.policy.{key}"), problem));
    for (key, patterns) in [
        ("users", &policy.users),
        ("nodes", &policy.nodes),
        ("commands", &policy.commands),
    ] {
        if patterns.len() > MAX_ADMITS
            || patterns
                .iter()
                .any(|pattern| pattern.len() > MAX_LABEL_BYTES)
        {
            return fail(
                key,
                format!("at most {MAX_ADMITS} patterns of {MAX_LABEL_BYTES} bytes each"),
            );
        }
    }
    if policy.kinds.len() > MAX_ADMITS {
        return fail("kinds", format!("at most {MAX_ADMITS} kinds"));
    }
    for span in &policy.hours {
        if let Err(error) = span.parse::<Span>() {
            return fail("hours", error.to_string());
        }
    }
    for (key, cores) in [
        ("idle_load", policy.idle_load),
        ("keep_cores", policy.keep_cores),
    ] {
        if !(0.0..=super::check::MAX_AMOUNT).contains(&cores) {
            return fail(key, format!("{cores} is no number of cores"));
        }
    }
    Ok(())
}
