//! Models in files: safetensors, with what else is needed to use them in the metadata. A checkpoint is such a file with more.

use super::{
    data::{Column, Preparation, Standard},
    model::{ModelSpec, Network, NetworkError, shapes},
    parameters::State,
};
use crate::workloads::arrays::{Array, ArrayError, safetensors};
use serde::{Deserialize, Serialize};
use std::path::Path;

/// Names of arrays that are no layer's, which begin with a number.
const MEANS: &str = "input.means";
const DEVIATIONS: &str = "input.deviations";
const OPTIMIZER: &str = "optimizer/";

/// A model to use or to go on with.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelFile {
    pub note: Note,
    pub preparation: Preparation,
    /// The layers' arrays, by name.
    pub arrays: Vec<(String, Array)>,
    /// What the optimizer remembers, in a checkpoint.
    pub state: Vec<State>,
}

/// What the metadata say.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Note {
    pub model: ModelSpec,
    /// What inputs are multiplied by.
    pub scale: f32,
    /// Of the classes, where the data named them.
    pub names: Vec<String>,
    /// Where tables had what is not an input.
    pub target: Option<Column>,
    pub position: Position,
}

/// How far the training was.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Position {
    /// Whole epochs.
    pub epochs: u32,
    /// Steps of the next one.
    pub steps_into_epoch: u64,
    /// Steps in all.
    pub steps: u64,
    /// From which orders of samples follow.
    pub seed: u64,
}

#[derive(Debug, thiserror::Error)]
pub enum FileError {
    #[error(transparent)]
    Array(#[from] ArrayError),
    #[error(transparent)]
    Network(#[from] NetworkError),
    #[error("{0}")]
    Invalid(String),
}

impl ModelFile {
    /// The model as it is on its engine.
    pub fn of(network: &Network, note: Note, preparation: Preparation, state: Vec<State>) -> Result<Self, FileError> {
        let shape = |shape: &[u32]| shape.iter().map(|extent| u64::from(*extent)).collect();
        let arrays = network.arrays()?.into_iter();
        let arrays = arrays.map(|(array, values)| (array.name.clone(), Array::of_f32(shape(&array.shape), &values)));
        Ok(Self { note, preparation, arrays: arrays.collect(), state })
    }

    pub fn write(&self, path: &Path) -> Result<(), FileError> {
        let row = |values: &[f32]| Array::of_f32(vec![values.len() as u64], values);
        let mut named = safetensors::Named::default();
        named.arrays.extend(self.arrays.iter().cloned());
        if let Some(Standard { means, deviations }) = &self.preparation.standard {
            named.arrays.extend([(MEANS.to_string(), row(means)), (DEVIATIONS.to_string(), row(deviations))]);
        }
        named.arrays.extend(self.state.iter().map(|state| (format!("{OPTIMIZER}{}", state.name), row(&state.values))));
        named.note = Some(serde_json::to_string(&self.note).expect("plain data always encodes"));
        Ok(safetensors::write_all(path, &named)?)
    }

    pub fn read(path: &Path) -> Result<Self, FileError> {
        let named = safetensors::read_all(path)?;
        let told = |why: String| FileError::Invalid(format!("{}: {why}", path.display()));
        let hint = "models that nodectl trained have it; `init_from` takes arrays of others";
        let note = named.note.ok_or_else(|| told(format!("the file does not say what model it is\nhint: {hint}")))?;
        let note: Note = serde_json::from_str(&note).map_err(|error| told(format!("its metadata: {error}")))?;
        let width = shapes::product(&note.model.input).unwrap_or(0) as usize;
        let (mut standard, mut arrays, mut state) = ([None, None], Vec::new(), Vec::new());
        for (name, array) in named.arrays {
            match (name.as_str(), name.strip_prefix(OPTIMIZER)) {
                (MEANS, _) => standard[0] = Some(array.into_f32()),
                (DEVIATIONS, _) => standard[1] = Some(array.into_f32()),
                (_, Some(of)) => state.push(State { name: of.to_string(), values: array.into_f32() }),
                _ => arrays.push((name, array)),
            }
        }
        let standard = match standard {
            [Some(means), Some(deviations)] if means.len() == width && deviations.len() == width => {
                Some(Standard { means, deviations })
            }
            [None, None] => None,
            _ => return Err(told("its inputs' means and deviations do not fit its model".into())),
        };
        Ok(Self { preparation: Preparation { scale: note.scale, standard }, note, arrays, state })
    }

    /// Puts the arrays into a model, which must have them all.
    pub fn put_into(&self, network: &mut Network) -> Result<(), FileError> {
        put(&self.arrays, network)
    }
}

/// Values to begin with, of a file that some framework wrote.
pub fn init_from(path: &Path, network: &mut Network) -> Result<(), FileError> {
    let named = safetensors::read_all(path)?;
    let is_layers = |name: &str| name.starts_with(|first: char| first.is_ascii_digit());
    let arrays: Vec<_> = named.arrays.into_iter().filter(|(name, _)| is_layers(name)).collect();
    let told = |error| FileError::Invalid(format!("{}: {error}", path.display()));
    put(&arrays, network).map_err(told)
}

fn put(arrays: &[(String, Array)], network: &mut Network) -> Result<(), FileError> {
    for (own, _) in network.arrays()? {
        let Some((_, array)) = arrays.iter().find(|(name, _)| *name == own.name) else {
            let known: Vec<&str> = arrays.iter().take(12).map(|(name, _)| name.as_str()).collect();
            let hint = format!("there are {}", known.join(", "));
            return Err(FileError::Invalid(format!(
                "it has no array `{}`, which the model has\nhint: {hint}",
                own.name
            )));
        };
        let shape: Vec<u64> = own.shape.iter().map(|extent| u64::from(*extent)).collect();
        if array.info.shape != shape {
            let (name, found) = (&own.name, &array.info.shape);
            return Err(FileError::Invalid(format!("`{name}` has the shape {found:?}, the model's {shape:?}")));
        }
        network.set(&own.name, &array.clone().into_f32())?;
    }
    Ok(())
}
