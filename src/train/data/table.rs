//! Tables: CSV, also gzipped, a sample a line. The first line names the columns if none of its
//! inputs is a number; if only some are, it is a slip of the keyboard, and an error.

use super::{Column, DataError, Dataset, MOST_BYTES, Targets, targets};
use crate::model::Loss;
use csv::{Reader, ReaderBuilder, StringRecord};
use flate2::read::MultiGzDecoder;
use nodectl_formats::files;
use nodectl_types::{suggest::nearest, text::shown};
use std::{
    io::{self, BufReader, Read},
    path::Path,
};

/// Names of columns in an error.
const SHOWN: usize = 20;

pub fn sample_shape(base: &Path, path: &str, target: &Column) -> Result<Vec<u32>, DataError> {
    let table = DataTable::open(base, path, Some(target))?;
    table.check_names(target)?;
    Ok(vec![table.width as u32 - 1])
}

pub fn read(base: &Path, path: &str, target: &Column, loss: Loss) -> Result<Dataset, DataError> {
    let mut table = DataTable::open(base, path, Some(target))?;
    table.check_names(target)?;
    let at = table.target.expect("a target was asked for");
    let (mut inputs, mut words) = (Vec::new(), Vec::new());
    table.each(|table, line, record| {
        for (column, field) in record.iter().enumerate() {
            if column == at && field.trim().is_empty() {
                return Err(DataError(format!(
                    "`{}`, line {line}: the target is empty",
                    table.path
                )));
            }
            if column == at {
                words.push(field.trim().to_string());
            } else {
                inputs.push(table.number(line, column, field)?);
            }
        }
        Ok(())
    })?;
    let sample = vec![table.width as u32 - 1];
    let numbers: Option<Vec<f32>> = words.iter().map(|word| word.parse().ok()).collect();
    match numbers {
        Some(numbers) => {
            let targets = Targets::from_numbers(numbers, 1, loss)?;
            Ok(Dataset {
                sample,
                inputs,
                targets,
                names: Vec::new(),
            })
        }
        None if loss == Loss::CrossEntropy => {
            let (classes, names) = targets::named(words);
            Ok(Dataset {
                sample,
                inputs,
                targets: Targets::Classes(classes),
                names,
            })
        }
        None => {
            let index = words
                .iter()
                .position(|word| word.parse::<f32>().is_err())
                .unwrap_or(0);
            Err(DataError(format!(
                "`{path}`: the target of sample {index} (from 0) is `{}`, not a number",
                words[index]
            )))
        }
    }
}

/// Samples of `width` numbers each; a table with one column more has targets, which are left out.
pub fn read_inputs(
    base: &Path,
    path: &str,
    target: &Column,
    width: usize,
) -> Result<Vec<f32>, DataError> {
    let mut table = DataTable::open(base, path, None)?;
    if table.width == width + 1 {
        table = DataTable::open(base, path, Some(target))?;
    }
    let (own, left_out) = (
        table.width - usize::from(table.target.is_some()),
        table.target,
    );
    table.check_names(target)?;
    if own != width {
        return Err(DataError(format!(
            "`{path}` has {} columns, the model takes {width}",
            table.width
        )));
    }
    let mut inputs = Vec::new();
    table.each(|table, line, record| {
        for (column, field) in record
            .iter()
            .enumerate()
            .filter(|(column, _)| Some(*column) != left_out)
        {
            inputs.push(table.number(line, column, field)?);
        }
        Ok(())
    })?;
    Ok(inputs)
}

/// The bytes of a table, inflated.
fn content(base: &Path, path: &str) -> Result<Box<dyn Read>, DataError> {
    let file =
        files::open(&base.join(path)).map_err(|error| DataError(format!("`{path}`: {error}")))?;
    let is_gzipped = path.ends_with(".gz");
    let bytes: Box<dyn Read> = if is_gzipped {
        Box::new(MultiGzDecoder::new(BufReader::new(file)))
    } else {
        Box::new(file)
    };
    Ok(Box::new(bytes.take(MOST_BYTES)))
}

/// The bytes of a table, inflated; of one with more than `most`, some number above.
pub fn bytes(base: &Path, path: &str, most: u64) -> Result<u64, DataError> {
    let mut content = content(base, path)?.take(most);
    io::copy(&mut content, &mut io::sink()).map_err(|error| DataError(format!("`{path}`: {error}")))
}

struct DataTable<'p> {
    path: &'p str,
    reader: Reader<Box<dyn Read>>,
    /// The first line, if it is no header.
    first: Option<StringRecord>,
    names: Option<StringRecord>,
    width: usize,
    target: Option<usize>,
}

impl<'p> DataTable<'p> {
    fn open(base: &Path, path: &'p str, target: Option<&Column>) -> Result<Self, DataError> {
        let reader = ReaderBuilder::new()
            .has_headers(false)
            .from_reader(content(base, path)?);
        let mut table = Self {
            path,
            reader,
            first: None,
            names: None,
            width: 0,
            target: None,
        };
        let mut first = StringRecord::new();
        if !table
            .reader
            .read_record(&mut first)
            .map_err(|error| table.broken(&error))?
        {
            return Err(DataError(format!("`{path}` is empty")));
        }
        table.width = first.len();
        let by_number = match target {
            Some(Column::Last) => Some(first.len() - 1),
            Some(Column::Number(number)) => Some(*number as usize),
            Some(Column::Name(_)) | None => None,
        };
        let is_name = |(column, field): (usize, &str)| {
            Some(column) != by_number && field.trim().parse::<f32>().is_err()
        };
        if first.iter().enumerate().any(is_name) || matches!(target, Some(Column::Name(_))) {
            table.names = Some(first.clone());
        } else {
            table.first = Some(first.clone());
        }
        table.target = match target {
            Some(Column::Name(name)) => Some(table.named(name)?),
            _ => by_number,
        };
        if let Some(column) = table.target.filter(|column| *column >= table.width) {
            return Err(DataError(format!(
                "`{path}` has {} columns, so none with number {column}",
                table.width
            )));
        }
        if table.width < 1 + usize::from(table.target.is_some()) {
            return Err(DataError(format!(
                "`{path}` has {} columns: no inputs beside the target",
                table.width
            )));
        }
        Ok(table)
    }

    /// Fails where the first line has numbers beside words: as names of columns a sample would be
    /// lost, and nobody would know. Whoever names the target's column says that the first line has
    /// names.
    fn check_names(&self, target: &Column) -> Result<(), DataError> {
        let Some(names) = self
            .names
            .as_ref()
            .filter(|_| !matches!(target, Column::Name(_)))
        else {
            return Ok(());
        };
        let is_number = |field: &str| field.trim().parse::<f32>().is_ok();
        if !names.iter().any(is_number) {
            return Ok(());
        }
        let is_word =
            |(column, field): &(usize, &str)| Some(*column) != self.target && !is_number(field);
        let Some((column, field)) = names.iter().enumerate().find(is_word) else {
            return Ok(());
        };
        let hint = "if the line names the columns, name the target's: target = \"NAME\"";
        Err(DataError(format!(
            "`{}`, line 1, column {column} (from 0): `{}` is not a number, and others of the line are\nhint: {hint}",
            self.path,
            shown(field)
        )))
    }

    fn named(&self, name: &str) -> Result<usize, DataError> {
        let names: Vec<&str> = self
            .names
            .iter()
            .flat_map(|names| names.iter().map(str::trim))
            .collect();
        names
            .iter()
            .position(|known| *known == name)
            .ok_or_else(|| {
                let hint = match nearest(name, names.iter().copied()) {
                    Some(near) => format!("did you mean `{near}`?"),
                    None => format!(
                        "there are {}",
                        names
                            .iter()
                            .take(SHOWN)
                            .copied()
                            .collect::<Vec<_>>()
                            .join(", ")
                    ),
                };
                DataError(format!(
                    "`{}` has no column `{name}`\nhint: {hint}",
                    self.path
                ))
            })
    }

    /// Calls `take` with each line of samples and its number.
    fn each(
        &mut self,
        mut take: impl FnMut(&Self, u64, &StringRecord) -> Result<(), DataError>,
    ) -> Result<(), DataError> {
        if let Some(first) = self.first.take() {
            take(self, 1, &first)?;
        }
        let mut record = StringRecord::new();
        while self
            .reader
            .read_record(&mut record)
            .map_err(|error| self.broken(&error))?
        {
            let line = record.position().map_or(0, csv::Position::line);
            take(self, line, &record)?;
        }
        Ok(())
    }

    fn number(&self, line: u64, column: usize, field: &str) -> Result<f32, DataError> {
        field.trim().parse().map_err(|_| {
            let shown: String = field.chars().take(40).collect();
            let name = self.names.as_ref().and_then(|names| names.get(column));
            let column = name.map_or_else(
                || format!("column {column} (from 0)"),
                |name| format!("column `{name}`"),
            );
            DataError(format!(
                "`{}`, line {line}, {column}: `{shown}` is not a number",
                self.path
            ))
        })
    }

    fn broken(&self, error: &csv::Error) -> DataError {
        DataError(format!("`{}`: {error}", self.path))
    }
}
