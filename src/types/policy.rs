//! When a machine's owner lends it, and to whom: hours of the week, only while nobody uses it,
//! whose jobs and which. Decided from what was seen of the machine; looking belongs to `app`.

use super::{Closed, WorkSpec, WorkerRole, WorkerSpec, glob, spec::Builtin};
use serde::{Deserialize, Serialize};
use std::{fmt, str::FromStr, time::Duration};

const DAY: u16 = 24 * 60;
const WEEK: u16 = 7 * DAY;
const DAYS: [&str; 7] = ["mon", "tue", "wed", "thu", "fri", "sat", "sun"];

/// `[node.policy]` of the settings.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Policy {
    pub admits: Admits,
    /// When tasks may run; at any time if there is none.
    pub hours: Vec<Span>,
    /// Tasks run only while nobody uses the machine.
    pub idle: Option<Idle>,
    /// What becomes of running tasks when they may run no longer.
    pub when_closed: WhenClosed,
    /// How long they may stay after that, if not until they end.
    pub grace: Duration,
}

/// What counts as nobody using the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Idle {
    /// So long no key was pressed.
    pub after: Duration,
    /// Other programs keep at most so much of a core busy, in thousandths; twice as much once tasks
    /// run.
    pub load_milli: u32,
}

/// What becomes of tasks that run when the node closes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WhenClosed {
    /// Tasks go on to their ends.
    #[default]
    Finish,
    /// Tasks stand still until the node opens again. Those for which that takes longer than the
    /// grace are given to other nodes.
    Suspend,
    /// Tasks may go on for the grace; what has not ended then is given to other nodes.
    Stop,
}

/// What was seen of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Surroundings {
    /// Of the week in local time, from Monday 0:00.
    pub minute: u16,
    /// How long ago somebody pressed a key; None if nobody is there who could.
    pub untouched: Option<Duration>,
    /// How much of a core programs other than tasks keep busy, in thousandths.
    pub others_milli: u32,
}

impl Policy {
    /// The machine has to be looked at.
    pub fn looks(&self) -> bool {
        !self.hours.is_empty() || self.idle.is_some()
    }

    /// Why no task may run now, if none may. `is_open`: they may at present, so that a node at the
    /// edge does not flutter.
    pub fn closed(&self, seen: Option<&Surroundings>, is_open: bool) -> Option<Closed> {
        if !self.looks() {
            return None;
        }
        let Some(seen) = seen else {
            return Some(Closed::Looking);
        };
        if !self.hours.is_empty() && !self.hours.iter().any(|span| span.contains(seen.minute)) {
            return Some(Closed::Hours);
        }
        let idle = self.idle?;
        if seen
            .untouched
            .is_some_and(|untouched| untouched < idle.after)
        {
            return Some(Closed::Keyboard);
        }
        let most = if is_open {
            idle.load_milli.saturating_mul(2)
        } else {
            idle.load_milli
        };
        (seen.others_milli > most).then_some(Closed::Busy)
    }
}

/// Whose jobs a node takes, and which. An empty list leaves it open.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Admits {
    /// Patterns of users' names.
    pub users: Vec<String>,
    /// Patterns of names of nodes at which jobs are submitted.
    pub nodes: Vec<String>,
    pub kinds: Vec<WorkKind>,
    /// Patterns of programs that commands may begin with.
    pub commands: Vec<String>,
}

/// The kinds of work, by what runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WorkKind {
    /// A command.
    Command,
    /// Calls of a Python class.
    Python,
    /// Worker processes of a Python client.
    Pool,
    /// Entries that users append: nothing runs.
    Log,
    Kernel,
    Train,
    Integrate,
}

impl WorkKind {
    pub fn of(work: &WorkSpec) -> Self {
        match &work.worker {
            None => Self::Command,
            Some(WorkerSpec::Python(python)) => match python.role {
                WorkerRole::Calls { .. } => Self::Python,
                WorkerRole::Pool { .. } => Self::Pool,
            },
            Some(WorkerSpec::Log) => Self::Log,
            Some(WorkerSpec::Builtin(builtin)) => match builtin.part {
                Builtin::Kernel => Self::Kernel,
                Builtin::Train => Self::Train,
                Builtin::Integrate => Self::Integrate,
            },
        }
    }
}

impl fmt::Display for WorkKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Command => "command",
            Self::Python => "python",
            Self::Pool => "pool",
            Self::Log => "log",
            Self::Kernel => "kernel",
            Self::Train => "train",
            Self::Integrate => "integrate",
        })
    }
}

impl Admits {
    /// Why the work is not taken, if it is not: the rest of a sentence that begins with the node.
    pub fn objection(&self, work: &WorkSpec) -> Option<String> {
        let lacks = |patterns: &[String], text: &str| {
            !patterns.is_empty() && !patterns.iter().any(|pattern| glob::matches(pattern, text))
        };
        let author = &work.author;
        if lacks(&self.users, &author.user) {
            return Some(format!(
                "takes no jobs of user {} (node.policy.users)",
                author.user
            ));
        }
        if lacks(&self.nodes, &author.node) {
            return Some(format!(
                "takes no jobs that were submitted at {} (node.policy.nodes)",
                author.node
            ));
        }
        let kind = WorkKind::of(work);
        if !self.kinds.is_empty() && !self.kinds.contains(&kind) {
            return Some(format!("takes no jobs of kind {kind} (node.policy.kinds)"));
        }
        // What a worker runs is no command, and `kinds` has its say about it.
        let of_kinds = work.kinds.iter().map(|kind| &kind.command);
        let mut programs = std::iter::once(&work.command)
            .chain(of_kinds)
            .filter_map(|command| command.first());
        let program = programs.find(|program| lacks(&self.commands, program))?;
        Some(format!("does not run {program} (node.policy.commands)"))
    }
}

/// A part of the week: some days, and hours of them; those that go past midnight belong to the day
/// on which they begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// A bit for each, Monday the lowest.
    days: u8,
    from: u16,
    to: u16,
}

/// Why a text is no part of the week.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{text}` is no part of the week: {why}; e.g. `20:00-08:00`, `Mon-Fri 18:30-07:00` or `Sat,Sun`"
)]
pub struct BadSpan {
    text: String,
    why: &'static str,
}

impl Span {
    pub fn contains(&self, minute: u16) -> bool {
        let minute = minute % WEEK;
        let (day, time) = (minute / DAY, minute % DAY);
        let is_on = |day: u16| self.days & (1 << day) != 0;
        if self.from < self.to {
            return is_on(day) && (self.from..self.to).contains(&time);
        }
        let yesterday = (day + 6) % 7;
        (is_on(day) && time >= self.from) || (is_on(yesterday) && time < self.to)
    }
}

impl FromStr for Span {
    type Err = BadSpan;

    fn from_str(text: &str) -> Result<Self, BadSpan> {
        let bad = |why| BadSpan {
            text: text.chars().take(60).collect(),
            why,
        };
        let parts: Vec<&str> = text.split_whitespace().collect();
        let (days, hours) = match parts.as_slice() {
            [one] if one.contains(':') => (None, Some(*one)),
            [one] => (Some(*one), None),
            [days, hours] => (Some(*days), Some(*hours)),
            _ => return Err(bad("it has days, then hours, or one of them")),
        };
        let days = days
            .map_or(Some(0x7f), days_of)
            .ok_or_else(|| bad("days are Mon, Tue, … or ranges of them"))?;
        let hours = hours
            .map_or(Some((0, DAY)), hours_of)
            .ok_or_else(|| bad("hours are HH:MM-HH:MM"))?;
        if hours.0 == hours.1 {
            return Err(bad(
                "it ends when it begins; without hours it is the whole day",
            ));
        }
        Ok(Self {
            days,
            from: hours.0,
            to: hours.1,
        })
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = (0..7)
            .filter(|day| self.days & (1 << day) != 0)
            .map(|day| DAYS[day]);
        let time = |minute: u16| format!("{:02}:{:02}", minute / 60, minute % 60);
        write!(
            f,
            "{} {}-{}",
            names.collect::<Vec<_>>().join(","),
            time(self.from),
            time(self.to)
        )
    }
}

/// `Mon-Fri,Sun`.
fn days_of(text: &str) -> Option<u8> {
    let day = |name: &str| DAYS.iter().position(|day| name.eq_ignore_ascii_case(day));
    text.split(',').try_fold(0, |days, part| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (day(first)?, day(last)?);
        let length = (last + 7 - first) % 7;
        Some((0..=length).fold(days, |days, ahead| days | 1 << ((first + ahead) % 7)))
    })
}

/// `HH:MM-HH:MM`; the end may be 24:00.
fn hours_of(text: &str) -> Option<(u16, u16)> {
    let time = |text: &str| {
        let (hours, minutes) = text.split_once(':')?;
        let number = |digits: &str| {
            digits
                .parse::<u16>()
                .ok()
                .filter(|_| digits.len() <= 2 && digits.bytes().all(|b| b.is_ascii_digit()))
        };
        let (hours, minutes) = (
            number(hours)?,
            number(minutes).filter(|_| minutes.len() == 2)?,
        );
        Some(hours * 60 + minutes).filter(|minute| minutes < 60 && *minute <= DAY)
    };
    let (from, to) = text.split_once('-')?;
    Some((time(from).filter(|from| *from < DAY)?, time(to)?))
}

#[cfg(test)]
mod tests;
