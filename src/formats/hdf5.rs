//! HDF5 datasets of numbers, through `rust-hdf5`: contiguous, chunked, deflated; groups by path.
//! Written contiguous.

use super::{
    Array, Info, MAX_INFLATION,
    array::MAX_AXES,
    links::{self, LinkBounds},
};
use crate::files;
use nodectl_types::{Scalar, text::shown};
use rust_hdf5::{
    DatatypeMessage, H5Dataset, H5File, H5FileOptions, H5Type, HBool, StorageLayout,
    format::messages::datatype::ByteOrder,
};
use std::{
    collections::BTreeSet,
    panic,
    path::{Path, PathBuf},
};

/// Datasets within each other, of those that are put together from others.
const MAX_DEPTH: usize = 8;

pub fn inspect(path: &Path, dataset: &str) -> Result<Info, String> {
    guarded(|| {
        let (path, dataset) = find(path, dataset)?;
        info(&path, &dataset)
    })
}

/// All of a dataset, or the box of a shape at a start.
pub fn read(path: &Path, dataset: &str, block: Option<(&[u64], &[u64])>) -> Result<Array, String> {
    guarded(|| {
        let (path, dataset) = find(path, dataset)?;
        let whole = info(&path, &dataset)?;
        let zeros = vec![0; whole.shape.len()];
        let (start, shape) = block.unwrap_or((&zeros, &whole.shape));
        whole.check_box(start, shape)?;
        let (starts, counts) = (extents(start)?, extents(shape)?);
        let bytes = match whole.scalar.bytes() {
            1 => slice::<u8>(&dataset, &starts, &counts),
            2 => slice::<u16>(&dataset, &starts, &counts),
            4 => slice::<u32>(&dataset, &starts, &counts),
            _ => slice::<u64>(&dataset, &starts, &counts),
        }?;
        let array = Array {
            info: Info {
                scalar: whole.scalar,
                shape: shape.to_vec(),
            },
            bytes,
        };
        if array.info.bytes() == Some(array.bytes.len() as u64) {
            Ok(array)
        } else {
            Err("it is cut short".into())
        }
    })
}

pub fn write(path: &Path, arrays: &[(&str, &Array)]) -> Result<(), String> {
    let said = |error: rust_hdf5::Hdf5Error| error.to_string();
    let file = H5File::create(path).map_err(said)?;
    let mut groups = BTreeSet::new();
    for (name, array) in arrays {
        let name = name.trim_matches('/');
        let parents: Vec<&str> = name.match_indices('/').map(|(at, _)| &name[..at]).collect();
        let mut group = file.root_group();
        for parent in &parents {
            let leaf = parent.rsplit('/').next().unwrap_or(parent);
            let made = groups.insert(parent.to_string());
            group = if made {
                group.create_group(leaf)
            } else {
                group.group(leaf)
            }
            .map_err(said)?;
        }
        let leaf = name.rsplit('/').next().unwrap_or(name);
        let shape = extents(&array.info.shape)?;
        let builder = group
            .new_dataset::<u8>()
            .datatype(datatype(array.info.scalar));
        let builder = if shape.is_empty() {
            builder.scalar()
        } else {
            builder.shape(&shape)
        };
        let dataset = builder.create(leaf).map_err(said)?;
        dataset.write_raw_bytes(&array.bytes).map_err(said)?;
    }
    file.close().map_err(said)
}

/// The library reads what strangers wrote; should it panic over that, the file is to blame.
pub fn guarded<T>(work: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    let caught = panic::catch_unwind(panic::AssertUnwindSafe(work));
    caught.unwrap_or_else(|_| Err("the file is damaged: its reader gave up on it".into()))
}

pub fn open(path: &Path) -> Result<H5File, String> {
    // A FIFO would be waited for, and a device never ends.
    files::open(path).map_err(|error| error.to_string())?;
    let opened = H5FileOptions::new().no_locking().open(path);
    opened.map_err(|error| format!("it is not an HDF5 file that can be read: {error}"))
}

/// The dataset of a name, and the file that it lies in.
fn find(path: &Path, dataset: &str) -> Result<(PathBuf, H5Dataset), String> {
    let file = open(path)?;
    let (place, name) = links::follow(&file, path, dataset, &LinkBounds::of(path, &[]))
        .map_err(|error| error.to_string())?;
    let file = if place == path { file } else { open(&place)? };
    let found = file.dataset(&name).map_err(|error| {
        let mut names = file.dataset_names();
        names.truncate(20);
        let listed = names
            .iter()
            .map(|name| format!("`/{name}`"))
            .collect::<Vec<_>>()
            .join(", ");
        format!("it has no dataset `/{name}`: {error}\nhint: there are {listed}")
    })?;
    check_own(&file, &found, MAX_DEPTH)?;
    Ok((place, found))
}

/// Fails where a dataset's numbers lie outside of its file: the library would read whatever is
/// named there.
fn check_own(file: &H5File, dataset: &H5Dataset, depth: usize) -> Result<(), String> {
    check_stored(dataset)?;
    if dataset
        .storage_layout()
        .map_err(|error| error.to_string())?
        != StorageLayout::Virtual
    {
        return Ok(());
    }
    let elsewhere = || "it is put together from other files, which are not read\nhint: copy its numbers into one dataset";
    for mapping in dataset
        .virtual_mappings()
        .map_err(|error| error.to_string())?
    {
        let name = links::clean(&mapping.source_dset_name);
        if mapping.source_file_name != "." || name.contains('%') || depth == 0 {
            return Err(elsewhere().into());
        }
        match links::follow(
            file,
            Path::new(""),
            &name,
            &LinkBounds::of(Path::new(""), &[]),
        ) {
            Ok((place, name)) if place == Path::new("") => {
                // What is not there is filled with zeros.
                if let Ok(source) = file.dataset(&name) {
                    check_own(file, &source, depth - 1)?;
                }
            }
            _ => return Err(elsewhere().into()),
        }
    }
    Ok(())
}

/// Fails where a dataset has a list of files of any kind, in which its numbers lie.
pub fn check_stored(dataset: &H5Dataset) -> Result<(), String> {
    let files = dataset
        .external_files()
        .map_err(|error| error.to_string())?;
    match files.first() {
        None => Ok(()),
        Some(file) => Err(format!(
            "its numbers lie in another file, `{}`, which is not read\nhint: `h5repack` puts them into the file",
            shown(&file.name)
        )),
    }
}

/// Type and shape of a dataset, checked against the length of its file at `path`.
pub fn info(path: &Path, dataset: &H5Dataset) -> Result<Info, String> {
    let datatype = dataset.datatype().map_err(|error| error.to_string())?;
    let scalar = scalar(&datatype).ok_or_else(|| {
        format!("the dataset has the type {datatype}, which is not a type of number")
    })?;
    let shape: Vec<u64> = dataset
        .shape()
        .into_iter()
        .map(|extent| extent as u64)
        .collect();
    let length = path.metadata().map_err(|error| error.to_string())?.len();
    let info = Info { scalar, shape };
    let is_possible = info
        .bytes()
        .is_some_and(|bytes| bytes <= length.saturating_mul(MAX_INFLATION));
    if info.shape.len() > MAX_AXES || !is_possible || dataset.is_null() {
        return Err(format!(
            "the dataset claims to be {:?} of {scalar} in a file of {length} bytes",
            info.shape
        ));
    }
    Ok(info)
}

pub fn scalar(datatype: &DatatypeMessage) -> Option<Scalar> {
    match datatype {
        DatatypeMessage::FixedPoint {
            size,
            signed,
            bit_offset: 0,
            bit_precision,
            ..
        } if size.checked_mul(8) == Some(u32::from(*bit_precision)) => match (size, signed) {
            (1, false) => Some(Scalar::U8),
            (1, true) => Some(Scalar::I8),
            (2, false) => Some(Scalar::U16),
            (2, true) => Some(Scalar::I16),
            (4, false) => Some(Scalar::U32),
            (4, true) => Some(Scalar::I32),
            (8, false) => Some(Scalar::U64),
            (8, true) => Some(Scalar::I64),
            _ => None,
        },
        DatatypeMessage::FloatingPoint { size, .. } => match size {
            2 => Some(Scalar::F16),
            4 => Some(Scalar::F32),
            8 => Some(Scalar::F64),
            _ => None,
        },
        // h5py: an enumeration FALSE, TRUE of i8.
        DatatypeMessage::Enum { base, members } if base.element_size() == 1 => {
            let is = |index: usize, name: &str| {
                members[index].name == name && members[index].value == [index as u8]
            };
            (members.len() == 2 && is(0, "FALSE") && is(1, "TRUE")).then_some(Scalar::Bool)
        }
        _ => None,
    }
}

/// Whether numbers are stored with their highest byte first.
pub fn is_big_endian(datatype: &DatatypeMessage) -> bool {
    matches!(
        datatype,
        DatatypeMessage::FixedPoint {
            byte_order: ByteOrder::BigEndian,
            ..
        } | DatatypeMessage::FloatingPoint {
            byte_order: ByteOrder::BigEndian,
            ..
        }
    )
}

fn datatype(scalar: Scalar) -> DatatypeMessage {
    match scalar {
        Scalar::Bool => match HBool::hdf5_type() {
            // The base that h5py knows truth values by.
            DatatypeMessage::Enum { members, .. } => {
                DatatypeMessage::enumeration(i8::hdf5_type(), members)
            }
            other => other,
        },
        Scalar::U8 => u8::hdf5_type(),
        Scalar::I8 => i8::hdf5_type(),
        Scalar::U16 => u16::hdf5_type(),
        Scalar::I16 => i16::hdf5_type(),
        Scalar::F16 => DatatypeMessage::f16_type(),
        Scalar::U32 => u32::hdf5_type(),
        Scalar::I32 => i32::hdf5_type(),
        Scalar::F32 => f32::hdf5_type(),
        Scalar::U64 => u64::hdf5_type(),
        Scalar::I64 => i64::hdf5_type(),
        Scalar::F64 => f64::hdf5_type(),
    }
}

/// The library turns numbers of another byte order round.
fn slice<T: H5Type + bytemuck::NoUninit>(
    dataset: &H5Dataset,
    starts: &[usize],
    counts: &[usize],
) -> Result<Vec<u8>, String> {
    let numbers = if starts.is_empty() {
        dataset.read_raw::<T>()
    } else {
        dataset.read_slice::<T>(starts, counts)
    };
    numbers
        .map(|numbers| bytemuck::cast_slice(&numbers).to_vec())
        .map_err(|error| error.to_string())
}

fn extents(extents: &[u64]) -> Result<Vec<usize>, String> {
    extents
        .iter()
        .map(|extent| usize::try_from(*extent).map_err(|_| "it is too large".to_string()))
        .collect()
}
