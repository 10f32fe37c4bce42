//! Models in files: safetensors, with what else is needed to use them in the metadata. A checkpoint
//! is such a file with more; whether one worker made it, as here, or parameter servers did, it has
//! the same arrays under the same names.

use super::{
    data::{Column, Preparation, Standard},
    local::OptimizerState,
    model::{InitialArray as OwnArray, ModelSpec, NetworkError, NeuralNetwork, shapes},
};
use nodectl_formats::{Array, ArrayError, safetensors};
use nodectl_types::{
    checkpoint::{NOTE, OPTIMIZER, STEP},
    params::Optimizer,
};
use serde::{Deserialize, Serialize};
use std::{collections::HashMap, path::Path};

/// Names of arrays that are no layer's, which begin with a number: what inputs were standardized
/// by, and what was found while it learnt (`run::history`).
pub const MEANS: &str = "input.means";
pub const DEVIATIONS: &str = "input.deviations";
pub const HISTORY: &str = "history";

/// A model to use or to go on with.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelFile {
    pub note: FileNote,
    /// What inputs go through before the model takes them.
    pub preparation: Preparation,
    /// The layers' arrays, by name.
    pub arrays: Vec<(String, Array)>,
    /// Of a checkpoint.
    pub progress: Option<SavedProgress>,
}

/// What a checkpoint has besides the model.
#[derive(Clone, Debug, PartialEq)]
pub struct SavedProgress {
    /// Steps that were taken before it.
    pub step: u64,
    /// What was found in them.
    pub history: Vec<f32>,
    /// What the optimizer remembers.
    pub state: Vec<OptimizerState>,
}

/// What the metadata say.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FileNote {
    pub model: ModelSpec,
    /// What inputs are multiplied by.
    pub scale: f32,
    /// Of the classes, where the data named them.
    pub names: Vec<String>,
    /// Where tables had what is not an input.
    pub target: Option<Column>,
    pub hyperparameters: Hyperparameters,
}

/// What the number of a step stands for: whoever goes on from it must have the same.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Hyperparameters {
    /// From which orders of samples follow.
    pub seed: u64,
    /// How many steps there are in all. Others may go on for longer.
    pub steps: u64,
    /// Batches of an epoch.
    pub batches: u64,
    /// Batches of a step: more than one where workers take steps by themselves and average now and
    /// then.
    pub batches_per_step: u64,
    /// Whose memory goes on with the steps.
    pub optimizer: Optimizer,
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

impl FileNote {
    /// As the metadata have it.
    pub fn encode(&self) -> String {
        serde_json::to_string(self).expect("plain data always encodes")
    }

    /// Fails unless a training with this note can go on from a checkpoint, of which nothing else is
    /// read.
    pub fn check_resumed(&self, path: &Path) -> Result<(), FileError> {
        let metadata = safetensors::read_metadata(path)?;
        let step = step(path, &metadata)?.ok_or_else(|| no_checkpoint(path))?;
        self.check_course(&Self::of(path, &metadata)?, step)
    }

    fn of(path: &Path, metadata: &HashMap<String, String>) -> Result<Self, FileError> {
        let failed = |why: String| FileError::Invalid(format!("{}: {why}", path.display()));
        let hint = "models that nodectl trained have it; `init_from` takes arrays of others";
        let note = metadata.get(NOTE);
        let note = note.ok_or_else(|| {
            failed(format!(
                "the file does not say what model it is\nhint: {hint}"
            ))
        })?;
        serde_json::from_str(note).map_err(|error| failed(format!("its metadata: {error}")))
    }

    /// Fails unless what comes after step `step` of the other is what comes after it here.
    fn check_course(&self, other: &Self, step: u64) -> Result<(), FileError> {
        let (there, here) = (&other.hyperparameters, &self.hyperparameters);
        let kind =
            |hyperparameters: &Hyperparameters| std::mem::discriminant(&hyperparameters.optimizer);
        let differs = if other.model != self.model {
            "another model".to_string()
        } else if there.seed != here.seed {
            format!("another seed, {}", there.seed)
        } else if there.batches_per_step != here.batches_per_step {
            format!(
                "steps of {} batches, this job's have {}",
                there.batches_per_step, here.batches_per_step
            )
        } else if there.batches != here.batches {
            format!(
                "epochs of {} batches, this job's have {}",
                there.batches, here.batches
            )
        } else if kind(there) != kind(here) {
            "another optimizer".to_string()
        } else if step > here.steps {
            format!(
                "step {step}, this job has {} in all: nothing is left to do",
                here.steps
            )
        } else {
            return Ok(());
        };
        let hint = "go on with the job file that made it, or take its values alone: init_from";
        Err(FileError::Invalid(format!(
            "the checkpoint is of {differs}\nhint: {hint}"
        )))
    }
}

impl ModelFile {
    /// The model as it is on its engine.
    pub fn of(
        network: &NeuralNetwork,
        note: FileNote,
        preparation: Preparation,
        progress: Option<SavedProgress>,
    ) -> Result<Self, FileError> {
        let arrays = network.arrays()?.into_iter();
        let arrays = arrays.map(|(array, values)| {
            (
                array.name.clone(),
                Array::of_f32(extents(&array.shape), &values),
            )
        });
        Ok(Self {
            note,
            preparation,
            arrays: arrays.collect(),
            progress,
        })
    }

    /// Writes a file, which appears whole or not at all.
    pub fn write(&self, path: &Path) -> Result<(), FileError> {
        Ok(safetensors::write_all(path, &self.named())?)
    }

    /// Writes a file to which another gives its name when it is whole.
    pub fn write_part(&self, path: &Path) -> Result<(), FileError> {
        Ok(safetensors::write_part(path, &self.named())?)
    }

    fn named(&self) -> safetensors::NamedArrays {
        let row = |values: &[f32]| Array::of_f32(vec![values.len() as u64], values);
        let mut named = safetensors::NamedArrays::default();
        named.arrays.extend(self.arrays.iter().cloned());
        if let Some(Standard { means, deviations }) = &self.preparation.standard {
            named.arrays.extend([
                (MEANS.to_string(), row(means)),
                (DEVIATIONS.to_string(), row(deviations)),
            ]);
        }
        named.metadata.insert(NOTE.into(), self.note.encode());
        if let Some(SavedProgress {
            step,
            history,
            state,
        }) = &self.progress
        {
            let array = |state: &OptimizerState| {
                (
                    state.name.clone(),
                    Array::of_f32(extents(&state.shape), &state.values),
                )
            };
            named.arrays.extend(state.iter().map(array));
            named.arrays.insert(HISTORY.into(), row(history));
            named.metadata.insert(STEP.into(), step.to_string());
        }
        named
    }

    pub fn read(path: &Path) -> Result<Self, FileError> {
        Self::of_arrays(path, safetensors::read_all(path)?)
    }

    /// The bytes of a file; errors name it.
    pub fn decode(path: &Path, bytes: &[u8]) -> Result<Self, FileError> {
        Self::of_arrays(path, safetensors::decode(path, bytes)?)
    }

    fn of_arrays(path: &Path, named: safetensors::NamedArrays) -> Result<Self, FileError> {
        let safetensors::NamedArrays {
            arrays: found,
            metadata,
        } = named;
        let failed = |why: String| FileError::Invalid(format!("{}: {why}", path.display()));
        let note = FileNote::of(path, &metadata)?;
        let width = shapes::product(&note.model.input).unwrap_or(0) as usize;
        let (mut standard, mut arrays, mut state, mut history) =
            ([None, None], Vec::new(), Vec::new(), Vec::new());
        for (name, array) in found {
            match name.as_str() {
                MEANS => standard[0] = Some(array.into_f32()),
                DEVIATIONS => standard[1] = Some(array.into_f32()),
                HISTORY => history = array.into_f32(),
                _ if name.starts_with(OPTIMIZER) => {
                    let shape = array
                        .info
                        .shape
                        .iter()
                        .map(|extent| *extent as u32)
                        .collect();
                    state.push(OptimizerState {
                        name,
                        shape,
                        values: array.into_f32(),
                    });
                }
                _ => arrays.push((name, array)),
            }
        }
        let standard = match standard {
            [Some(means), Some(deviations)]
                if means.len() == width && deviations.len() == width =>
            {
                Some(Standard { means, deviations })
            }
            [None, None] => None,
            _ => {
                return Err(failed(
                    "its inputs' means and deviations do not fit its model".into(),
                ));
            }
        };
        let progress = step(path, &metadata)?.map(|step| SavedProgress {
            step,
            history,
            state,
        });
        Ok(Self {
            preparation: Preparation {
                scale: note.scale,
                standard,
            },
            note,
            arrays,
            progress,
        })
    }

    /// Puts the arrays into a model, which must have them all.
    pub fn put_into(&self, network: &mut NeuralNetwork) -> Result<(), FileError> {
        put(&self.arrays, network)
    }

    /// Puts a checkpoint's values into the model of a training with the note `own`, which goes on
    /// from there. Returns what else there is.
    pub fn resume(
        path: &Path,
        own: &FileNote,
        network: &mut NeuralNetwork,
    ) -> Result<SavedProgress, FileError> {
        let file = Self::read(path)?;
        let progress = file.progress.as_ref().ok_or_else(|| no_checkpoint(path))?;
        own.check_course(&file.note, progress.step)?;
        file.put_into(network)?;
        Ok(file.progress.expect("just looked at"))
    }
}

/// Steps before a checkpoint; none of another file.
fn step(path: &Path, metadata: &HashMap<String, String>) -> Result<Option<u64>, FileError> {
    let failed =
        |step: &String| FileError::Invalid(format!("{}: its step is `{step}`", path.display()));
    metadata
        .get(STEP)
        .map(|step| step.parse().map_err(|_| failed(step)))
        .transpose()
}

fn no_checkpoint(path: &Path) -> FileError {
    let hint = "hint: it is not a checkpoint; `init_from` takes arrays of any";
    FileError::Invalid(format!(
        "{}: it does not say of which step it is\n{hint}",
        path.display()
    ))
}

/// Values to begin with, of a file that some framework wrote.
pub fn init_from(path: &Path, network: &mut NeuralNetwork) -> Result<(), FileError> {
    let named = safetensors::read_all(path)?;
    let is_layers = |name: &str| name.starts_with(|first: char| first.is_ascii_digit());
    let arrays: Vec<_> = named
        .arrays
        .into_iter()
        .filter(|(name, _)| is_layers(name))
        .collect();
    let failed = |error| FileError::Invalid(format!("{}: {error}", path.display()));
    put(&arrays, network).map_err(failed)
}

/// Fails unless `init_from` of the file gives a model all of its arrays. Reads its header alone.
pub fn check_values(path: &Path, wanted: &[OwnArray]) -> Result<(), FileError> {
    let shapes = safetensors::read_shapes(path)?;
    let failed = |why: String| FileError::Invalid(format!("{}: {why}", path.display()));
    for own in wanted {
        let Some(found) = shapes.get(&own.name) else {
            let known: Vec<&str> = shapes.keys().take(12).map(String::as_str).collect();
            let hint = format!("there are {}", known.join(", "));
            return Err(failed(format!(
                "it has no array `{}`, which the model has\nhint: {hint}",
                own.name
            )));
        };
        if *found != extents(&own.shape) {
            return Err(failed(format!(
                "`{}` has the shape {found:?}, the model's {:?}",
                own.name, own.shape
            )));
        }
    }
    Ok(())
}

/// Fails unless a training of this model may go on from the file. Reads its header alone; what else
/// must be the same, the training finds out.
pub fn check_checkpoint(path: &Path, model: &ModelSpec) -> Result<(), FileError> {
    let metadata = safetensors::read_metadata(path)?;
    step(path, &metadata)?.ok_or_else(|| no_checkpoint(path))?;
    if FileNote::of(path, &metadata)?.model == *model {
        return Ok(());
    }
    let hint = "go on with the job file that made it, or take its values alone: init_from";
    Err(FileError::Invalid(format!(
        "{}: it is of another model\nhint: {hint}",
        path.display()
    )))
}

fn put(arrays: &[(String, Array)], network: &mut NeuralNetwork) -> Result<(), FileError> {
    for (own, _) in network.arrays()? {
        let Some((_, array)) = arrays.iter().find(|(name, _)| *name == own.name) else {
            let known: Vec<&str> = arrays
                .iter()
                .take(12)
                .map(|(name, _)| name.as_str())
                .collect();
            let hint = format!("there are {}", known.join(", "));
            return Err(FileError::Invalid(format!(
                "it has no array `{}`, which the model has\nhint: {hint}",
                own.name
            )));
        };
        let shape = extents(&own.shape);
        if array.info.shape != shape {
            let (name, found) = (&own.name, &array.info.shape);
            return Err(FileError::Invalid(format!(
                "`{name}` has the shape {found:?}, the model's {shape:?}"
            )));
        }
        network.set(&own.name, &array.clone().into_f32())?;
    }
    Ok(())
}

fn extents(shape: &[u32]) -> Vec<u64> {
    shape.iter().map(|extent| u64::from(*extent)).collect()
}
