//! A checkpoint in a file: safetensors with the tensors by their registered names, then what the
//! optimizer remembers of each as `optimizer/<name>/first` and `second`, as the built-in models
//! have it. Written and read block by block, in any order.

use nodectl_pserver_logic::{ArenaLayout, KeptCheckpoint};
use nodectl_types::{
    checkpoint::{NOTE, STEP, VIEW, state_name},
    servers::{
        TensorSpec,
        message::{Block, Clock},
    },
};
use safetensors::{Dtype, tensor::Metadata};
use serde_json::{Map, Value, json};
use std::{
    collections::HashMap,
    fs::File,
    io::{self, Read},
    ops::Range,
    os::unix::fs::FileExt,
    path::Path,
    sync::Arc,
};

/// A longer header describes more than the most tensors with the longest names.
const MAX_HEADER_BYTES: u64 = 256 << 20;

/// What is in the file of a job: all its tensors, and arrays of the optimizer for those that are no
/// sums.
#[derive(Clone)]
pub struct Form {
    layout: Arc<ArenaLayout>,
    tensors: Arc<Vec<TensorSpec>>,
    /// Arrays that the optimizer remembers for each tensor.
    states: usize,
    /// Tensors behind these are sums: no optimizer moves them.
    trained: usize,
    /// What workers want to be told of the parameters.
    note: Option<String>,
}

/// Where each array lies, in bytes from the beginning of the file: values, then what the optimizer
/// remembers.
pub struct ArrayPlaces {
    form: Form,
    file: File,
    places: Vec<Vec<ArrayPlace>>,
    pub kept: KeptCheckpoint,
}

/// Where an array is in the file, in bytes, and how many of its numbers are there.
#[derive(Clone, Copy, Default)]
struct ArrayPlace {
    start: u64,
    len: u64,
}

impl Form {
    pub fn new(
        layout: Arc<ArenaLayout>,
        tensors: Vec<TensorSpec>,
        states: usize,
        sums: u32,
        note: Option<String>,
    ) -> Self {
        let trained = tensors.len().saturating_sub(sums as usize);
        Self {
            layout,
            tensors: Arc::new(tensors),
            states,
            trained,
            note,
        }
    }

    /// Numbers in a block.
    pub fn len(&self, block: Block) -> usize {
        let range = self.layout.block(block);
        (range.end - range.start) as usize
    }

    fn names(&self, array: usize) -> impl Iterator<Item = (usize, String)> {
        let count = if array == 0 {
            self.tensors.len()
        } else {
            self.trained
        };
        self.tensors[..count]
            .iter()
            .enumerate()
            .map(move |(index, tensor)| {
                let name = &tensor.name;
                (
                    index,
                    if array == 0 {
                        name.clone()
                    } else {
                        state_name(name, array - 1)
                    },
                )
            })
    }

    /// Begins a file of a checkpoint. Its length is that of the whole.
    pub fn create(&self, path: &Path, kept: KeptCheckpoint) -> io::Result<ArrayPlaces> {
        let mut header = Map::new();
        let mut metadata = json!({ STEP: kept.clock.to_string(), VIEW: kept.view.to_string() });
        if let Some(note) = &self.note {
            metadata[NOTE] = note.as_str().into();
        }
        header.insert("__metadata__".into(), metadata);
        let mut places = vec![vec![ArrayPlace::default(); self.tensors.len()]; 1 + self.states];
        let mut end = 0;
        for (array, places) in places.iter_mut().enumerate() {
            for (index, name) in self.names(array) {
                let range = self.layout.tensor(index);
                let (start, len) = (end, range.end - range.start);
                end += len * 4;
                let shape = &self.tensors[index].shape;
                header.insert(
                    name,
                    json!({ "dtype": "F32", "shape": shape, "data_offsets": [start, end] }),
                );
                places[index] = ArrayPlace { start, len };
            }
        }
        let mut bytes =
            serde_json::to_vec(&Value::Object(header)).expect("plain data always encodes");
        // Arrays begin at a multiple of eight.
        bytes.resize(bytes.len().next_multiple_of(8), b' ');
        let file = File::create(path)?;
        file.set_len(8 + bytes.len() as u64 + end)?;
        file.write_all_at(&(bytes.len() as u64).to_le_bytes(), 0)?;
        file.write_all_at(&bytes, 8)?;
        places
            .iter_mut()
            .flatten()
            .for_each(|place| place.start += 8 + bytes.len() as u64);
        Ok(ArrayPlaces {
            form: self.clone(),
            file,
            places,
            kept,
        })
    }

    /// Opens a checkpoint to read it. Fails with what it lacks. Sums may be longer than they were,
    /// or shorter: there may be more to add up now.
    pub fn open(&self, path: &Path) -> io::Result<ArrayPlaces> {
        let told = |why: String| {
            io::Error::new(
                io::ErrorKind::InvalidData,
                format!("{}: {why}", path.display()),
            )
        };
        let file = File::open(path).map_err(|error| told(error.to_string()))?;
        let (metadata, begin) = header(&file).map_err(|error| told(error.to_string()))?;
        let entry = |name| metadata.metadata().as_ref()?.get(name)?.parse::<u64>().ok();
        let clock = entry(STEP).ok_or_else(|| {
            told(
                "it does not say of which step it is\nhint: it is no checkpoint; `init_from` takes arrays of any"
                    .into(),
            )
        })?;
        let kept = KeptCheckpoint {
            clock,
            view: entry(VIEW).unwrap_or(0),
        };
        let mut places = vec![vec![ArrayPlace::default(); self.tensors.len()]; 1 + self.states];
        for (array, places) in places.iter_mut().enumerate() {
            for (index, name) in self.names(array) {
                let wanted = &self.tensors[index].shape;
                let info = metadata.info(&name).ok_or_else(|| {
                    told(format!(
                        "it has no array `{name}`\nhint: is it of the same model and optimizer?"
                    ))
                })?;
                let found: Vec<u64> = info.shape.iter().map(|extent| *extent as u64).collect();
                let is_row = index >= self.trained && found.len() == 1 && wanted.len() == 1;
                if info.dtype != Dtype::F32 || found != *wanted && !is_row {
                    let dtype = info.dtype;
                    return Err(told(format!(
                        "`{name}` is {dtype:?} {found:?}, the job's F32 {wanted:?}"
                    )));
                }
                let (start, end) = info.data_offsets;
                places[index] = ArrayPlace {
                    start: begin + start as u64,
                    len: (end - start) as u64 / 4,
                };
            }
        }
        Ok(ArrayPlaces {
            form: self.clone(),
            file,
            places,
            kept,
        })
    }
}

/// The header, and where the arrays begin.
fn header(mut file: &File) -> io::Result<(Metadata, u64)> {
    let invalid = |why: String| io::Error::new(io::ErrorKind::InvalidData, why);
    let mut length = [0; 8];
    file.read_exact(&mut length)?;
    let length = u64::from_le_bytes(length);
    let all = file.metadata()?.len();
    if length > MAX_HEADER_BYTES.min(all) {
        return Err(invalid("it is no safetensors file, or cut off".into()));
    }
    let mut bytes = vec![0; length as usize];
    file.read_exact(&mut bytes)?;
    let metadata: Metadata =
        serde_json::from_slice(&bytes).map_err(|error| invalid(format!("its header: {error}")))?;
    if metadata.data_len() as u64 + 8 + length != all {
        return Err(invalid("it is cut off, or not whole".into()));
    }
    Ok((metadata, 8 + length))
}

impl ArrayPlaces {
    /// Writes a block: its values, then what the optimizer remembers, each as long as the block.
    pub fn write(&self, block: Block, arrays: &[&[f32]]) -> io::Result<()> {
        for (places, numbers) in self.places.iter().zip(arrays) {
            for (at, own) in pieces(&self.form.layout, places, block) {
                self.file
                    .write_all_at(bytemuck::cast_slice(&numbers[own]), at)?;
            }
        }
        Ok(())
    }

    /// A block as `write` takes it. Gaps between tensors are zero.
    pub fn read(&self, block: Block) -> io::Result<Vec<Vec<f32>>> {
        let range = self.form.layout.block(block);
        let read = |places: &Vec<ArrayPlace>| {
            let mut numbers = vec![0.0f32; (range.end - range.start) as usize];
            for (at, own) in pieces(&self.form.layout, places, block) {
                self.file
                    .read_exact_at(bytemuck::cast_slice_mut(&mut numbers[own]), at)?;
            }
            Ok(numbers)
        };
        self.places.iter().map(read).collect()
    }

    pub fn sync(&self) -> io::Result<()> {
        self.file.sync_all()
    }
}

/// For each piece of a tensor in a block: where it is in the file, and in the block.
fn pieces<'a>(
    layout: &'a ArenaLayout,
    places: &'a [ArrayPlace],
    block: Block,
) -> impl Iterator<Item = (u64, Range<usize>)> + 'a {
    let range = layout.block(block);
    layout.tensors_of(block).filter_map(move |tensor| {
        let (own, place) = (layout.tensor(tensor), places[tensor]);
        let (start, end) = (
            own.start.max(range.start),
            own.end.min(range.end).min(own.start + place.len),
        );
        (start < end).then(|| {
            (
                place.start + (start - own.start) * 4,
                (start - range.start) as usize..(end - range.start) as usize,
            )
        })
    })
}

/// The clock of a checkpoint and the metadata's entries, whatever arrays it has.
pub fn clock_of(path: &Path) -> io::Result<Clock> {
    let (metadata, _) = header(&File::open(path)?)?;
    let empty = HashMap::new();
    let entries = metadata.metadata().as_ref().unwrap_or(&empty);
    let clock = entries.get(STEP).and_then(|step| step.parse().ok());
    clock.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "it is no checkpoint"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn form(names: &[(&str, u64)], states: usize, sums: u32) -> Form {
        let tensors: Vec<TensorSpec> = names
            .iter()
            .map(|(name, len)| TensorSpec {
                name: (*name).into(),
                shape: vec![*len],
            })
            .collect();
        Form::new(
            Arc::new(ArenaLayout::new(&tensors, 64).unwrap()),
            tensors,
            states,
            sums,
            Some("a \"note\"".into()),
        )
    }

    #[test]
    fn what_is_written_block_by_block_is_read_by_any_reader_and_by_us() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.safetensors");
        let form = form(&[("w", 20), ("empty", 0), ("b", 3), ("sum", 2)], 1, 1);
        let kept = KeptCheckpoint {
            clock: 500,
            view: 7,
        };
        let file = form.create(&path, kept).unwrap();
        for block in (0..form.layout.blocks()).rev() {
            let range = form.layout.block(block);
            let values: Vec<f32> = range.clone().map(|at| at as f32).collect();
            let state: Vec<f32> = range.map(|at| -(at as f32)).collect();
            file.write(block, &[&values, &state]).unwrap();
        }
        file.sync().unwrap();
        let bytes = std::fs::read(&path).unwrap();
        let read = safetensors::SafeTensors::deserialize(&bytes).unwrap();
        let numbers =
            |name: &str| bytemuck::pod_collect_to_vec::<u8, f32>(read.tensor(name).unwrap().data());
        assert_eq!(
            numbers("w"),
            (0..20).map(|at| at as f32).collect::<Vec<_>>()
        );
        assert_eq!(numbers("b"), [32.0, 33.0, 34.0]);
        assert_eq!(numbers("sum"), [48.0, 49.0]);
        assert_eq!(numbers("optimizer/b/first"), [-32.0, -33.0, -34.0]);
        assert_eq!(read.len(), 4 + 3, "sums have no state");
        let again = form.open(&path).unwrap();
        assert_eq!(again.kept, kept);
        assert_eq!(again.read(2).unwrap()[1][..4], [-32.0, -33.0, -34.0, 0.0]);
        assert_eq!(clock_of(&path).unwrap(), 500);
        let (_, metadata) = safetensors::SafeTensors::read_metadata(&bytes).unwrap();
        assert_eq!(metadata.metadata().as_ref().unwrap()[NOTE], "a \"note\"");
    }

    #[test]
    fn sums_may_have_become_longer_or_shorter_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.safetensors");
        let own = form(&[("w", 16), ("sum", 3)], 0, 1);
        let file = own
            .create(&path, KeptCheckpoint { clock: 1, view: 0 })
            .unwrap();
        file.write(0, &[&[1.0; 16]]).unwrap();
        file.write(1, &[&[7.0, 8.0, 9.0]]).unwrap();
        let sum = |len| {
            form(&[("w", 16), ("sum", len)], 0, 1)
                .open(&path)
                .unwrap()
                .read(1)
                .unwrap()
                .remove(0)
        };
        assert_eq!(
            (&sum(5)[..5], &sum(2)[..3]),
            (&[7.0, 8.0, 9.0, 0.0, 0.0][..], &[7.0, 8.0, 0.0][..])
        );
        assert!(
            form(&[("w", 16), ("sum", 5)], 0, 0).open(&path).is_err(),
            "a tensor is as long as it was"
        );
    }

    #[test]
    fn another_models_file_and_a_damaged_one_are_told() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.safetensors");
        form(&[("w", 20)], 0, 0)
            .create(&path, KeptCheckpoint { clock: 1, view: 1 })
            .unwrap();
        let told = |form: Form| form.open(&path).err().expect("refused").to_string();
        assert!(told(form(&[("v", 20)], 0, 0)).contains("no array `v`"));
        assert!(told(form(&[("w", 21)], 0, 0)).contains("[20]"));
        assert!(told(form(&[("w", 20)], 1, 0)).contains("optimizer/w/first"));
        let bytes = std::fs::read(&path).unwrap();
        std::fs::write(&path, &bytes[..bytes.len() - 4]).unwrap();
        assert!(told(form(&[("w", 20)], 0, 0)).contains("cut off"));
    }
}
