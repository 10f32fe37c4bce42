//! The display on stderr: live bars on a terminal (a job's, and a line a node), plain lines
//! elsewhere.

use super::followed::Followed;
use crate::output::{ComputeRate, Look, compute_line, progress_line};
use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use nodectl_ports::say;
use nodectl_types::{text, units::counted};
use nodectl_wire::api::{PhaseName, ProgressView};
use std::{
    fmt,
    io::IsTerminal,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};
use unicode_width::UnicodeWidthStr;

/// The bars that are shown, if there are some.
static SHOWN: Mutex<Option<MultiProgress>> = Mutex::new(None);

/// Says a line above the bars, which would be drawn over it otherwise.
pub fn tell(words: fmt::Arguments<'_>) {
    let shown = SHOWN.lock().unwrap_or_else(PoisonError::into_inner).clone();
    match shown {
        Some(bars) => bars.suspend(|| say::line(words)),
        None => say::line(words),
    }
}

/// Plain lines come at most this often.
const LINE_PERIOD: Duration = Duration::from_secs(3);
/// Nodes shown below a job; the others are counted.
const SHOWN_NODES: usize = 12;
/// Running tasks shown below these; the others are counted.
pub const SHOWN_TASKS: usize = 10;
/// A bar is at least and at most so long.
const BAR_COLUMNS: (usize, usize) = (10, 30);
/// What counts and words beside a bar mostly take.
const MESSAGE_COLUMNS: usize = 55;

pub enum ProgressDisplay {
    Bars {
        all: MultiProgress,
        /// Each job's running tasks, too.
        with_tasks: bool,
    },
    Lines,
    Silent,
}

impl ProgressDisplay {
    pub fn choose(quiet: bool, with_tasks: bool) -> Self {
        let bars = MultiProgress::new();
        // Hidden on a terminal too that cannot move its cursor (TERM=dumb, or none).
        match (quiet, std::io::stderr().is_terminal() && !bars.is_hidden()) {
            (true, _) => Self::Silent,
            (false, true) => {
                *SHOWN.lock().unwrap_or_else(PoisonError::into_inner) = Some(bars.clone());
                Self::Bars {
                    all: bars,
                    with_tasks,
                }
            }
            (false, false) => Self::Lines,
        }
    }

    pub fn lines() -> Self {
        Self::Lines
    }

    /// Runs `ask` with the display out of the way.
    pub fn suspend<T>(&self, ask: impl FnOnce() -> T) -> T {
        match self {
            Self::Bars { all, .. } => all.suspend(ask),
            Self::Lines | Self::Silent => ask(),
        }
    }

    /// The part of the display of a job.
    pub fn job(&self, job: &Followed, part: ChainPart) -> JobProgress {
        let name = text::shortened(&job.name, 24).into_owned();
        let kind = match self {
            Self::Bars { all, with_tasks } => LineKind::Bars {
                all: all.clone(),
                bar: all.add(job_bar(&name, job.tasks, job.age)),
                nodes: Mutex::default(),
                tasks: with_tasks.then(Mutex::default),
            },
            Self::Lines => LineKind::Lines {
                told: Mutex::default(),
            },
            Self::Silent => LineKind::Silent,
        };
        JobProgress {
            name,
            part,
            note: Mutex::default(),
            making: Mutex::default(),
            kind,
        }
    }
}

impl Drop for ProgressDisplay {
    fn drop(&mut self) {
        if matches!(self, Self::Bars { .. }) {
            *SHOWN.lock().unwrap_or_else(PoisonError::into_inner) = None;
        }
    }
}

/// What a job is among those that are followed together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChainPart {
    Job,
    /// A job that comes after steps of its own: while it waits for them, they are shown.
    AfterSteps,
    /// A step on the way to another job: shown while it runs.
    Step,
}

impl ChainPart {
    /// That of the job at `place`.
    pub fn of(jobs: &[Followed], place: usize) -> Self {
        let before = place.checked_sub(1).and_then(|before| jobs.get(before));
        match jobs.get(place) {
            Some(job) if job.is_step => Self::Step,
            _ if before.is_some_and(|before| before.is_step) => Self::AfterSteps,
            _ => Self::Job,
        }
    }
}

pub struct JobProgress {
    name: String,
    part: ChainPart,
    /// What the job itself says.
    note: Mutex<String>,
    /// What nodes made for it when they were last asked.
    making: Mutex<Vec<String>>,
    kind: LineKind,
}

enum LineKind {
    Bars {
        all: MultiProgress,
        bar: ProgressBar,
        nodes: Mutex<Vec<ProgressBar>>,
        /// Below the nodes, where they are wanted.
        tasks: Option<Mutex<Vec<ProgressBar>>>,
    },
    /// What was told last, and when.
    Lines {
        told: Mutex<Option<(Instant, String)>>,
    },
    Silent,
}

impl JobProgress {
    /// `compute`: what the job's GPUs did so far.
    pub fn update(&self, progress: &ProgressView, compute: Option<&ComputeRate>) {
        let is_waiting = progress.phase == PhaseName::Waiting;
        match &self.kind {
            LineKind::Silent => {}
            LineKind::Lines { .. } if is_waiting && self.part != ChainPart::Job => {}
            LineKind::Bars { .. } if is_waiting && self.part == ChainPart::Step => {}
            LineKind::Lines { told } => {
                let mut told = told.lock().unwrap_or_else(PoisonError::into_inner);
                if let Some(line) = next_line(&mut told, progress, compute, Instant::now()) {
                    tell!("{}: {line}", self.name);
                }
            }
            LineKind::Bars {
                all, bar, nodes, ..
            } => {
                bar.set_length(u64::from(progress.tasks));
                let ended = [progress.failed, progress.stopped]
                    .into_iter()
                    .fold(progress.done, u32::saturating_add);
                bar.set_position(u64::from(ended));
                let note = self.note.lock().unwrap_or_else(PoisonError::into_inner);
                let words = match (is_waiting, self.part) {
                    (true, ChainPart::AfterSteps) => String::new(),
                    _ if note.is_empty() => message(progress, compute),
                    _ => note.clone(),
                };
                bar.set_message(text::one_line(&words).into_owned());
                drop(note);
                let mut nodes = nodes.lock().unwrap_or_else(PoisonError::into_inner);
                show_below(all, bar, &mut nodes, &node_lines(progress));
            }
        }
    }

    /// Whether the job's running tasks are wanted.
    pub fn shows_tasks(&self) -> bool {
        matches!(&self.kind, LineKind::Bars { tasks: Some(_), .. })
    }

    /// The tasks that run now, a line each.
    pub fn tasks(&self, lines: &[String]) {
        if let LineKind::Bars {
            all,
            bar,
            nodes,
            tasks: Some(tasks),
        } = &self.kind
        {
            let nodes = nodes.lock().unwrap_or_else(PoisonError::into_inner);
            let mut tasks = tasks.lock().unwrap_or_else(PoisonError::into_inner);
            show_below(all, nodes.last().unwrap_or(bar), &mut tasks, lines);
        }
    }

    /// What nodes make for the job now, and for how long: on a bar as long as they do, else a line
    /// when it is another thing than before.
    pub fn making(&self, making: &[(String, Duration)]) {
        let mut shown = self.making.lock().unwrap_or_else(PoisonError::into_inner);
        let words: Vec<_> = making.iter().map(|(words, _)| words.clone()).collect();
        match &self.kind {
            LineKind::Silent => {}
            LineKind::Lines { .. } => {
                for news in words.iter().filter(|words| !shown.contains(words)) {
                    tell!("{}: {}", self.name, text::one_line(news));
                }
            }
            LineKind::Bars { bar, .. } => {
                let timed: Vec<_> = making
                    .iter()
                    .map(|(words, since)| format!("{words}, {} s", since.as_secs()))
                    .collect();
                let line = text::shortened(&timed.join("; "), 160).into_owned();
                bar.set_message(line.clone());
                *self.note.lock().unwrap_or_else(PoisonError::into_inner) = line;
            }
        }
        *shown = words;
    }

    /// A line that stays.
    pub fn tell(&self, line: &str) {
        if !matches!(self.kind, LineKind::Silent) {
            tell!("{}: {}", self.name, text::one_line(line));
        }
    }

    /// A line of the job itself, shown until the next.
    pub fn note(&self, line: &str) {
        let line = text::shortened(line, 160).into_owned();
        match &self.kind {
            LineKind::Silent => {}
            LineKind::Lines { told } => {
                let mut told = told.lock().unwrap_or_else(PoisonError::into_inner);
                let is_due = told
                    .as_ref()
                    .is_none_or(|(when, _)| when.elapsed() >= LINE_PERIOD);
                if is_due {
                    tell!("{}: {line}", self.name);
                    *told = Some((
                        Instant::now(),
                        told.take().map_or_else(String::new, |(_, line)| line),
                    ));
                }
            }
            LineKind::Bars { bar, .. } => bar.set_message(line.clone()),
        }
        *self.note.lock().unwrap_or_else(PoisonError::into_inner) = line;
    }

    /// The job is over: its bar stays, if it is no step; its nodes' lines go.
    pub fn finish(&self) {
        if let LineKind::Bars {
            bar, nodes, tasks, ..
        } = &self.kind
        {
            match self.part {
                ChainPart::Step => bar.finish_and_clear(),
                ChainPart::Job | ChainPart::AfterSteps => bar.abandon(),
            }
            let nodes = nodes.lock().unwrap_or_else(PoisonError::into_inner);
            nodes.iter().for_each(ProgressBar::finish_and_clear);
            if let Some(tasks) = tasks {
                let tasks = tasks.lock().unwrap_or_else(PoisonError::into_inner);
                tasks.iter().for_each(ProgressBar::finish_and_clear);
            }
        }
    }
}

fn job_bar(name: &str, tasks: u32, age: Duration) -> ProgressBar {
    let columns = Look::of(&std::io::stderr()).width;
    let bar = bar_columns(columns, name.width());
    let template = format!("{{prefix}} [{{bar:{bar}}}] {{pos}}/{{len}} {{elapsed}} {{wide_msg}}");
    let style = ProgressStyle::with_template(&template).expect("a template of known keys");
    ProgressBar::new(u64::from(tasks))
        .with_elapsed(age)
        .with_style(style.progress_chars("=> "))
        .with_prefix(name.to_string())
}

/// How long a bar is beside its job's name, so that what is said after it fits the terminal mostly.
/// What does not is cut: a line that goes on in the next one could not be drawn anew.
fn bar_columns(terminal: Option<usize>, name: usize) -> usize {
    let room = terminal.map(|columns| columns.saturating_sub(name + MESSAGE_COLUMNS));
    room.unwrap_or(BAR_COLUMNS.1)
        .clamp(BAR_COLUMNS.0, BAR_COLUMNS.1)
}

/// Lines below a bar: as many as there ever were, the last ones empty.
fn show_below(
    all: &MultiProgress,
    above: &ProgressBar,
    shown: &mut Vec<ProgressBar>,
    lines: &[String],
) {
    while shown.len() < lines.len() {
        let below = all.insert_after(shown.last().unwrap_or(above), line_bar());
        shown.push(below);
    }
    for (index, bar) in shown.iter().enumerate() {
        let line = lines
            .get(index)
            .map(|line| text::one_line(line).into_owned());
        bar.set_message(line.unwrap_or_default());
    }
}

fn line_bar() -> ProgressBar {
    ProgressBar::new_spinner()
        .with_style(ProgressStyle::with_template("  {wide_msg}").expect("a constant template"))
}

/// The progress line. What is computed a second says more than how many tasks end.
fn progress_words(progress: &ProgressView, compute: Option<&ComputeRate>) -> String {
    let rate = if compute.is_some() {
        0.0
    } else {
        progress.rate
    };
    progress_line(&ProgressView {
        rate,
        ..progress.clone()
    })
}

/// The progress line without its beginning, which the bar shows.
fn message(progress: &ProgressView, compute: Option<&ComputeRate>) -> String {
    let line = progress_words(progress, compute);
    let rest = line
        .split_once(" done")
        .map_or("", |(_, rest)| rest)
        .trim_start_matches(", ");
    match &progress.waiting_for {
        Some(why) => format!("waits for {why}"),
        None => {
            let parts = [Some(rest.to_string()), compute.map(compute_line)]
                .into_iter()
                .flatten();
            parts
                .filter(|part| !part.is_empty())
                .collect::<Vec<_>>()
                .join(", ")
        }
    }
}

fn node_lines(progress: &ProgressView) -> Vec<String> {
    // A coordinator that took over does not know who did what before.
    let counted_here: u32 = progress.nodes.iter().map(|share| share.done).sum();
    let is_whole = counted_here >= progress.done;
    let line = |share: &nodectl_wire::api::NodeShare| {
        let at_work = format!(
            "{:<16} {} running, {} queued",
            share.name, share.running, share.queued
        );
        match is_whole {
            true => format!("{at_work}, {} done", share.done),
            false => at_work,
        }
    };
    let mut lines: Vec<_> = progress.nodes.iter().take(SHOWN_NODES).map(line).collect();
    if progress.nodes.len() > SHOWN_NODES {
        lines.push(format!(
            "and {} more",
            counted(progress.nodes.len() - SHOWN_NODES, "node")
        ));
    }
    lines
}

/// The line to tell now, if one is due: at the first, at the last, and on change from time to time.
fn next_line(
    told: &mut Option<(Instant, String)>,
    progress: &ProgressView,
    compute: Option<&ComputeRate>,
    now: Instant,
) -> Option<String> {
    let mut line = progress_words(progress, compute);
    if let Some(compute) = compute {
        line += &format!(", {}", compute_line(compute));
    }
    if let Some(why) = &progress.waiting_for {
        line += &format!(", waits for {why}");
    }
    let due = match told {
        None => true,
        Some((_, last)) if *last == line => false,
        Some((when, _)) => progress.phase.is_ended() || now.duration_since(*when) >= LINE_PERIOD,
    };
    due.then(|| {
        *told = Some((now, line.clone()));
        line
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::progress;
    use nodectl_types::Phase;

    #[test]
    fn plain_lines_come_on_change_and_not_too_often() {
        let view = |phase, done| ProgressView::from(&progress(phase, done, 0));
        let (mut told, start) = (None, Instant::now());
        let mut tell =
            |view: &ProgressView, after: Duration| next_line(&mut told, view, None, start + after);
        assert_eq!(
            tell(&view(Phase::Running, 0), Duration::ZERO).as_deref(),
            Some("running: 0/4 done, 2.5/s, ETA 1.6 s")
        );
        assert_eq!(tell(&view(Phase::Running, 1), Duration::from_secs(1)), None);
        assert!(tell(&view(Phase::Running, 1), LINE_PERIOD).is_some());
        assert_eq!(
            tell(&view(Phase::Running, 1), LINE_PERIOD * 3),
            None,
            "nothing is new"
        );
        assert_eq!(
            tell(&view(Phase::Done, 4), LINE_PERIOD * 3).as_deref(),
            Some("done: 4/4 done")
        );
    }

    #[test]
    fn a_bar_says_what_it_does_not_show() {
        let mut view = ProgressView::from(&progress(Phase::Running, 1, 1));
        assert_eq!(message(&view, None), "1 failed, 2.5/s, ETA 1.6 s");
        let rate = ComputeRate {
            items_per_second: 120.0,
            gpus: 0,
            software: false,
            gpu_busy: 0.0,
        };
        let said = message(&view, Some(&rate));
        assert_eq!(said, "1 failed, ETA 1.6 s, 120.0 frames/s", "one rate");
        view.waiting_for = Some("2 more nodes".into());
        assert_eq!(message(&view, None), "waits for 2 more nodes");
    }

    #[test]
    fn who_did_what_is_told_where_it_is_known() {
        let mut view = ProgressView::from(&progress(Phase::Running, 1, 1));
        assert_eq!(
            node_lines(&view),
            ["alpha            0 running, 0 queued, 1 done"]
        );
        view.done = 3;
        assert_eq!(node_lines(&view), ["alpha            0 running, 0 queued"]);
    }

    #[test]
    fn what_is_said_after_a_bar_fits_the_terminal() {
        assert_eq!(bar_columns(Some(80), 5), 20);
        assert_eq!(bar_columns(Some(80), 24), 10);
        assert_eq!(bar_columns(Some(200), 24), 30);
        assert_eq!(bar_columns(None, 24), 30);
    }

    #[test]
    fn a_step_is_known_and_so_is_the_job_that_it_leads_to() {
        let job = |name: &str, is_step| Followed {
            is_step,
            ..Followed::new("ab".into(), name.into(), 1, "out".into())
        };
        let jobs = [
            job("heat.round-1", true),
            job("heat", false),
            job("other", false),
        ];
        let parts: Vec<_> = (0..3).map(|place| ChainPart::of(&jobs, place)).collect();
        assert_eq!(
            parts,
            [ChainPart::Step, ChainPart::AfterSteps, ChainPart::Job]
        );
    }
}
