//! What outputs are compared with.

use super::{DataError, Dataset};
use crate::model::Loss;

#[derive(Clone, Debug, PartialEq)]
pub enum Targets {
    /// A class each.
    Classes(Vec<u32>),
    /// `width` numbers each.
    Values { values: Vec<f32>, width: usize },
}

impl Targets {
    pub fn len(&self) -> usize {
        match self {
            Self::Classes(classes) => classes.len(),
            Self::Values { values, width } => values.len() / (*width).max(1),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// From numbers, `width` a sample.
    pub fn from_numbers(values: Vec<f32>, width: usize, loss: Loss) -> Result<Self, DataError> {
        if loss != Loss::CrossEntropy {
            return Ok(Self::Values { values, width });
        }
        if width != 1 {
            let hint = "hint: cross-entropy takes the number of the class; loss = \"mse\" takes rows of numbers";
            return Err(DataError(format!(
                "targets have {width} numbers for each sample, not one\n{hint}"
            )));
        }
        let class = |(sample, value): (usize, f32)| {
            let is_class = value.fract() == 0.0 && (0.0..16_777_216.0).contains(&value);
            let wrong = || {
                DataError(format!(
                    "the target of sample {sample} (from 0) is {value}, not the number of a class"
                ))
            };
            if is_class {
                Ok(value as u32)
            } else {
                Err(wrong())
            }
        };
        values
            .into_iter()
            .enumerate()
            .map(class)
            .collect::<Result<_, _>>()
            .map(Self::Classes)
    }

    /// Checks that a model with so many outputs can be compared with these targets.
    pub fn check(&self, loss: Loss, outputs: u32) -> Result<(), DataError> {
        match self {
            Self::Classes(classes) => match classes.iter().position(|class| *class >= outputs) {
                None => Ok(()),
                Some(sample) => {
                    let most = classes.iter().max().copied().unwrap_or(0);
                    Err(DataError(format!(
                        "the target of sample {sample} (from 0) is class {}, and the model has {outputs} outputs\n\
                         hint: classes count from 0; the largest is {most}, so the last layer has {} units",
                        classes[sample],
                        u64::from(most) + 1
                    )))
                }
            },
            Self::Values { width, .. } if *width != outputs as usize => Err(DataError(format!(
                "targets have {width} numbers for each sample, the model has {outputs} outputs"
            ))),
            Self::Values { values, width } => {
                let is_wrong = |value: &f32| match loss {
                    Loss::BinaryCrossEntropy => !(0.0..=1.0).contains(value),
                    Loss::CrossEntropy | Loss::Mse => !value.is_finite(),
                };
                match values.iter().position(is_wrong) {
                    None => Ok(()),
                    Some(at) => {
                        let what = if loss == Loss::BinaryCrossEntropy {
                            "not from 0 to 1"
                        } else {
                            "not a finite number"
                        };
                        Err(DataError(format!(
                            "the target of sample {} (from 0) is {}, {what}",
                            at / width,
                            values[at]
                        )))
                    }
                }
            }
        }
    }

    /// The targets of these samples.
    pub fn pick(&self, samples: &[u32]) -> Self {
        match self {
            Self::Classes(classes) => Self::Classes(
                samples
                    .iter()
                    .map(|sample| classes[*sample as usize])
                    .collect(),
            ),
            Self::Values { values, width } => {
                let own = |sample: &u32| {
                    &values[*sample as usize * width..(*sample as usize + 1) * width]
                };
                Self::Values {
                    values: samples.iter().flat_map(own).copied().collect(),
                    width: *width,
                }
            }
        }
    }
}

/// Classes from words: in the order of the alphabet, so that the same words give the same numbers.
pub fn named(words: Vec<String>) -> (Vec<u32>, Vec<String>) {
    let mut names = words.clone();
    names.sort();
    names.dedup();
    let number = |word: &String| names.binary_search(word).expect("it is one of them") as u32;
    (words.iter().map(number).collect(), names)
}

/// Fails where all samples are of one class.
pub fn several(data: &Dataset) -> Result<(), DataError> {
    let Targets::Classes(classes) = &data.targets else {
        return Ok(());
    };
    let Some((first, rest)) = classes.split_first() else {
        return Ok(());
    };
    if rest.iter().any(|class| class != first) {
        return Ok(());
    }
    let name = data
        .names
        .get(*first as usize)
        .cloned()
        .unwrap_or_else(|| first.to_string());
    let hint = "targets are in the last column or in `target`; of images, each class has a folder of its own";
    Err(DataError(format!(
        "all samples are of one class, `{name}`: there is nothing to learn\nhint: {hint}"
    )))
}

/// Numbers the classes of both by the first one's names.
pub fn same_names(first: &mut Dataset, other: &mut Dataset) -> Result<(), DataError> {
    if first.names == other.names {
        return Ok(());
    }
    let Targets::Classes(classes) = &mut other.targets else {
        return Ok(());
    };
    for class in classes {
        let name = other
            .names
            .get(*class as usize)
            .cloned()
            .unwrap_or_else(|| class.to_string());
        let known = first.names.iter().position(|known| *known == name);
        let unknown = || {
            DataError(format!(
                "the validation data have a class `{name}`, which the others lack"
            ))
        };
        *class = known.ok_or_else(unknown)? as u32;
    }
    other.names = first.names.clone();
    Ok(())
}
