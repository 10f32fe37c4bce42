//! Drawing `top`: a view and a picture in, a frame out. Pure.

use super::{
    picture::{JobPicture, TopPicture},
    rows::{Tone, TopTable, table},
    view::{Screen, TopView},
};
use crate::output::progress_line;
use nodectl_types::{text, units::counted};
use ratatui::{
    Frame,
    layout::{Constraint, Layout, Rect},
    style::{Color, Modifier, Style},
    text::{Line, Span},
    widgets::{Clear, Paragraph, Row, Table, TableState, Wrap},
};

/// The least that everything fits into.
pub const LEAST: (u16, u16) = (80, 24);

const KEYS: &str = "\
 1 2 3 Tab   cluster, jobs, GPUs
 Enter       into what is chosen: a job, a task's log
 Esc         out again
 l           the log of the task that is chosen
 e           why the job, or the task, is not running
 /           shows only rows with the text that is typed
 s           sorts by the next column
 arrows, j k, PgUp PgDn, Home End, mouse wheel   up and down
 q           ends";

pub fn draw(frame: &mut Frame<'_>, view: &TopView, picture: &TopPicture) {
    let area = frame.area();
    if area.width < LEAST.0 || area.height < LEAST.1 {
        let (width, height) = LEAST;
        let words = format!(
            "This terminal has {} columns and {} lines; top needs {width} and {height}. q ends.",
            area.width, area.height
        );
        frame.render_widget(Paragraph::new(words).wrap(Wrap { trim: true }), area);
        return;
    }
    body(frame, area, view, picture);
    if view.help {
        help(frame, area);
    }
}

/// Without regard to the size.
pub fn body(frame: &mut Frame<'_>, area: Rect, view: &TopView, picture: &TopPicture) {
    let about = about(view, picture);
    let [head, above, middle, foot] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(about.len() as u16),
        Constraint::Min(1),
        Constraint::Length(1),
    ])
    .areas(area);
    frame.render_widget(Paragraph::new(title(view, picture)), head);
    frame.render_widget(Paragraph::new(about), above);
    match table(view, picture) {
        Some(rows) => draw_rows(frame, middle, view, &rows),
        None => draw_lines(frame, middle, view, picture),
    }
    frame.render_widget(Paragraph::new(footer(view, picture)), foot);
}

fn title(view: &TopView, picture: &TopPicture) -> Line<'static> {
    let alive = picture.nodes.iter().filter(|node| node.alive).count();
    let open = picture
        .jobs
        .iter()
        .filter(|job| !job.phase.is_ended())
        .count();
    let me = picture.nodes.iter().find(|node| node.this_node);
    let me = me.map_or_else(
        || "…".into(),
        |node| text::one_line(&node.name).into_owned(),
    );
    let tab = |name: &str, is_here: bool| {
        let style = if is_here {
            bold().add_modifier(Modifier::REVERSED)
        } else {
            bold()
        };
        Span::styled(format!(" {name} "), style)
    };
    let first = &view.places[0].screen;
    Line::from(vec![
        Span::styled("nodectl ", bold()),
        tab("1 Cluster", *first == Screen::Cluster),
        tab("2 Jobs", *first == Screen::Jobs),
        tab("3 GPUs", *first == Screen::Gpus),
        Span::raw(format!(
            "  {alive} of {}, {}, seen by {me}",
            counted(picture.nodes.len(), "node"),
            counted(open, "open job")
        )),
    ])
}

/// What stands above the table.
fn about(view: &TopView, picture: &TopPicture) -> Vec<Line<'static>> {
    match &view.place().screen {
        Screen::Cluster | Screen::Jobs | Screen::Gpus => Vec::new(),
        Screen::Job(id) => about_job(id, picture.job.as_ref(), view),
        Screen::Log { job, task } => vec![Line::styled(
            format!("Log of task {task} of job {job}"),
            bold(),
        )],
        Screen::Explanation { job, task: None } => vec![Line::styled(
            format!("Why job {job} is not running"),
            bold(),
        )],
        Screen::Explanation {
            job,
            task: Some(task),
        } => {
            vec![Line::styled(
                format!("Why task {task} of job {job} is not running"),
                bold(),
            )]
        }
    }
}

fn about_job(id: &str, picture: Option<&JobPicture>, view: &TopView) -> Vec<Line<'static>> {
    let Some(JobPicture {
        job, tasks, total, ..
    }) = picture
    else {
        return vec![Line::styled(format!("Job {id}"), bold())];
    };
    let name = text::one_line(&job.line.name).into_owned();
    let mut lines = vec![
        Line::from(vec![
            Span::styled(format!("Job {} {name}  ", job.line.id), bold()),
            Span::raw(progress_line(&job.progress)),
        ]),
        bar(
            job.progress.done,
            job.progress.failed,
            job.progress.tasks,
            view,
        ),
    ];
    let waits = job
        .progress
        .waiting_for
        .clone()
        .or_else(|| job.line.reason.clone());
    lines.extend(waits.map(|why| Line::raw(text::one_line(&why).into_owned())));
    if *total as usize > tasks.len() {
        lines.push(Line::raw(format!(
            "the first {} of {total} tasks:",
            tasks.len()
        )));
    }
    lines
}

/// How much of a job is done, and failed.
fn bar(done: u32, failed: u32, tasks: u32, view: &TopView) -> Line<'static> {
    const WIDTH: u64 = 60;
    let part = |count: u32| (u64::from(count) * WIDTH / u64::from(tasks.max(1))).min(WIDTH);
    let (done, failed) = (part(done), part(failed));
    let rest = WIDTH.saturating_sub(done + failed);
    let piece = |text: &str, count: u64, tone| {
        Span::styled(text.repeat(count as usize), style(tone, view.colour))
    };
    Line::from(vec![
        piece("█", done, Tone::Good),
        piece("▓", failed, Tone::Bad),
        piece("░", rest, Tone::Faint),
    ])
}

fn draw_rows(frame: &mut Frame<'_>, area: Rect, view: &TopView, rows: &TopTable) {
    if rows.rows.is_empty() {
        let none = match (&view.place().screen, view.filter.is_empty()) {
            (_, false) => "nothing has that in it",
            (Screen::Gpus, _) => "no node has a GPU that tells how busy it is",
            (Screen::Jobs, _) => "no jobs yet: `nodectl run JOB.toml`",
            _ => "nothing yet",
        };
        frame.render_widget(Paragraph::new(none), area);
        return;
    }
    let widths = rows.widths.iter().map(|width| match width {
        0 => Constraint::Min(10),
        width => Constraint::Length(*width),
    });
    let head = rows
        .head
        .iter()
        .enumerate()
        .map(|(at, name)| match view.place().sort == Some(at) {
            true => format!("{name}*"),
            false => (*name).to_string(),
        });
    let lines = rows
        .rows
        .iter()
        .map(|row| Row::new(row.cells.clone()).style(style(row.tone, view.colour)));
    let drawn = Table::new(lines, widths)
        .header(Row::new(head).style(bold()))
        .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED));
    let mut state = TableState::default().with_selected(Some(view.row(rows)));
    frame.render_stateful_widget(drawn, area, &mut state);
}

/// The end of a text, or what is above it.
fn draw_lines(frame: &mut Frame<'_>, area: Rect, view: &TopView, picture: &TopPicture) {
    let filter = view.filter.to_lowercase();
    let has = |line: &&String| filter.is_empty() || line.to_lowercase().contains(&filter);
    let lines: Vec<_> = picture.lines.iter().filter(has).collect();
    let height = usize::from(area.height);
    let end = lines
        .len()
        .saturating_sub(view.place().above_end)
        .max(height.min(lines.len()));
    let shown = &lines[end.saturating_sub(height)..end];
    let shown: Vec<_> = shown.iter().map(|line| Line::raw(line.as_str())).collect();
    frame.render_widget(Paragraph::new(shown), area);
}

fn footer(view: &TopView, picture: &TopPicture) -> Line<'static> {
    if view.typing {
        return Line::raw(format!(
            "/{}_   Enter keeps it, Esc takes it back",
            view.filter
        ));
    }
    if let Some(problem) = &picture.problem {
        let words = format!("what you see is old: {problem}");
        return Line::styled(
            words,
            style(Tone::Bad, view.colour).add_modifier(Modifier::BOLD),
        );
    }
    let filter = match view.filter.as_str() {
        "" => String::new(),
        filter => format!("only with `{filter}`   "),
    };
    let keys = match view.place().screen {
        Screen::Cluster | Screen::Gpus => "Enter job",
        Screen::Jobs => "Enter job   e why",
        Screen::Job(_) => "Enter log   e why   Esc out",
        Screen::Log { .. } | Screen::Explanation { .. } => "Esc out",
    };
    Line::styled(
        format!("{filter}{keys}   / filter   s sort   ? keys   q quit"),
        style(Tone::Faint, view.colour),
    )
}

fn help(frame: &mut Frame<'_>, area: Rect) {
    let [_, middle, _] = Layout::vertical([
        Constraint::Fill(1),
        Constraint::Length(KEYS.lines().count() as u16 + 2),
        Constraint::Fill(1),
    ])
    .areas(area);
    frame.render_widget(Clear, middle);
    let block = ratatui::widgets::Block::bordered().title(" Keys ");
    frame.render_widget(Paragraph::new(KEYS).block(block), middle);
}

fn bold() -> Style {
    Style::new().add_modifier(Modifier::BOLD)
}

fn style(tone: Tone, colour: bool) -> Style {
    match (tone, colour) {
        (Tone::Plain, _) => Style::new(),
        (Tone::Good, true) => Style::new().fg(Color::Green),
        (Tone::Bad, true) => Style::new().fg(Color::Red),
        (Tone::Faint, true) => Style::new().fg(Color::DarkGray),
        (Tone::Bad, false) => bold(),
        (Tone::Good | Tone::Faint, false) => Style::new(),
    }
}
