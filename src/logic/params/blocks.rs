//! Tensors in one arena, cut into blocks.

use crate::types::servers::{ALIGNMENT, MAX_BLOCKS, MAX_DIMENSIONS, MAX_NAME_BYTES, MAX_TENSORS, TensorSpec};
use std::{collections::BTreeSet, ops::Range};

/// Where everything lies. All positions count f32.
///
/// Tensors follow each other in the order in which they were registered, each beginning at a multiple of `ALIGNMENT`; the arena is
/// cut every `block_len`, also in the middle of tensors. So many small tensors share a block and its messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    tensors: Vec<Range<u64>>,
    len: u64,
    block_len: u64,
}

/// Why tensors cannot be shared.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LayoutError {
    #[error("there are no tensors to share")]
    Empty,
    #[error("{0} tensors are more than {MAX_TENSORS}")]
    TooMany(usize),
    #[error("two tensors are called `{0}`")]
    Twice(String),
    #[error("tensor `{name}` {why}")]
    Tensor { name: String, why: String },
    #[error(
        "the tensors make more than {MAX_BLOCKS} blocks of {block_bytes} bytes\nhint: choose a larger `block_bytes`"
    )]
    Blocks { block_bytes: u64 },
}

impl Layout {
    /// Lays tensors out in blocks of `block_bytes`, a multiple of 64.
    pub fn new(tensors: &[TensorSpec], block_bytes: u64) -> Result<Self, LayoutError> {
        if tensors.len() > MAX_TENSORS {
            return Err(LayoutError::TooMany(tensors.len()));
        }
        let block_len = (block_bytes / 4).max(ALIGNMENT);
        let limit = MAX_BLOCKS.saturating_mul(block_len);
        let mut names = BTreeSet::new();
        let mut places = Vec::with_capacity(tensors.len());
        let mut end = 0u64;
        for tensor in tensors {
            let fault = |why: String| LayoutError::Tensor { name: tensor.name.chars().take(80).collect(), why };
            if tensor.name.is_empty() || tensor.name.len() > MAX_NAME_BYTES {
                return Err(fault(format!("has a name that is not 1 to {MAX_NAME_BYTES} bytes long")));
            }
            if tensor.shape.len() > MAX_DIMENSIONS {
                return Err(fault(format!("has {} dimensions; {MAX_DIMENSIONS} are allowed", tensor.shape.len())));
            }
            if !names.insert(&tensor.name) {
                return Err(LayoutError::Twice(tensor.name.clone()));
            }
            let len = tensor.len().filter(|len| *len <= limit).ok_or(LayoutError::Blocks { block_bytes })?;
            let start = end.next_multiple_of(ALIGNMENT);
            end = start + len;
            if end > limit {
                return Err(LayoutError::Blocks { block_bytes });
            }
            places.push(start..end);
        }
        if end == 0 {
            return Err(LayoutError::Empty);
        }
        Ok(Self { tensors: places, len: end.next_multiple_of(ALIGNMENT), block_len })
    }

    /// Numbers in the arena, gaps included.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Never: there is a tensor with numbers.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub fn tensors(&self) -> usize {
        self.tensors.len()
    }

    pub fn blocks(&self) -> u32 {
        self.len.div_ceil(self.block_len) as u32
    }

    /// Where a tensor lies.
    pub fn tensor(&self, tensor: usize) -> Range<u64> {
        self.tensors[tensor].clone()
    }

    /// Where a block lies. The last may be shorter.
    pub fn block(&self, block: u32) -> Range<u64> {
        let start = u64::from(block) * self.block_len;
        start..(start + self.block_len).min(self.len)
    }

    /// The blocks in which a tensor lies; none if it is empty.
    pub fn blocks_of(&self, tensor: usize) -> Range<u32> {
        let Range { start, end } = self.tensors[tensor];
        if start == end {
            return 0..0;
        }
        (start / self.block_len) as u32..(end.div_ceil(self.block_len)) as u32
    }

    /// Tensors that have numbers in a block lie among these.
    pub fn tensors_of(&self, block: u32) -> Range<usize> {
        let Range { start, end } = self.block(block);
        let first = self.tensors.partition_point(|tensor| tensor.end <= start);
        first..self.tensors.partition_point(|tensor| tensor.start < end)
    }

    /// How many tensors have numbers in each block.
    pub fn tensors_per_block(&self) -> Vec<u32> {
        let mut counts = vec![0; self.blocks() as usize];
        for tensor in 0..self.tensors.len() {
            for block in self.blocks_of(tensor) {
                counts[block as usize] += 1;
            }
        }
        counts
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn specs(lens: &[u64]) -> Vec<TensorSpec> {
        lens.iter().enumerate().map(|(i, len)| TensorSpec { name: i.to_string(), shape: vec![*len] }).collect()
    }

    proptest! {
        #[test]
        fn every_number_lies_in_one_block_and_tensors_apart(lens in prop::collection::vec(0u64..500, 1..40), lines in 1u64..20) {
            prop_assume!(lens.iter().any(|len| *len > 0));
            let layout = Layout::new(&specs(&lens), lines * 64).unwrap();
            let mut at = 0;
            for block in 0..layout.blocks() {
                let range = layout.block(block);
                prop_assert_eq!(range.start, at);
                prop_assert!(range.end > at);
                at = range.end;
            }
            prop_assert_eq!(at, layout.len());
            let mut end = 0;
            for (tensor, len) in lens.iter().enumerate() {
                let place = layout.tensor(tensor);
                prop_assert!(place.start >= end && place.start.is_multiple_of(ALIGNMENT) && place.end - place.start == *len);
                end = place.end;
                for block in 0..layout.blocks() {
                    let range = layout.block(block);
                    let meets = range.start < place.end && place.start < range.end;
                    prop_assert_eq!(layout.blocks_of(tensor).contains(&block), meets && *len > 0);
                    prop_assert!(!layout.blocks_of(tensor).contains(&block) || layout.tensors_of(block).contains(&tensor));
                }
            }
        }
    }

    #[test]
    fn tensors_that_cannot_be_shared_are_told_by_name() {
        let error = Layout::new(&[], 64).unwrap_err();
        assert_eq!(error, LayoutError::Empty);
        let twice = [specs(&[1]), specs(&[1])].concat();
        assert_eq!(Layout::new(&twice, 64).unwrap_err().to_string(), "two tensors are called `0`");
        let huge = TensorSpec { name: "w".into(), shape: vec![1 << 40, 1 << 40] };
        assert!(matches!(Layout::new(&[huge], 64), Err(LayoutError::Blocks { .. })));
    }
}
