//! What other nodes say is checked here before anything is made of it: whatever is taken from it to
//! index, count or divide by. What cannot be is answered by ending the connection.

use super::shares::MOST;
use nodectl_types::{
    NodeId,
    servers::{
        MAX_WORKERS,
        message::{
            Block, Clock, Epoch, Promise, ServerMessage, View, ViewMessage, Worker, WorkerLife,
        },
    },
};

/// More clocks than any training has, times so many workers: a version.
const MOST_CLOCKS: Clock = 1 << 48;
const MOST_UPDATES: u64 = MOST_CLOCKS * MAX_WORKERS as u64;
/// More views than any training has, with room to number others behind them.
const MOST_VIEWS: u64 = 1 << 62;
/// Nodes are told apart by a u16.
const MOST_NODES: usize = 1 << 16;

/// Says what is wrong with a message of another node, in a job of so many blocks.
pub(super) fn check(from: NodeId, message: &ServerMessage, blocks: Block) -> Result<(), String> {
    let valid = Valid { blocks };
    valid.block(message.block().unwrap_or(0))?;
    if let Some(by) = of_leader(message).filter(|by| *by != from) {
        return Err(format!("it speaks for node {}, which leads", by.short()));
    }
    match message {
        ServerMessage::Status(here) => {
            valid.epoch(here.promised)?;
            valid.epoch(here.confirmed)?;
            valid.nodes(here.peers.len())?;
            here.workers
                .iter()
                .chain(&here.finishing)
                .try_for_each(|life| valid.worker(life.worker))
        }
        ServerMessage::Prepare { epoch }
        | ServerMessage::Installed { epoch }
        | ServerMessage::Confirm { epoch }
        | ServerMessage::Confirmed { epoch }
        | ServerMessage::Go { epoch }
        | ServerMessage::Lost { epoch }
        | ServerMessage::Fetch { epoch, .. } => valid.epoch(*epoch),
        ServerMessage::Refused { promised } => valid.epoch(*promised),
        ServerMessage::Waiting { nodes, .. } => valid.nodes(nodes.len()),
        ServerMessage::Promise { epoch, promise } => {
            valid.epoch(*epoch)?;
            valid.promise(promise)
        }
        ServerMessage::Install { view } => valid.view(view),
        ServerMessage::InView { epoch, message } => {
            valid.epoch(*epoch)?;
            valid.of_view(message)
        }
    }
}

/// The leader, of what it alone says.
fn of_leader(message: &ServerMessage) -> Option<NodeId> {
    match message {
        ServerMessage::Install { view } => Some(view.epoch.by),
        ServerMessage::Prepare { epoch }
        | ServerMessage::Lost { epoch }
        | ServerMessage::Confirm { epoch }
        | ServerMessage::Go { epoch } => Some(epoch.by),
        ServerMessage::InView { epoch, message } => is_of_leader(message).then_some(epoch.by),
        ServerMessage::Status(_)
        | ServerMessage::Promise { .. }
        | ServerMessage::Refused { .. }
        | ServerMessage::Waiting { .. }
        | ServerMessage::Fetch { .. }
        | ServerMessage::Installed { .. }
        | ServerMessage::Confirmed { .. } => None,
    }
}

fn is_of_leader(message: &ViewMessage) -> bool {
    match message {
        ViewMessage::Commit { .. }
        | ViewMessage::Merge { .. }
        | ViewMessage::Passed { .. }
        | ViewMessage::PassedAlone { .. }
        | ViewMessage::Drain { .. }
        | ViewMessage::Checkpoint { .. }
        | ViewMessage::Collect { .. }
        | ViewMessage::Saved { .. } => true,
        ViewMessage::State { .. }
        | ViewMessage::Push(_)
        | ViewMessage::Offered { .. }
        | ViewMessage::Ended { .. }
        | ViewMessage::Replicate { .. }
        | ViewMessage::Kept { .. }
        | ViewMessage::Arrived { .. }
        | ViewMessage::Settled { .. }
        | ViewMessage::Moved
        | ViewMessage::Drained
        | ViewMessage::Ready { .. }
        | ViewMessage::Acknowledged(_)
        | ViewMessage::Pull(_)
        | ViewMessage::Values(_)
        | ViewMessage::Barrier { .. }
        | ViewMessage::Keep
        | ViewMessage::Collected { .. } => false,
    }
}

struct Valid {
    blocks: Block,
}

impl Valid {
    fn block(&self, block: Block) -> Result<(), String> {
        below("block", u64::from(block), u64::from(self.blocks))
    }

    fn worker(&self, worker: Worker) -> Result<(), String> {
        below("worker", u64::from(worker), u64::from(MAX_WORKERS))
    }

    fn clock(&self, clock: Clock) -> Result<(), String> {
        below("clock", clock, MOST_CLOCKS)
    }

    fn version(&self, version: u64) -> Result<(), String> {
        below("version", version, MOST_UPDATES)
    }

    fn epoch(&self, epoch: Epoch) -> Result<(), String> {
        below("view", epoch.number, MOST_VIEWS)
    }

    fn nodes(&self, count: usize) -> Result<(), String> {
        below("a number of nodes:", count as u64, MOST_NODES as u64)
    }

    /// Of samples, for each worker.
    fn shares(&self, shares: &[u32]) -> Result<(), String> {
        below(
            "a number of shares:",
            shares.len() as u64,
            u64::from(MAX_WORKERS) + 1,
        )?;
        if shares.contains(&0) {
            return Err("a worker without a share".into());
        }
        shares
            .iter()
            .try_for_each(|share| below("a share", u64::from(*share), u64::from(MOST) + 1))
    }

    fn views(&self, views: &[(Epoch, Vec<NodeId>)]) -> Result<(), String> {
        views
            .iter()
            .try_for_each(|(epoch, nodes)| self.epoch(*epoch).and(self.nodes(nodes.len())))
    }

    fn of_view(&self, message: &ViewMessage) -> Result<(), String> {
        match message {
            ViewMessage::State {
                version, applied, ..
            } => {
                self.version(*version)?;
                applied
                    .iter()
                    .try_for_each(|(worker, clock)| self.worker_at(*worker, *clock))
            }
            ViewMessage::Replicate { update, .. } => {
                self.version(update.version)?;
                let mut of = update.of.iter();
                of.try_for_each(|(worker, clock)| self.worker_at(*worker, *clock))
            }
            ViewMessage::Kept { version, .. } | ViewMessage::Arrived { version, .. } => {
                self.version(*version)
            }
            ViewMessage::Ready { clock, norms } => {
                self.clock(*clock)?;
                norms.iter().try_for_each(|(block, _)| self.block(*block))
            }
            ViewMessage::Push(part)
            | ViewMessage::Acknowledged(part)
            | ViewMessage::Pull(part)
            | ViewMessage::Values(part) => self.worker_at(part.worker, part.clock),
            ViewMessage::Merge { of, .. } => {
                let mut of = of.iter();
                of.try_for_each(|(worker, clock, _)| self.worker_at(*worker, *clock))
            }
            ViewMessage::Offered { worker, clock, .. }
            | ViewMessage::Ended { worker, clock, .. } => self.worker_at(*worker, *clock),
            ViewMessage::Barrier {
                worker,
                clock,
                number,
            } => {
                self.worker_at(*worker, *clock)?;
                self.version(*number)
            }
            ViewMessage::Passed { number } => self.version(*number),
            ViewMessage::Collect { clock, block } => {
                self.block(*block)?;
                self.clock(*clock)
            }
            ViewMessage::Commit { clock, shares, .. } => {
                self.clock(*clock)?;
                self.shares(shares)
            }
            ViewMessage::Checkpoint { clock, .. }
            | ViewMessage::Collected { clock, .. }
            | ViewMessage::Saved { clock, .. } => self.clock(*clock),
            ViewMessage::PassedAlone { worker } => self.worker(*worker),
            // Their blocks were checked before.
            ViewMessage::Settled { .. } => Ok(()),
            ViewMessage::Moved
            | ViewMessage::Drain { .. }
            | ViewMessage::Drained
            | ViewMessage::Keep => Ok(()),
        }
    }

    fn worker_at(&self, worker: Worker, clock: Clock) -> Result<(), String> {
        self.worker(worker)?;
        self.clock(clock)
    }

    fn promise(&self, promise: &Promise) -> Result<(), String> {
        self.epoch(promise.base)?;
        self.epoch(promise.installed)?;
        self.nodes(promise.nodes.len())?;
        self.nodes(promise.installed_nodes.len())?;
        self.nodes(promise.started.len())?;
        self.views(&promise.perhaps)?;
        ascending("blocks held", promise.held.iter().map(|held| held.block))?;
        for held in &promise.held {
            self.block(held.block)?;
            self.version(held.version)?;
            self.version(held.becomes.unwrap_or(0))?;
        }
        for (life, clock) in &promise.workers {
            self.worker(life.worker)?;
            self.clock(clock.unwrap_or(0))?;
        }
        self.clock(promise.committed.map_or(0, |(clock, _)| clock))?;
        self.version(promise.barriers)?;
        self.clock(promise.saved)
    }

    fn view(&self, view: &View) -> Result<(), String> {
        self.epoch(view.epoch)?;
        self.epoch(view.previous)?;
        self.nodes(view.previous_nodes.len())?;
        self.nodes(view.nodes.len())?;
        self.views(&view.perhaps)?;
        ascending("nodes", view.nodes.iter().map(|(node, _)| *node))?;
        ascending("workers", view.workers.iter().map(|(life, _)| life.worker))?;
        let is_node = |node: &NodeId| {
            view.nodes
                .binary_search_by_key(node, |(member, _)| *member)
                .is_ok()
        };
        let is_there = |(life, node): &&(WorkerLife, NodeId)| {
            self.worker(life.worker).is_err() || !is_node(node)
        };
        if !is_node(&view.epoch.by)
            || view.workers.is_empty()
            || view.workers.iter().any(|worker| is_there(&worker))
        {
            return Err(
                "a view without its leader, without workers, or with workers on other nodes".into(),
            );
        }
        self.shares(&view.shares)?;
        if !view.shares.is_empty() && view.shares.len() != view.workers.len() {
            let (shares, workers) = (view.shares.len(), view.workers.len());
            return Err(format!("a view with {shares} shares for {workers} workers"));
        }
        view.starting
            .iter()
            .try_for_each(|(life, clock)| self.worker(life.worker).and(self.clock(*clock)))?;
        let blocks = self.blocks as usize;
        if view.sources.len() != blocks || view.homes.len() != blocks {
            let (sources, homes) = (view.sources.len(), view.homes.len());
            return Err(format!(
                "a view with {sources} sources and {homes} homes for {blocks} blocks"
            ));
        }
        for ((source, version), homes) in view.sources.iter().zip(&view.homes) {
            self.version(*version)?;
            let are_nodes = homes
                .iter()
                .chain([source])
                .all(|index| usize::from(*index) < view.nodes.len());
            let is_twice = |at: usize| homes[..at].contains(&homes[at]);
            if !are_nodes
                || homes.is_empty()
                || homes.len() > view.nodes.len()
                || (0..homes.len()).any(is_twice)
            {
                return Err(format!(
                    "a block from {source} on {homes:?} of {} nodes",
                    view.nodes.len()
                ));
            }
        }
        self.clock(view.commit.map_or(0, |(clock, _)| clock))?;
        self.clock(view.restore.unwrap_or(0))?;
        self.version(view.barriers)?;
        self.clock(view.saved)
    }
}

fn below(what: &str, value: u64, limit: u64) -> Result<(), String> {
    if value < limit {
        Ok(())
    } else {
        Err(format!(
            "{what} {value}, where there are fewer than {limit}"
        ))
    }
}

fn ascending<T: Ord + Copy>(
    what: &str,
    values: impl Iterator<Item = T> + Clone,
) -> Result<(), String> {
    let is_right = values
        .clone()
        .zip(values.skip(1))
        .all(|(one, next)| one < next);
    if is_right {
        Ok(())
    } else {
        Err(format!("{what} out of order, or twice"))
    }
}
