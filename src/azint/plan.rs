//! What an integration is once its file is understood: the contract between the job file's reader
//! and the workers. It travels as the upload `PLAN_FILE`, JSON, one for each job of a chain.
//!
//! # The chain
//!
//! `strategy = "split"`: for each dataset (or group of some, where there are many) two jobs.
//! - `<name>.frames`: `Stage::Frames`. A task integrates some consecutive frames
//!   (`DatasetPlan::ranges`) and leaves a `Part` as `PART_FILE`, and a preview. It never fails for
//!   what is wrong with a dataset: then it leaves the reason in the part's place, so that other
//!   datasets go on.
//! - `<name>`: `Stage::Write`, a task a dataset. It puts the parts together, integrates the frames
//!   that have none itself, and writes the results. What is wrong with a dataset fails here, and
//!   another attempt does only what is missing.
//!
//! `strategy = "whole"` is the second job alone: no frame has a part, so one worker does them all.

use super::{
    engine::{ErrorModel, IntegrationSettings},
    results::{Calibrant, Part, nexus::RegionAxes},
};
use serde::{Deserialize, Serialize};
use std::{ops::Range, path::PathBuf};

/// The upload with the plan.
pub const PLAN_FILE: &str = "integrate.plan";
/// Raised with every change of these types: worker and submitter may be of different builds.
pub const PLAN_VERSION: u32 = 5;
/// The largest plan that is read, in bytes.
pub const MAX_PLAN_BYTES: u64 = 64 << 20;
/// How folders with the finished frames of a dataset end.
pub const PARTS: &str = ".parts";
/// The directory of the datasets' files that travel.
pub const INPUT: &str = "input";
/// What a task over frames leaves.
pub const PART_FILE: &str = "frames.part";
/// And the same in a few numbers, for whoever watches.
pub const PREVIEW_FILE: &str = "preview.json";

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct IntegratePlan {
    pub version: u32,
    pub stage: IntegrateStage,
    pub datasets: Vec<DatasetPlan>,
    /// Besides a dataset's own, those below which its file may lead.
    pub directories: Vec<PathBuf>,
    pub settings: IntegrationSettings,
    pub images: ImageFiles,
    /// In each dataset's file: a number a frame that its counts are divided by.
    pub monitor: Option<String>,
    pub engine: EngineRequest,
    /// Threads of a worker; None: as many as suit what it integrates with.
    pub threads: Option<u32>,
    /// Whether it asks for more than half of a GPU, so that no other has a share of that one.
    pub is_alone_on_gpu: bool,
    /// Whose rings the mean is compared with.
    pub calibrant: Option<Calibrant>,
    /// Where results are put in the end, and what becomes of those that are there.
    pub location: Option<PathBuf>,
    pub existing: Existing,
    pub on_bad_frames: OnBadFrames,
}

/// What the tasks of this job of the chain do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum IntegrateStage {
    Frames,
    /// `from` is the job whose parts are put together.
    Write {
        from: Option<String>,
    },
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DatasetPlan {
    /// What its results are called; no two have the same.
    pub name: String,
    pub path: PathBuf,
    /// The file in a task's directory, for nodes that do not see `path`.
    pub upload: Option<String>,
    /// Length and time of change of the file in ns since 1970, to know that a node sees the same.
    pub seen: Option<(u64, u64)>,
    /// Path within the file; None: looked for.
    pub dataset: Option<String>,
    /// The group in which it is looked for.
    pub entry: Option<String>,
    /// When it was planned; 0 where that did not go well, or its results are there already.
    pub frames: u64,
    pub frames_per_task: u64,
}

/// Images that travel with the job, by their paths in a task's directory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageFiles {
    pub mask: Option<ImageFile>,
    pub dark: Option<ImageFile>,
    pub flat: Option<ImageFile>,
    pub absorption: Option<ImageFile>,
    pub variance: Option<ImageFile>,
    /// Where each pixel of the detector is.
    pub detector: Option<ImageFile>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageFile {
    pub path: String,
    /// The dataset of an HDF5 file.
    pub member: Option<String>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum EngineRequest {
    /// Vulkan for a worker that was given a GPU, else the CPU.
    #[default]
    Auto,
    Cpu,
    Vulkan,
}

/// What becomes of a dataset of which some frames cannot be read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum OnBadFrames {
    /// Frames that cannot be read have NaN for a pattern and are listed; the others are integrated.
    #[default]
    Mark,
    /// The dataset fails.
    Fail,
}

/// What becomes of results that are there already.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Existing {
    /// Results that are there stay, and their dataset fails.
    #[default]
    Error,
    /// Results that are there stay, and their dataset is not integrated again. It fails where they
    /// are of something else: other data, other settings.
    Skip,
    /// As `Skip`, but where the data or the settings have changed since, it is integrated again.
    Outdated,
    Overwrite,
}

/// What a task over frames leaves in `PART_FILE`: the patterns, or why there are none.
pub type FramesOutcome = Result<Integrated, String>;

/// Patterns, and what they are of: so much that putting them together needs no integrator.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Integrated {
    pub part: Part,
    /// Of each region.
    pub axes: Vec<RegionAxes>,
    /// What integrated, for people.
    pub engine: String,
}

impl IntegratePlan {
    pub fn encode(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("plain data always encodes")
    }

    /// The error is a sentence.
    pub fn decode(bytes: &[u8]) -> Result<Self, String> {
        #[derive(Deserialize)]
        struct Version {
            version: u32,
        }
        let found: Version = serde_json::from_slice(bytes)
            .map_err(|_| "it is no plan of an integration".to_string())?;
        if found.version != PLAN_VERSION {
            return Err(format!(
                "the plan is of version {}, this nodectl reads {PLAN_VERSION}\nhint: run the same nodectl everywhere",
                found.version
            ));
        }
        serde_json::from_slice(bytes)
            .map_err(|error| format!("it is no plan of an integration: {error}"))
    }

    /// The tasks of the `Frames` stage: dataset and frames of each, in order.
    pub fn tasks(&self) -> impl Iterator<Item = (usize, Range<u64>)> {
        self.datasets
            .iter()
            .enumerate()
            .flat_map(|(index, dataset)| dataset.ranges().map(move |range| (index, range)))
    }

    /// Whether patterns have error bars.
    pub fn has_errors(&self) -> bool {
        self.settings.error_model != ErrorModel::No || self.settings.filter.is_some()
    }

    /// The first task of the `Frames` stage that is a dataset's.
    pub fn first_task(&self, dataset: usize) -> u64 {
        self.datasets[..dataset]
            .iter()
            .map(DatasetPlan::task_count)
            .sum()
    }
}

impl DatasetPlan {
    /// The frames of its tasks in the `Frames` stage.
    pub fn ranges(&self) -> impl Iterator<Item = Range<u64>> {
        let (frames, step) = (self.frames, self.frames_per_task.max(1));
        (0..self.task_count()).map(move |task| task * step..(task * step + step).min(frames))
    }

    pub fn task_count(&self) -> u64 {
        self.frames.div_ceil(self.frames_per_task.max(1))
    }

    /// The files of the dataset's results.
    pub fn files(&self) -> [String; 6] {
        ["h5", "png", "csv", "svg", "json", "log"].map(|ending| format!("{}.{ending}", self.name))
    }
}
