//! What a trained model says of data: on the CPU of this machine, without a cluster.

use super::{
    data::{self, Column, FilePlace, Source},
    file::ModelFile,
    model::{Loss, NeuralNetwork, shapes},
};
use bytes::Bytes;
use nodectl_gpu::ops::Cpu;
use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};

/// Samples at once.
const AT_ONCE: usize = 256;

/// Answers, sample after sample.
#[derive(Clone, Debug, PartialEq)]
pub struct Prediction {
    /// Probabilities, of classes or each for itself, or values: `width` for each sample.
    pub answers: Vec<f32>,
    /// Outputs of a sample.
    pub width: usize,
    /// The names of the classes, where the model chooses one.
    pub classes: Option<Vec<String>>,
}

/// Asks a model about the samples in files. `data` is a CSV file, a folder of images or one, or a
/// file of arrays, `FILE:MEMBER` where it has several. Errors are sentences for people.
pub fn predict(file: &ModelFile, data: &str, threads: usize) -> Result<Prediction, String> {
    let spec = &file.note.model;
    let source = source(data, file.note.target.clone())?;
    let mut inputs = data::load_inputs(&source, Path::new(""), &spec.input)
        .map_err(|error| error.to_string())?;
    let width = shapes::product(&spec.input).unwrap_or(0) as usize;
    if let Some(at) = inputs.iter().position(|value| !value.is_finite()) {
        return Err(format!(
            "{data}: sample {} (from 0) has {}, which is not a finite number",
            at / width,
            inputs[at]
        ));
    }
    if let Some(vocabulary) = spec.vocabulary() {
        let is_index =
            |value: &f32| value.fract() == 0.0 && (0.0..vocabulary as f32).contains(value);
        if let Some(at) = inputs.iter().position(|value| !is_index(value)) {
            return Err(format!(
                "{data}: sample {} (from 0) has {}, not from 0 to below {vocabulary}",
                at / width,
                inputs[at]
            ));
        }
    }
    file.preparation.apply(&mut inputs, width);
    let engine = Arc::new(Cpu::new(threads).map_err(|error| error.to_string())?);
    let failed = |error: super::model::NetworkError| error.to_string();
    let mut network = NeuralNetwork::new(engine, spec, 0, AT_ONCE as u32, false).map_err(failed)?;
    file.put_into(&mut network)
        .map_err(|error| format!("the model's file: {error}"))?;
    let mut answers = Vec::new();
    for samples in inputs.chunks(AT_ONCE * width.max(1)) {
        let bytes: Bytes = if spec.takes_indices() {
            samples
                .iter()
                .flat_map(|value| (*value as u32).to_le_bytes())
                .collect::<Vec<u8>>()
                .into()
        } else {
            bytemuck::cast_slice(samples).to_vec().into()
        };
        answers.extend(
            network
                .predict((samples.len() / width) as u32, bytes)
                .map_err(failed)?,
        );
    }
    let width = network.outputs() as usize;
    let name = |class: usize| {
        file.note
            .names
            .get(class)
            .cloned()
            .unwrap_or_else(|| class.to_string())
    };
    let classes = (spec.loss == Loss::CrossEntropy).then(|| (0..width).map(name).collect());
    Ok(Prediction {
        answers,
        width,
        classes,
    })
}

impl Prediction {
    /// A line a sample: the class and its probability, or all answers.
    pub fn to_csv(&self) -> String {
        let mut text = match &self.classes {
            Some(_) => "sample,class,probability\n".to_string(),
            None => {
                let columns: Vec<String> = (0..self.width)
                    .map(|column| format!("output_{column}"))
                    .collect();
                format!("sample,{}\n", columns.join(","))
            }
        };
        for (sample, answers) in self.answers.chunks_exact(self.width.max(1)).enumerate() {
            let line = match &self.classes {
                Some(names) => {
                    let best = (0..answers.len()).fold(0, |best, at| {
                        if answers[at] > answers[best] {
                            at
                        } else {
                            best
                        }
                    });
                    format!("{sample},{},{}\n", quoted(&names[best]), answers[best])
                }
                None => {
                    let values: Vec<String> = answers.iter().map(f32::to_string).collect();
                    format!("{sample},{}\n", values.join(","))
                }
            };
            text += &line;
        }
        text
    }
}

/// A CSV field.
fn quoted(text: &str) -> String {
    if text.contains([',', '"', '\n', '\r']) {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text.to_string()
    }
}

fn source(data: &str, target: Option<Column>) -> Result<Source, String> {
    let path = Path::new(data);
    let name = data.to_ascii_lowercase();
    if path.is_dir() {
        let mut files = Vec::new();
        list(path, &mut files)?;
        files.sort();
        return Ok(Source::Images {
            files,
            channels: None,
            size: None,
        });
    }
    if name.ends_with(".csv") || name.ends_with(".csv.gz") {
        return Ok(Source::Table {
            path: data.to_string(),
            target: target.unwrap_or(Column::Last),
        });
    }
    if is_image(path) {
        return Ok(Source::Images {
            files: vec![data.to_string()],
            channels: None,
            size: None,
        });
    }
    let (path, member) = match data.rsplit_once(':') {
        Some((path, member)) if !path.is_empty() && !member.is_empty() => {
            (path, Some(member.to_string()))
        }
        _ => (data, None),
    };
    let inputs = FilePlace {
        path: path.to_string(),
        member,
    };
    Ok(Source::Arrays {
        targets: inputs.clone(),
        inputs,
    })
}

fn is_image(path: &Path) -> bool {
    let ending = path
        .extension()
        .and_then(|ending| ending.to_str())
        .unwrap_or_default();
    ["png", "jpg", "jpeg"].contains(&ending.to_ascii_lowercase().as_str())
}

fn list(directory: &Path, files: &mut Vec<String>) -> Result<(), String> {
    let failed = |error: std::io::Error| format!("{}: {error}", directory.display());
    let entries: Vec<PathBuf> = fs::read_dir(directory)
        .map_err(failed)?
        .map(|entry| entry.map(|entry| entry.path()))
        .collect::<Result<_, _>>()
        .map_err(failed)?;
    for path in entries {
        if path.is_dir() {
            list(&path, files)?;
        } else if is_image(&path) {
            files.push(path.to_string_lossy().into_owned());
        }
    }
    Ok(())
}
