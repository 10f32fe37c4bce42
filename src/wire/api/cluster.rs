//! Nodes, their GPUs and load, as JSON.

use data_encoding::HEXLOWER;
use nodectl_types::{Closed, Gpu, GpuKind, NodeLoad, Resources, query::MemberLine};
use serde::{Deserialize, Serialize};
use serde_json::Value as Json;
use std::collections::BTreeMap;
use utoipa::ToSchema;

/// The node that answers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct NodeSelf {
    /// 64 hex digits.
    pub id: String,
    pub name: String,
    pub cluster: String,
    /// nodectl's version.
    pub version: String,
    pub pid: u32,
    pub data_dir: String,
    pub started_ms: u64,
    /// It runs inside `nodectl run` and takes no part in a cluster.
    pub solo: bool,
    /// Where other nodes can reach it.
    pub addrs: Vec<String>,
    /// Effective settings by key, secrets left out; null for what is not set.
    #[schema(value_type = Object)]
    pub settings: BTreeMap<String, Json>,
}

/// A member of the cluster, as the answering node sees it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Node {
    pub id: String,
    pub name: String,
    pub alive: bool,
    /// It is away because it left; one that is away otherwise died or cannot be reached.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub left: bool,
    /// This is the node that answers.
    pub this_node: bool,
    /// It takes no new work, whoever said so.
    pub draining: bool,
    /// Why, if its owner said so: no other member can change that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub closed: Option<ClosedView>,
    /// Why it runs no tasks for now: its disk is full, or broken. It comes back by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
    pub version: String,
    /// The machine, as its maker calls it; empty if unknown.
    pub model: String,
    pub addrs: Vec<String>,
    pub resources: ResourceView,
    pub gpus: Vec<GpuView>,
    /// It has just started and looks for its GPUs: `gpus` and `resources` do not have them yet.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub seeks_gpus: bool,
    pub labels: BTreeMap<String, String>,
    /// Missing if the node did not say in time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub load: Option<Load>,
}

/// Why a node takes no work, by its owner's word.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ClosedView {
    pub state: ClosedName,
    /// The rest of a sentence that begins with the node's name.
    pub why: String,
    /// When a pause ends by itself, if it does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until_ms: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ClosedName {
    /// `node.takes_work` is false.
    TakesNone,
    /// It was drained at the node itself.
    Drained,
    /// It was paused at the node itself.
    Paused,
    /// It looks whether somebody uses it.
    Looking,
    /// `node.policy.hours`.
    Hours,
    /// Somebody types.
    Keyboard,
    /// Other programs keep it busy.
    Busy,
}

/// What a node has for tasks.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ResourceView {
    pub cpus: f64,
    pub memory_bytes: u64,
    pub gpus: f64,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub named: BTreeMap<String, f64>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct GpuView {
    pub name: String,
    pub vendor: String,
    pub driver: String,
    /// 32 hex digits; equal to CUDA's on NVIDIA.
    pub uuid: String,
    pub memory_bytes: u64,
    pub kind: GpuKindName,
    /// Whether tasks that ask for GPUs get it.
    pub used: bool,
    /// Whether it is not used for a while only, since its driver gave it up.
    pub rests: bool,
    /// Why, or why not.
    pub why: String,
    /// Bytes of its memory that were free when the node looked, where the driver tells.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_free: Option<u64>,
    /// What it offers to shaders: `f16`, `f64`, `int64`, `subgroups`, `float_atomics`,
    /// `cooperative_matrix`, …
    pub features: Vec<String>,
    /// Missing until `POST /v1/devices/measure` on its node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rates: Option<GpuRatesView>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct GpuRatesView {
    /// Bytes read plus bytes written, copying its own memory.
    pub copy_bytes_per_s: u64,
    /// Operations a second (2 n³ a product) of a plain tiled product of f32 matrices.
    pub gemm_f32_flops: u64,
    /// The same of f16 matrices with sums of f32, by cooperative matrices where the GPU has them.
    pub gemm_f16_flops: u64,
    /// Rows and columns of what a workgroup computes where products of f32 matrices are fastest.
    pub gemm_f32_tile: u16,
    /// The same of f16 matrices; 0: cooperative matrices are faster than any.
    pub gemm_f16_tile: u16,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum GpuKindName {
    Discrete,
    Integrated,
    Virtual,
    /// A CPU driver; counts as a GPU only if asked for.
    Software,
}

/// A GPU and the node that has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Device {
    pub node: String,
    pub node_name: String,
    pub gpu: GpuView,
}

/// What a node does now.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Load {
    /// The kernel's one-minute load average.
    pub load_average: f64,
    pub memory_used_bytes: u64,
    pub running: u32,
    pub queued: u32,
    pub jobs: Vec<LoadJob>,
    /// Python environments that are being made for jobs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub making: Vec<MakingView>,
}

/// A Python environment that a node makes for a job, whose tasks wait for it there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct MakingView {
    pub job: String,
    /// What runs now, such as `pip install`.
    pub step: String,
    /// How long the step has run.
    pub for_ms: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LoadJob {
    pub job: String,
    pub name: String,
    pub running: u32,
}

impl Node {
    /// `load` is what the node itself answered, if it did.
    pub fn new(member: MemberLine, load: Option<NodeLoad>) -> Self {
        let info = member.info;
        let draining = info.takes_no_work().is_some();
        let left = info.leaving && !member.alive;
        Self {
            id: info.id.to_string(),
            name: info.name,
            alive: member.alive,
            left,
            this_node: member.this_node,
            draining,
            closed: info.closed.as_ref().map(ClosedView::from),
            problem: info.problem,
            version: info.software,
            model: info.model,
            addrs: info.addrs.iter().map(ToString::to_string).collect(),
            resources: ResourceView::from(&info.resources),
            gpus: info.gpus.iter().map(GpuView::from).collect(),
            seeks_gpus: info.seeks_gpus,
            labels: info.labels,
            load: load.map(Load::from),
        }
    }
}

impl From<&Closed> for ClosedView {
    fn from(closed: &Closed) -> Self {
        let state = match closed {
            Closed::TakesNone => ClosedName::TakesNone,
            Closed::Drained => ClosedName::Drained,
            Closed::Paused(_) => ClosedName::Paused,
            Closed::Looking => ClosedName::Looking,
            Closed::Hours => ClosedName::Hours,
            Closed::Keyboard => ClosedName::Keyboard,
            Closed::Busy => ClosedName::Busy,
        };
        let until_ms = match closed {
            Closed::Paused(pause) => pause.until_ms,
            _ => None,
        };
        Self {
            state,
            why: closed.to_string(),
            until_ms,
        }
    }
}

impl From<&Resources> for ResourceView {
    fn from(resources: &Resources) -> Self {
        let whole = |milli: u32| f64::from(milli) / 1e3;
        let named = resources
            .named_milli
            .iter()
            .map(|(name, milli)| (name.clone(), whole(*milli)));
        Self {
            cpus: whole(resources.cpu_milli),
            memory_bytes: resources.memory_bytes,
            gpus: whole(resources.gpu_milli),
            named: named.collect(),
        }
    }
}

impl From<&Gpu> for GpuView {
    fn from(gpu: &Gpu) -> Self {
        let kind = match gpu.kind {
            GpuKind::Discrete => GpuKindName::Discrete,
            GpuKind::Integrated => GpuKindName::Integrated,
            GpuKind::Virtual => GpuKindName::Virtual,
            GpuKind::Software => GpuKindName::Software,
        };
        Self {
            name: gpu.name.clone(),
            vendor: gpu.vendor.clone(),
            driver: gpu.driver.clone(),
            uuid: HEXLOWER.encode(&gpu.uuid),
            memory_bytes: gpu.memory_bytes,
            kind,
            used: gpu.kind != GpuKind::Software && gpu.details.rests.is_none(),
            why: match (gpu.kind, &gpu.details.rests) {
                (_, Some(why)) => why.clone(),
                (GpuKind::Software, None) => {
                    "a driver that computes on the processor: tasks that ask for GPUs do not get it"
                        .into()
                }
                (GpuKind::Discrete | GpuKind::Integrated | GpuKind::Virtual, None) => {
                    "tasks that ask for GPUs get it".into()
                }
            },
            rests: gpu.details.rests.is_some(),
            memory_free: gpu.details.memory_free,
            features: gpu.details.features.clone(),
            rates: gpu.details.rates.map(|rates| GpuRatesView {
                copy_bytes_per_s: rates.copy_bytes_per_s,
                gemm_f32_flops: rates.gemm_f32_flops,
                gemm_f16_flops: rates.gemm_f16_flops,
                gemm_f32_tile: rates.gemm_f32_tile,
                gemm_f16_tile: rates.gemm_f16_tile,
            }),
        }
    }
}

impl From<NodeLoad> for Load {
    fn from(load: NodeLoad) -> Self {
        let jobs = load.jobs.into_iter().map(|(job, name, running)| LoadJob {
            job: job.to_string(),
            name,
            running,
        });
        Self {
            load_average: f64::from(load.load_milli) / 1e3,
            memory_used_bytes: load.memory_used_bytes,
            running: load.running,
            queued: load.queued,
            jobs: jobs.collect(),
            making: load
                .making
                .into_iter()
                .map(|making| MakingView {
                    job: making.job.to_string(),
                    step: making.step,
                    for_ms: making.for_ms,
                })
                .collect(),
        }
    }
}
