//! What a node says about itself.

use super::{Admits, Closed, NodeId, Resources};
use serde::{Deserialize, Serialize};
use std::{borrow::Cow, collections::BTreeMap, net::SocketAddr};

/// What kind of Vulkan device a GPU is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum GpuKind {
    Discrete,
    Integrated,
    Virtual,
    /// A CPU driver such as lavapipe: never counted as a GPU unless asked for.
    Software,
}

/// A graphics card as Vulkan sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gpu {
    pub name: String,
    pub vendor: String,
    pub driver: String,
    /// `VkPhysicalDeviceIDProperties::deviceUUID`; equal to CUDA's on NVIDIA.
    pub uuid: [u8; 16],
    pub memory_bytes: u64,
    pub kind: GpuKind,
    pub details: GpuDetails,
}

/// What is good to know of a GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuDetails {
    /// What it offers to shaders beyond Vulkan 1.2, by the names that shaders and papers use:
    /// `f16`, `subgroups`, …
    pub features: Vec<String>,
    /// Bytes of its own memory that nobody used when the node looked, where the driver tells.
    pub memory_free: Option<u64>,
    /// Once it was measured.
    pub rates: Option<GpuRates>,
    /// Why no task gets it for a while: its driver gave it up. The node's `resources` do not count
    /// it then.
    pub rests: Option<String>,
}

/// What a GPU was measured at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuRates {
    /// Bytes read plus bytes written, copying its own memory.
    pub copy_bytes_per_s: u64,
    /// Operations a second (2 n³ a product) of a plain tiled product of f32 matrices.
    pub gemm_f32_flops: u64,
    /// Operations a second of products of f16 matrices with sums of f32, by cooperative matrices
    /// where the GPU has them.
    pub gemm_f16_flops: u64,
    /// Rows and columns of what a workgroup computes where products of f32 matrices are fastest.
    pub gemm_f32_tile: u16,
    /// Rows and columns of a workgroup where products of f16 matrices are fastest; 0: cooperative
    /// matrices are faster than any.
    pub gemm_f16_tile: u16,
}

/// The slowly changing description of a node, sent to each peer on connecting and again when it
/// changes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NodeInfo {
    pub id: NodeId,
    /// Counts changes, so that an older description never replaces a newer one; starts at the wall
    /// clock in ms.
    pub version: u64,
    pub name: String,
    pub software: String,
    /// The machine, as its maker calls it; empty if unknown.
    pub model: String,
    /// Where the swarm can reach this node.
    pub addrs: Vec<SocketAddr>,
    pub resources: Resources,
    /// None yet while `seeks_gpus`.
    pub gpus: Vec<Gpu>,
    pub labels: BTreeMap<String, String>,
    /// Another member said that it is to get no new work. It keeps copies of jobs all the same.
    pub draining: bool,
    /// Why it takes no work, by its owner's word, which no other member can change.
    pub closed: Option<Closed>,
    /// Whose jobs its owner lets it take, and which.
    pub admits: Admits,
    /// The node gives back what it has and goes: no copies either.
    pub leaving: bool,
    /// The node said goodbye in an earlier life, and has not met half of those that it left: it
    /// decides nothing with others.
    pub returning: bool,
    /// Why it runs no tasks for now: its disk is full, or broken. It comes back by itself.
    pub problem: Option<String>,
    /// It has just started, and its driver has not said yet which GPUs there are. That ends soon,
    /// whatever the driver says, or if it says nothing.
    pub seeks_gpus: bool,
}

impl NodeInfo {
    /// What is known of a node that has not been heard since this one was started.
    pub fn remembered(id: NodeId, name: String) -> Self {
        Self {
            id,
            version: 0,
            name,
            software: String::new(),
            model: String::new(),
            addrs: Vec::new(),
            resources: Resources::default(),
            gpus: Vec::new(),
            labels: BTreeMap::new(),
            draining: false,
            closed: None,
            admits: Admits::default(),
            leaving: false,
            returning: false,
            problem: None,
            seeks_gpus: false,
        }
    }

    /// The node at its best: with the GPUs that rest for a while, or, as long as it looks for GPUs,
    /// with as many as anybody may ask for. What this one lacks, the node lacks in any case.
    pub fn at_best(&self) -> Cow<'_, Self> {
        let resting = self.gpus.iter().filter(|gpu| gpu.details.rests.is_some());
        let gpu_milli = match (self.seeks_gpus, resting.count() as u32) {
            (false, 0) => return Cow::Borrowed(self),
            (false, resting) => self.resources.gpu_milli.saturating_add(resting * 1_000),
            (true, _) => u32::MAX,
        };
        let resources = Resources {
            gpu_milli,
            ..self.resources.clone()
        };
        Cow::Owned(Self {
            resources,
            ..self.clone()
        })
    }

    /// Why it takes no new work, if it takes none: the rest of a sentence that begins with the
    /// node.
    pub fn takes_no_work(&self) -> Option<String> {
        if self.leaving {
            return Some("is leaving".into());
        }
        let closed = self.closed.as_ref().map(ToString::to_string);
        closed.or_else(|| self.draining.then(|| "is being drained".into()))
    }

    /// The node takes no new work, and not for a while only: it may be about to go.
    pub fn is_drained(&self) -> bool {
        self.draining || self.leaving || self.closed.as_ref().is_some_and(Closed::is_lasting)
    }
}

/// The quickly changing part, asked for when someone wants to see it, never gossiped.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct NodeLoad {
    /// The kernel's one-minute load average, in thousandths.
    pub load_milli: u32,
    pub memory_used_bytes: u64,
    pub running: u32,
    pub queued: u32,
    /// Attempts of tasks that have ended here since the node started: well, and not.
    pub done: u64,
    pub failed: u64,
    /// (job, name of the job, running tasks) of what runs here.
    pub jobs: Vec<(super::JobId, String, u32)>,
    /// Python environments of jobs that are being made here.
    pub making: Vec<MakingEnvironment>,
}

/// A Python environment that a node makes for a job, whose tasks wait for it there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MakingEnvironment {
    pub job: super::JobId,
    /// What runs now, such as `pip install`.
    pub step: String,
    /// How long the step has run.
    pub for_ms: u64,
}
