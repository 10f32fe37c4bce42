//! Matrices on disk, by the hash of all that they depend on. A file that is missing, damaged or of
//! another version is as none: the matrix is built, and written for the next time.

use super::{
    detectors::{PixelLayout, ResolvedDetector},
    errors::IntegratorError,
    frames::Axes,
    integrator::PreparedRegion,
    matrix::PixelMatrix,
    settings::IntegrationSettings,
};
use std::{
    fs,
    io::{self, Write},
    path::{Path, PathBuf},
    process,
    time::SystemTime,
};

/// Of the format and of what the numbers mean: to be raised when either changes.
const MAGIC: &[u8; 8] = b"azint\0\x03\0";
const HASH_BYTES: usize = 32;
/// Matrices that are kept take at most so much: those of some tens of geometries.
const MAX_BYTES: u64 = 4 << 30;

/// The regions of an integration: from the folder, or as `split` makes them.
pub(super) fn regions(
    folder: Option<&Path>,
    settings: &IntegrationSettings,
    key: blake3::Hash,
    split: impl FnOnce() -> Result<Vec<(PixelMatrix, Axes)>, IntegratorError>,
) -> Result<Vec<PreparedRegion>, IntegratorError> {
    let into_regions = |parts: Vec<(PixelMatrix, Axes)>| {
        parts
            .into_iter()
            .map(|(matrix, axes)| PreparedRegion::new(matrix, axes))
            .collect()
    };
    let Some(folder) = folder else {
        return split().map(into_regions);
    };
    let path = folder.join(format!("{key}.matrix"));
    let kept = fs::read(&path)
        .ok()
        .and_then(|bytes| decode(&bytes, key.as_bytes()));
    if let Some(parts) = kept.filter(|parts| parts.len() == settings.regions().len()) {
        note_used(&path);
        return Ok(into_regions(parts));
    }
    let parts = split()?;
    if let Err(error) = write(folder, &path, &encode(&parts, key.as_bytes())) {
        tracing::warn!(path = %path.display(), %error, "the matrix could not be kept");
    }
    make_room(folder, &path, MAX_BYTES);
    Ok(into_regions(parts))
}

/// A matrix is as old as its last use. What cannot be written stays as it is.
fn note_used(path: &Path) {
    let file = fs::File::options().write(true).open(path);
    let _ = file.and_then(|file| file.set_modified(SystemTime::now()));
}

/// Removes those matrices that were not used for longest, until the rest has at most `max_bytes`;
/// not the one at `newest`.
fn make_room(folder: &Path, newest: &Path, max_bytes: u64) {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut kept: Vec<(SystemTime, u64, PathBuf)> = entries
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|ending| ending == "matrix"))
        .filter_map(|path| {
            let metadata = path.metadata().ok()?;
            Some((metadata.modified().ok()?, metadata.len(), path))
        })
        .collect();
    kept.sort();
    let mut bytes: u64 = kept.iter().map(|(_, length, _)| length).sum();
    for (_, length, path) in kept {
        if bytes <= max_bytes {
            return;
        }
        // Another worker may have removed it, and does not need it either.
        if path != newest && fs::remove_file(&path).is_ok() {
            bytes -= length;
        }
    }
}

/// The hash of what a matrix depends on: not of corrections, dummies or errors.
pub(super) fn key(
    settings: &IntegrationSettings,
    detector: &ResolvedDetector,
    masked: Option<&[bool]>,
) -> blake3::Hash {
    let parts = serde_json::json!({
        "geometry": settings.geometry,
        "unit": settings.unit,
        "points": settings.points,
        "azimuthal_points": settings.azimuthal_points,
        "regions": settings.regions().iter().map(|region| (region.radial_range, region.azimuthal_range_deg)).collect::<Vec<_>>(),
        "chi_discontinuity_at_0": settings.chi_discontinuity_at_0,
        "splitting": settings.splitting,
        "range_over": settings.range_over,
    });
    let mut hasher = blake3::Hasher::new();
    hasher.update(MAGIC).update(parts.to_string().as_bytes());
    let bits: Vec<u8> = masked
        .unwrap_or_default()
        .iter()
        .map(|masked| u8::from(*masked))
        .collect();
    hasher.update(&bits);
    if let PixelLayout::Corners(corners) = &detector.layout {
        hasher.update(bytemuck::cast_slice(&corners.points));
    }
    hasher.finalize()
}

fn write(folder: &Path, path: &Path, bytes: &[u8]) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    // Several workers may write the same matrix at once.
    let part = path.with_extension(format!("{}.part", process::id()));
    let written = fs::File::create(&part)
        .and_then(|mut file| file.write_all(bytes))
        .and_then(|()| fs::rename(&part, path));
    if written.is_err() {
        let _ = fs::remove_file(&part);
    }
    written
}

/// Magic, key, number of regions; of each its axes and its matrix, arrays with their lengths before
/// them; the hash of it all.
fn encode(parts: &[(PixelMatrix, Axes)], key: &[u8; HASH_BYTES]) -> Vec<u8> {
    let mut bytes = [MAGIC.as_slice(), key].concat();
    let mut array = |count: usize, data: &[u8]| {
        bytes.extend((count as u64).to_le_bytes());
        bytes.extend(data);
    };
    array(parts.len(), &[]);
    for (matrix, axes) in parts {
        array(axes.radial.len(), bytemuck::cast_slice(&axes.radial));
        let azimuthal = axes.azimuthal_deg.as_deref().unwrap_or_default();
        array(azimuthal.len(), bytemuck::cast_slice(azimuthal));
        array(matrix.starts.len(), bytemuck::cast_slice(&matrix.starts));
        array(matrix.bins.len(), bytemuck::cast_slice(&matrix.bins));
        array(matrix.weights.len(), bytemuck::cast_slice(&matrix.weights));
    }
    let hash = blake3::hash(&bytes);
    bytes.extend(hash.as_bytes());
    bytes
}

fn decode(bytes: &[u8], key: &[u8; HASH_BYTES]) -> Option<Vec<(PixelMatrix, Axes)>> {
    let (bytes, hash) = bytes.split_at_checked(bytes.len().checked_sub(HASH_BYTES)?)?;
    let body = bytes.strip_prefix(MAGIC)?.strip_prefix(key)?;
    if blake3::hash(bytes).as_bytes() != hash {
        return None;
    }
    let mut reader = CacheReader(body);
    let count = reader.count(1)?;
    (0..count).map(|_| reader.region()).collect()
}

struct CacheReader<'a>(&'a [u8]);

impl CacheReader<'_> {
    /// A count of elements that follow, each of at least `size` bytes.
    fn count(&mut self, size: usize) -> Option<usize> {
        let (count, rest) = self.0.split_first_chunk::<8>()?;
        self.0 = rest;
        usize::try_from(u64::from_le_bytes(*count))
            .ok()
            .filter(|count| count.checked_mul(size).is_some())
    }

    fn array<T: bytemuck::Pod>(&mut self) -> Option<Vec<T>> {
        let count = self.count(size_of::<T>())?;
        let (data, rest) = self.0.split_at_checked(count * size_of::<T>())?;
        self.0 = rest;
        Some(bytemuck::pod_collect_to_vec(data))
    }

    fn region(&mut self) -> Option<(PixelMatrix, Axes)> {
        let (radial, azimuthal) = (self.array::<f64>()?, self.array::<f64>()?);
        let axes = Axes {
            radial,
            azimuthal_deg: (!azimuthal.is_empty()).then_some(azimuthal),
        };
        let matrix = PixelMatrix {
            bin_count: axes.bins(),
            starts: self.array()?,
            bins: self.array()?,
            weights: self.array()?,
        };
        let is_sound = matrix.bins.len() == matrix.weights.len()
            && matrix
                .starts
                .last()
                .is_some_and(|end| *end as usize == matrix.bins.len())
            && matrix.starts.is_sorted()
            && matrix
                .bins
                .iter()
                .all(|bin| (*bin as usize) < matrix.bin_count);
        is_sound.then_some((matrix, axes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn parts() -> Vec<(PixelMatrix, Axes)> {
        let matrix = PixelMatrix {
            bin_count: 2,
            starts: vec![0, 1, 3],
            bins: vec![1, 0, 1],
            weights: vec![1.0, 0.25, 0.75],
        };
        vec![(
            matrix,
            Axes {
                radial: vec![0.5, 1.5],
                azimuthal_deg: None,
            },
        )]
    }

    #[test]
    fn those_used_last_stay() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let begin = SystemTime::UNIX_EPOCH + Duration::from_secs(1 << 30);
        for (age, name) in ["a.matrix", "b.matrix", "c.matrix", "old.part", "new.matrix"]
            .iter()
            .enumerate()
        {
            let file = fs::File::create(path(name)).unwrap();
            file.set_len(100).unwrap();
            file.set_modified(begin + Duration::from_secs(age as u64))
                .unwrap();
        }
        note_used(&path("a.matrix"));
        make_room(folder.path(), &path("new.matrix"), 250);
        let mut names: Vec<_> = fs::read_dir(folder.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        assert_eq!(names, ["a.matrix", "new.matrix", "old.part"]);
        make_room(folder.path(), &path("new.matrix"), 1);
        assert!(path("new.matrix").exists() && !path("a.matrix").exists());
    }

    #[test]
    fn what_is_written_is_read() {
        let key = [7; HASH_BYTES];
        assert_eq!(decode(&encode(&parts(), &key), &key), Some(parts()));
    }

    #[test]
    fn whatever_is_damaged_is_as_none() {
        let key = [7; HASH_BYTES];
        let whole = encode(&parts(), &key);
        for place in 0..whole.len() {
            let mut damaged = whole.clone();
            damaged[place] ^= 1;
            assert_eq!(decode(&damaged, &key), None, "byte {place}");
            assert_eq!(decode(&whole[..place], &key), None, "{place} bytes");
        }
        assert_eq!(decode(&whole, &[8; HASH_BYTES]), None);
    }
}
