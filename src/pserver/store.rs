//! Bytes: the blocks that this node keeps, what workers contributed, sums that wait. Does what
//! effects say, and knows no reasons.

use super::{
    arena::Arena,
    compress,
    factors::{self, Factors},
    file::ArrayPlaces,
    incoming::Incoming,
    optimizer,
    outgoing::Outgoing,
    values::{ReadValues, SentValues},
};
use nodectl_pserver_logic::{ArenaLayout, ByteTarget, Gradient, Payload};
use nodectl_types::{
    NodeId,
    servers::{
        Compression, ServerSettings,
        message::{Block, Clock, ServerMessage, ViewMessage, Worker},
    },
};
use rayon::prelude::*;
use std::{
    collections::{HashMap, HashSet},
    io,
    sync::Arc,
};

mod encoded;

/// Blocks of fewer numbers together are not worth waking other threads.
const ALONE_NUMBERS: usize = 512 << 10;

/// One step of the optimizer on a block. Where updates count one by one, `workers` of them are a
/// round of the schedule.
pub struct BlockStep {
    pub block: Block,
    pub gradient: Gradient,
    pub step: u64,
    pub scale: f32,
    pub workers: u64,
}

/// A block that this node keeps. What a checkpoint or a reader still needs of it is copied when it
/// changes.
#[derive(Clone)]
struct StoredShard {
    values: Arc<Vec<f32>>,
    state: Arc<Vec<Vec<f32>>>,
}

/// A gradient of a block.
#[derive(Clone)]
enum Contribution {
    /// Where its worker has it.
    Local(Arc<Arena>),
    /// As numbers, and as it came if it was compressed.
    Remote(Arc<Incoming>, Option<Arc<Incoming>>),
}

impl StoredShard {
    fn outgoing(&self) -> Outgoing {
        Outgoing::State(self.values.clone(), self.state.clone())
    }
}

/// A sum is made when it is needed in one piece.
enum StoredSum {
    Parts(Vec<(Contribution, f32)>),
    Whole(Arc<Vec<f32>>),
    /// As replicas got it: what they make of these bytes.
    Sent(Arc<Vec<f32>>, Arc<Vec<u8>>),
}

pub struct BlockStore {
    layout: Arc<ArenaLayout>,
    settings: ServerSettings,
    shards: HashMap<Block, StoredShard>,
    /// Blocks as they were, for a checkpoint.
    snapshots: HashMap<Block, StoredShard>,
    sums: HashMap<Block, StoredSum>,
    /// Means of updates, by the version that they follow.
    merged: HashMap<(Block, u64), StoredSum>,
    contributions: HashMap<(Worker, Clock, Block), Contribution>,
    /// Of factored blocks.
    factors: HashMap<(Worker, Clock, Block), Factors>,
    arenas: HashMap<Worker, Arc<Arena>>,
    /// What compression left behind, by worker and block.
    residuals: HashMap<(Worker, Block), Vec<f32>>,
    /// And of sums and means, which replicas get.
    sum_residuals: HashMap<Block, Vec<f32>>,
    /// What readers elsewhere have, and what this node's workers have of others' blocks.
    sent: SentValues,
    read: ReadValues,
    /// Gradients of the worker's clock that were compressed already.
    compressed: HashSet<(Worker, Block)>,
}

impl BlockStore {
    pub fn new(layout: Arc<ArenaLayout>, settings: ServerSettings) -> Self {
        Self {
            layout,
            settings,
            shards: HashMap::new(),
            snapshots: HashMap::new(),
            sums: HashMap::new(),
            merged: HashMap::new(),
            contributions: HashMap::new(),
            factors: HashMap::new(),
            arenas: HashMap::new(),
            residuals: HashMap::new(),
            sum_residuals: HashMap::new(),
            sent: SentValues::default(),
            read: ReadValues::default(),
            compressed: HashSet::new(),
        }
    }

    pub fn add_worker(&mut self, worker: Worker, arena: Arc<Arena>) {
        self.arenas.insert(worker, arena);
        self.residuals.retain(|(of, _), _| *of != worker);
        self.released(worker);
    }

    /// A worker's gradients are those of a new clock.
    pub fn released(&mut self, worker: Worker) {
        self.compressed.retain(|(of, _)| *of != worker);
    }

    pub fn remove_worker(&mut self, worker: Worker) {
        self.arenas.remove(&worker);
        self.residuals.retain(|(of, _), _| *of != worker);
    }

    /// What of a message goes to another node as bytes.
    pub fn outgoing(&mut self, to: NodeId, payload: Payload) -> Option<Outgoing> {
        Some(match payload {
            Payload::Gradient { worker, block } => return self.gradient(worker, block),
            Payload::Contribution {
                worker,
                clock,
                block,
            } => match self.contributions.get(&(worker, clock, block))?.clone() {
                Contribution::Local(arena) if self.settings.compression == Compression::None => {
                    let copied = arena.gradients(self.layout.block(block)).to_vec();
                    Outgoing::Numbers(vec![Arc::new(copied)])
                }
                Contribution::Local(_) => return self.gradient(worker, block),
                Contribution::Remote(numbers, encoded) => {
                    Outgoing::Forwarded(encoded.unwrap_or(numbers))
                }
            },
            Payload::Sum { block } => {
                let mut sum = self.sums.remove(&block)?;
                let outgoing = self.outgoing_sum(block, &mut sum);
                self.sums.insert(block, sum);
                outgoing
            }
            Payload::Merged { block, version } => {
                let mut merged = self.merged.remove(&(block, version))?;
                let outgoing = self.outgoing_sum(block, &mut merged);
                self.merged.insert((block, version), merged);
                outgoing
            }
            Payload::Values { block } => {
                let values = self.shards.get(&block)?.values.clone();
                match compress::of_sums(self.settings.compression) {
                    Compression::None => Outgoing::Numbers(vec![values]),
                    compression => {
                        let trained = self.trained(block);
                        let of = (to, block);
                        Outgoing::Encoded(self.sent.encode(compression, of, &values, trained))
                    }
                }
            }
            Payload::State { block } => self.shards.get(&block)?.outgoing(),
            Payload::Snapshot { block } => return self.snapshot_of(block),
        })
    }

    /// What a block was for a checkpoint, which needs it once.
    pub fn snapshot_of(&mut self, block: Block) -> Option<Outgoing> {
        Some(self.snapshots.remove(&block)?.outgoing())
    }

    /// Whether what came with a message of another node is what belongs to it. Fails if it is not,
    /// before anything is made of either.
    pub fn fits(&self, message: &ServerMessage, incoming: &Incoming) -> io::Result<()> {
        let bytes = incoming.bytes();
        let block = message.block().unwrap_or(0);
        if block >= self.layout.blocks() {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                format!("there is no block {block}"),
            ));
        }
        let range = self.layout.block(block);
        let len = (range.end - range.start) as usize;
        let states = self.settings.training.optimizer.states();
        let ServerMessage::InView { message, .. } = message else {
            return incoming.numbers(0).map(drop);
        };
        let wanted = match message {
            ViewMessage::Push(_) => return self.gradient_fits(block, len, bytes),
            ViewMessage::Replicate { update, .. } => {
                return self.update_fits(block, len, bytes, update);
            }
            ViewMessage::Values(_) => len,
            ViewMessage::State { .. } | ViewMessage::Collected { .. } => len * (1 + states),
            ViewMessage::Ended { .. }
            | ViewMessage::Offered { .. }
            | ViewMessage::Merge { .. }
            | ViewMessage::Kept { .. }
            | ViewMessage::Arrived { .. }
            | ViewMessage::Settled { .. }
            | ViewMessage::Moved
            | ViewMessage::Drain { .. }
            | ViewMessage::Drained
            | ViewMessage::Ready { .. }
            | ViewMessage::Commit { .. }
            | ViewMessage::Acknowledged(_)
            | ViewMessage::Pull(_)
            | ViewMessage::Barrier { .. }
            | ViewMessage::Passed { .. }
            | ViewMessage::PassedAlone { .. }
            | ViewMessage::Keep
            | ViewMessage::Checkpoint { .. }
            | ViewMessage::Collect { .. }
            | ViewMessage::Saved { .. } => 0,
        };
        incoming.numbers(wanted).map(drop)
    }

    /// Keeps what came with a message. Fails if it is not what belongs there.
    pub fn take(&mut self, place: ByteTarget, incoming: Incoming) -> io::Result<()> {
        match place {
            ByteTarget::Contribution {
                worker,
                clock,
                block,
            } => self.take_contribution((worker, clock, block), incoming),
            ByteTarget::Sum { block } => {
                let sum = StoredSum::Whole(Arc::new(self.sum_of(block, &incoming)?));
                self.sums.insert(block, sum);
                Ok(())
            }
            ByteTarget::Merged { block, version } => {
                let merged = StoredSum::Whole(Arc::new(self.sum_of(block, &incoming)?));
                self.merged.insert((block, version), merged);
                Ok(())
            }
            ByteTarget::Worker { worker, block } => {
                let numbers = incoming.numbers(self.len_of(block))?;
                if let Some(arena) = self.arenas.get(&worker) {
                    arena.write_values(self.layout.block(block).start, numbers);
                }
                Ok(())
            }
            ByteTarget::State { block } | ByteTarget::Checkpoint { block } => {
                self.take_state(block, &incoming)
            }
        }
    }

    /// Numbers in a block.
    fn len_of(&self, block: Block) -> usize {
        let range = self.layout.block(block);
        (range.end - range.start) as usize
    }

    /// A gradient from its worker's node: as factors, compressed, or as it is.
    fn take_contribution(
        &mut self,
        of: (Worker, Clock, Block),
        incoming: Incoming,
    ) -> io::Result<()> {
        let (_, _, block) = of;
        if let Some(sizes) = self.layout.factored(block) {
            let factors = Factors::decode(incoming.bytes(), sizes)?;
            self.factors.insert(of, factors);
            return Ok(());
        }
        let numbers = match self.settings.compression {
            Compression::None => {
                incoming.numbers(self.len_of(block))?;
                Contribution::Remote(Arc::new(incoming), None)
            }
            compression => {
                let numbers = self.decoded(compression, block, incoming.bytes())?;
                let numbers = Arc::new(Incoming::from(numbers));
                Contribution::Remote(numbers, Some(Arc::new(incoming)))
            }
        };
        self.contributions.insert(of, numbers);
        Ok(())
    }

    /// A block's values and the optimizer's state.
    fn take_state(&mut self, block: Block, incoming: &Incoming) -> io::Result<()> {
        let states = self.settings.training.optimizer.states();
        let len = self.len_of(block);
        let numbers = incoming.numbers(len * (1 + states))?;
        let mut arrays = numbers.chunks_exact(len.max(1)).map(<[f32]>::to_vec);
        let shard = StoredShard {
            values: Arc::new(arrays.next().unwrap_or_default()),
            state: Arc::new(arrays.collect()),
        };
        self.shards.insert(block, shard);
        Ok(())
    }

    pub fn contribute(&mut self, worker: Worker, clock: Clock, block: Block) {
        let Some(arena) = self.arenas.get(&worker) else {
            return;
        };
        if let Some(sizes) = self.layout.factored(block) {
            let factors = Factors::of_memory(arena.gradients(self.layout.block(block)), sizes);
            factors.map(|factors| self.factors.insert((worker, clock, block), factors));
        } else {
            self.contributions
                .insert((worker, clock, block), Contribution::Local(arena.clone()));
        }
    }

    /// Adds contributions up, or notes how. Returns the squared norm if that is wanted.
    pub fn sum(&mut self, block: Block, clock: Clock, weights: &[(Worker, f32)]) -> f64 {
        let sum = match self.layout.factored(block) {
            Some([_, columns]) => self.sum_factors(block, clock, weights, columns),
            None => self.sum_parts(block, clock, weights),
        };
        let norm2 = match self.settings.training.clip_norm {
            Some(_) => optimizer::norm2(&sum.weighted(&self.layout, block), self.trained(block)),
            None => 0.0,
        };
        self.sums.insert(block, sum);
        norm2
    }

    fn sum_factors(
        &mut self,
        block: Block,
        clock: Clock,
        weights: &[(Worker, f32)],
        columns: u64,
    ) -> StoredSum {
        let parts: Vec<(Factors, f32)> = weights
            .iter()
            .filter_map(|(worker, weight)| {
                Some((self.factors.remove(&(*worker, clock, block))?, *weight))
            })
            .collect();
        let range = self.layout.block(block);
        let mut whole = vec![0.0; (range.end - range.start) as usize];
        let numbers = self
            .layout
            .tensors_of(block)
            .map(|tensor| self.layout.tensor(tensor));
        let numbers: u64 = numbers.map(|tensor| tensor.end - tensor.start).sum();
        factors::sum(&parts, columns, &mut whole[..numbers as usize]);
        StoredSum::Whole(Arc::new(whole))
    }

    fn sum_parts(&mut self, block: Block, clock: Clock, weights: &[(Worker, f32)]) -> StoredSum {
        let parts = weights
            .iter()
            .filter_map(|(worker, weight)| {
                Some((
                    self.contributions.remove(&(*worker, clock, block))?,
                    *weight,
                ))
            })
            .collect();
        StoredSum::Parts(parts)
    }

    /// How many of a block's numbers are parameters; behind them are sums.
    fn trained(&self, block: Block) -> usize {
        let first_sum = self.layout.tensors() - self.settings.sums as usize;
        let end = if self.settings.sums == 0 {
            self.layout.len()
        } else {
            self.layout.tensor(first_sum).start
        };
        let range = self.layout.block(block);
        (end.clamp(range.start, range.end) - range.start) as usize
    }

    /// The mean of contributions, each with its weight, is the update of this version.
    pub fn merge(&mut self, block: Block, version: u64, weights: &[(Worker, Clock, f32)]) {
        let part = |(worker, clock, weight): &(Worker, Clock, f32)| {
            let of = (*worker, *clock, block);
            Some((self.contributions.remove(&of)?, *weight))
        };
        let parts = weights.iter().filter_map(part).collect();
        self.merged
            .insert((block, version), StoredSum::Parts(parts));
    }

    /// Steps of different blocks, side by side.
    pub fn apply(&mut self, steps: impl IntoIterator<Item = BlockStep>) {
        let mut ready = Vec::new();
        for step in steps {
            let block = step.block;
            if !self.shards.contains_key(&block) {
                continue;
            }
            let sum = match step.gradient {
                Gradient::Sum => self.sums.remove(&block),
                Gradient::Of { worker, clock } => self
                    .contributions
                    .remove(&(worker, clock, block))
                    .map(|part| StoredSum::Parts(vec![(part, 1.0)])),
                Gradient::Merged { version } => self.merged.remove(&(block, version)),
            };
            ready.extend(sum.and_then(|sum| Some((step, sum, self.shards.remove(&block)?))));
        }
        let numbers = ready.iter().map(|(_, _, shard)| shard.values.len()).sum();
        for_each(&mut ready, numbers, |(step, sum, shard)| {
            self.apply_one(step, sum, shard)
        });
        self.shards.extend(
            ready
                .into_iter()
                .map(|(step, _, shard)| (step.block, shard)),
        );
    }

    fn apply_one(&self, step: &BlockStep, sum: &StoredSum, shard: &mut StoredShard) {
        let BlockStep {
            block,
            gradient,
            step,
            scale,
            workers,
        } = *step;
        let trained = self.trained(block);
        // Copied if some of it is still on its way to a reader.
        let values = Arc::make_mut(&mut shard.values);
        let weighted = sum.weighted(&self.layout, block);
        let round = step.div_ceil(workers.max(1));
        let (parameters, sums) = values.split_at_mut(trained);
        let steps = self.settings.steps.unwrap_or(u64::MAX);
        let has_gradient = match gradient {
            Gradient::Sum => step <= steps,
            Gradient::Of { clock, .. } => clock < steps,
            // Of no samples it is of no gradient.
            Gradient::Merged { .. } => scale > 0.0,
        };
        if has_gradient {
            let state = Arc::make_mut(&mut shard.state);
            optimizer::step(
                &self.settings.training,
                parameters,
                state,
                &weighted,
                scale,
                (step, round),
            );
        }
        optimizer::add(&weighted, trained, sums);
    }

    /// All blocks begin with a worker's values.
    pub fn seed(&mut self, worker: Worker) {
        let Some(arena) = self.arenas.get(&worker) else {
            return;
        };
        let states = self.settings.training.optimizer.states();
        for block in 0..self.layout.blocks() {
            let values = arena.values(self.layout.block(block)).to_vec();
            let state = Arc::new(vec![vec![0.0; values.len()]; states]);
            self.shards.insert(
                block,
                StoredShard {
                    values: Arc::new(values),
                    state,
                },
            );
        }
    }

    /// All blocks begin with what a checkpoint has.
    pub fn restore(&mut self, file: &ArrayPlaces) -> io::Result<()> {
        for block in 0..self.layout.blocks() {
            let mut arrays = file.read(block)?.into_iter();
            let values = Arc::new(arrays.next().unwrap_or_default());
            self.shards.insert(
                block,
                StoredShard {
                    values,
                    state: Arc::new(arrays.collect()),
                },
            );
        }
        Ok(())
    }

    /// A block of a checkpoint that came from another node.
    pub fn collected(&self, block: Block, bytes: Incoming) -> io::Result<Outgoing> {
        let range = self.layout.block(block);
        let arrays = 1 + self.settings.training.optimizer.states();
        bytes.numbers((range.end - range.start) as usize * arrays)?;
        Ok(Outgoing::Forwarded(Arc::new(bytes)))
    }

    pub fn snapshot(&mut self, block: Block) {
        if let Some(shard) = self.shards.get(&block) {
            self.snapshots.insert(block, shard.clone());
        }
    }

    pub fn drop_snapshots(&mut self) {
        self.snapshots.clear();
    }

    pub fn drop_gradients(&mut self) {
        // What compression has left out of a sum that is void is of no use.
        self.sum_residuals.clear();
        self.sent.clear();
        self.sums.clear();
        self.merged.clear();
        self.contributions.clear();
        self.factors.clear();
    }

    pub fn drop_block(&mut self, block: Block) {
        self.shards.remove(&block);
    }

    pub fn zero(&self, worker: Worker, tensor: u32) {
        if let Some(arena) = self.arenas.get(&worker) {
            let range = self.layout.tensor(tensor as usize);
            arena.write_gradients(range.start, &vec![0.0; (range.end - range.start) as usize]);
        }
    }

    /// The squared norm of all of a worker's gradients.
    pub fn norm2(&self, worker: Worker) -> f64 {
        let Some(arena) = self.arenas.get(&worker) else {
            return 0.0;
        };
        let of = |tensor: usize| {
            let gradient = arena.gradients(self.layout.tensor(tensor));
            optimizer::norm2(&[(gradient, 1.0)], gradient.len())
        };
        (0..self.layout.tensors() - self.settings.sums as usize)
            .map(of)
            .sum()
    }

    /// Copies blocks to where their workers read them, side by side.
    pub fn deliver(&self, wanted: &[(Worker, Block)]) {
        let found =
            |(worker, block)| Some((block, self.arenas.get(worker)?, self.shards.get(block)?));
        let mut copies: Vec<_> = wanted
            .iter()
            .map(|(worker, block)| (worker, block))
            .filter_map(found)
            .collect();
        let numbers = copies.iter().map(|(_, _, shard)| shard.values.len()).sum();
        for_each(&mut copies, numbers, |(block, arena, shard)| {
            arena.write_values(self.layout.block(**block).start, &shard.values);
        });
    }
}

/// Does the work of each, so many numbers together: by this thread, or by several where that is
/// worth it.
fn for_each<T: Send>(works: &mut [T], numbers: usize, work: impl Fn(&mut T) + Send + Sync) {
    match works {
        works if works.len() > 1 && numbers >= ALONE_NUMBERS => works.par_iter_mut().for_each(work),
        works => works.iter_mut().for_each(work),
    }
}

impl StoredSum {
    /// In one piece; `trained` of the block's numbers are parameters, and behind them are sums.
    fn whole(&mut self, layout: &ArenaLayout, block: Block, trained: usize) -> Arc<Vec<f32>> {
        if let Self::Whole(whole) | Self::Sent(whole, _) = self {
            return whole.clone();
        }
        let range = layout.block(block);
        let mut whole = vec![0.0; (range.end - range.start) as usize];
        let parts = self.weighted(layout, block);
        optimizer::sum(&parts, &mut whole[..trained]);
        optimizer::add(&parts, trained, &mut whole[trained..]);
        let whole = Arc::new(whole);
        *self = Self::Whole(whole.clone());
        whole
    }

    fn weighted<'a>(&'a self, layout: &ArenaLayout, block: Block) -> Vec<optimizer::Weighted<'a>> {
        let of = |part: &'a Contribution| match part {
            Contribution::Local(arena) => arena.gradients(layout.block(block)),
            Contribution::Remote(numbers, _) => numbers.all(),
        };
        match self {
            Self::Parts(parts) => parts
                .iter()
                .map(|(part, weight)| (of(part), *weight))
                .collect(),
            Self::Whole(numbers) | Self::Sent(numbers, _) => vec![(numbers.as_slice(), 1.0)],
        }
    }
}
