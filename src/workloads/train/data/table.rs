//! Tables: CSV, also gzipped, a sample a line. The first line names the columns if any of its inputs is no number.

use super::{Column, DataError, Dataset, MOST_BYTES, Targets, targets};
use crate::{types::suggest::nearest, workloads::train::model::Loss};
use csv::{Reader, ReaderBuilder, StringRecord};
use flate2::read::MultiGzDecoder;
use std::{
    fs::File,
    io::{BufReader, Read},
    path::Path,
};

/// Names of columns in an error.
const SHOWN: usize = 20;

pub fn sample_shape(base: &Path, path: &str, target: &Column) -> Result<Vec<u32>, DataError> {
    let table = Table::open(base, path, Some(target))?;
    Ok(vec![table.width as u32 - 1])
}

pub fn read(base: &Path, path: &str, target: &Column, loss: Loss) -> Result<Dataset, DataError> {
    let mut table = Table::open(base, path, Some(target))?;
    let at = table.target.expect("a target was asked for");
    let (mut inputs, mut words) = (Vec::new(), Vec::new());
    table.each(|table, line, record| {
        for (column, field) in record.iter().enumerate() {
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
            Ok(Dataset { sample, inputs, targets, names: Vec::new() })
        }
        None if loss == Loss::CrossEntropy => {
            let (classes, names) = targets::named(words);
            Ok(Dataset { sample, inputs, targets: Targets::Classes(classes), names })
        }
        None => {
            let index = words.iter().position(|word| word.parse::<f32>().is_err()).unwrap_or(0);
            Err(DataError(format!("`{path}`: the target of sample {index} (from 0) is `{}`, no number", words[index])))
        }
    }
}

/// Samples of `width` numbers each; a table with one column more has targets, which are left out.
pub fn read_inputs(base: &Path, path: &str, target: &Column, width: usize) -> Result<Vec<f32>, DataError> {
    let mut table = Table::open(base, path, None)?;
    if table.width == width + 1 {
        table = Table::open(base, path, Some(target))?;
    }
    let (own, left_out) = (table.width - usize::from(table.target.is_some()), table.target);
    if own != width {
        return Err(DataError(format!("`{path}` has {} columns, the model takes {width}", table.width)));
    }
    let mut inputs = Vec::new();
    table.each(|table, line, record| {
        for (column, field) in record.iter().enumerate().filter(|(column, _)| Some(*column) != left_out) {
            inputs.push(table.number(line, column, field)?);
        }
        Ok(())
    })?;
    Ok(inputs)
}

struct Table<'p> {
    path: &'p str,
    reader: Reader<Box<dyn Read>>,
    /// The first line, if it is no header.
    first: Option<StringRecord>,
    names: Option<StringRecord>,
    width: usize,
    target: Option<usize>,
}

impl<'p> Table<'p> {
    fn open(base: &Path, path: &'p str, target: Option<&Column>) -> Result<Self, DataError> {
        let file = File::open(base.join(path)).map_err(|error| DataError(format!("`{path}`: {error}")))?;
        let is_gzipped = path.ends_with(".gz");
        let bytes: Box<dyn Read> =
            if is_gzipped { Box::new(MultiGzDecoder::new(BufReader::new(file))) } else { Box::new(file) };
        let reader =
            ReaderBuilder::new().has_headers(false).from_reader(Box::new(bytes.take(MOST_BYTES)) as Box<dyn Read>);
        let mut table = Self { path, reader, first: None, names: None, width: 0, target: None };
        let mut first = StringRecord::new();
        if !table.reader.read_record(&mut first).map_err(|error| table.broken(&error))? {
            return Err(DataError(format!("`{path}` is empty")));
        }
        table.width = first.len();
        let by_number = match target {
            Some(Column::Last) => Some(first.len() - 1),
            Some(Column::Number(number)) => Some(*number as usize),
            Some(Column::Name(_)) | None => None,
        };
        let is_name =
            |(column, field): (usize, &str)| Some(column) != by_number && field.trim().parse::<f32>().is_err();
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
            return Err(DataError(format!("`{path}` has {} columns, so none with number {column}", table.width)));
        }
        if table.width < 1 + usize::from(table.target.is_some()) {
            return Err(DataError(format!("`{path}` has {} columns: no inputs beside the target", table.width)));
        }
        Ok(table)
    }

    fn named(&self, name: &str) -> Result<usize, DataError> {
        let names: Vec<&str> = self.names.iter().flat_map(|names| names.iter().map(str::trim)).collect();
        names.iter().position(|known| *known == name).ok_or_else(|| {
            let hint = match nearest(name, names.iter().copied()) {
                Some(near) => format!("did you mean `{near}`?"),
                None => format!("there are {}", names.iter().take(SHOWN).copied().collect::<Vec<_>>().join(", ")),
            };
            DataError(format!("`{}` has no column `{name}`\nhint: {hint}", self.path))
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
        while self.reader.read_record(&mut record).map_err(|error| self.broken(&error))? {
            let line = record.position().map_or(0, csv::Position::line);
            take(self, line, &record)?;
        }
        Ok(())
    }

    fn number(&self, line: u64, column: usize, field: &str) -> Result<f32, DataError> {
        field.trim().parse().map_err(|_| {
            let shown: String = field.chars().take(40).collect();
            let name = self.names.as_ref().and_then(|names| names.get(column));
            let column = name.map_or_else(|| format!("column {column} (from 0)"), |name| format!("column `{name}`"));
            DataError(format!("`{}`, line {line}, {column}: `{shown}` is no number", self.path))
        })
    }

    fn broken(&self, error: &csv::Error) -> DataError {
        DataError(format!("`{}`: {error}", self.path))
    }
}
