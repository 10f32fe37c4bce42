//! Images that go with an integration: masks, dark, flat, variance. Read from EDF, TIFF, Fit2D's
//! masks, `.npy`, PNG and HDF5; the first three also with gzip around them.

#[cfg(test)]
pub(super) mod damage;
mod edf;
mod fit2d;
mod tiff;
mod unpack;

use super::{detectors::DetectorFile, errors::ImageError};
use crate::arrays;
use nodectl_formats::{Array, ArrayLocation, Format, convert};
use nodectl_types::Scalar;
use std::{fs, path::Path};

/// The largest image file that is read.
const MAX_BYTES: u64 = 1 << 32;
/// Where NeXus detectors keep their masks, within an `NXdetector`.
const NEXUS_MASKS: [&str; 4] = [
    "pixel_mask",
    "entry/instrument/detector/pixel_mask",
    "entry/instrument/detector/detectorSpecific/pixel_mask",
    "mask",
];

/// Numbers for each pixel.
#[derive(Clone, Debug, PartialEq)]
pub struct Image {
    /// Rows, columns.
    pub shape: [usize; 2],
    pub values: Vec<f32>,
}

/// Which pixels are not looked at.
#[derive(Clone, Debug, PartialEq)]
pub struct Mask {
    /// Rows, columns.
    pub shape: [usize; 2],
    pub masked: Vec<bool>,
}

/// The images of an integration.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Images {
    /// In place of the gaps that are known of the detector's type, as in pyFAI.
    pub mask: Option<Mask>,
    /// Subtracted from frames.
    pub dark: Option<Image>,
    /// Divided by.
    pub flat: Option<Image>,
    /// Divided by.
    pub absorption: Option<Image>,
    /// For `error_model = "variance"`.
    pub variance: Option<Image>,
    /// What is in the file that the detector's settings name.
    pub detector: Option<DetectorFile>,
}

impl Image {
    /// Reads an image. `member`: the dataset of an HDF5 file.
    ///
    /// # Errors
    /// Where there is no such file, or it is not an image.
    pub fn read(path: &Path, member: Option<&str>) -> Result<Self, ImageError> {
        let invalid = |problem: String| ImageError::Invalid {
            path: path.to_path_buf(),
            problem,
        };
        Self::from_array(read_array(path, member)?).map_err(invalid)
    }

    /// The error is a sentence.
    pub(super) fn from_array(array: Array) -> Result<Self, String> {
        let shape = shape(&array)?;
        let bytes = convert(array.bytes, array.info.scalar, Scalar::F32);
        let values = bytes
            .as_chunks::<4>()
            .0
            .iter()
            .map(|bytes| f32::from_le_bytes(*bytes))
            .collect();
        Ok(Self { shape, values })
    }
}

impl Mask {
    /// Reads a mask: what is not 0 is masked. Of an HDF5 file without `member`, the mask of its
    /// `NXdetector`.
    ///
    /// # Errors
    /// Where there is no such file, or it is not an image.
    pub fn read(path: &Path, member: Option<&str>) -> Result<Self, ImageError> {
        let invalid = |problem: String| ImageError::Invalid {
            path: path.to_path_buf(),
            problem,
        };
        let array = read_array(path, member)?;
        let size = array.info.scalar.bytes();
        let is_set = |number: &[u8]| number.iter().any(|byte| *byte != 0);
        Ok(Self {
            shape: shape(&array).map_err(invalid)?,
            masked: array.bytes.chunks(size).map(is_set).collect(),
        })
    }
}

fn shape(array: &Array) -> Result<[usize; 2], String> {
    // A stack of one image is an image.
    let extents: Vec<u64> = array
        .info
        .shape
        .iter()
        .copied()
        .skip_while(|extent| *extent == 1)
        .collect();
    let whole = || {
        format!(
            "it is an array of {:?}, not rows and columns",
            array.info.shape
        )
    };
    let tail = array.info.shape.len().checked_sub(2).ok_or_else(whole)?;
    if extents.len() > 2 {
        return Err(whole());
    }
    Ok([
        array.info.shape[tail] as usize,
        array.info.shape[tail + 1] as usize,
    ])
}

fn read_array(path: &Path, member: Option<&str>) -> Result<Array, ImageError> {
    let invalid = |problem: String| ImageError::Invalid {
        path: path.to_path_buf(),
        problem,
    };
    let location = |member: Option<&str>| ArrayLocation {
        member: member.map(str::to_owned),
        ..ArrayLocation::new(path)
    };
    let ending = ending(path);
    if let Some(decode) = decoder(&ending) {
        return decode(&read_bytes(path)?).map_err(invalid);
    }
    if let Some(inner) = ending.strip_suffix(".gz").and_then(decoder) {
        let bytes = unpack::gzip(&read_bytes(path)?, MAX_BYTES as usize).map_err(invalid)?;
        return inner(&bytes).map_err(invalid);
    }
    if member.is_some() || Format::of(path) != Some(Format::Hdf5) {
        return Ok(arrays::read(&location(member))?);
    }
    let is_there = |name: &&&str| location(Some(name)).inspect().is_ok();
    let Some(name) = NEXUS_MASKS.iter().find(is_there) else {
        let problem = "it has no mask where NeXus detectors keep theirs\nhint: name its dataset, FILE.h5::/path/of/dataset";
        return Err(invalid(problem.into()));
    };
    Ok(arrays::read(&location(Some(name)))?)
}

type Decode = fn(&[u8]) -> Result<Array, String>;

/// What reads images of this ending.
fn decoder(ending: &str) -> Option<Decode> {
    match ending {
        "edf" => Some(edf::decode),
        // pyFAI writes masks as EDF under this name.
        "msk" => Some(|bytes| {
            if fit2d::is_one(bytes) {
                fit2d::decode(bytes)
            } else {
                edf::decode(bytes)
            }
        }),
        "tif" | "tiff" => Some(tiff::decode),
        _ => None,
    }
}

/// The ending of a file's name; of one with gzip around it both, `edf.gz`.
pub(crate) fn ending(path: &Path) -> String {
    let lower = |path: &Path| {
        let ending = path.extension().and_then(|ending| ending.to_str());
        ending.unwrap_or_default().to_ascii_lowercase()
    };
    match (lower(path), path.file_stem()) {
        (last, Some(stem)) if last == "gz" => format!("{}.gz", lower(Path::new(stem))),
        (last, _) => last,
    }
}

fn read_bytes(path: &Path) -> Result<Vec<u8>, ImageError> {
    let failed = |source| ImageError::Io {
        path: path.to_path_buf(),
        source,
    };
    let length = fs::metadata(path).map_err(failed)?.len();
    if length > MAX_BYTES {
        let problem = format!("{length} bytes are more than an image has");
        return Err(ImageError::Invalid {
            path: path.to_path_buf(),
            problem,
        });
    }
    fs::read(path).map_err(failed)
}
