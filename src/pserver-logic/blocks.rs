//! Tensors in one arena, cut into blocks.

use nodectl_types::servers::{
    ALIGNMENT, MAX_BLOCKS, MAX_DIMENSIONS, MAX_NAME_BYTES, MAX_TENSORS, TensorSpec,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
};

/// The largest tensor that is a block by itself: with the optimizer's state it travels in one
/// message.
const MAX_FACTORED_BYTES: u64 = 1 << 30;

/// Where everything lies. All positions count f32.
///
/// Tensors follow each other in the order in which they were registered, each beginning at a
/// multiple of `ALIGNMENT`; the arena is cut every so many numbers, also in the middle of tensors.
/// So many small tensors share a block and its messages. A tensor whose gradient goes as factors is
/// a block by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArenaLayout {
    tensors: Vec<Range<u64>>,
    /// Where blocks begin, and where the last one ends.
    edges: Vec<u64>,
    /// For each block that is a factored tensor, its rows and columns.
    factored: BTreeMap<u32, [u64; 2]>,
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
        "tensor {0} cannot be sent as factors: only tensors of two dimensions and at most {MAX_FACTORED_BYTES} bytes can"
    )]
    Factored(u32),
    #[error(
        "the tensors make more than {MAX_BLOCKS} blocks of {block_bytes} bytes\nhint: choose a larger `block_bytes`"
    )]
    Blocks { block_bytes: u64 },
}

impl ArenaLayout {
    /// Lays tensors out in blocks of `block_bytes`, a multiple of 64.
    pub fn new(tensors: &[TensorSpec], block_bytes: u64) -> Result<Self, LayoutError> {
        Self::with_factored(tensors, block_bytes, &[])
    }

    /// Lays tensors out. Those of `factored` are blocks by themselves.
    pub fn with_factored(
        tensors: &[TensorSpec],
        block_bytes: u64,
        factored: &[u32],
    ) -> Result<Self, LayoutError> {
        Self::with_cuts(tensors, block_bytes, factored, &[])
    }

    /// Lays tensors out as `with_factored` does. A block begins at each tensor of `cuts`.
    pub fn with_cuts(
        tensors: &[TensorSpec],
        block_bytes: u64,
        factored: &[u32],
        cuts: &[u32],
    ) -> Result<Self, LayoutError> {
        if let Some(wrong) = factored
            .iter()
            .find(|tensor| !can_be_factored(tensors.get(**tensor as usize)))
        {
            return Err(LayoutError::Factored(*wrong));
        }
        if tensors.len() > MAX_TENSORS {
            return Err(LayoutError::TooMany(tensors.len()));
        }
        let block_len = (block_bytes / 4).max(ALIGNMENT);
        let limit = MAX_BLOCKS.saturating_mul(block_len);
        let mut names = BTreeSet::new();
        let mut places = Vec::with_capacity(tensors.len());
        let (mut end, mut blocks) = (0u64, BTreeMap::new());
        let mut edges = BlockEdges(vec![0]);
        for (index, tensor) in tensors.iter().enumerate() {
            check_spec(tensor)?;
            if !names.insert(&tensor.name) {
                return Err(LayoutError::Twice(tensor.name.clone()));
            }
            let start = end.next_multiple_of(ALIGNMENT);
            let len = tensor.len().filter(|len| *len <= limit);
            end = len.map_or(0, |len| start + len);
            if len.is_none() || end > limit {
                return Err(LayoutError::Blocks { block_bytes });
            }
            places.push(start..end);
            if cuts.contains(&(index as u32)) {
                edges.cut(block_len, start);
            }
            if factored.contains(&(index as u32)) {
                edges.cut(block_len, start);
                blocks.insert(edges.blocks(), [tensor.shape[0], tensor.shape[1]]);
                edges.end_at(end.next_multiple_of(ALIGNMENT));
            }
        }
        if end == 0 {
            return Err(LayoutError::Empty);
        }
        edges.cut(block_len, end.next_multiple_of(ALIGNMENT));
        Ok(Self {
            tensors: places,
            edges: edges.0,
            factored: blocks,
        })
    }

    /// Rows and columns of the tensor that is this block, if its gradient goes as factors.
    pub fn factored(&self, block: u32) -> Option<[u64; 2]> {
        self.factored.get(&block).copied()
    }

    /// The blocks that are factored tensors.
    pub fn factored_blocks(&self) -> impl Iterator<Item = u32> + '_ {
        self.factored.keys().copied()
    }

    /// Numbers in the largest block.
    pub fn largest_block(&self) -> u64 {
        self.edges
            .windows(2)
            .map(|edges| edges[1] - edges[0])
            .max()
            .unwrap_or(0)
    }

    /// Numbers in the arena, gaps included.
    pub fn len(&self) -> u64 {
        *self.edges.last().expect("it begins with 0")
    }

    /// Never: there is a tensor with numbers.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn tensors(&self) -> usize {
        self.tensors.len()
    }

    pub fn blocks(&self) -> u32 {
        self.edges.len() as u32 - 1
    }

    /// Where a tensor lies.
    pub fn tensor(&self, tensor: usize) -> Range<u64> {
        self.tensors[tensor].clone()
    }

    /// Where a block lies.
    pub fn block(&self, block: u32) -> Range<u64> {
        self.edges[block as usize]..self.edges[block as usize + 1]
    }

    /// The blocks in which a tensor lies; none if it is empty.
    pub fn blocks_of(&self, tensor: usize) -> Range<u32> {
        let Range { start, end } = self.tensors[tensor];
        if start == end {
            return 0..0;
        }
        let first = self.edges.partition_point(|edge| *edge <= start) - 1;
        first as u32..self.edges.partition_point(|edge| *edge < end) as u32
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

/// Where blocks begin, and where the last one ends so far.
struct BlockEdges(Vec<u64>);

impl BlockEdges {
    fn last(&self) -> u64 {
        *self.0.last().expect("it begins with 0")
    }

    /// Blocks so far.
    fn blocks(&self) -> u32 {
        self.0.len() as u32 - 1
    }

    /// The next block ends here, unless that is where the last one ended.
    fn end_at(&mut self, end: u64) {
        if self.last() != end {
            self.0.push(end);
        }
    }

    /// Blocks of this length as far as they go, the last of them maybe shorter.
    fn cut(&mut self, block_len: u64, end: u64) {
        while end - self.last() > block_len {
            self.0.push(self.last() + block_len);
        }
        self.end_at(end);
    }
}

/// Whether a tensor's name and dimensions are within bounds.
fn check_spec(tensor: &TensorSpec) -> Result<(), LayoutError> {
    let fault = |why: String| {
        Err(LayoutError::Tensor {
            name: tensor.name.chars().take(80).collect(),
            why,
        })
    };
    if tensor.name.is_empty() || tensor.name.len() > MAX_NAME_BYTES {
        return fault(format!(
            "has a name that is not 1 to {MAX_NAME_BYTES} bytes long"
        ));
    }
    if tensor.shape.len() > MAX_DIMENSIONS {
        return fault(format!(
            "has {} dimensions; {MAX_DIMENSIONS} are allowed",
            tensor.shape.len()
        ));
    }
    Ok(())
}

fn can_be_factored(tensor: Option<&TensorSpec>) -> bool {
    let fits = |len: u64| len > 0 && len <= MAX_FACTORED_BYTES / 4;
    tensor.is_some_and(|tensor| tensor.shape.len() == 2 && tensor.len().is_some_and(fits))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn specs(lens: &[u64]) -> Vec<TensorSpec> {
        lens.iter()
            .enumerate()
            .map(|(i, len)| TensorSpec {
                name: i.to_string(),
                shape: vec![*len],
            })
            .collect()
    }

    proptest! {
        #[test]
        fn every_number_lies_in_one_block_and_tensors_apart(lens in prop::collection::vec(0u64..500, 1..40), lines in 1u64..20) {
            prop_assume!(lens.iter().any(|len| *len > 0));
            let layout = ArenaLayout::new(&specs(&lens), lines * 64).unwrap();
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
    fn factored_tensors_are_blocks_by_themselves() {
        let shapes: [&[u64]; 5] = [&[100], &[30, 40], &[5], &[16, 4], &[70]];
        let specs: Vec<TensorSpec> = shapes
            .iter()
            .enumerate()
            .map(|(i, shape)| TensorSpec {
                name: i.to_string(),
                shape: shape.to_vec(),
            })
            .collect();
        let layout = ArenaLayout::with_factored(&specs, 256, &[1, 3]).unwrap();
        for (tensor, sizes) in [(1, [30, 40]), (3, [16, 4])] {
            let blocks = layout.blocks_of(tensor);
            assert_eq!(blocks.len(), 1);
            assert_eq!(layout.factored(blocks.start), Some(sizes));
            assert_eq!(
                (
                    layout.block(blocks.start),
                    layout.tensors_of(blocks.start).len()
                ),
                (layout.tensor(tensor), 1)
            );
        }
        assert_eq!(layout.largest_block(), 1200);
        let edges: Vec<_> = (0..layout.blocks())
            .map(|block| layout.block(block))
            .collect();
        assert!(
            edges.windows(2).all(|two| two[0].end == two[1].start)
                && edges.iter().all(|edge| !edge.is_empty())
        );
        assert_eq!(layout.blocks_of(0), 0..2);
        assert_eq!(
            ArenaLayout::with_factored(&specs, 256, &[2]).unwrap_err(),
            LayoutError::Factored(2)
        );
    }

    #[test]
    fn no_block_has_tensors_of_both_sides_of_a_cut() {
        let specs = specs(&[100, 0, 5, 60, 3]);
        let layout = ArenaLayout::with_cuts(&specs, 256, &[], &[0, 2, 4]).unwrap();
        for (before, behind) in [(0, 2), (0, 4), (3, 4)] {
            let last = layout.blocks_of(before).end;
            assert!(last <= layout.blocks_of(behind).start);
        }
        assert_eq!(layout.blocks_of(2).start, layout.blocks_of(3).start);
        assert!((0..layout.blocks()).all(|block| !layout.block(block).is_empty()));
    }

    #[test]
    fn tensors_that_cannot_be_shared_are_told_by_name() {
        let error = ArenaLayout::new(&[], 64).unwrap_err();
        assert_eq!(error, LayoutError::Empty);
        let twice = [specs(&[1]), specs(&[1])].concat();
        assert_eq!(
            ArenaLayout::new(&twice, 64).unwrap_err().to_string(),
            "two tensors are called `0`"
        );
        let huge = TensorSpec {
            name: "w".into(),
            shape: vec![1 << 40, 1 << 40],
        };
        assert!(matches!(
            ArenaLayout::new(&[huge], 64),
            Err(LayoutError::Blocks { .. })
        ));
    }
}
