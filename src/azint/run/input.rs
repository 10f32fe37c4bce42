//! A dataset's file as this node sees it: where it lies, or where it was brought.

use crate::{
    arrays,
    frames::{FramesError, Stack},
    plan::{DatasetPlan, INPUT},
};
use nodectl_formats::{ArrayLocation, convert};
use nodectl_types::{Scalar, units::counted};
use std::{
    fs::Metadata,
    path::{Path, PathBuf},
    sync::Arc,
    time::UNIX_EPOCH,
};

/// Length and time of change, by which a node knows a file again.
pub fn seen(metadata: &Metadata) -> (u64, u64) {
    let changed = metadata
        .modified()
        .ok()
        .and_then(|time| time.duration_since(UNIX_EPOCH).ok());
    (
        metadata.len(),
        changed.map_or(0, |time| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)),
    )
}

/// The file to read. With an upload, only a file that is the same is read where it lies.
pub fn place(dataset: &DatasetPlan, dir: &Path) -> PathBuf {
    let Some(upload) = &dataset.upload else {
        return dataset.path.clone();
    };
    let brought = dir.join(upload);
    let is_same = || {
        dataset
            .path
            .metadata()
            .is_ok_and(|metadata| Some(seen(&metadata)) == dataset.seen)
    };
    if !brought.exists() || is_same() {
        dataset.path.clone()
    } else {
        brought
    }
}

/// `directories`: where else its file may lead. What was brought with it lies below one directory.
pub fn open(
    dataset: &DatasetPlan,
    directories: &[PathBuf],
    dir: &Path,
) -> Result<Arc<Stack>, String> {
    let path = place(dataset, dir);
    let mut directories = directories.to_vec();
    directories.extend(dataset.upload.as_ref().map(|_| dir.join(INPUT)));
    let stack = Stack::open_within(
        &path,
        dataset.dataset.as_deref(),
        dataset.entry.as_deref(),
        &directories,
    );
    stack.map(Arc::new).map_err(|error| match &error {
        FramesError::File { .. } if !path.exists() => {
            // Whoever planned the job saw it, or saw that it is not there.
            if dataset.seen.is_none() {
                format!("there is no file {}", path.display())
            } else {
                let hint = "`input = \"upload\"` brings the files to nodes that do not see them";
                format!("this node does not see {}\nhint: {hint}", path.display())
            }
        }
        _ => error.to_string(),
    })
}

/// A number for each frame of a stack.
pub fn monitors(stack: &Stack, entry: Option<&str>, member: &str) -> Result<Vec<f64>, String> {
    let told = |why: String| format!("{}: the monitor `{member}`: {why}", stack.path.display());
    let place = |member: String| ArrayLocation {
        member: Some(member),
        ..ArrayLocation::new(&stack.path)
    };
    let inside =
        entry.map(|entry| format!("{}/{}", entry.trim_matches('/'), member.trim_matches('/')));
    let location = inside
        .map(place)
        .filter(|location| location.inspect().is_ok())
        .unwrap_or_else(|| place(member.to_string()));
    let array = arrays::read(&location).map_err(|error| told(error.to_string()))?;
    let bytes = convert(array.bytes, array.info.scalar, Scalar::F64);
    let values: Vec<f64> = bytes
        .as_chunks::<8>()
        .0
        .iter()
        .map(|bytes| f64::from_le_bytes(*bytes))
        .collect();
    if values.len() as u64 != stack.frames {
        return Err(told(format!(
            "it has {} for {}",
            counted(values.len(), "value"),
            counted(stack.frames, "frame")
        )));
    }
    match values
        .iter()
        .position(|value| !value.is_finite() || *value == 0.0)
    {
        Some(frame) => Err(told(format!(
            "frame {frame} has {}, by which nothing can be divided",
            values[frame]
        ))),
        None => Ok(values),
    }
}
