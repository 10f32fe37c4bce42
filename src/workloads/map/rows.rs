//! Parameter sets in a file beside the job file: CSV, TSV or JSON lines. Errors name the file's line.

use super::params::MAX_VALUES;
use crate::{
    types::{ParamSpace, Value, limits},
    workloads::job_file::{Context, Fault},
};
use std::{fs::File, io::BufRead, io::BufReader, io::Read, ops::Range, path::Path};

/// The longest line of JSON that is read.
const MAX_LINE_BYTES: u64 = 1 << 20;

type Rows = (Vec<String>, Vec<Value>);

/// Reads the parameter sets; a problem is shown at `span`, where the file is named.
pub(in crate::workloads) fn load(context: &Context<'_>, name: &str, span: Range<usize>) -> Result<ParamSpace, Fault> {
    let fault = |problem: String| match problem.split_once("\nhint: ") {
        Some((problem, hint)) => Fault::new(span.clone(), problem).hint(hint),
        None => Fault::new(span.clone(), problem),
    };
    let (columns, cells) = read_as(&context.base.join(name), name).map_err(fault)?;
    Ok(ParamSpace::Rows { columns, cells })
}

/// The columns of a CSV, TSV or JSONL file and its rows, one after the other; at least one row. An error has a `hint:` line
/// where there is something to do about it.
pub fn read(path: &Path) -> Result<(Vec<String>, Vec<Value>), String> {
    read_as(path, &path.display().to_string())
}

fn read_as(path: &Path, name: &str) -> Result<Rows, String> {
    let ending = path.extension().map(|ending| ending.to_string_lossy().to_lowercase()).unwrap_or_default();
    let read: fn(File) -> Result<Rows, String> = match ending.as_str() {
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
        return Err(format!("`{name}` has no parameter set: there would be no task"));
    }
    Ok((columns, cells))
}

fn open(path: &Path) -> Result<File, String> {
    let file = File::open(path).map_err(|error| error.to_string())?;
    let metadata = file.metadata().map_err(|error| error.to_string())?;
    if !metadata.is_file() {
        return Err("it is not a file".into());
    }
    if metadata.len() > limits::MAX_SPEC_BYTES as u64 {
        return Err(format!("it has {} bytes, more than {} fit into a job", metadata.len(), limits::MAX_SPEC_BYTES));
    }
    Ok(file)
}

fn csv_rows(file: File, delimiter: u8) -> Result<Rows, String> {
    let mut reader = csv::ReaderBuilder::new().delimiter(delimiter).trim(csv::Trim::All).from_reader(file);
    let headers = reader.headers().map_err(csv_problem)?;
    let columns: Vec<String> = headers.iter().map(str::to_string).collect();
    check_columns(&columns)?;
    let mut cells = Vec::new();
    for row in reader.records() {
        cells.extend(row.map_err(csv_problem)?.iter().map(typed));
        check_count(cells.len())?;
    }
    Ok((columns, cells))
}

fn csv_problem(error: csv::Error) -> String {
    let line = |position: &Option<csv::Position>| position.as_ref().map_or(1, csv::Position::line);
    match error.kind() {
        csv::ErrorKind::UnequalLengths { pos, expected_len, len } => {
            format!("line {} has {len} cells, the header {expected_len}", line(pos))
        }
        csv::ErrorKind::Utf8 { pos, err } => format!("line {} is not UTF-8 text: {err}", line(pos)),
        _ => error.to_string(),
    }
}

fn check_columns(columns: &[String]) -> Result<(), String> {
    for (index, column) in columns.iter().enumerate() {
        if column.is_empty() {
            return Err(format!("line 1: column {} has no name", index + 1));
        }
        if columns[..index].contains(column) {
            return Err(format!("line 1: two columns have the name `{column}`"));
        }
    }
    Ok(())
}

fn check_count(cells: usize) -> Result<(), String> {
    if cells <= MAX_VALUES { Ok(()) } else { Err(format!("it has more than {MAX_VALUES} values")) }
}

/// The cell as a number or truth value where nothing is lost by that: `007` and `1e5x` stay text.
fn typed(cell: &str) -> Value {
    if let Ok(number) = cell.parse::<i64>()
        && number.to_string() == cell
    {
        return Value::Int(number);
    }
    match cell {
        "true" | "True" => return Value::Bool(true),
        "false" | "False" => return Value::Bool(false),
        _ => {}
    }
    let digits = cell.trim_start_matches('-');
    let leading_zero = digits.starts_with('0') && digits[1..].starts_with(|c: char| c.is_ascii_digit());
    let fraction = digits.starts_with(|c: char| c.is_ascii_digit() || c == '.') && cell.contains(['.', 'e', 'E']);
    match cell.parse::<f64>() {
        Ok(number) if fraction && !leading_zero && number.is_finite() => Value::Float(number),
        _ => Value::Text(cell.into()),
    }
}

fn json_rows(file: File) -> Result<Rows, String> {
    let mut reader = BufReader::new(file);
    let (mut columns, mut cells) = (Vec::new(), Vec::new());
    let mut line = String::new();
    for number in 1.. {
        line.clear();
        let read = reader.by_ref().take(MAX_LINE_BYTES).read_line(&mut line);
        if read.map_err(|error| format!("line {number}: {error}"))? == 0 {
            break;
        }
        if !line.trim().is_empty() {
            json_row(&line, &mut columns, &mut cells).map_err(|problem| format!("line {number}: {problem}"))?;
            check_count(cells.len())?;
        }
    }
    Ok((columns, cells))
}

fn json_row(line: &str, columns: &mut Vec<String>, cells: &mut Vec<Value>) -> Result<(), String> {
    let row: serde_json::Map<String, serde_json::Value> =
        serde_json::from_str(line).map_err(|error| format!("not a JSON object: {error}"))?;
    if columns.is_empty() {
        columns.extend(row.keys().cloned());
        if columns.is_empty() {
            return Err("the object is empty".into());
        }
    }
    if let Some(key) = row.keys().find(|key| !columns.contains(key)) {
        return Err(format!("the first line has no `{key}`"));
    }
    for column in columns.iter() {
        let value = row.get(column).ok_or_else(|| format!("`{column}` is missing"))?;
        cells.push(
            json_value(value).ok_or_else(|| format!("`{column}` is not a number, a truth value or text: {value}"))?,
        );
    }
    Ok(())
}

fn json_value(value: &serde_json::Value) -> Option<Value> {
    match value {
        serde_json::Value::Bool(truth) => Some(Value::Bool(*truth)),
        serde_json::Value::Number(number) => number.as_i64().map(Value::Int).or(number.as_f64().map(Value::Float)),
        serde_json::Value::String(text) => Some(Value::Text(text.as_str().into())),
        serde_json::Value::Null | serde_json::Value::Array(_) | serde_json::Value::Object(_) => None,
    }
}
