//! Inputs and targets from files of arrays: the first axis counts the samples.

use super::{DataError, Dataset, FilePlace, MOST_BYTES, Targets};
use crate::model::Loss;
use nodectl_formats::{Array, ArrayLocation, Info};
use std::path::Path;

pub fn sample_shape(base: &Path, place: &FilePlace) -> Result<Vec<u32>, DataError> {
    let info = location(base, place)
        .inspect()
        .map_err(|error| DataError(error.to_string()))?;
    split(place, &info).map(|(_, sample)| sample)
}

pub fn read(
    base: &Path,
    inputs: &FilePlace,
    targets: &FilePlace,
    loss: Loss,
) -> Result<Dataset, DataError> {
    let (of_inputs, of_targets) = (whole(base, inputs)?, whole(base, targets)?);
    let (count, sample) = split(inputs, &of_inputs.info)?;
    let (target_count, target) = split(targets, &of_targets.info)?;
    if count != target_count {
        let (inputs, targets) = (&inputs.path, &targets.path);
        return Err(DataError(format!(
            "`{inputs}` has {count} samples, `{targets}` has {target_count}"
        )));
    }
    let width = target.iter().map(|extent| *extent as usize).product();
    let targets = Targets::from_numbers(of_targets.into_f32(), width, loss)?;
    Ok(Dataset {
        sample,
        inputs: of_inputs.into_f32(),
        targets,
        names: Vec::new(),
    })
}

/// What it takes in memory, by its header.
pub fn bytes(base: &Path, place: &FilePlace) -> Result<u64, DataError> {
    let info = location(base, place)
        .inspect()
        .map_err(|error| DataError(error.to_string()))?;
    Ok(info.bytes().unwrap_or(u64::MAX))
}

/// Samples of `width` numbers each.
pub fn read_inputs(base: &Path, place: &FilePlace, width: usize) -> Result<Vec<f32>, DataError> {
    let array = whole(base, place)?;
    let (_, sample) = split(place, &array.info)?;
    let found: usize = sample.iter().map(|extent| *extent as usize).product();
    if found != width {
        let path = &place.path;
        return Err(DataError(format!(
            "samples of `{path}` have {found} numbers, the model takes {width}"
        )));
    }
    Ok(array.into_f32())
}

fn location(base: &Path, place: &FilePlace) -> ArrayLocation {
    ArrayLocation {
        member: place.member.clone(),
        ..ArrayLocation::new(base.join(&place.path))
    }
}

fn whole(base: &Path, place: &FilePlace) -> Result<Array, DataError> {
    let location = location(base, place);
    let failed = |error: nodectl_formats::ArrayError| DataError(error.to_string());
    let info = location.inspect().map_err(failed)?;
    match info
        .len()
        .and_then(|len| len.checked_mul(4))
        .filter(|bytes| *bytes <= MOST_BYTES)
    {
        Some(_) => location.read().map_err(failed),
        None => Err(DataError(format!(
            "`{}` is too large for one machine's memory",
            place.path
        ))),
    }
}

/// The number of samples, and the shape of each.
fn split(place: &FilePlace, info: &Info) -> Result<(u64, Vec<u32>), DataError> {
    let Some((count, sample)) = info.shape.split_first() else {
        return Err(DataError(format!(
            "`{}` is a single number, not an array of samples",
            place.path
        )));
    };
    let small = sample.iter().map(|extent| u32::try_from(*extent));
    let sample = small.collect::<Result<_, _>>();
    let sample =
        sample.map_err(|_| DataError(format!("samples of `{}` are too large", place.path)))?;
    Ok((*count, sample))
}
