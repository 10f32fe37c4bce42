//! What a training job is once its file is understood: the contract between the job file's reader
//! and the worker that trains. It travels as the upload `PLAN_FILE`, postcard after a version.

use super::{data::DataSpec, model::ModelSpec};
pub use nodectl_types::params::{Checkpoints, Every};
use nodectl_types::{
    params::{Decay, Optimizer, Schedule, Training},
    servers::{BLOCK_BYTES, Compression, Consistency, STREAMS, ServerSettings, Shares},
};
use serde::{Deserialize, Serialize};

/// The upload with the plan.
pub const PLAN_FILE: &str = "train.plan";
/// Raised with every change of these types: worker and submitter may be of different builds.
const PLAN_VERSION: u32 = 4;
/// The largest plan that is read, in bytes; the names of images are most of it.
pub const MAX_PLAN_BYTES: usize = 64 << 20;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TrainPlan {
    pub model: ModelSpec,
    pub data: DataSpec,
    /// How often each sample is seen.
    pub epochs: u32,
    /// Samples of a step, over all workers; the last of an epoch may have fewer.
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
    pub sharing: Sharing,
}

/// How workers share the parameters, if there are several.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sharing {
    #[serde(with = "as_json")]
    pub consistency: Consistency,
    /// The rule of the outer step of `Consistency::Local`.
    pub outer: Outer,
    /// How its outer steps overlap with the workers' own.
    pub streaming: Streaming,
    /// How large a part of each batch a worker has.
    pub shares: Shares,
    #[serde(with = "as_json")]
    pub compression: Compression,
    /// Bytes of a block of the arena, the piece that moves between nodes.
    pub block_bytes: u64,
    pub replicas: u32,
    /// Whether dense layers' gradients go as sufficient factors, from node to node; none where that
    /// is if it costs less.
    pub use_sfb: Option<bool>,
    /// Streams on which gradients go to each node.
    pub num_push_threads: u32,
    /// Streams on which values come from each node.
    pub num_pull_threads: u32,
}

/// A Nesterov step with the average of what workers have come to. The defaults are those of DiLoCo
/// (Douillard et al., arXiv 2311.08105, section 3).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Outer {
    pub rate: f32,
    pub momentum: f32,
}

impl Default for Outer {
    fn default() -> Self {
        Self {
            rate: 0.7,
            momentum: 0.9,
        }
    }
}

/// Fragments of the model take their outer steps in turn, while workers go on (Streaming DiLoCo,
/// arXiv 2501.18512).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Streaming {
    /// As many outer steps in a round, each of one fragment.
    pub fragments: u32,
    /// Steps that a worker takes between sending a fragment and taking up what came of it.
    pub delay: u32,
    /// The share of its own values that a worker keeps then.
    pub mix: f32,
}

impl Default for Streaming {
    fn default() -> Self {
        Self {
            fragments: 1,
            delay: 0,
            mix: 0.0,
        }
    }
}

impl Default for Sharing {
    fn default() -> Self {
        Self {
            consistency: Consistency::default(),
            outer: Outer::default(),
            streaming: Streaming::default(),
            shares: Shares::default(),
            compression: Compression::default(),
            block_bytes: BLOCK_BYTES,
            replicas: 2,
            use_sfb: None,
            num_push_threads: STREAMS,
            num_pull_threads: STREAMS,
        }
    }
}

impl Sharing {
    /// Steps that a worker takes in a clock.
    pub fn steps(&self) -> u64 {
        match self.consistency {
            Consistency::Local { steps, .. } => steps.into(),
            _ => 1,
        }
    }

    /// Whether fragments take outer steps within a round.
    pub fn streams(&self) -> bool {
        self.streaming != Streaming::default()
    }

    /// The settings of the parameter servers. `training` is the job's rule, `clocks` how many
    /// train.
    pub fn settings(
        &self,
        workers: u32,
        servers: Option<u32>,
        training: Training,
        clocks: u64,
    ) -> ServerSettings {
        let training = match self.consistency {
            Consistency::Local { .. } => Training {
                optimizer: Optimizer::Nesterov {
                    momentum: self.outer.momentum,
                },
                rate: self.outer.rate,
                schedule: Schedule::CONSTANT,
                weight_decay: 0.0,
                clip_norm: None,
            },
            _ => training,
        };
        ServerSettings {
            workers,
            training,
            consistency: self.consistency,
            block_bytes: self.block_bytes,
            replicas: self.replicas,
            num_push_threads: self.num_push_threads,
            num_pull_threads: self.num_pull_threads,
            compression: self.compression,
            servers,
            sums: 0,
            factored: Vec::new(),
            cuts: Vec::new(),
            steps: Some(clocks),
            divided: true,
            shares: self.shares,
            checkpoints: None,
        }
    }
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
    /// The most that the norm of all gradients together may be.
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

impl OptimizerPlan {
    /// With the steps of an epoch known.
    pub fn training(&self, steps_per_epoch: u64, epochs: u32) -> Training {
        let steps = steps_per_epoch * u64::from(epochs);
        let decay = match self.decay {
            DecayPlan::Constant => Decay::Constant,
            DecayPlan::Cosine { floor } => Decay::Cosine { steps, floor },
            DecayPlan::Linear { floor } => Decay::Linear { steps, floor },
            DecayPlan::Step { epochs, factor } => Decay::Step {
                steps: steps_per_epoch * u64::from(epochs),
                factor,
            },
        };
        Training {
            optimizer: self.optimizer,
            rate: self.rate,
            schedule: Schedule {
                warmup_steps: self.warmup,
                decay,
            },
            weight_decay: self.weight_decay,
            clip_norm: self.clip_norm,
        }
    }
}

/// Types whose form is that of the Python client's JSON, which postcard cannot have.
mod as_json {
    use serde::{Deserialize, Deserializer, Serializer, de::DeserializeOwned, de::Error, ser};

    pub fn serialize<T: serde::Serialize, S: Serializer>(
        value: &T,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        to.serialize_str(&serde_json::to_string(value).map_err(ser::Error::custom)?)
    }

    pub fn deserialize<'de, T: DeserializeOwned, D: Deserializer<'de>>(
        from: D,
    ) -> Result<T, D::Error> {
        serde_json::from_str(&String::deserialize(from)?).map_err(D::Error::custom)
    }
}

impl TrainPlan {
    pub fn encode(&self) -> Vec<u8> {
        postcard::to_stdvec(&(PLAN_VERSION, self)).expect("plain data always encodes")
    }

    pub fn decode(bytes: &[u8]) -> Result<Self, String> {
        let malformed = |_| "the file is not a plan of a training job".to_string();
        let (found, rest) = postcard::take_from_bytes::<u32>(bytes).map_err(malformed)?;
        if found != PLAN_VERSION {
            return Err(format!(
                "the plan is of version {found}, this nodectl reads {PLAN_VERSION}\nhint: run the same nodectl everywhere"
            ));
        }
        let plan: Self = postcard::from_bytes(rest).map_err(malformed)?;
        let is_sound =
            plan.batch > 0 && plan.epochs > 0 && plan.checkpoints.is_none_or(|rule| rule.keep > 0);
        if is_sound {
            Ok(plan)
        } else {
            Err("the plan has no samples, epochs or checkpoints where it needs some".into())
        }
    }
}
