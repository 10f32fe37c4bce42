//! What a training job is once its file is understood: the contract between the job file's reader and the worker that trains.
//! It travels as the upload `PLAN_FILE`, postcard behind a version.

use super::{data::DataSpec, model::ModelSpec};
use crate::types::params::{Decay, Optimizer, Schedule, Training};
use serde::{Deserialize, Serialize};

/// The upload with the plan.
pub const PLAN_FILE: &str = "train.plan";
/// Raised with every change of these types: worker and submitter may be of different builds.
const PLAN_VERSION: u32 = 1;
/// The largest plan that is read, in bytes; the names of images are most of it.
pub const MAX_PLAN_BYTES: usize = 64 << 20;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TrainPlan {
    pub model: ModelSpec,
    pub data: DataSpec,
    /// How often each sample is seen.
    pub epochs: u32,
    /// Samples of a step; the last of an epoch may have fewer.
    pub batch: u32,
    /// First values, the order of samples and dropout follow from it.
    pub seed: u64,
    pub optimizer: OptimizerPlan,
    pub checkpoints: Option<Checkpoints>,
    /// A file with values to begin with.
    pub init_from: Option<String>,
    /// A checkpoint of the same job to go on from.
    pub resume_from: Option<String>,
    /// Of the CPU, where there is no GPU.
    pub threads: u32,
}

/// `types::params::Training`, as far as it is known before the samples are counted.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OptimizerPlan {
    pub optimizer: Optimizer,
    pub rate: f32,
    /// In steps.
    pub warmup: u64,
    pub decay: DecayPlan,
    pub weight_decay: f32,
    pub clip_norm: Option<f32>,
}

/// How the rate falls, over the whole of the training.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum DecayPlan {
    Constant,
    Cosine {
        floor: f32,
    },
    Linear {
        floor: f32,
    },
    /// Times `factor` after each so many epochs.
    Step {
        epochs: u32,
        factor: f32,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Checkpoints {
    pub every: Every,
    /// The newest that stay.
    pub keep: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Every {
    Steps(u64),
    Millis(u64),
}

impl OptimizerPlan {
    /// With the steps of an epoch known.
    pub fn training(&self, steps_per_epoch: u64, epochs: u32) -> Training {
        let steps = steps_per_epoch * u64::from(epochs);
        let decay = match self.decay {
            DecayPlan::Constant => Decay::Constant,
            DecayPlan::Cosine { floor } => Decay::Cosine { steps, floor },
            DecayPlan::Linear { floor } => Decay::Linear { steps, floor },
            DecayPlan::Step { epochs, factor } => Decay::Step { steps: steps_per_epoch * u64::from(epochs), factor },
        };
        Training {
            optimizer: self.optimizer,
            rate: self.rate,
            schedule: Schedule { warmup_steps: self.warmup, decay },
            weight_decay: self.weight_decay,
            clip_norm: self.clip_norm,
        }
    }
}

impl TrainPlan {
    pub fn encode(&self) -> Vec<u8> {
        postcard::to_stdvec(&(PLAN_VERSION, self)).expect("plain data always encodes")
    }

    pub fn decode(bytes: &[u8]) -> Result<Self, String> {
        let malformed = |_| "the file is no plan of a training job".to_string();
        let (found, rest) = postcard::take_from_bytes::<u32>(bytes).map_err(malformed)?;
        if found != PLAN_VERSION {
            return Err(format!(
                "the plan is of version {found}, this nodectl reads {PLAN_VERSION}\nhint: run the same nodectl everywhere"
            ));
        }
        postcard::from_bytes(rest).map_err(malformed)
    }
}
