//! Parameter sets in a file beside the job file: CSV, TSV or JSON lines. Errors name the file's
//! line. Values keep the spelling that they have there (`Value::spelled`).

use super::params::MAX_VALUES;
use crate::{Context, Fault};
use nodectl_formats::files;
use nodectl_types::{ParamSpace, Value, limits, template, text::shown};
use serde_json::Deserializer;
use std::{
    collections::{BTreeMap, BTreeSet},
    fs::File,
    io::{BufRead, BufReader, Read},
    ops::Range,
    path::Path,
};

/// The longest line of JSON that is read.
const MAX_LINE_BYTES: u64 = 1 << 20;
/// The most parameters: each task gets them by name.
const MAX_COLUMNS: usize = 100_000;

type RowTable = (Vec<String>, Vec<Value>);

/// Reads the parameter sets; a problem is shown at `span`, where the file is named.
pub fn load(context: &Context<'_>, name: &str, span: Range<usize>) -> Result<ParamSpace, Fault> {
    let (columns, cells) =
        read_as(&context.base.join(name), name).map_err(|problem| Fault::new(span, problem))?;
    Ok(ParamSpace::Rows { columns, cells })
}

/// The columns of a CSV, TSV or JSONL file and its rows, one after the other; at least one row. An
/// error has a `hint:` line where there is something to do about it.
pub fn read(path: &Path) -> Result<(Vec<String>, Vec<Value>), String> {
    read_as(path, &path.display().to_string())
}

fn read_as(path: &Path, name: &str) -> Result<RowTable, String> {
    let ending = path
        .extension()
        .map(|ending| ending.to_string_lossy().to_lowercase())
        .unwrap_or_default();
    let read: fn(File) -> Result<RowTable, String> = match ending.as_str() {
        "csv" => |file| csv_rows(file, b','),
        "tsv" => |file| csv_rows(file, b'\t'),
        "jsonl" | "ndjson" => json_rows,
        _ => {
            let hint = "parameters are read from .csv, .tsv and .jsonl files";
            return Err(format!("`{name}` has no known ending\nhint: {hint}"));
        }
    };
    let file = open(path).map_err(|problem| format!("cannot read `{name}`: {problem}"))?;
    let (columns, cells) = read(file).map_err(|problem| format!("`{name}`: {problem}"))?;
    if cells.is_empty() {
        return Err(format!(
            "`{name}` has no parameter set: there would be no task"
        ));
    }
    Ok((columns, cells))
}

fn open(path: &Path) -> Result<File, String> {
    let file = files::open(path).map_err(|error| error.to_string())?;
    let length = file.metadata().map_err(|error| error.to_string())?.len();
    if length > limits::MAX_SPEC_BYTES as u64 {
        return Err(format!(
            "it has {length} bytes, more than {} fit into a job",
            limits::MAX_SPEC_BYTES
        ));
    }
    Ok(file)
}

fn csv_rows(file: File, delimiter: u8) -> Result<RowTable, String> {
    // Trimmed here: the reader takes quadratic time for it.
    let mut reader = csv::ReaderBuilder::new()
        .delimiter(delimiter)
        .from_reader(file);
    let headers = reader.headers().map_err(csv_problem)?;
    let columns: Vec<String> = headers.iter().map(|name| name.trim().to_string()).collect();
    check_columns(&columns).map_err(|problem| format!("line 1: {problem}"))?;
    let mut cells = Vec::new();
    for row in reader.records() {
        cells.extend(
            row.map_err(csv_problem)?
                .iter()
                .map(|cell| Value::spelled(cell.trim())),
        );
        check_count(cells.len())?;
    }
    Ok((columns, cells))
}

fn csv_problem(error: csv::Error) -> String {
    let line = |position: &Option<csv::Position>| position.as_ref().map_or(1, csv::Position::line);
    match error.kind() {
        csv::ErrorKind::UnequalLengths {
            pos,
            expected_len,
            len,
        } => {
            format!(
                "line {} has {len} cells, the header {expected_len}",
                line(pos)
            )
        }
        csv::ErrorKind::Utf8 { pos, err } => format!("line {} is not UTF-8 text: {err}", line(pos)),
        _ => error.to_string(),
    }
}

fn check_columns(columns: &[String]) -> Result<(), String> {
    if columns.len() > MAX_COLUMNS {
        return Err(format!(
            "{} columns; at most {MAX_COLUMNS} are possible",
            columns.len()
        ));
    }
    let mut known = BTreeSet::new();
    for (index, column) in columns.iter().enumerate() {
        if column.is_empty() {
            return Err(format!("column {} has no name", index + 1));
        }
        if !template::is_name(column) {
            // As spreadsheets write in countries whose decimals have a comma.
            let rule = match column.contains([';', '\t', ',']) {
                true => {
                    "cells of a .csv file are separated by commas, those of a .tsv file by tabs"
                }
                false => "letters, digits, `_`, `-` and `.` can",
            };
            return Err(format!(
                "`{}` cannot name a parameter: {rule}",
                shown(column)
            ));
        }
        if !known.insert(column) {
            return Err(format!("two columns have the name `{}`", shown(column)));
        }
    }
    Ok(())
}

fn check_count(cells: usize) -> Result<(), String> {
    if cells <= MAX_VALUES {
        Ok(())
    } else {
        Err(format!("it has more than {MAX_VALUES} values"))
    }
}

fn json_rows(file: File) -> Result<RowTable, String> {
    let mut reader = BufReader::new(file);
    let mut rows = JsonRows::default();
    let mut line = Vec::new();
    for number in 1.. {
        line.clear();
        let failed = |problem: String| format!("line {number}: {problem}");
        let read = reader
            .by_ref()
            .take(MAX_LINE_BYTES + 1)
            .read_until(b'\n', &mut line);
        if read.map_err(|error| failed(error.to_string()))? == 0 {
            break;
        }
        if line.len() as u64 > MAX_LINE_BYTES {
            return Err(failed(format!(
                "it has more than {MAX_LINE_BYTES} bytes; a parameter set has at most so many"
            )));
        }
        let text = std::str::from_utf8(&line)
            .map_err(|error| failed(format!("not UTF-8 text: {error}")))?;
        // Some editors begin a file with a byte order mark.
        let text = if number == 1 {
            text.strip_prefix('\u{feff}').unwrap_or(text)
        } else {
            text
        };
        if !text.trim().is_empty() {
            rows.add(text).map_err(failed)?;
            check_count(rows.cells.len())?;
        }
    }
    Ok((rows.columns, rows.cells))
}

/// The parameter sets of lines so far.
#[derive(Default)]
struct JsonRows {
    columns: Vec<String>,
    /// The place of each column.
    places: BTreeMap<String, usize>,
    cells: Vec<Value>,
}

impl JsonRows {
    fn add(&mut self, line: &str) -> Result<(), String> {
        let members = members(line)?;
        if self.columns.is_empty() {
            self.columns = members.iter().map(|(key, _)| key.clone()).collect();
            if self.columns.is_empty() {
                return Err("the object is empty".into());
            }
            check_columns(&self.columns)?;
            self.places = self.columns.iter().cloned().zip(0..).collect();
        }
        let mut row: Vec<Option<Value>> = vec![None; self.columns.len()];
        for (key, text) in members {
            let unknown = || format!("the first line has no `{}`", shown(&key));
            let place = &mut row[*self.places.get(&key).ok_or_else(unknown)?];
            if place.is_some() {
                return Err(format!("`{}` is given twice", shown(&key)));
            }
            let unfit = || {
                format!(
                    "`{}` is not a number, a truth value or text: `{}`",
                    shown(&key),
                    shown(text)
                )
            };
            *place = Some(json_value(text).ok_or_else(unfit)?);
        }
        for (column, value) in self.columns.iter().zip(row) {
            self.cells
                .push(value.ok_or_else(|| format!("`{}` is missing", shown(column)))?);
        }
        Ok(())
    }
}

/// The keys of a JSON object with the text of their values, repeats included.
fn members(line: &str) -> Result<Vec<(String, &str)>, String> {
    // Whether it is JSON at all, with the place where it is not.
    let failed = |error: serde_json::Error| format!("not a JSON object: {error}");
    let _: serde_json::Map<String, serde_json::Value> =
        serde_json::from_str(line).map_err(failed)?;
    let mut found = Vec::new();
    let mut rest = line
        .trim_start()
        .strip_prefix('{')
        .unwrap_or_default()
        .trim_start();
    while rest.starts_with('"') {
        let (key, rest_of_line) = next::<String>(rest).map_err(failed)?;
        let value = rest_of_line
            .trim_start()
            .strip_prefix(':')
            .unwrap_or_default()
            .trim_start();
        let (_, rest_of_line) = next::<serde::de::IgnoredAny>(value).map_err(failed)?;
        found.push((key, &value[..value.len() - rest_of_line.len()]));
        rest = rest_of_line.trim_start();
        rest = rest.strip_prefix(',').unwrap_or(rest).trim_start();
    }
    Ok(found)
}

/// The JSON value that a text begins with, and what comes after it.
fn next<'t, T: serde::Deserialize<'t>>(text: &'t str) -> serde_json::Result<(T, &'t str)> {
    let mut values = Deserializer::from_str(text).into_iter::<T>();
    let value = values
        .next()
        .unwrap_or_else(|| Err(serde::de::Error::custom("a value is missing")))?;
    let end = values.byte_offset();
    Ok((value, &text[end..]))
}

fn json_value(text: &str) -> Option<Value> {
    match text.as_bytes().first()? {
        b'"' => serde_json::from_str(text)
            .ok()
            .map(|text: Box<str>| Value::Text(text)),
        b'{' | b'[' | b'n' => None,
        _ => Some(Value::spelled(text)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{fs, time::Instant};

    fn read_text(name: &str, text: &str) -> Result<RowTable, String> {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join(name), text).unwrap();
        read_as(&dir.path().join(name), name)
    }

    fn spelling(name: &str, text: &str) -> String {
        let (_, cells) = read_text(name, text).unwrap();
        cells
            .iter()
            .map(ToString::to_string)
            .collect::<Vec<_>>()
            .join(" ")
    }

    #[test]
    fn other_separators_are_known() {
        for (name, text) in [
            ("a.csv", "a;b\n1;2\n"),
            ("a.csv", "a\tb\n1\t2\n"),
            ("a.tsv", "a,b\n1,2\n"),
        ] {
            let error = read_text(name, text).unwrap_err();
            assert!(
                error.contains("cells of a .csv file are separated by commas"),
                "{error}"
            );
        }
    }

    #[test]
    fn values_keep_their_spelling_and_numbers_are_numbers() {
        let csv = "k\n1.10\n3.0\n1e5\n12345678901234567890.5\n007\nTrue\n0.5\ninf\n";
        assert_eq!(
            spelling("a.csv", csv),
            "1.10 3.0 1e5 12345678901234567890.5 007 True 0.5 inf"
        );
        let (_, cells) = read_text("a.csv", csv).unwrap();
        let plain: Vec<Value> = cells
            .iter()
            .take(3)
            .map(|value| value.plain().into_owned())
            .collect();
        assert_eq!(
            plain,
            [Value::Float(1.1), Value::Float(3.0), Value::Float(1e5)]
        );
        assert_eq!(cells[6], Value::Float(0.5));
        let json = "\u{feff}{\"k\": 1.10 , \"t\":\"1.10\"}\n\n{ \"t\": \"a\\\"}\",\"k\":18446744073709551615}\n\
                    {\"k\":1000000000000000000000000000001,\"t\":true}";
        assert_eq!(
            spelling("a.jsonl", json),
            "1.10 1.10 18446744073709551615 a\"} 1000000000000000000000000000001 true"
        );
    }

    #[test]
    fn problems_of_json_lines_have_their_place() {
        for (text, problem) in [
            ("{\"k\":1,\"k\":2}", "line 1: two columns have the name `k`"),
            ("{\"k\":1}\n{\"k\":1,\"k\":2}", "line 2: `k` is given twice"),
            (
                "{\"k\":1e400}",
                "line 1: not a JSON object: number out of range",
            ),
            (
                "{\"k\":[1]}",
                "line 1: `k` is not a number, a truth value or text: `[1]`",
            ),
            ("{\"k\":1}\n{}", "line 2: `k` is missing"),
            (
                "{\"k\":1}\n{\"l\u{1b}\":1}",
                "line 2: not a JSON object: control character",
            ),
            (
                "{\"\\u001b[2J\":1}",
                "line 1: `\\u{1b}[2J` cannot name a parameter",
            ),
            ("{\"k\":1} x", "line 1: not a JSON object: trailing"),
            ("[1]", "line 1: not a JSON object"),
        ] {
            let error = read_text("a.jsonl", text).unwrap_err();
            assert!(error.contains(problem), "{text}: {error}");
        }
        let long = format!("{{\"k\":\"{}\"}}", "x".repeat(1 << 20));
        assert!(
            read_text("a.jsonl", &long)
                .unwrap_err()
                .contains("line 1: it has more than 1048576 bytes")
        );
    }

    #[test]
    fn many_columns_are_refused_or_read_at_once() {
        let begin = Instant::now();
        let wide = |count: usize| {
            (0..count)
                .map(|column| format!("c{column}"))
                .collect::<Vec<_>>()
                .join(",")
        };
        let error = read_text("a.csv", &format!("{}\n", wide(1_000_000))).unwrap_err();
        assert!(error.contains("1000000 columns; at most 100000"), "{error}");
        let row = vec!["1"; 90_000].join(",");
        assert_eq!(
            read_text("a.csv", &format!("{}\n{row}\n", wide(90_000)))
                .unwrap()
                .0
                .len(),
            90_000
        );
        let keys = (0..90_000)
            .map(|key| format!("\"{key}\":1"))
            .collect::<Vec<_>>()
            .join(",");
        assert_eq!(
            read_text("a.jsonl", &format!("{{{keys}}}\n{{{keys}}}"))
                .unwrap()
                .0
                .len(),
            90_000
        );
        assert!(
            begin.elapsed().as_secs() < 30,
            "what is quadratic takes minutes"
        );
    }

    #[test]
    fn a_fifo_is_no_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.csv");
        rustix::fs::mknodat(
            rustix::fs::CWD,
            &path,
            rustix::fs::FileType::Fifo,
            0o600.into(),
            0,
        )
        .unwrap();
        assert!(read(&path).unwrap_err().contains("it is not a file"));
    }
}
