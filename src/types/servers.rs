//! Parameter servers: what is shared, and what workers may see of each other. How parameters move
//! is `params::Training`.

pub mod message;

use super::params::{Checkpoints, Decay, Every, Optimizer, Training};
use serde::{Deserialize, Serialize};
use std::fmt;

/// Tells a task's program what the job file says of parameter servers: JSON with some of
/// `ServerSettings`.
pub const VARIABLE: &str = "NODECTL_PSERVER";
/// Tells it where its node's parameter servers are.
pub const SOCKET_VARIABLE: &str = "NODECTL_PSERVER_SOCKET";
/// What worker 0 of a script leaves in its directory, for the job's user.
pub const MODEL: &str = "model.safetensors";
/// The socket's name in the data directory.
pub const SOCKET: &str = "pserver.sock";
/// A tensor begins at a multiple of this many numbers: 64 bytes, a cache line.
pub const ALIGNMENT: u64 = 16;
/// Bytes of a block unless the settings say otherwise. Measured best among 256 KiB, 4 MiB and 64
/// MiB.
pub const BLOCK_BYTES: u64 = 4 << 20;
/// The most tensors of a model, and the most blocks that they make.
pub const MAX_TENSORS: usize = 1 << 16;
pub const MAX_BLOCKS: u64 = 1 << 16;
/// The longest name of a tensor, in bytes, and the most dimensions.
pub const MAX_NAME_BYTES: usize = 512;
pub const MAX_DIMENSIONS: usize = 16;
/// Streams between two nodes for gradients, and for values, unless the settings say otherwise. On
/// two busy cores one and two came to the same; machines with more cores have threads for both.
pub const STREAMS: u32 = 2;
pub const MAX_STREAMS: u32 = 64;
/// The longest grace of an outer step, in milliseconds.
pub const MAX_GRACE: u64 = 3_600_000;
/// The most workers of a training job.
pub const MAX_WORKERS: u32 = 4096;

/// A named array of f32.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TensorSpec {
    pub name: String,
    /// Row-major; without dimensions it is a single number.
    pub shape: Vec<u64>,
}

impl TensorSpec {
    /// Numbers in it; None if there are more than a u64 counts.
    pub fn len(&self) -> Option<u64> {
        self.shape
            .iter()
            .try_fold(1u64, |product, size| product.checked_mul(*size))
    }

    pub fn is_empty(&self) -> bool {
        self.shape.contains(&0)
    }
}

/// How the workers of a job share parameters. The same for all of them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServerSettings {
    /// How many workers train together; nothing starts before all of them are there.
    pub workers: u32,
    pub training: Training,
    #[serde(default)]
    pub consistency: Consistency,
    /// A multiple of 64.
    #[serde(default = "block_bytes")]
    pub block_bytes: u64,
    /// On how many nodes each block is kept; fewer where there are fewer nodes.
    #[serde(default = "replicas")]
    pub replicas: u32,
    /// Of what goes to another node with each clock.
    #[serde(default)]
    pub compression: Compression,
    /// On how many streams gradients leave a node for another one at once, and on how many values.
    /// Each stream is sealed and opened by a thread of its own.
    #[serde(default = "threads")]
    pub num_push_threads: u32,
    #[serde(default = "threads")]
    pub num_pull_threads: u32,
    /// How many nodes hand blocks out and add gradients up, of those that run workers; all of them
    /// if there is no number.
    #[serde(default)]
    pub servers: Option<u32>,
    /// So many tensors, the last ones, are sums and no parameters: what workers push is added to
    /// them as it is.
    #[serde(default)]
    pub sums: u32,
    /// Tensors with two dimensions whose gradients workers push as sufficient factors, which go to
    /// every node; every node keeps these tensors and works their gradients out (Xie et al., arXiv
    /// 1511.08486). In `bsp` only.
    #[serde(default)]
    pub factored: Vec<u32>,
    /// Blocks begin anew at these tensors, so that no block has tensors of two fragments, which
    /// workers push at different times.
    #[serde(default)]
    pub cuts: Vec<u32>,
    /// Behind so many clocks the parameters stay as they are; sums still grow.
    #[serde(default)]
    pub steps: Option<u64>,
    /// Workers divide the samples of a clock among those who are there. When that changes in a
    /// synchronous mode, a clock that does not count yet begins anew, so that each sample counts
    /// once. And whoever comes when the task of one has succeeded has nothing left to do.
    #[serde(default)]
    pub divided: bool,
    /// How large each worker's share of a clock's samples is.
    #[serde(default)]
    pub shares: Shares,
    /// None are made without.
    #[serde(default)]
    pub checkpoints: Option<Checkpoints>,
}

fn block_bytes() -> u64 {
    BLOCK_BYTES
}

fn replicas() -> u32 {
    2
}

fn threads() -> u32 {
    STREAMS
}

/// What a worker may see of the others. Clock c of a worker is how often it has called `clock`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "mode", rename_all = "snake_case", deny_unknown_fields)]
pub enum Consistency {
    /// Bulk synchronous: a reader at clock c sees exactly the updates of clocks below c of the
    /// workers that counted then.
    #[default]
    Bsp,
    /// Stale synchronous (Ho et al., NIPS 2013): a reader at clock c sees at least the updates of
    /// clocks below c - `staleness` of all workers, and its own below c.
    Ssp { staleness: u64 },
    /// A reader sees its own updates, and whatever has come.
    Async,
    /// Workers take `steps` steps by themselves, then what they came to is averaged and the
    /// optimizer takes an outer step (DiLoCo, Douillard et al., arXiv 2311.08105). A clock is such
    /// a round; rounds are synchronous without `merge`.
    Local {
        steps: u32,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        merge: Option<Merge>,
    },
}

/// How large a worker's share of a clock's samples is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Shares {
    /// As large for all workers, so that a training repeats its own bits.
    #[default]
    Equal,
    /// In proportion to how many samples the worker computes in a second, as measured, so that all
    /// end a clock at about the same time. In synchronous modes only.
    Pace,
}

/// When an outer step is taken without all workers (Decoupled DiLoCo, arXiv 2604.21428): the step
/// averages the updates that have come, each weighted by its samples. An update that comes later
/// counts in the next outer step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Merge {
    /// Updates that an outer step needs; fewer where nobody is left who could send one more.
    pub quorum: u32,
    /// How long the step waits for the others once those have come.
    pub grace_millis: u64,
}

impl Consistency {
    /// Whether the updates of a clock count together, or not at all.
    pub fn is_synchronous(self) -> bool {
        match self {
            Self::Bsp | Self::Local { merge: None, .. } => true,
            Self::Ssp { .. } | Self::Async | Self::Local { merge: Some(_), .. } => false,
        }
    }

    /// When an outer step is taken, where updates are merged that may be of different clocks.
    pub fn merge(self) -> Option<Merge> {
        match self {
            Self::Local { merge, .. } => merge,
            Self::Bsp | Self::Ssp { .. } | Self::Async => None,
        }
    }
}

/// What becomes of gradients, sums and values on their way to another node. What is lost on the way
/// is added to the next ones of the block (error feedback; Seide et al., Interspeech 2014).
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(tag = "to", rename_all = "snake_case", deny_unknown_fields)]
pub enum Compression {
    #[default]
    None,
    F16,
    Bf16,
    /// Eight bits a number, with a scale for each 1,024 of them.
    Int8,
    /// Four bits a number, with a scale for each 128 of them.
    Int4,
    /// Two bits a number: its sign, and which of two sizes that each 128 of them have (as few as
    /// SparseLoCo sends of outer gradients, arXiv 2508.15706).
    Int2,
    /// Of each 4,096 numbers of a gradient only the largest, this fraction of them (Aji and
    /// Heafield, arXiv 1704.05021; in chunks, Sarfi et al., arXiv 2508.15706); sums and values as
    /// in `Int8`, or `Int2` if the largest are written so.
    TopK {
        fraction: f32,
        #[serde(default)]
        values: TopKValues,
    },
}

/// How the numbers are written that `Compression::TopK` sends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TopKValues {
    #[default]
    Bf16,
    /// As in `Compression::Int2`.
    Int2,
}

impl TopKValues {
    /// The compression of the largest numbers, behind their places.
    pub fn compression(self) -> Compression {
        match self {
            Self::Bf16 => Compression::Bf16,
            Self::Int2 => Compression::Int2,
        }
    }
}

/// A setting that cannot be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{key}` is {value}; it must be {wanted}")]
pub struct BadSetting {
    pub key: &'static str,
    pub value: String,
    pub wanted: &'static str,
}

impl ServerSettings {
    /// Whether blocks may have so many bytes.
    pub fn is_block(bytes: u64) -> bool {
        (64..=1 << 30).contains(&bytes) && bytes.is_multiple_of(64)
    }

    /// What a worker's part of the job takes on its node, in bytes, for so many numbers: values and
    /// gradients in the memory that it shares, and of all nodes' blocks its share: values, what the
    /// optimizer remembers, a gradient, on each replica.
    pub fn bytes_of_worker(&self, numbers: u64) -> u64 {
        let arrays = 2 + self.training.optimizer.states() as u64;
        let workers = u64::from(self.workers.max(1));
        let copies = u64::from(self.replicas).min(workers);
        let of_servers = numbers
            .saturating_mul(4 * arrays * copies)
            .div_ceil(workers);
        numbers.saturating_mul(8).saturating_add(of_servers)
    }

    /// Fails on numbers that make no sense.
    pub fn check(&self) -> Result<(), BadSetting> {
        check_training(&self.training)?;
        self.check_servers()?;
        if let Compression::TopK { fraction, .. } = self.compression {
            require(
                fraction > 0.0 && fraction <= 1.0,
                "compression.fraction",
                fraction,
                "above 0, at most 1",
            )?;
        }
        let factors = self.factored.is_empty() || self.consistency == Consistency::Bsp;
        require(factors, "factored", self.factored.len(), "empty but in bsp")?;
        let shares = self.shares == Shares::Equal || self.consistency.is_synchronous();
        require(
            shares,
            "shares",
            "pace",
            "equal but in bsp, and in local without a quorum",
        )?;
        if let Consistency::Local { steps, merge } = self.consistency {
            require(steps > 0, "consistency.steps", steps, "at least 1")?;
            if let Some(Merge {
                quorum,
                grace_millis,
            }) = merge
            {
                let (key, fits) = ("consistency.merge.quorum", quorum > 0);
                require(fits, key, quorum, "at least 1")?;
                let (key, fits) = ("consistency.merge.grace_millis", grace_millis <= MAX_GRACE);
                require(fits, key, grace_millis, "at most an hour")?;
                let clips = self.training.clip_norm.is_some();
                require(
                    !clips,
                    "clip_norm",
                    "set",
                    "none where outer steps have a quorum",
                )?;
            }
        }
        if let Some(Checkpoints {
            every: Every::Steps(often) | Every::Millis(often),
            keep,
        }) = self.checkpoints
        {
            require(often > 0, "checkpoints.every", often, "at least 1")?;
            require(keep > 0, "checkpoints.keep", keep, "at least 1")?;
        }
        Ok(())
    }

    /// How many there are of what, and how much goes over the network at once.
    fn check_servers(&self) -> Result<(), BadSetting> {
        let members = [("workers", Some(self.workers)), ("servers", self.servers)];
        let streams = [
            ("num_push_threads", self.num_push_threads),
            ("num_pull_threads", self.num_pull_threads),
        ];
        for (key, count) in members {
            let fits = count.is_none_or(|count| (1..=MAX_WORKERS).contains(&count));
            require(fits, key, count.unwrap_or(0), "from 1 to 4096")?;
        }
        let block = self.block_bytes;
        require(
            Self::is_block(block),
            "block_bytes",
            block,
            "a multiple of 64, from 64 to 1 GiB",
        )?;
        let replicas = self.replicas;
        let fits = (1..=16).contains(&replicas);
        require(fits, "replicas", replicas, "from 1 to 16")?;
        for (key, streams) in streams {
            let fits = (1..=MAX_STREAMS).contains(&streams);
            require(fits, key, streams, "from 1 to 64")?;
        }
        Ok(())
    }
}

fn check_training(training: &Training) -> Result<(), BadSetting> {
    let Training {
        optimizer,
        rate,
        schedule,
        weight_decay,
        clip_norm,
    } = training;
    require(is_positive(*rate), "rate", rate, "above 0")?;
    check_optimizer(optimizer)?;
    match schedule.decay {
        Decay::Constant => {}
        Decay::Step { steps, factor } => {
            require(steps > 0, "schedule.steps", steps, "at least 1")?;
            require(is_positive(factor), "schedule.factor", factor, "above 0")?;
        }
        Decay::Cosine { floor, .. } | Decay::Linear { floor, .. } => {
            let fits = (0.0..=1.0).contains(&floor);
            require(fits, "schedule.floor", floor, "from 0 to 1")?;
        }
    }
    let fits = weight_decay.is_finite() && *weight_decay >= 0.0;
    require(fits, "weight_decay", weight_decay, "at least 0")?;
    match clip_norm {
        Some(norm) => require(is_positive(*norm), "clip_norm", norm, "above 0"),
        None => Ok(()),
    }
}

fn check_optimizer(optimizer: &Optimizer) -> Result<(), BadSetting> {
    let is_fraction = |value: &f32| (0.0..1.0).contains(value);
    let below_one = "at least 0 and below 1";
    match optimizer {
        Optimizer::Sgd => Ok(()),
        Optimizer::Momentum { momentum } | Optimizer::Nesterov { momentum } => {
            require(is_fraction(momentum), "momentum", momentum, below_one)
        }
        Optimizer::Adam { betas, epsilon } | Optimizer::AdamW { betas, epsilon } => {
            for beta in betas {
                require(is_fraction(beta), "betas", beta, below_one)?;
            }
            require(is_positive(*epsilon), "epsilon", epsilon, "above 0")
        }
        Optimizer::Adagrad { epsilon } => {
            require(is_positive(*epsilon), "epsilon", epsilon, "above 0")
        }
    }
}

fn is_positive(value: f32) -> bool {
    value.is_finite() && value > 0.0
}

fn require(
    holds: bool,
    key: &'static str,
    value: impl fmt::Display,
    wanted: &'static str,
) -> Result<(), BadSetting> {
    if holds {
        Ok(())
    } else {
        Err(BadSetting {
            key,
            value: value.to_string(),
            wanted,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_read_and_what_makes_no_sense_is_told() {
        let text = r#"{"workers": 2, "training": {"optimizer": {"adam_w": {"betas": [0.9, 0.999], "epsilon": 1e-8}},
            "rate": 0.001, "schedule": {"warmup_steps": 0, "decay": "constant"}, "weight_decay": 0, "clip_norm": null},
            "consistency": {"mode": "ssp", "staleness": 2}, "compression": {"to": "top_k", "fraction": 0.01}}"#;
        let mut settings: ServerSettings = serde_json::from_str(text).unwrap();
        settings.check().unwrap();
        assert_eq!((settings.block_bytes, settings.replicas), (BLOCK_BYTES, 2));
        settings.shares = Shares::Pace;
        let refused = settings.check().unwrap_err().to_string();
        assert!(
            refused.starts_with("`shares` is pace; it must be equal"),
            "{refused}"
        );
        settings.shares = Shares::Equal;
        settings.training.rate = -1.0;
        assert_eq!(
            settings.check().unwrap_err().to_string(),
            "`rate` is -1; it must be above 0"
        );
        assert!(
            serde_json::from_str::<ServerSettings>(r#"{"worker": 2}"#).is_err(),
            "a misspelt key is told"
        );
    }
}
