//! Values on their way to readers on other nodes, where they are compressed: a node first gets a
//! block's values as they are, then what they have changed by since. What compression leaves out of
//! a change is in the next one, as that is taken from what the reader has.
//!
//! Both ends count the changes. A reader that lacks one must not go on: its connection ends, and
//! behind that it gets all values again.

use super::compress;
use nodectl_types::{
    NodeId,
    servers::{Compression, message::Block},
};
use std::{collections::HashMap, io};

/// Which node reads, or is read from, and what.
type Of = (NodeId, Block);

/// A block's values as the reader has them, after so many changes.
struct KnownBlock {
    changes: u32,
    values: Vec<f32>,
}

/// What other nodes have.
#[derive(Default)]
pub struct SentValues(HashMap<Of, KnownBlock>);

/// What this node has of others' blocks.
#[derive(Default)]
pub struct ReadValues(HashMap<Of, KnownBlock>);

/// What both take on a node at most, in bytes, for so many numbers of a training: what it reads of
/// others' blocks, and what others have of its own.
pub fn bytes_of(compression: Compression, numbers: u64) -> u64 {
    match compression {
        Compression::None => 0,
        Compression::F16
        | Compression::Bf16
        | Compression::Int8
        | Compression::Int4
        | Compression::Int2
        | Compression::TopK { .. } => numbers.saturating_mul(2 * 4),
    }
}

impl SentValues {
    /// A block's values for a reader: the number of the change, then the values as they are in the
    /// first, and in later ones what `trained` of them have changed by and the others as they are.
    pub fn encode(
        &mut self,
        compression: Compression,
        of: Of,
        values: &[f32],
        trained: usize,
    ) -> Vec<u8> {
        let Some(known) = self.0.get_mut(&of).filter(|known| known.changes < u32::MAX) else {
            let (changes, values) = (0u32, values.to_vec());
            let mut bytes = changes.to_le_bytes().to_vec();
            bytes.extend_from_slice(bytemuck::cast_slice(&values));
            self.0.insert(of, KnownBlock { changes, values });
            return bytes;
        };
        known.changes += 1;
        let (parameters, sums) = values.split_at(trained);
        let pairs = parameters.iter().zip(&known.values);
        let mut change: Vec<f32> = pairs.map(|(now, known)| now - known).collect();
        let mut bytes = known.changes.to_le_bytes().to_vec();
        bytes.extend(compress::encode(compression, &mut change, &mut Vec::new()));
        bytes.extend_from_slice(bytemuck::cast_slice(sums));
        known.take(&change, sums);
        bytes
    }

    /// A node's connection is another.
    pub fn forget(&mut self, node: NodeId) {
        self.0.retain(|(of, _), _| *of != node);
    }

    /// Another view begins.
    pub fn clear(&mut self) {
        self.0.clear();
    }
}

impl ReadValues {
    /// The `len` values of a block, of which `trained` are parameters, as `SentValues` has encoded
    /// them. Fails where something is not what comes next.
    pub fn decode(
        &mut self,
        compression: Compression,
        of: Of,
        bytes: &[u8],
        (len, trained): (usize, usize),
    ) -> io::Result<Vec<f32>> {
        let wrong = |why: &str| io::Error::new(io::ErrorKind::InvalidData, why);
        let (number, rest) = bytes
            .split_first_chunk()
            .ok_or_else(|| wrong("values without a number"))?;
        let changes = u32::from_le_bytes(*number);
        if changes == 0 {
            let values = compress::numbers(rest, len)?;
            let known = values.clone();
            self.0.insert(
                of,
                KnownBlock {
                    changes,
                    values: known,
                },
            );
            return Ok(values);
        }
        let known = self.0.get_mut(&of);
        let known = known.filter(|known| known.changes.checked_add(1) == Some(changes));
        let known = known.ok_or_else(|| wrong("a change of values that does not come next"))?;
        let (change, sums) = rest
            .split_at_checked(rest.len().saturating_sub((len - trained) * 4))
            .ok_or_else(|| wrong("fewer bytes than the block's sums have"))?;
        let change = compress::decode(compression, change, trained)?;
        let sums = compress::numbers(sums, len - trained)?;
        known.changes = changes;
        known.take(&change, &sums);
        Ok(known.values.clone())
    }

    /// A node's connection is another.
    pub fn forget(&mut self, node: NodeId) {
        self.0.retain(|(of, _), _| *of != node);
    }
}

impl KnownBlock {
    /// Values have changed by so much, and the sums behind them are these.
    fn take(&mut self, change: &[f32], sums: &[f32]) {
        let parameters = self.values.iter_mut().zip(change);
        parameters.for_each(|(value, change)| *value += change);
        self.values[change.len()..].copy_from_slice(sums);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEN: usize = 300;
    const TRAINED: usize = 290;
    const OF: Of = (NodeId([1; 32]), 3);

    fn at(step: usize) -> Vec<f32> {
        (0..LEN)
            .map(|index| (index as f32 * 0.1).sin() + step as f32 * 0.01)
            .collect()
    }

    #[test]
    fn a_reader_stays_close_to_the_values_and_has_sums_as_they_are() {
        for compression in [
            Compression::F16,
            Compression::Bf16,
            Compression::Int8,
            Compression::Int4,
            Compression::Int2,
        ] {
            let (mut sent, mut read) = (SentValues::default(), ReadValues::default());
            for step in 0..100 {
                let values = at(step);
                let bytes = sent.encode(compression, OF, &values, TRAINED);
                let found = read
                    .decode(compression, OF, &bytes, (LEN, TRAINED))
                    .unwrap();
                assert_eq!(found[TRAINED..], values[TRAINED..]);
                let worst = found.iter().zip(&values).map(|(a, b)| (a - b).abs());
                let worst = worst.fold(0.0, f32::max);
                // Nothing adds up: what a change lacks is in the next one.
                assert!(worst < 2e-3, "{compression:?}, step {step}: {worst}");
                let is_small = bytes.len() < 4 + TRAINED * 5 / 2 + (LEN - TRAINED) * 4;
                assert!(step == 0 || is_small, "{compression:?}: {}", bytes.len());
            }
        }
    }

    #[test]
    fn a_change_that_does_not_come_next_is_an_error_and_all_values_mend_it() {
        let (mut sent, mut read) = (SentValues::default(), ReadValues::default());
        let next = |sent: &mut SentValues| sent.encode(Compression::Int8, OF, &at(1), TRAINED);
        let decode = |read: &mut ReadValues, bytes: &[u8]| {
            read.decode(Compression::Int8, OF, bytes, (LEN, TRAINED))
        };
        let (all, first, second) = (next(&mut sent), next(&mut sent), next(&mut sent));
        assert!(decode(&mut read, &first).is_err(), "nothing is known yet");
        decode(&mut read, &all).unwrap();
        assert!(decode(&mut read, &second).is_err(), "one is lacking");
        decode(&mut read, &first).unwrap();
        assert!(decode(&mut read, &second[..40]).is_err(), "it is cut short");
        decode(&mut read, &second).unwrap();
        sent.forget(OF.0);
        read.forget(OF.0);
        let again = next(&mut sent);
        assert_eq!(decode(&mut read, &again).unwrap(), at(1));
        assert!(decode(&mut read, &[1, 2]).is_err());
    }
}
