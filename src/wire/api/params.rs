//! What workers that train together and their node's parameter servers tell each other in JSON (`wire::frames`).

use crate::types::servers::{ServerSettings, TensorSpec};
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
    /// A checkpoint of another job to begin with, where this one has none: values, the optimizer's memory, the clock.
    #[serde(default)]
    pub resume_from: Option<PathBuf>,
    /// What the worker may use in all, with what its node keeps for it.
    #[serde(default)]
    pub memory_bytes: Option<u64>,
}

/// Where everything lies in the shared memory, in f32 from its beginning: values first, gradients `gradients` later.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Registered {
    pub bytes: u64,
    /// For each tensor, where its values begin.
    pub tensors: Vec<u64>,
    pub gradients: u64,
}
