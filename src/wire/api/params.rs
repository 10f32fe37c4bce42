//! What workers that train together and their node's parameter servers tell each other in JSON
//! (`wire::frames`).

use nodectl_types::servers::{ServerSettings, TensorSpec};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// The largest `Register`.
pub const MAX_REGISTER_BYTES: usize = 32 << 20;

/// A worker says what it trains.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Register {
    /// Names those who train together: a job's id.
    pub job: String,
    /// Which of them it is.
    pub worker: u32,
    pub tensors: Vec<TensorSpec>,
    pub settings: ServerSettings,
    /// What the parameters are, for whoever reads a checkpoint: it goes into each.
    #[serde(default)]
    pub note: Option<String>,
    /// A checkpoint of another job to begin with, where this one has none: values, the optimizer's
    /// memory, the clock.
    #[serde(default)]
    pub resume_from: Option<PathBuf>,
    /// What the worker may use in all, with what its node keeps for it.
    #[serde(default)]
    pub memory_bytes: Option<u64>,
}

/// Where everything lies in the shared memory, in f32 from its beginning: values first, gradients
/// `gradients` later.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Registered {
    pub bytes: u64,
    /// For each tensor, where its values begin.
    pub tensors: Vec<u64>,
    pub gradients: u64,
}

/// A worker that trains alone says whose checkpoints its node is to find and to keep.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Alone {
    pub job: String,
    /// The newest that stay.
    pub keep: u32,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Found {
    /// The newest checkpoint of the job on any node, now on this one.
    pub newest: Option<PathBuf>,
    /// Where the worker writes the next ones.
    pub part: PathBuf,
}
