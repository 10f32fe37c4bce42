//! Where the chunks of a dataset lie in its file. Its index is walked once: the library walks all
//! of it for each chunk that it is asked for. What is not understood here is left to the library.

use super::{indexes, objects::Objects};
use rust_hdf5::format::messages::{
    MSG_DATA_LAYOUT, MSG_DATASPACE,
    data_layout::{ChunkIndexType, DataLayoutMessage},
    dataspace::DataspaceMessage,
};
use std::{collections::BTreeMap, fs::File, os::unix::fs::FileExt, path::Path};

/// Stored chunks by their place in the grid of chunks.
pub(crate) struct Chunks {
    file: File,
    places: BTreeMap<Vec<u64>, ChunkPlace>,
}

/// Where a chunk is.
#[derive(Clone, Copy, Debug)]
pub(super) struct ChunkPlace {
    pub(super) address: u64,
    pub(super) bytes: u64,
    /// Bit i: filter i was not applied.
    pub(super) mask: u32,
}

impl Chunks {
    /// The chunks of the dataset at this path in the file, links followed. None where it cannot be
    /// told.
    pub(crate) fn of(path: &Path, dataset: &str) -> Option<Self> {
        let mut objects = Objects::of(File::open(path).ok()?)?;
        let header = objects.at(dataset)?;
        let message = |kind: u8| header.iter().find(|message| message.kind == kind);
        let (layout, _) =
            DataLayoutMessage::decode(&message(MSG_DATA_LAYOUT)?.data, &objects.context).ok()?;
        let (space, _) =
            DataspaceMessage::decode(&message(MSG_DATASPACE)?.data, &objects.context).ok()?;
        let places = match layout {
            // The last extent is that of an element.
            DataLayoutMessage::ChunkedV3 {
                chunk_dims,
                b_tree_address,
            } => indexes::tree(&mut objects, b_tree_address, chunk_dims.split_last()?.1)?,
            DataLayoutMessage::ChunkedV4 {
                chunk_dims,
                index_type,
                index_address,
                earray_params,
                single_chunk_filter,
                ..
            } => {
                let bytes = chunk_dims
                    .iter()
                    .try_fold(1u64, |product, extent| product.checked_mul(*extent))?;
                let chunk = chunk_dims.split_last()?.1;
                let grid = || indexes::grid(&space.dims, space.max_dims.as_deref(), chunk);
                match index_type {
                    ChunkIndexType::SingleChunk => {
                        let filtered =
                            single_chunk_filter.map(|filter| (filter.nbytes, filter.filter_mask));
                        let (bytes, mask) = filtered.unwrap_or((bytes, 0));
                        BTreeMap::from([(
                            vec![0; chunk.len()],
                            ChunkPlace {
                                address: index_address,
                                bytes,
                                mask,
                            },
                        )])
                    }
                    ChunkIndexType::FixedArray => {
                        indexes::fixed(&mut objects, index_address, bytes, &grid()?)?
                    }
                    ChunkIndexType::ExtensibleArray => indexes::extensible(
                        &mut objects,
                        index_address,
                        &earray_params?,
                        bytes,
                        &grid()?,
                    )?,
                    ChunkIndexType::BTreeV2 => {
                        indexes::tree_2(&mut objects, index_address, bytes, chunk.len())?
                    }
                    ChunkIndexType::Implicit => return None,
                }
            }
            _ => return None,
        };
        Some(Self {
            file: objects.file,
            places,
        })
    }

    /// The stored bytes of a chunk and its filter mask. None where the index had no such chunk when
    /// it was read.
    pub(crate) fn read(&self, place: &[u64]) -> Option<Result<(Vec<u8>, u32), String>> {
        self.read_into(place, Vec::new)
    }

    /// What `read` returns, in memory that `room` has, with whatever was in it.
    pub(super) fn read_into(
        &self,
        place: &[u64],
        room: impl FnOnce() -> Vec<u8>,
    ) -> Option<Result<(Vec<u8>, u32), String>> {
        let ChunkPlace {
            address,
            bytes,
            mask,
        } = *self.places.get(place)?;
        let length = self.file.metadata().map_or(0, |metadata| metadata.len());
        if address.checked_add(bytes).is_none_or(|end| end > length) {
            return Some(Err(format!(
                "read past end: {bytes} bytes at {address} of {length}"
            )));
        }
        let mut raw = room();
        raw.resize(bytes as usize, 0);
        Some(
            self.file
                .read_exact_at(&mut raw, address)
                .map(|()| (raw, mask))
                .map_err(|error| error.to_string()),
        )
    }
}
