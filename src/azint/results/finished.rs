//! Patterns read again from a file that `nexus` wrote.

use super::{
    Part, RegionPart, Total,
    nexus::{RegionAxes, name_of},
};
use nodectl_formats::{Array, ArrayLocation};
use nodectl_types::Scalar;
use std::path::Path;

/// The patterns of a file's frames, and their axes. `names` are those of the regions. None where it
/// is no such file, or not whole.
pub fn finished(path: &Path, names: &[Option<String>]) -> Option<(Part, Vec<RegionAxes>)> {
    let read = |group: &str, name: &str| -> Option<Array> {
        ArrayLocation {
            member: Some(format!("entry/{group}/{name}")),
            ..ArrayLocation::new(path)
        }
        .read()
        .ok()
    };
    let mut whole: Option<(Part, Vec<RegionAxes>)> = None;
    for name in names {
        let named = |base: &str| {
            name_of(
                base,
                Some(&RegionAxes {
                    name: name.clone(),
                    radial: Vec::new(),
                    azimuthal_deg: None,
                }),
            )
        };
        let (result, sums) = (named("result"), named("sums"));
        let numbers = |name: &str| read(&sums, name).and_then(doubles);
        let axis = |name: &str| read(&result, name).and_then(doubles);
        let frames = read(&result, "frame").filter(|array| array.info.scalar == Scalar::U64)?;
        let frames: Vec<u64> = frames
            .bytes
            .as_chunks::<8>()
            .0
            .iter()
            .map(|bytes| u64::from_le_bytes(*bytes))
            .collect();
        let axes = RegionAxes {
            name: name.clone(),
            radial: axis("radial")?,
            azimuthal_deg: axis("azimuthal"),
        };
        let region = RegionPart {
            intensity: singles(read(&result, "data")?)?,
            sigma: read(&result, "data_errors").and_then(singles),
            total: Total {
                signal: numbers("signal")?,
                norm: numbers("norm")?,
                variance: numbers("variance"),
            },
        };
        let bins = axes.shape().into_iter().product::<usize>();
        if region.intensity.len() != frames.len() * bins || region.total.signal.len() != bins {
            return None;
        }
        let empty = Part {
            first: *frames.first()?,
            frames: frames.len() as u64,
            regions: Vec::new(),
            // Files with some frames of a dataset hold none that are bad.
            bad: Vec::new(),
        };
        let (part, all) = whole.get_or_insert((empty, Vec::new()));
        part.regions.push(region);
        all.push(axes);
    }
    whole
}

fn singles(array: Array) -> Option<Vec<f32>> {
    let is_right = array.info.scalar == Scalar::F32;
    is_right.then(|| {
        array
            .bytes
            .as_chunks::<4>()
            .0
            .iter()
            .map(|bytes| f32::from_le_bytes(*bytes))
            .collect()
    })
}

fn doubles(array: Array) -> Option<Vec<f64>> {
    let is_right = array.info.scalar == Scalar::F64;
    is_right.then(|| {
        array
            .bytes
            .as_chunks::<8>()
            .0
            .iter()
            .map(|bytes| f64::from_le_bytes(*bytes))
            .collect()
    })
}
