//! Bytes on their way to another node or a file.

use super::{arena::Arena, incoming::Incoming};
use std::{io, ops::Range, sync::Arc};

/// Parts in order.
pub enum Outgoing {
    Numbers(Vec<Arc<Vec<f32>>>),
    /// A block's values and the optimizer's state.
    State(Arc<Vec<f32>>, Arc<Vec<Vec<f32>>>),
    Gradient {
        arena: Arc<Arena>,
        range: Range<u64>,
    },
    Forwarded(Arc<Incoming>),
    Encoded(Vec<u8>),
}

impl Outgoing {
    pub fn parts(&self) -> Vec<&[u8]> {
        match self {
            Self::Numbers(parts) => parts
                .iter()
                .map(|part| bytemuck::cast_slice(part.as_slice()))
                .collect(),
            Self::State(values, state) => {
                let all = [values.as_slice()]
                    .into_iter()
                    .chain(state.iter().map(Vec::as_slice));
                all.map(bytemuck::cast_slice).collect()
            }
            Self::Gradient { arena, range } => {
                vec![bytemuck::cast_slice(arena.gradients(range.clone()))]
            }
            Self::Forwarded(numbers) => vec![numbers.bytes()],
            Self::Encoded(bytes) => vec![bytes],
        }
    }

    /// The arrays of so many numbers that it holds, one behind the other.
    pub fn arrays(&self, len: usize) -> io::Result<Vec<&[f32]>> {
        let wrong = || io::Error::new(io::ErrorKind::InvalidData, "a block of another length");
        let mut arrays = Vec::new();
        for part in self.parts() {
            let numbers: &[f32] = bytemuck::try_cast_slice(part).map_err(|_| wrong())?;
            if len == 0 || !numbers.len().is_multiple_of(len) {
                return Err(wrong());
            }
            arrays.extend(numbers.chunks_exact(len));
        }
        Ok(arrays)
    }

    pub fn bytes(&self) -> usize {
        self.parts().iter().map(|part| part.len()).sum()
    }
}
