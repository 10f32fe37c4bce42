//! The live table of a launch: host, state, GPUs found, time to join. On a terminal it is drawn
//! anew in place; elsewhere each change is a line on stderr.

use crate::output::{Look, TableColumn, layout};
use nodectl_launch::node::{LAUNCH_LABEL, MEMBER_LABEL};
use nodectl_ports::say::tell;
use nodectl_types::{text, units::format_duration};
use nodectl_wire::api::Node;
use rustix::termios::tcgetwinsize;
use serde::Serialize;
use std::{
    io::{self, IsTerminal, Write},
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

/// Lines of a terminal that does not say how many it has.
const USUAL_ROWS: usize = 24;

/// A member of a launch.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// Unique within the launch; nodes say it in a label.
    pub member: String,
    pub host: String,
    pub state: HostState,
    /// What the state's word does not say.
    pub note: String,
    pub gpus: Option<usize>,
    pub join_seconds: Option<f64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum HostState {
    Connecting,
    Copying,
    Starting,
    /// The node runs, and is not a member yet.
    Started,
    /// In a scheduler's queue.
    Waiting,
    Joined,
    Failed,
}

pub struct LaunchTable {
    rows: Mutex<Vec<Row>>,
    begun: Instant,
    told: bool,
    /// Lines drawn in place.
    drawn: Mutex<usize>,
}

impl Row {
    pub fn new(member: impl Into<String>, host: impl Into<String>, state: HostState) -> Self {
        Self {
            member: member.into(),
            host: host.into(),
            state,
            note: String::new(),
            gpus: None,
            join_seconds: None,
        }
    }

    pub fn is_settled(&self) -> bool {
        matches!(self.state, HostState::Joined | HostState::Failed)
    }
}

impl HostState {
    fn word(self) -> &'static str {
        match self {
            Self::Connecting => "connecting",
            Self::Copying => "copying",
            Self::Starting => "starting",
            Self::Started => "joining",
            Self::Waiting => "waiting",
            Self::Joined => "joined",
            Self::Failed => "failed",
        }
    }
}

impl LaunchTable {
    /// `told`: shown while it changes.
    pub fn new(told: bool) -> Self {
        Self {
            rows: Mutex::default(),
            begun: Instant::now(),
            told,
            drawn: Mutex::default(),
        }
    }

    pub fn rows(&self) -> Vec<Row> {
        self.lock().clone()
    }

    pub fn failed(&self) -> usize {
        self.lock()
            .iter()
            .filter(|row| row.state == HostState::Failed)
            .count()
    }

    pub fn is_settled(&self) -> bool {
        self.lock().iter().all(Row::is_settled)
    }

    pub fn add(&self, row: Row) {
        self.lock().push(row.clone());
        self.show(&row);
    }

    /// Notes a member's state, unless it is settled already.
    pub fn set(&self, member: &str, state: HostState, note: &str) {
        let changed = {
            let mut rows = self.lock();
            let Some(row) = rows
                .iter_mut()
                .find(|row| row.member == member && !row.is_settled())
            else {
                return;
            };
            if row.state == state && row.note == note {
                return;
            }
            (row.state, row.note) = (state, note.to_string());
            row.clone()
        };
        self.show(&changed);
    }

    /// Notes which members of the launch the cluster has.
    pub fn see(&self, nodes: &[Node], launch: &str) {
        for node in nodes.iter().filter(|node| {
            node.alive && node.labels.get(LAUNCH_LABEL).is_some_and(|id| id == launch)
        }) {
            let Some(member) = node.labels.get(MEMBER_LABEL) else {
                continue;
            };
            let joined = {
                let mut rows = self.lock();
                let Some(row) = rows.iter_mut().find(|row| row.member == *member) else {
                    continue;
                };
                let gpus = node.gpus.iter().filter(|gpu| gpu.used).count();
                if row.state == HostState::Joined && row.gpus == Some(gpus) {
                    continue;
                }
                row.state = HostState::Joined;
                row.note = format!("as {}", node.name);
                row.gpus = Some(gpus);
                row.join_seconds
                    .get_or_insert(self.begun.elapsed().as_secs_f64());
                row.clone()
            };
            self.show(&joined);
        }
    }

    /// What is drawn in place goes; the caller prints the end.
    pub fn end(&self) {
        self.wipe();
    }

    /// Says in full why rows failed, which a table on a terminal has no room for.
    pub fn tell_failures(&self) {
        if !self.told || !io::stderr().is_terminal() {
            return;
        }
        for row in self.rows() {
            if row.state == HostState::Failed {
                tell!("{}: {}", row.host, text::lines(&row.note));
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Row>> {
        self.rows.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn show(&self, changed: &Row) {
        if !self.told {
            return;
        }
        if !io::stderr().is_terminal() {
            let time = changed.join_seconds.map(|seconds| {
                format!(
                    " after {}",
                    format_duration(Duration::from_secs_f64(seconds))
                )
            });
            let note = if changed.note.is_empty() {
                String::new()
            } else {
                format!(": {}", one_line(&changed.note))
            };
            tell!(
                "{}: {}{}{note}",
                changed.host,
                changed.state.word(),
                time.unwrap_or_default()
            );
            return;
        }
        self.wipe();
        let text = table(&self.rows(), Look::of(&io::stderr()));
        let rows = tcgetwinsize(io::stderr()).map_or(USUAL_ROWS, |size| usize::from(size.ws_row));
        let lines = in_place(&text, rows);
        tell!("{}", lines.join("\n"));
        *self.drawn.lock().unwrap_or_else(PoisonError::into_inner) = lines.len();
    }

    /// ECMA-48: cursor to the beginning of that many lines above, erase to the end of the screen.
    fn wipe(&self) {
        let lines = std::mem::take(&mut *self.drawn.lock().unwrap_or_else(PoisonError::into_inner));
        if lines > 0 {
            let _ = write!(io::stderr(), "\x1b[{lines}F\x1b[J");
        }
    }
}

const COLUMNS: [TableColumn; 5] = [
    TableColumn::kept("HOST"),
    TableColumn::state("STATE"),
    TableColumn::dropped("GPUS", 2),
    TableColumn::dropped("JOINED AFTER", 1),
    TableColumn::kept("NOTE"),
];

/// What is drawn of a table on a terminal with so many rows. What scrolls out of it could not be
/// taken back.
fn in_place(text: &str, rows: usize) -> Vec<String> {
    // The last row is the cursor's.
    let room = rows.saturating_sub(1).max(1);
    let count = text.lines().count();
    let lines = text.lines().map(str::to_string);
    if count <= room {
        return lines.collect();
    }
    let shown = room - 1;
    let more = format!("… {} more", count - shown);
    lines.take(shown).chain([more]).collect()
}

/// For people.
pub fn table(rows: &[Row], look: Look) -> String {
    let rows = rows
        .iter()
        .map(|row| {
            vec![
                row.host.clone(),
                row.state.word().into(),
                row.gpus.map(|count| count.to_string()).unwrap_or_default(),
                row.join_seconds
                    .map(|seconds| format_duration(Duration::from_secs_f64(seconds)))
                    .unwrap_or_default(),
                one_line(&row.note),
            ]
        })
        .collect();
    layout(look, &COLUMNS, true, rows)
}

fn one_line(text: &str) -> String {
    let joined = text
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty())
        .collect::<Vec<_>>()
        .join("; ");
    text::one_line(&joined).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_settled_row_stays_and_the_table_says_who_and_why() {
        let hosts = LaunchTable::new(false);
        hosts.add(Row::new("h1", "h1", HostState::Connecting));
        hosts.add(Row::new("h2", "h2", HostState::Connecting));
        hosts.set("h1", HostState::Failed, "ssh: no route\nto host");
        hosts.set("h1", HostState::Started, "");
        assert_eq!((hosts.failed(), hosts.is_settled()), (1, false));
        hosts.set("h2", HostState::Started, "");
        insta::assert_snapshot!(table(&hosts.rows(), Look::default()), @r"
        HOST  STATE    GPUS  JOINED AFTER  NOTE
        h1    failed                       ssh: no route; to host
        h2    joining
        ");
    }

    /// The cursor goes back as many lines as were drawn: none may wrap, and none may scroll away.
    #[test]
    fn what_is_drawn_in_place_fits_the_terminal() {
        let hosts = LaunchTable::new(false);
        for number in 0..30 {
            let host = format!("h{number}");
            hosts.add(Row::new(host.clone(), host, HostState::Connecting));
        }
        let note = "the node ended at once (exit status: 1); its log says: cannot listen on TCP port 1024\nhint: another program does";
        hosts.set("h0", HostState::Failed, note);
        let look = Look {
            width: Some(80),
            colour: false,
        };
        let lines = in_place(&table(&hosts.rows(), look), 24);
        assert_eq!(lines.len(), 23);
        assert_eq!(lines[22], "… 9 more");
        assert!(lines.iter().all(|line| line.chars().count() <= 80));
        insta::assert_snapshot!(lines[..3].join("\n"), @r"
        HOST  STATE       NOTE
        h0    failed      the node ended at once (exit status: 1); its log says: cannot…
        h1    connecting
        ");
        assert_eq!(in_place("a\nb\n", 1), ["… 2 more"]);
        assert_eq!(in_place("a\nb\n", 3), ["a", "b"]);
    }
}
