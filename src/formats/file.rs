//! A place in a file, whatever its format: what is there, all of it, or a block.

use super::{Array, Info, hdf5, idx, npy, npz, png, raw, safetensors};
use crate::files;
use nodectl_types::Scalar;
use std::{
    fs::{self, File},
    io,
    path::{Path, PathBuf},
};

/// Where an array is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArrayLocation {
    pub path: PathBuf,
    /// The name within an `.npz`, the path within an HDF5 file. An `.npz` of one array needs none.
    pub member: Option<String>,
    /// What a file without a header holds.
    pub raw: Option<Info>,
}

/// Why an array cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum ArrayError {
    #[error("{path}: {source}", path = path.display())]
    Io { path: PathBuf, source: io::Error },
    #[error("{path}: {problem}", path = path.display())]
    Invalid { path: PathBuf, problem: String },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    Npy,
    Npz,
    Png,
    Hdf5,
    Safetensors,
    Idx,
    /// The type in the file's ending; None for `.raw` and `.bin`, which do not say.
    Raw(Option<Scalar>),
}

impl Format {
    /// By the ending of a file's name.
    pub fn of(path: &Path) -> Option<Self> {
        if idx::is_named(path) {
            return Some(Self::Idx);
        }
        let ending = path.extension()?.to_str()?.to_ascii_lowercase();
        match ending.as_str() {
            "npy" => Some(Self::Npy),
            "npz" => Some(Self::Npz),
            "png" => Some(Self::Png),
            "h5" | "hdf5" | "nxs" => Some(Self::Hdf5),
            "safetensors" => Some(Self::Safetensors),
            "raw" | "bin" => Some(Self::Raw(None)),
            other => Scalar::from_name(other).map(|scalar| Self::Raw(Some(scalar))),
        }
    }

    /// Whether several arrays fit into a file.
    pub fn has_members(self) -> bool {
        matches!(self, Self::Npz | Self::Hdf5 | Self::Safetensors)
    }
}

impl ArrayLocation {
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            member: None,
            raw: None,
        }
    }

    /// Type and shape, from the header alone, checked against the size of the file.
    pub fn inspect(&self) -> Result<Info, ArrayError> {
        let file = self.open()?;
        match self.format()? {
            Format::Npy => npy::inspect(&file).map(|header| header.info),
            Format::Npz => npz::inspect(&file, self.member.as_deref()),
            Format::Png => png::inspect(&file),
            Format::Hdf5 => hdf5::inspect(&self.path, self.dataset()?),
            Format::Safetensors => safetensors::inspect(&file, self.member.as_deref()),
            Format::Idx => idx::inspect(&self.path, &file),
            Format::Raw(scalar) => raw::inspect(&file, scalar, self.raw.as_ref()),
        }
        .map_err(|problem| self.invalid(problem))
    }

    /// The whole array.
    pub fn read(&self) -> Result<Array, ArrayError> {
        let file = self.open()?;
        match self.format()? {
            Format::Npy => npy::read(&file),
            Format::Npz => npz::read(&file, self.member.as_deref()),
            Format::Png => png::read(&file),
            Format::Hdf5 => hdf5::read(&self.path, self.dataset()?, None),
            Format::Safetensors => safetensors::read(&file, self.member.as_deref()),
            Format::Idx => idx::read(&self.path, &file),
            Format::Raw(scalar) => raw::read(&file, scalar, self.raw.as_ref()),
        }
        .map_err(|problem| self.invalid(problem))
    }

    /// The box of `shape` at `start`. Of `.npy`, raw and HDF5 files little more than that is read.
    pub fn read_block(&self, start: &[u64], shape: &[u64]) -> Result<Array, ArrayError> {
        let file = self.open()?;
        match self.format()? {
            Format::Npy => npy::read_block(&file, start, shape),
            Format::Hdf5 => hdf5::read(&self.path, self.dataset()?, Some((start, shape))),
            Format::Raw(scalar) => raw::read_block(&file, scalar, self.raw.as_ref(), start, shape),
            Format::Npz | Format::Png | Format::Safetensors | Format::Idx => {
                let whole = self.read()?;
                whole
                    .info
                    .check_box(start, shape)
                    .map(|()| whole.block(start, shape))
            }
        }
        .map_err(|problem| self.invalid(problem))
    }

    fn open(&self) -> Result<File, ArrayError> {
        let failed = |source| ArrayError::Io {
            path: self.path.clone(),
            source,
        };
        files::open(&self.path).map_err(failed)
    }

    fn format(&self) -> Result<Format, ArrayError> {
        let unknown = || {
            let hint = "arrays are read from .npy, .npz, .png, .h5, .safetensors, IDX and raw files (.f32, .u8, …, .raw)";
            self.invalid(format!(
                "its ending is not that of a format of arrays\nhint: {hint}"
            ))
        };
        Format::of(&self.path).ok_or_else(unknown)
    }

    fn dataset(&self) -> Result<&str, ArrayError> {
        let unnamed =
            || self.invalid("no dataset is named\nhint: write `FILE.h5:/path/of/dataset`".into());
        self.member.as_deref().ok_or_else(unnamed)
    }

    fn invalid(&self, problem: String) -> ArrayError {
        ArrayError::Invalid {
            path: self.path.clone(),
            problem,
        }
    }
}

/// Writes arrays with the names of their members to a file of the format that its ending names: one
/// for `.npy`, `.png` and raw files, any number for `.npz` and HDF5. `scale`: of a PNG, the values
/// of black and white. The file appears whole or not at all.
pub fn write(
    path: &Path,
    arrays: &[(&str, &Array)],
    scale: Option<[f64; 2]>,
) -> Result<(), ArrayError> {
    let invalid = |problem: String| ArrayError::Invalid {
        path: path.to_path_buf(),
        problem,
    };
    let format = Format::of(path)
        .ok_or_else(|| invalid("its ending is not that of a format of arrays".into()))?;
    let single = || match arrays {
        [(_, array)] => Ok(*array),
        _ => Err(invalid(format!(
            "{} arrays do not go into one such file",
            arrays.len()
        ))),
    };
    let mut part = path.as_os_str().to_owned();
    part.push(".part");
    let part = PathBuf::from(part);
    let failed = |source| ArrayError::Io {
        path: path.to_path_buf(),
        source,
    };
    match format {
        Format::Npy => fs::write(&part, npy::encode(single()?)).map_err(failed),
        Format::Raw(_) => fs::write(&part, &single()?.bytes).map_err(failed),
        Format::Npz => npz::write(&part, arrays).map_err(invalid),
        Format::Png => png::write(&part, single()?, scale).map_err(invalid),
        Format::Hdf5 => hdf5::write(&part, arrays).map_err(invalid),
        Format::Safetensors => {
            let arrays = arrays
                .iter()
                .map(|(name, array)| (name.to_string(), (*array).clone()))
                .collect();
            return safetensors::write_all(
                path,
                &safetensors::NamedArrays {
                    arrays,
                    ..Default::default()
                },
            );
        }
        Format::Idx => Err(invalid("IDX files are not written\nhint: .npy".into())),
    }?;
    fs::rename(&part, path).map_err(failed)
}
