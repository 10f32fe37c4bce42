//! What can be wrong with settings, images and frames.

use nodectl_formats::ArrayError;
use std::path::PathBuf;

/// Why there can be no integrator.
#[derive(Debug, thiserror::Error)]
pub enum IntegratorError {
    #[error("{name} is {value}; it must be {wanted}")]
    Value {
        name: &'static str,
        value: String,
        wanted: String,
    },
    #[error("{0}")]
    Conflict(&'static str),
    #[error(
        "unit {unit} needs a wavelength, and the geometry has none; hint: add `Wavelength: …` (m) to the .poni file"
    )]
    NoWavelength { unit: &'static str },
    #[error(
        "the detector's shape is not known; hint: name a detector type, or say `max_shape` in the .poni file's Detector_config"
    )]
    NoShape,
    #[error("no detector is called {name:?}{}", hint.as_ref().map(|near| format!("; hint: did you mean {near:?}?")).unwrap_or_default())]
    UnknownDetector { name: String, hint: Option<String> },
    #[error("the places of pixels in {path} were not read", path = path.display())]
    NoDetectorFile { path: PathBuf },
    #[error("the {what} image has {found:?} pixels, the detector {wanted:?}")]
    Shape {
        what: &'static str,
        found: [usize; 2],
        wanted: [usize; 2],
    },
    #[error("error_model = \"variance\" needs a variance image; hint: give one, or choose poisson")]
    NoVariance,
    #[error("no pixel has a position in this unit")]
    Nothing,
    #[error(".poni line {line}: {problem}")]
    Poni { line: usize, problem: String },
    #[error(
        "the geometry takes {bytes} bytes of memory as a matrix, more than 4,294,967,295 elements; hint: fewer points"
    )]
    TooLarge { bytes: u64 },
    #[error("no threads for the integration: {0}; hint: raise the limit on processes")]
    Threads(String),
    #[error(transparent)]
    Integration(#[from] IntegrationError),
}

impl IntegratorError {
    pub(super) fn value(name: &'static str, value: String, wanted: String) -> Self {
        Self::Value {
            name,
            value,
            wanted,
        }
    }
}

/// Why frames cannot be integrated.
#[derive(Debug, thiserror::Error)]
pub enum IntegrationError {
    #[error(
        "frames of {found:?} pixels, the detector has {wanted:?}; hint: another detector, or frames that are binned"
    )]
    Shape {
        found: [usize; 2],
        wanted: [usize; 2],
    },
    #[error("{frames} frames of {shape:?} pixels are not {values} values")]
    Length {
        frames: usize,
        shape: [usize; 2],
        values: usize,
    },
    #[error("{monitors} monitor values for {frames} frames")]
    Monitors { monitors: usize, frames: usize },
    #[error("on the GPU: {0}")]
    Gpu(String),
    /// The GPU was given up by its driver.
    #[error("{0}")]
    LostGpu(String),
}

/// Why an image cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    #[error(transparent)]
    Array(#[from] ArrayError),
    #[error("{path}: {source}", path = path.display())]
    Io {
        path: PathBuf,
        source: std::io::Error,
    },
    #[error("{path}: {problem}", path = path.display())]
    Invalid { path: PathBuf, problem: String },
}
