//! Images in a folder for each class: `FOLDER/CLASS/IMAGE.png`. Grey values or colours from 0 to
//! 255, channel by channel.

use super::{DataError, Dataset, MOST_BYTES, Targets, targets};
use crate::model::Loss;
use nodectl_formats::Picture;
use std::path::Path;

pub fn sample_shape(
    base: &Path,
    files: &[String],
    channels: Option<u32>,
    size: Option<[u32; 2]>,
) -> Result<Vec<u32>, DataError> {
    let first = files
        .first()
        .ok_or_else(|| DataError("the folder has no images".into()))?;
    let (channels, [rows, columns]) = match (channels, size) {
        (Some(channels), Some(size)) => (channels, size),
        _ => {
            let image = open(base, first)?;
            (
                channels.unwrap_or(image.channels),
                size.unwrap_or([image.rows, image.columns]),
            )
        }
    };
    Ok(vec![channels, rows, columns])
}

pub fn read(
    base: &Path,
    files: &[String],
    channels: Option<u32>,
    size: Option<[u32; 2]>,
    loss: Loss,
) -> Result<Dataset, DataError> {
    if loss != Loss::CrossEntropy {
        return Err(DataError(
            "folders of images are classes\nhint: loss = \"cross-entropy\"".into(),
        ));
    }
    let shape = sample_shape(base, files, channels, size)?;
    let class = |file: &String| {
        Path::new(file)
            .parent()
            .and_then(Path::file_name)
            .map(|name| name.to_string_lossy().into())
    };
    let words: Vec<String> = files
        .iter()
        .map(|file| class(file).unwrap_or_default())
        .collect();
    let (inputs, found) = read_files(base, files, shape[0], size)?;
    if found != [shape[1], shape[2]] {
        return Err(DataError("images changed while they were read".into()));
    }
    let (classes, names) = targets::named(words);
    Ok(Dataset {
        sample: shape,
        inputs,
        targets: Targets::Classes(classes),
        names,
    })
}

/// The pixels of all files, and rows and columns of each. With a `size` they are resized; without,
/// all must be like the first.
pub fn read_files(
    base: &Path,
    files: &[String],
    channels: u32,
    size: Option<[u32; 2]>,
) -> Result<(Vec<f32>, [u32; 2]), DataError> {
    let mut inputs = Vec::new();
    let mut first = None;
    for file in files {
        let image = open(base, file)?;
        let own = size.unwrap_or([image.rows, image.columns]);
        let [rows, columns] = *first.get_or_insert(own);
        if own != [rows, columns] {
            let message = format!(
                "`{file}` has {} x {} pixels, `{}` {rows} x {columns}",
                own[0], own[1], files[0]
            );
            return Err(DataError(format!(
                "{message}\nhint: size = [{rows}, {columns}] resizes them"
            )));
        }
        let all = [channels, rows, columns, 4]
            .into_iter()
            .try_fold(files.len() as u64, |all, extent| {
                all.checked_mul(extent.into())
            });
        if all.is_none_or(|all| all > MOST_BYTES) {
            return Err(DataError(
                "the images are too many for one machine's memory\nhint: a smaller `size`".into(),
            ));
        }
        let image = image.resized([rows, columns]);
        planes(&image, channels, &mut inputs);
    }
    Ok((inputs, first.unwrap_or([0; 2])))
}

/// What the images take when they are decoded, by their headers; of more than `most`, some that
/// are.
pub fn bytes(base: &Path, files: &[String], most: u64) -> Result<u64, DataError> {
    let mut all = 0u64;
    for file in files {
        let [rows, columns] =
            Picture::extent(&base.join(file)).map_err(|error| invalid(file, error))?;
        all = all.saturating_add(u64::from(columns) * u64::from(rows) * 4);
        if all > most {
            break;
        }
    }
    Ok(all)
}

fn open(base: &Path, file: &str) -> Result<Picture, DataError> {
    Picture::read(&base.join(file)).map_err(|error| invalid(file, error))
}

fn invalid(file: &str, error: String) -> DataError {
    DataError(format!("`{file}`: {error}"))
}

/// Channel after channel.
fn planes(image: &Picture, channels: u32, inputs: &mut Vec<f32>) {
    if channels == 1 {
        inputs.extend(image.grey().into_iter().map(f32::from));
        return;
    }
    for channel in 0..3 {
        inputs.extend(image.colour(channel).map(f32::from));
    }
}
