//! What goes to other nodes, or comes from them, in fewer bytes. Of a block its parameters are
//! compressed; the sums behind them are not.

use super::{BlockStore, Factors, Incoming, Outgoing, StoredSum, compress};
use nodectl_types::{
    NodeId,
    servers::{
        Compression,
        message::{Block, BlockUpdate, ServerMessage, ViewMessage, Worker},
    },
};
use std::{io, sync::Arc};

impl BlockStore {
    /// A local worker's gradient, which becomes what the other end makes of it.
    pub(super) fn gradient(&mut self, worker: Worker, block: Block) -> Option<Outgoing> {
        let arena = self.arenas.get(&worker)?.clone();
        let range = self.layout.block(block);
        if let Some(sizes) = self.layout.factored(block) {
            return Some(Outgoing::Encoded(
                Factors::of_memory(arena.gradients(range), sizes)?.encode(),
            ));
        }
        if self.settings.compression == Compression::None {
            return Some(Outgoing::Gradient { arena, range });
        }
        let trained = self.trained(block);
        // Sent again after a change of the view, it is the same.
        let mut nothing = Vec::new();
        let residual = if self.compressed.insert((worker, block)) {
            self.residuals.entry((worker, block)).or_default()
        } else {
            &mut nothing
        };
        let mut gradient = arena.gradients(range.clone()).to_vec();
        let sums = gradient.split_off(trained);
        let mut encoded = compress::encode(self.settings.compression, &mut gradient, residual);
        arena.write_gradients(range.start, &gradient);
        encoded.extend_from_slice(bytemuck::cast_slice(&sums));
        Some(Outgoing::Encoded(encoded))
    }

    /// A sum, or a mean, as replicas get it. Where it is compressed, it becomes what they make of
    /// it: all who keep the block take the same step.
    pub(super) fn outgoing_sum(&mut self, block: Block, sum: &mut StoredSum) -> Outgoing {
        let trained = self.trained(block);
        let compression = compress::of_sums(self.settings.compression);
        if let StoredSum::Sent(_, bytes) = sum {
            return Outgoing::Encoded(bytes.to_vec());
        }
        let whole = sum.whole(&self.layout, block, trained);
        // Factors' sums are the same everywhere as they are.
        if compression == Compression::None || self.layout.factored(block).is_some() {
            return Outgoing::Numbers(vec![whole]);
        }
        let mut numbers = whole.to_vec();
        let residual = self.sum_residuals.entry(block).or_default();
        let mut bytes = compress::encode(compression, &mut numbers[..trained], residual);
        bytes.extend_from_slice(bytemuck::cast_slice(&numbers[trained..]));
        *sum = StoredSum::Sent(Arc::new(numbers), Arc::new(bytes.clone()));
        Outgoing::Encoded(bytes)
    }

    /// The connection to a node is another: what was on its way to or from it may be lost.
    pub fn forget_peer(&mut self, peer: NodeId) {
        self.sent.forget(peer);
        self.read.forget(peer);
    }

    /// A block's values come from another node as what they have changed by, where they are
    /// compressed. Returns them as they are.
    pub fn decode_values(
        &mut self,
        from: NodeId,
        message: &ServerMessage,
        incoming: Incoming,
    ) -> io::Result<Incoming> {
        let compression = compress::of_sums(self.settings.compression);
        let ServerMessage::InView {
            message: ViewMessage::Values(part),
            ..
        } = message
        else {
            return Ok(incoming);
        };
        if compression == Compression::None || part.block >= self.layout.blocks() {
            return Ok(incoming);
        }
        let (of, len) = ((from, part.block), self.len_of(part.block));
        let trained = self.trained(part.block);
        let values = self
            .read
            .decode(compression, of, incoming.bytes(), (len, trained))?;
        Ok(Incoming::from(values))
    }

    pub(super) fn gradient_fits(&self, block: Block, len: usize, bytes: &[u8]) -> io::Result<()> {
        if let Some(sizes) = self.layout.factored(block) {
            return Factors::check(bytes, sizes).map(drop);
        }
        self.encoded_fits(self.settings.compression, block, len, bytes)
    }

    pub(super) fn update_fits(
        &self,
        block: Block,
        len: usize,
        bytes: &[u8],
        update: &BlockUpdate,
    ) -> io::Result<()> {
        let is_gradient = update.of.len() == 1 && self.settings.consistency.merge().is_none();
        let compression = match is_gradient {
            true => self.settings.compression,
            false if self.layout.factored(block).is_some() => Compression::None,
            false => compress::of_sums(self.settings.compression),
        };
        self.encoded_fits(compression, block, len, bytes)
    }

    /// Parameters are encoded, and behind them are sums as they are.
    fn encoded_fits(
        &self,
        compression: Compression,
        block: Block,
        len: usize,
        bytes: &[u8],
    ) -> io::Result<()> {
        let trained = self.trained(block);
        let sums = (len - trained) * 4;
        let encoded = bytes
            .len()
            .checked_sub(sums)
            .and_then(|end| bytes.get(..end))
            .unwrap_or_default();
        compress::check(compression, encoded, trained)
    }

    /// What a sum, or a mean, comes to that a primary has sent.
    pub(super) fn sum_of(&self, block: Block, incoming: &Incoming) -> io::Result<Vec<f32>> {
        match compress::of_sums(self.settings.compression) {
            Compression::None => Ok(incoming.numbers(self.len_of(block))?.to_vec()),
            _ if self.layout.factored(block).is_some() => {
                Ok(incoming.numbers(self.len_of(block))?.to_vec())
            }
            compression => self.decoded(compression, block, incoming.bytes()),
        }
    }

    /// A block's numbers, of which the sums are not compressed.
    pub(super) fn decoded(
        &self,
        compression: Compression,
        block: Block,
        bytes: &[u8],
    ) -> io::Result<Vec<f32>> {
        let (trained, len) = (self.trained(block), self.len_of(block));
        let (encoded, sums) = bytes
            .split_at_checked(bytes.len().saturating_sub((len - trained) * 4))
            .ok_or_else(|| {
                io::Error::new(
                    io::ErrorKind::InvalidData,
                    "fewer bytes than the block's sums have",
                )
            })?;
        let mut numbers = compress::decode(compression, encoded, trained)?;
        numbers.extend(compress::numbers(sums, len - trained)?);
        Ok(numbers)
    }
}
