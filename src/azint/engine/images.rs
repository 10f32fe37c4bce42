//! Images that go with an integration: masks, dark, flat, variance. Read from EDF, TIFF, `.npy`,
//! PNG and HDF5.

mod edf;
mod tiff;
mod unpack;

use super::{detectors::DetectorFile, errors::ImageError};
use nodectl_formats::{Array, ArrayLocation, convert};
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
    let ending = path
        .extension()
        .and_then(|ending| ending.to_str())
        .unwrap_or_default()
        .to_ascii_lowercase();
    let location = |member: Option<&str>| ArrayLocation {
        member: member.map(str::to_owned),
        ..ArrayLocation::new(path)
    };
    match ending.as_str() {
        "edf" | "msk" | "tif" | "tiff" => {
            let bytes = read_bytes(path)?;
            let array = if ending.starts_with("tif") {
                tiff::decode(&bytes)
            } else {
                edf::decode(&bytes)
            };
            array.map_err(|problem| ImageError::Invalid {
                path: path.to_path_buf(),
                problem,
            })
        }
        "h5" | "hdf5" | "nxs" if member.is_none() => {
            let found = NEXUS_MASKS
                .iter()
                .find_map(|name| location(Some(name)).read().ok());
            found.map_or_else(|| Ok(location(None).read()?), Ok)
        }
        _ => Ok(location(member).read()?),
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
