//! Data to train on: from files to samples, checked before any device is touched.
//!
//! | file | owns |
//! |---|---|
//! | `arrays` | `.npy`, `.npz`, safetensors, IDX, HDF5: inputs and targets |
//! | `table` | CSV, also gzipped: a sample a line |
//! | `images` | a folder of images for each class |
//! | `targets` | what outputs are compared with, checked |
//! | `prepare` | scaling of inputs |
//! | `split` | what is trained on and what is held back; the order of an epoch; batches |

mod arrays;
mod images;
mod prepare;
mod split;
mod table;
mod targets;
#[cfg(test)]
mod tests;

pub use prepare::{Preparation, Standard};
pub use split::{Batches, Split, order};
pub use targets::Targets;

use super::model::{Loss, ModelSpec, shapes};
use serde::{Deserialize, Serialize};
use std::path::Path;

/// Where samples come from, and what becomes of them. Paths are relative to the job's files.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DataSpec {
    pub source: Source,
    pub validation: Validation,
    /// The shape of a sample, where the files say another of as many numbers.
    pub shape: Option<Vec<u32>>,
    /// What each input is multiplied by.
    pub scale: f32,
    /// Whether each input then gets mean 0 and deviation 1, as the samples that are trained on have
    /// them.
    pub standardize: bool,
    pub class_weights: ClassWeights,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    Table {
        path: String,
        target: Column,
    },
    Arrays {
        inputs: FilePlace,
        targets: FilePlace,
    },
    /// Files in a directory for each class. `channels` and `size` (rows, columns) are those of the
    /// first image where not given; with a size, images of another are resized.
    Images {
        files: Vec<String>,
        channels: Option<u32>,
        size: Option<[u32; 2]>,
    },
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FilePlace {
    pub path: String,
    pub member: Option<String>,
}

/// A column of a table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Column {
    Last,
    /// From 0.
    Number(u32),
    Name(String),
}

/// What is held back, to see how the model does with what it has not learnt from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Validation {
    Nothing,
    /// A share of the samples, drawn at random.
    Share(f64),
    Other(Source),
}

/// How much a sample counts, by its class.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ClassWeights {
    Equal,
    /// n / (classes · n of the class): rare ones count more.
    Balanced,
    Given(Vec<f32>),
}

/// Samples in memory.
#[derive(Clone, Debug, PartialEq)]
pub struct Dataset {
    /// The shape of a sample.
    pub sample: Vec<u32>,
    /// Sample after sample.
    pub inputs: Vec<f32>,
    pub targets: Targets,
    /// Of the classes, where the files name them.
    pub names: Vec<String>,
}

/// What is wrong with data. A sentence that names the file and the place in it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct DataError(pub String);

/// More than this in one place is refused before it is allocated.
pub const MOST_BYTES: u64 = 64 << 30;

impl Dataset {
    pub fn len(&self) -> usize {
        self.targets.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Numbers of a sample.
    pub fn width(&self) -> usize {
        self.sample.iter().map(|extent| *extent as usize).product()
    }
}

impl Source {
    /// The files that it names.
    pub fn files(&self) -> Vec<&str> {
        match self {
            Self::Table { path, .. } => vec![path],
            Self::Arrays { inputs, targets } => vec![&inputs.path, &targets.path],
            Self::Images { files, .. } => files.iter().map(String::as_str).collect(),
        }
    }
}

impl DataSpec {
    /// The files that it names.
    pub fn files(&self) -> Vec<&str> {
        let other = match &self.validation {
            Validation::Other(source) => source.files(),
            Validation::Nothing | Validation::Share(_) => Vec::new(),
        };
        [self.source.files(), other].concat()
    }

    /// The shape of a sample as the model sees it, from the headers alone: data may be large.
    pub fn sample_shape(&self, base: &Path) -> Result<Vec<u32>, DataError> {
        let found = match &self.source {
            Source::Table { path, target } => table::sample_shape(base, path, target)?,
            Source::Arrays { inputs, .. } => arrays::sample_shape(base, inputs)?,
            Source::Images {
                files,
                channels,
                size,
            } => images::sample_shape(base, files, *channels, *size)?,
        };
        self.shaped(found)
    }

    /// The bytes that reading it all would take, which may be many more than its files have; of
    /// more than `most`, some that are.
    pub fn bytes(&self, base: &Path, most: u64) -> Result<u64, DataError> {
        let of = |source: &Source| match source {
            Source::Table { path, .. } => table::bytes(base, path, most + 1),
            Source::Arrays { inputs, targets } => {
                Ok(arrays::bytes(base, inputs)?.saturating_add(arrays::bytes(base, targets)?))
            }
            Source::Images { files, .. } => images::bytes(base, files, most),
        };
        let own = of(&self.source)?;
        match &self.validation {
            Validation::Other(source) if own <= most => Ok(own.saturating_add(of(source)?)),
            _ => Ok(own),
        }
    }

    fn shaped(&self, found: Vec<u32>) -> Result<Vec<u32>, DataError> {
        let Some(wanted) = &self.shape else {
            return Ok(found);
        };
        if shapes::product(wanted) == shapes::product(&found) {
            return Ok(wanted.clone());
        }
        let (wanted, found) = (shapes::shown(wanted), shapes::shown(&found));
        Err(DataError(format!(
            "samples have {found} numbers, which cannot be {wanted}"
        )))
    }

    /// Reads everything and checks it against the model.
    pub fn load(
        &self,
        base: &Path,
        model: &ModelSpec,
        outputs: u32,
        seed: u64,
    ) -> Result<Split, DataError> {
        let read = |source: &Source| {
            let mut data = read(source, base, model.loss)?;
            data.sample = self.shaped(data.sample)?;
            if data.sample != model.input {
                let (found, wanted) = (shapes::shown(&data.sample), shapes::shown(&model.input));
                return Err(DataError(format!(
                    "samples are {found}, the model takes {wanted}"
                )));
            }
            check(&data, model, outputs)?;
            Ok(data)
        };
        let mut data = read(&self.source)?;
        targets::several(&data)?;
        let split = match &self.validation {
            Validation::Nothing => Split::new(data, None),
            Validation::Share(share) => Split::by_share(data, *share, seed)?,
            Validation::Other(source) => {
                let mut other = read(source)?;
                targets::same_names(&mut data, &mut other)?;
                Split::new(data, Some(other))
            }
        };
        split.prepared(self, model, outputs)
    }
}

/// Inputs for a model that is used: what a table has for targets is left out.
pub fn load_inputs(source: &Source, base: &Path, sample: &[u32]) -> Result<Vec<f32>, DataError> {
    let width = shapes::product(sample).unwrap_or(0) as usize;
    match source {
        Source::Table { path, target } => table::read_inputs(base, path, target, width),
        Source::Arrays { inputs, .. } => arrays::read_inputs(base, inputs, width),
        Source::Images { files, .. } => {
            let [channels, rows, columns] = *sample else {
                return Err(DataError(format!(
                    "the model takes {}, not images",
                    shapes::shown(sample)
                )));
            };
            images::read_files(base, files, channels, Some([rows, columns]))
                .map(|(inputs, _)| inputs)
        }
    }
}

fn read(source: &Source, base: &Path, loss: Loss) -> Result<Dataset, DataError> {
    match source {
        Source::Table { path, target } => table::read(base, path, target, loss),
        Source::Arrays { inputs, targets } => arrays::read(base, inputs, targets, loss),
        Source::Images {
            files,
            channels,
            size,
        } => images::read(base, files, *channels, *size, loss),
    }
}

/// Checks that a model can learn from every number.
fn check(data: &Dataset, model: &ModelSpec, outputs: u32) -> Result<(), DataError> {
    if data.is_empty() {
        return Err(DataError("there are no samples".into()));
    }
    data.targets.check(model.loss, outputs)?;
    let width = data.width();
    let wrong = |at: usize, why: &str| {
        let (sample, place, value) = (at / width, at % width, data.inputs[at]);
        Err(DataError(format!(
            "sample {sample} (from 0), number {place} of it: {value} {why}"
        )))
    };
    if let Some(at) = data.inputs.iter().position(|value| !value.is_finite()) {
        return wrong(at, "is not a finite number");
    }
    if let Some(vocabulary) = model.vocabulary() {
        let is_index =
            |value: &f32| value.fract() == 0.0 && (0.0..vocabulary as f32).contains(value);
        if let Some(at) = data.inputs.iter().position(|value| !is_index(value)) {
            return wrong(
                at,
                &format!(
                    "is not a whole number from 0 to below the embedding's vocabulary of {vocabulary}"
                ),
            );
        }
    }
    Ok(())
}
