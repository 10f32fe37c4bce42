//! Tables that fit the terminal: columns are dropped by importance, then cells are cut. On a pipe
//! nothing is, so that programs get all.

use anstream::{AutoStream, ColorChoice, stream::RawStream};
use anstyle::{AnsiColor, Style};
use nodectl_types::text;
use rustix::termios::tcgetwinsize;
use std::os::fd::AsFd;
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// Between columns.
const GAP: usize = 2;
/// No cell is cut to less.
const LEAST: usize = 8;

/// Where a table is shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Look {
    /// Characters in a line; None if there is no end.
    pub width: Option<usize>,
    pub colour: bool,
}

impl Look {
    /// As the standard output or error takes it. Colour also depends on NO_COLOR, CLICOLOR and
    /// CLICOLOR_FORCE.
    pub fn of(stream: &(impl RawStream + AsFd)) -> Self {
        let size = stream.is_terminal().then(|| tcgetwinsize(stream).ok());
        let width = size.flatten().map(|size| usize::from(size.ws_col));
        let choice = AutoStream::choice(stream);
        Self {
            width: width.filter(|width| *width > 0),
            colour: choice != ColorChoice::Never,
        }
    }

    /// Words in lines that fit beside a margin, which all but the first begin with.
    pub fn wrap(self, words: &str, margin: usize) -> String {
        let width = self.width.map(|width| width.saturating_sub(margin));
        let room = width.map_or(usize::MAX, |width| width.max(20));
        let mut lines = vec![String::new()];
        for word in words.split_whitespace().map(text::one_line) {
            let last = lines.last_mut().expect("never empty");
            if last.is_empty() {
                *last = word.into_owned();
            } else if last.width() + 1 + word.width() <= room {
                *last += &format!(" {word}");
            } else {
                lines.push(word.into_owned());
            }
        }
        lines.join(&format!("\n{}", " ".repeat(margin))) + "\n"
    }
}

/// A column.
#[derive(Clone, Copy, Debug)]
pub struct TableColumn {
    head: &'static str,
    /// Columns of greater ranks are dropped first; 0 stays.
    rank: u8,
    is_state: bool,
}

impl TableColumn {
    /// A column that is always there.
    pub const fn kept(head: &'static str) -> Self {
        Self::dropped(head, 0)
    }

    /// A column that goes where there is no room, the greatest `rank` first.
    pub const fn dropped(head: &'static str, rank: u8) -> Self {
        Self {
            head,
            rank,
            is_state: false,
        }
    }

    /// States, in colours.
    pub const fn state(head: &'static str) -> Self {
        Self {
            is_state: true,
            ..Self::kept(head)
        }
    }
}

/// Left-aligned columns. The first line has the heads, if they are wanted.
pub fn layout(look: Look, columns: &[TableColumn], heads: bool, rows: Vec<Vec<String>>) -> String {
    let one_line = |cell: &String| text::one_line(cell).into_owned();
    let rows: Vec<Vec<String>> = rows
        .iter()
        .map(|row| row.iter().map(one_line).collect())
        .collect();
    let shown = fitting(look, columns, heads, &rows);
    let mut text = String::new();
    if heads {
        let bold = Style::new().bold();
        let head = |(index, _): &(usize, usize)| (columns[*index].head.to_string(), bold);
        text += &line(look, &shown, shown.iter().map(head).collect());
    }
    for row in &rows {
        let cell = |(index, _): &(usize, usize)| {
            let style = match columns[*index].is_state {
                true => style_of(&row[*index]),
                false => Style::new(),
            };
            (row[*index].clone(), style)
        };
        text += &line(look, &shown, shown.iter().map(cell).collect());
    }
    text
}

/// The columns that are shown, by their numbers, and their widths.
fn fitting(
    look: Look,
    columns: &[TableColumn],
    heads: bool,
    rows: &[Vec<String>],
) -> Vec<(usize, usize)> {
    let widest = |index: usize| {
        let cells = rows.iter().map(|row| row[index].width());
        let head = if heads {
            columns[index].head.width()
        } else {
            0
        };
        cells.chain([head]).max().unwrap_or_default()
    };
    let mut shown: Vec<(usize, usize)> = (0..columns.len())
        .map(|index| (index, widest(index)))
        .collect();
    if let Some(width) = look.width {
        let says_nothing = |index: usize| {
            rows.iter()
                .all(|row| matches!(row[index].as_str(), "" | "?" | "-" | "0"))
        };
        drop_columns(&mut shown, columns, width, says_nothing);
        cut_cells(&mut shown, width);
    }
    shown
}

/// A line of cells, one for each column that is shown.
fn line(look: Look, shown: &[(usize, usize)], cells: Vec<(String, Style)>) -> String {
    let last = cells.len().saturating_sub(1);
    let mut text = String::new();
    for ((place, (cell, style)), (_, width)) in cells.iter().enumerate().zip(shown) {
        let cell = cut(cell, *width);
        let gap = match place == last {
            true => 0,
            false => width + GAP - cell.width(),
        };
        text += &match look.colour {
            true => format!("{style}{cell}{style:#}"),
            false => cell,
        };
        text += &" ".repeat(gap);
    }
    text.trim_end().to_string() + "\n"
}

fn total(shown: &[(usize, usize)]) -> usize {
    let widths = shown.iter().map(|(_, width)| width + GAP);
    widths.sum::<usize>().saturating_sub(GAP)
}

/// Columns that say nothing go first, then the least important.
fn drop_columns(
    shown: &mut Vec<(usize, usize)>,
    columns: &[TableColumn],
    width: usize,
    says_nothing: impl Fn(usize) -> bool,
) {
    while total(shown) > width {
        let droppable = shown
            .iter()
            .enumerate()
            .filter(|(_, (index, _))| columns[*index].rank > 0);
        let least =
            droppable.max_by_key(|(_, (index, _))| (says_nothing(*index), columns[*index].rank));
        let Some((place, _)) = least else { return };
        shown.remove(place);
    }
}

/// The widest are cut first.
fn cut_cells(shown: &mut [(usize, usize)], width: usize) {
    while total(shown) > width {
        let widest = shown.iter_mut().max_by_key(|(_, width)| *width);
        let Some((_, widest)) = widest.filter(|(_, width)| *width > LEAST) else {
            return;
        };
        *widest -= 1;
    }
}

/// The beginning of a text, with `…` where it was cut.
fn cut(text: &str, width: usize) -> String {
    if text.width() <= width {
        return text.to_string();
    }
    let mut room = width.saturating_sub(1);
    let fits = |c: &char| {
        let left = room.checked_sub(c.width().unwrap_or_default());
        room = left.unwrap_or_default();
        left.is_some()
    };
    text.chars().take_while(fits).chain(['…']).collect()
}

/// The colour of a state, by its word.
pub fn style_of(state: &str) -> Style {
    let colour = match state {
        "done" | "alive" | "ok" | "joined" => AnsiColor::Green,
        "running" => AnsiColor::Cyan,
        "failed" | "away" | "in trouble" | "PROBLEM" => AnsiColor::Red,
        "" | "pending" | "queued" => return Style::new(),
        _ => AnsiColor::Yellow,
    };
    Style::new().fg_color(Some(colour.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const COLUMNS: [TableColumn; 4] = [
        TableColumn::kept("NAME"),
        TableColumn::state("STATE"),
        TableColumn::dropped("MODEL", 2),
        TableColumn::dropped("NOTE", 1),
    ];

    fn table(width: Option<usize>, colour: bool) -> String {
        let row = |cells: [&str; 4]| cells.map(str::to_string).to_vec();
        let rows = vec![
            row(["a", "done", "Alienware", ""]),
            row(["a-name-that-is-long", "failed", "Aurora", ""]),
        ];
        layout(Look { width, colour }, &COLUMNS, true, rows)
    }

    #[test]
    fn what_says_nothing_goes_first_then_the_least_important_then_cells_are_cut() {
        let whole = table(None, false);
        assert_eq!(
            whole.lines().next(),
            Some("NAME                 STATE   MODEL      NOTE")
        );
        let head = |width| table(Some(width), false).lines().next().map(str::to_string);
        assert_eq!(
            head(40).as_deref(),
            Some("NAME                 STATE   MODEL")
        );
        assert_eq!(head(30).as_deref(), Some("NAME                 STATE"));
        insta::assert_snapshot!(table(Some(20), false), @r"
        NAME          STATE
        a             done
        a-name-that…  failed
        ");
    }

    #[test]
    fn no_line_is_longer_than_the_terminal() {
        for width in 18..60 {
            let table = table(Some(width), false);
            assert!(
                table.lines().all(|line| line.width() <= width),
                "{width}: {table}"
            );
        }
    }

    #[test]
    fn colours_change_no_width() {
        let plain = |text: &str| anstream::adapter::strip_str(text).to_string();
        let coloured = table(Some(30), true);
        assert!(coloured.contains("\u{1b}[31mfailed"));
        assert_eq!(plain(&coloured), table(Some(30), false));
    }

    #[test]
    fn wide_characters_count_as_two() {
        assert_eq!(cut("日本語", 5), "日本…");
        assert_eq!(cut("日本語", 6), "日本語");
    }
}
