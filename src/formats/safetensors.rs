//! safetensors: a JSON header with names, types and shapes, then the numbers. Readable by every
//! framework.
//! <https://github.com/huggingface/safetensors#format>

use super::{Array, ArrayError, Info, convert};
use crate::files;
use nodectl_types::Scalar;
use safetensors::{
    Dtype, SafeTensors,
    tensor::{Metadata, TensorView},
};
use std::{
    collections::{BTreeMap, HashMap},
    fs::{self, File},
    io::{Read, Seek},
    path::{Path, PathBuf},
};

/// A longer header describes a million arrays. The crate's own limit is 100 MB.
const MAX_HEADER_BYTES: u64 = 100_000_000;

/// The arrays of a file, by name, and entries of its metadata. With one entry the same content
/// gives the same bytes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NamedArrays {
    pub arrays: BTreeMap<String, Array>,
    pub metadata: HashMap<String, String>,
}

pub fn inspect(file: &File, member: Option<&str>) -> Result<Info, String> {
    let header = header(file)?;
    let name = chosen(header.offset_keys(), member)?;
    let found = header.info(&name).expect("it is one of them");
    Ok(Info {
        scalar: scalar(found.dtype)?,
        shape: found.shape.iter().map(|extent| *extent as u64).collect(),
    })
}

/// The entries of a file's metadata, without its arrays.
pub fn read_metadata(path: &Path) -> Result<HashMap<String, String>, ArrayError> {
    let file = open(path)?;
    let header = header(&file).map_err(|problem| ArrayError::Invalid {
        path: path.to_path_buf(),
        problem,
    })?;
    Ok(header.metadata().clone().unwrap_or_default())
}

/// The shapes of a file's arrays, without these.
pub fn read_shapes(path: &Path) -> Result<BTreeMap<String, Vec<u64>>, ArrayError> {
    let file = open(path)?;
    let header = header(&file).map_err(|problem| ArrayError::Invalid {
        path: path.to_path_buf(),
        problem,
    })?;
    let shape = |(name, info): (String, &safetensors::tensor::TensorInfo)| {
        (
            name,
            info.shape.iter().map(|extent| *extent as u64).collect(),
        )
    };
    Ok(header.tensors().into_iter().map(shape).collect())
}

fn open(path: &Path) -> Result<File, ArrayError> {
    files::open(path).map_err(|source| ArrayError::Io {
        path: path.to_path_buf(),
        source,
    })
}

fn header(mut file: &File) -> Result<Metadata, String> {
    let failed = |error: std::io::Error| error.to_string();
    file.rewind().map_err(failed)?;
    let mut length = [0; 8];
    file.read_exact(&mut length).map_err(failed)?;
    let length = u64::from_le_bytes(length);
    let all = file.metadata().map_err(failed)?.len();
    if length > MAX_HEADER_BYTES.min(all) {
        return Err("it is not a safetensors file, or it is cut off".into());
    }
    let mut header = vec![0; length as usize];
    file.read_exact(&mut header).map_err(failed)?;
    let metadata: Metadata =
        serde_json::from_slice(&header).map_err(|error| format!("its header: {error}"))?;
    if metadata.data_len() as u64 + 8 + length != all {
        return Err(format!(
            "its header describes {} bytes, the file has other {}",
            metadata.data_len(),
            all - 8 - length
        ));
    }
    Ok(metadata)
}

pub fn read(file: &File, member: Option<&str>) -> Result<Array, String> {
    let bytes = whole(file)?;
    let tensors = SafeTensors::deserialize(&bytes).map_err(|error| error.to_string())?;
    let names = tensors.names().into_iter().map(str::to_string).collect();
    let name = chosen(names, member)?;
    array(&tensors.tensor(&name).map_err(|error| error.to_string())?)
}

/// Everything in a file.
pub fn read_all(path: &Path) -> Result<NamedArrays, ArrayError> {
    let invalid = |problem: String| ArrayError::Invalid {
        path: path.to_path_buf(),
        problem,
    };
    let file = open(path)?;
    let bytes = whole(&file).map_err(invalid)?;
    decode(path, &bytes)
}

/// Everything in the bytes of a file; errors name it.
pub fn decode(path: &Path, bytes: &[u8]) -> Result<NamedArrays, ArrayError> {
    let invalid = |problem: String| ArrayError::Invalid {
        path: path.to_path_buf(),
        problem,
    };
    let (_, metadata) =
        SafeTensors::read_metadata(bytes).map_err(|error| invalid(error.to_string()))?;
    let metadata = metadata.metadata().clone().unwrap_or_default();
    let tensors = SafeTensors::deserialize(bytes).map_err(|error| invalid(error.to_string()))?;
    let mut arrays = BTreeMap::new();
    for (name, tensor) in tensors.iter() {
        let array = array(&tensor).map_err(|problem| invalid(format!("`{name}`: {problem}")))?;
        arrays.insert(name.to_string(), array);
    }
    Ok(NamedArrays { arrays, metadata })
}

/// Writes a file, which appears whole or not at all.
pub fn write_all(path: &Path, named: &NamedArrays) -> Result<(), ArrayError> {
    let mut part = path.as_os_str().to_owned();
    part.push(".part");
    let part = PathBuf::from(part);
    write_part(&part, named)?;
    fs::rename(&part, path).map_err(|source| ArrayError::Io {
        path: path.to_path_buf(),
        source,
    })
}

/// Writes a file for the caller to give it its name: it is durable, but may be there in part if
/// that fails.
pub fn write_part(path: &Path, named: &NamedArrays) -> Result<(), ArrayError> {
    let invalid = |problem: String| ArrayError::Invalid {
        path: path.to_path_buf(),
        problem,
    };
    let mut views = BTreeMap::new();
    for (name, array) in &named.arrays {
        let shape = array
            .info
            .shape
            .iter()
            .map(|extent| *extent as usize)
            .collect();
        let view = TensorView::new(dtype(array.info.scalar), shape, &array.bytes);
        views.insert(
            name,
            view.map_err(|error| invalid(format!("`{name}`: {error}")))?,
        );
    }
    let metadata = Some(named.metadata.clone()).filter(|entries| !entries.is_empty());
    let bytes =
        safetensors::serialize(views, metadata).map_err(|error| invalid(error.to_string()))?;
    let write = || {
        let mut file = File::create(path)?;
        std::io::Write::write_all(&mut file, &bytes)?;
        // A checkpoint must be on the disk before the one before it goes.
        file.sync_all()
    };
    write().map_err(|source| ArrayError::Io {
        path: path.to_path_buf(),
        source,
    })
}

fn whole(mut file: &File) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::new();
    file.rewind()
        .and_then(|()| file.read_to_end(&mut bytes))
        .map_err(|error| error.to_string())?;
    Ok(bytes)
}

fn chosen(mut names: Vec<String>, member: Option<&str>) -> Result<String, String> {
    names.sort();
    let listed = || {
        names
            .iter()
            .take(20)
            .map(|name| format!("`{name}`"))
            .collect::<Vec<_>>()
            .join(", ")
    };
    match (member, names.as_slice()) {
        (Some(member), names) if names.iter().any(|name| name == member) => Ok(member.to_string()),
        (Some(member), _) => Err(format!(
            "it has no array `{member}`\nhint: there are {}",
            listed()
        )),
        (None, [only]) => Ok(only.clone()),
        (None, []) => Err("it has no arrays".into()),
        (None, names) => {
            let hint = format!("write `FILE.safetensors:NAME`; there are {}", listed());
            Err(format!("it has {} arrays\nhint: {hint}", names.len()))
        }
    }
}

fn array(tensor: &TensorView<'_>) -> Result<Array, String> {
    let shape = tensor.shape().iter().map(|extent| *extent as u64).collect();
    let scalar = scalar(tensor.dtype())?;
    let bytes = if tensor.dtype() == Dtype::BF16 {
        // The upper half of an f32.
        let halves = tensor.data().chunks_exact(2);
        halves.flat_map(|half| [0, 0, half[0], half[1]]).collect()
    } else {
        tensor.data().to_vec()
    };
    Ok(Array {
        info: Info { scalar, shape },
        bytes,
    })
}

/// The type as it is in memory: bf16 becomes f32.
fn scalar(dtype: Dtype) -> Result<Scalar, String> {
    Ok(match dtype {
        Dtype::BOOL => Scalar::Bool,
        Dtype::U8 => Scalar::U8,
        Dtype::I8 => Scalar::I8,
        Dtype::U16 => Scalar::U16,
        Dtype::I16 => Scalar::I16,
        Dtype::F16 => Scalar::F16,
        Dtype::U32 => Scalar::U32,
        Dtype::I32 => Scalar::I32,
        Dtype::F32 | Dtype::BF16 => Scalar::F32,
        Dtype::U64 => Scalar::U64,
        Dtype::I64 => Scalar::I64,
        Dtype::F64 => Scalar::F64,
        other => return Err(format!("numbers of type {other:?} are not read")),
    })
}

fn dtype(scalar: Scalar) -> Dtype {
    match scalar {
        Scalar::Bool => Dtype::BOOL,
        Scalar::U8 => Dtype::U8,
        Scalar::I8 => Dtype::I8,
        Scalar::U16 => Dtype::U16,
        Scalar::I16 => Dtype::I16,
        Scalar::F16 => Dtype::F16,
        Scalar::U32 => Dtype::U32,
        Scalar::I32 => Dtype::I32,
        Scalar::F32 => Dtype::F32,
        Scalar::U64 => Dtype::U64,
        Scalar::I64 => Dtype::I64,
        Scalar::F64 => Dtype::F64,
    }
}

impl Array {
    /// An array of f32.
    ///
    /// # Panics
    /// If the shape has another number of elements.
    pub fn of_f32(shape: Vec<u64>, values: &[f32]) -> Self {
        let info = Info {
            scalar: Scalar::F32,
            shape,
        };
        assert_eq!(
            info.len(),
            Some(values.len() as u64),
            "as many as the shape has"
        );
        Self {
            info,
            bytes: values
                .iter()
                .flat_map(|value| value.to_le_bytes())
                .collect(),
        }
    }

    /// The array's numbers as f32.
    pub fn into_f32(self) -> Vec<f32> {
        let bytes = convert(self.bytes, self.info.scalar, Scalar::F32);
        bytes
            .chunks_exact(4)
            .map(|bytes| f32::from_le_bytes(bytes.try_into().expect("four bytes")))
            .collect()
    }
}
