//! Results as lines: `results.jsonl` (the whole truth, one JSON object a task) and `results.csv`
//! (the same, flattened for spreadsheets). Lines are appended as results come. A task that was
//! retried has a second line; `finish` keeps the last, and puts lines in the order of tasks. A
//! value column that shows up late makes the CSV be written anew from the JSON lines.

use crate::exit::CliError;
use nodectl_wire::api::TaskResult;
use serde_json::{Map, Value as Json, json};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, File},
    io::{self, BufRead, BufReader, BufWriter, Write},
    path::{Path, PathBuf},
    time::{Duration, UNIX_EPOCH},
};

/// Columns before parameters and values.
const FIXED: [&str; 12] = [
    "task",
    "status",
    "exit",
    "failure",
    "attempt",
    "node",
    "seconds",
    "reason",
    "started",
    "ended",
    "cpu_seconds",
    "max_rss_bytes",
];
/// What the task is called, if its job names tasks.
const NAME: &str = "name";
/// Of a task that was not run again: the job that ran it, and the task's number there.
const TAKEN_FROM: &str = "taken_from";
/// Of more tasks, lines stay in the order in which these ended: to sort them takes memory.
const MOST_SORTED: usize = 100_000;
/// Value columns; more stay in the JSON lines only.
const MAX_VALUE_COLUMNS: usize = 500;

pub struct Lines {
    jsonl: AppendedLine,
    csv: AppendedLine,
    /// Parameters and then values, in the order in which they were seen; empty until the first
    /// result.
    columns: Vec<String>,
    known: BTreeSet<String>,
    /// Lines so far, and the number of each task's last line.
    count: u64,
    last: BTreeMap<u32, u64>,
    superseded: bool,
    /// A task came after one of a higher number.
    is_mixed: bool,
}

struct AppendedLine {
    path: PathBuf,
    file: BufWriter<File>,
}

impl Lines {
    /// Begins both files anew.
    pub fn create(directory: &Path) -> Result<Self, CliError> {
        Ok(Self {
            jsonl: AppendedLine::create(directory.join("results.jsonl"))?,
            csv: AppendedLine::create(directory.join("results.csv"))?,
            columns: Vec::new(),
            known: BTreeSet::new(),
            count: 0,
            last: BTreeMap::new(),
            superseded: false,
            is_mixed: false,
        })
    }

    /// `ran`: the earlier job that ran the task, and the task's number there.
    pub fn append(
        &mut self,
        result: &TaskResult,
        ran: Option<(&str, u32)>,
    ) -> Result<(), CliError> {
        let mut line = line(result);
        if let Some((job, task)) = ran {
            line.insert(TAKEN_FROM.into(), json!({"job": job, "task": task}));
        }
        let text = serde_json::to_string(&line).expect("an object with string keys always encodes");
        self.jsonl.write(|file| writeln!(file, "{text}"))?;
        let highest = self.last.last_key_value();
        self.is_mixed |= highest.is_some_and(|(highest, _)| *highest > result.task);
        self.superseded |= self.last.insert(result.task, self.count).is_some();
        self.count += 1;
        if self.learn_columns(&line) || self.count == 1 {
            return self.rewrite_csv();
        }
        let row = row(&line, &self.columns);
        self.csv.write(|file| write_csv(file, &row))
    }

    pub fn flush(&mut self) -> Result<(), CliError> {
        self.jsonl.write(Write::flush)?;
        self.csv.write(Write::flush)
    }

    /// Leaves one line a task in both files, in the order of tasks unless there are very many.
    pub fn finish(mut self) -> Result<(), CliError> {
        if self.is_mixed && self.last.len() <= MOST_SORTED {
            self.sort()?;
            self.rewrite_csv()?;
        } else if self.superseded {
            self.drop_superseded()?;
            self.rewrite_csv()?;
        } else if self.count == 0 {
            self.rewrite_csv()?;
        }
        self.flush()
    }

    /// Whether the line has a column that was not known.
    fn learn_columns(&mut self, line: &Map<String, Json>) -> bool {
        let before = self.columns.len();
        for name in cells(line).map(|(name, _)| name) {
            if self.columns.len() < MAX_VALUE_COLUMNS && self.known.insert(name.clone()) {
                self.columns.push(name);
            }
        }
        self.columns.len() > before
    }

    fn rewrite_csv(&mut self) -> Result<(), CliError> {
        self.jsonl.write(Write::flush)?;
        let header: Vec<String> = FIXED
            .iter()
            .map(|name| (*name).to_string())
            .chain(self.columns.clone())
            .collect();
        let (columns, source) = (&self.columns, &self.jsonl.path);
        self.csv.replace(|file| {
            write_csv(file, &header)?;
            each_line(source, |_, text| {
                write_csv(file, &row(&serde_json::from_str(text)?, columns))
            })
        })
    }

    /// Also drops lines that were superseded.
    fn sort(&mut self) -> Result<(), CliError> {
        self.jsonl.write(Write::flush)?;
        let tasks: BTreeMap<u64, u32> = self
            .last
            .iter()
            .map(|(task, line)| (*line, *task))
            .collect();
        let source = self.jsonl.path.clone();
        self.jsonl.replace(|file| {
            let mut lines = BTreeMap::new();
            each_line(&source, |number, text| {
                if let Some(task) = tasks.get(&number) {
                    lines.insert(*task, text.to_string());
                }
                Ok(())
            })?;
            lines.values().try_for_each(|text| writeln!(file, "{text}"))
        })
    }

    fn drop_superseded(&mut self) -> Result<(), CliError> {
        self.jsonl.write(Write::flush)?;
        let keep: BTreeSet<u64> = self.last.values().copied().collect();
        let source = self.jsonl.path.clone();
        self.jsonl.replace(|file| {
            each_line(&source, |number, text| {
                if keep.contains(&number) {
                    writeln!(file, "{text}")
                } else {
                    Ok(())
                }
            })
        })
    }
}

impl AppendedLine {
    fn create(path: PathBuf) -> Result<Self, CliError> {
        let file =
            File::create(&path).map_err(|source| CliError::file("writing", &path, source))?;
        Ok(Self {
            path,
            file: BufWriter::new(file),
        })
    }

    fn write(
        &mut self,
        write: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>,
    ) -> Result<(), CliError> {
        write(&mut self.file).map_err(|source| CliError::file("writing", &self.path, source))
    }

    /// Puts a new file in its place, whole or not at all, and goes on appending to that.
    fn replace(
        &mut self,
        fill: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>,
    ) -> Result<(), CliError> {
        let temporary = self.path.with_extension("new");
        let replaced = || -> io::Result<BufWriter<File>> {
            let mut file = BufWriter::new(File::create(&temporary)?);
            fill(&mut file)?;
            file.flush()?;
            fs::rename(&temporary, &self.path)?;
            Ok(file)
        };
        self.file = replaced().map_err(|source| CliError::file("writing", &self.path, source))?;
        Ok(())
    }
}

fn each_line(path: &Path, mut each: impl FnMut(u64, &str) -> io::Result<()>) -> io::Result<()> {
    for (number, line) in BufReader::new(File::open(path)?).lines().enumerate() {
        each(number as u64, &line?)?;
    }
    Ok(())
}

/// A result as its line of JSON.
fn line(result: &TaskResult) -> Map<String, Json> {
    let mut line = Map::new();
    let mut put = |name: &str, value: Json| drop(line.insert(name.to_string(), value));
    put("task", result.task.into());
    if let Some(name) = &result.name {
        put(NAME, name.clone().into());
    }
    put("params", Json::Object(result.params.clone()));
    put("status", result.status.word().into());
    let exit = match &result.failure {
        None => Json::from(0),
        Some(failure) => failure.code.map_or(Json::Null, Json::from),
    };
    put("exit", exit);
    put(
        "failure",
        result
            .failure
            .as_ref()
            .map_or(Json::Null, |failure| failure.message.clone().into()),
    );
    if let Some(traceback) = result
        .failure
        .as_ref()
        .and_then(|failure| failure.traceback.as_ref())
    {
        put("traceback", traceback.clone().into());
    }
    put("attempt", result.attempt.clone().into());
    put(
        "node",
        result
            .node_name
            .clone()
            .unwrap_or_else(|| result.node.clone())
            .into(),
    );
    put("seconds", result.seconds.into());
    put("reason", result.reason().into());
    let (started, ended) = result.span_ms().unzip();
    put("started", started.map_or(Json::Null, utc));
    put("ended", ended.map_or(Json::Null, utc));
    put("cpu_seconds", result.cpu_seconds.into());
    put("max_rss_bytes", result.max_rss_bytes.into());
    put("value", result.value.clone().unwrap_or(Json::Null));
    put(
        "outputs",
        result
            .outputs
            .iter()
            .map(|file| Json::from(file.path.clone()))
            .collect(),
    );
    line
}

/// Milliseconds since 1970 as RFC 3339 has them. A clock may say anything: what is no date is left
/// out.
fn utc(ms: u64) -> Json {
    const LAST_MS: u64 = 253_402_300_799_999;
    if ms > LAST_MS {
        return Json::Null;
    }
    let time = UNIX_EPOCH + Duration::from_millis(ms);
    humantime::format_rfc3339_millis(time).to_string().into()
}

/// Parameters as they are called, values as `value.a.b` (or `value`, if it is no object).
fn cells(line: &Map<String, Json>) -> impl Iterator<Item = (String, String)> {
    let mut cells = Vec::new();
    cells.extend(line.get(NAME).map(|name| (NAME.to_string(), cell(name))));
    if let Some(Json::Object(taken)) = line.get(TAKEN_FROM) {
        // As `nodectl logs` wants it.
        let text = |key| taken.get(key).map(cell).unwrap_or_default();
        cells.push((
            TAKEN_FROM.to_string(),
            format!("{} {}", text("job"), text("task")),
        ));
    }
    if let Some(Json::Object(params)) = line.get("params") {
        // A parameter may be called as a fixed column is.
        let name = |name: &String| {
            if FIXED.contains(&name.as_str()) || [NAME, TAKEN_FROM].contains(&name.as_str()) {
                format!("params.{name}")
            } else {
                name.clone()
            }
        };
        cells.extend(params.iter().map(|(key, value)| (name(key), cell(value))));
    }
    flatten(
        "value",
        line.get("value").unwrap_or(&Json::Null),
        &mut cells,
    );
    cells.into_iter()
}

fn flatten(name: &str, value: &Json, cells: &mut Vec<(String, String)>) {
    match value {
        Json::Null => {}
        Json::Object(fields) => {
            for (key, value) in fields {
                flatten(&format!("{name}.{key}"), value, cells);
            }
        }
        other => cells.push((name.to_string(), cell(other))),
    }
}

fn cell(value: &Json) -> String {
    match value {
        Json::Null => String::new(),
        Json::String(text) => text_cell(text),
        other => other.to_string(),
    }
}

/// Spreadsheets take text that begins so for a formula and carry it out; an apostrophe in front
/// says that it is text.
fn text_cell(text: &str) -> String {
    let is_formula =
        text.starts_with(['=', '+', '-', '@', '\t', '\r']) && text.parse::<f64>().is_err();
    if is_formula {
        format!("'{text}")
    } else {
        text.to_string()
    }
}

fn row(line: &Map<String, Json>, columns: &[String]) -> Vec<String> {
    let cells: BTreeMap<String, String> = cells(line).collect();
    let fixed = FIXED
        .iter()
        .map(|name| cell(line.get(*name).unwrap_or(&Json::Null)));
    fixed
        .chain(
            columns
                .iter()
                .map(|name| cells.get(name).cloned().unwrap_or_default()),
        )
        .collect()
}

/// Results as `results.csv` has them.
pub fn csv(results: &[TaskResult]) -> String {
    let lines: Vec<_> = results.iter().map(line).collect();
    let mut columns: Vec<String> = Vec::new();
    let mut known = BTreeSet::new();
    for (name, _) in lines.iter().flat_map(cells) {
        if columns.len() < MAX_VALUE_COLUMNS && known.insert(name.clone()) {
            columns.push(name);
        }
    }
    let header = FIXED.iter().map(|name| (*name).to_string());
    let mut text = Vec::new();
    let mut write =
        |row: &[String]| write_csv(&mut text, row).expect("memory takes what is written");
    write(&header.chain(columns.clone()).collect::<Vec<_>>());
    lines.iter().for_each(|line| write(&row(line, &columns)));
    String::from_utf8(text).expect("made of texts")
}

fn write_csv(file: &mut impl Write, row: &[String]) -> io::Result<()> {
    let mut writer = csv::Writer::from_writer(file);
    writer.write_record(row).map_err(io::Error::other)?;
    writer.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_rfc_3339() {
        assert_eq!(utc(1_764_000_000_123), "2025-11-24T16:00:00.123Z");
        assert_eq!(utc(u64::MAX), Json::Null);
    }

    #[test]
    fn a_named_task_has_its_name_in_a_column_and_a_parameter_keeps_its_own() {
        let line = json!({"task": 0, "name": "fit", "params": {"name": "x"}, "value": 2});
        let cells: Vec<_> = cells(line.as_object().unwrap()).collect();
        let pairs = [("name", "fit"), ("params.name", "x"), ("value", "2")];
        let wanted = pairs.map(|(name, cell)| (name.to_string(), cell.to_string()));
        assert_eq!(cells, wanted);
    }

    #[test]
    fn no_cell_is_a_formula() {
        assert_eq!(cell(&Json::from("=1+1")), "'=1+1");
        assert_eq!(cell(&Json::from("@SUM(A1)")), "'@SUM(A1)");
        for plain in ["-1.5", "+3", "1e-3", "a=b", "", "-inf"] {
            assert_eq!(cell(&Json::from(plain)), plain);
        }
        assert_eq!(cell(&Json::from(-7)), "-7");
    }
}
