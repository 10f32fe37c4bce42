//! What a sweep is after: the metric that its tasks report, and when tasks are given up.

use serde::{Deserialize, Serialize};

/// How the tasks of a job compare.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sweep {
    /// The key of the metric in what tasks report.
    pub metric: String,
    pub goal: Goal,
    pub stop: Option<StopRule>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Goal {
    Min,
    Max,
}

/// When a task is hopeless. None is before it has reported `min_steps` steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum StopRule {
    /// A task is given up whose best value so far is worse than the median of what the tasks that
    /// are done had on average by the same step; once `min_trials` of them are done.
    Median { min_steps: u64, min_trials: u32 },
    /// At step `min_steps`, and at each step `reduction` times the one before, only the best one in
    /// `reduction` goes on.
    Asha { min_steps: u64, reduction: u32 },
}

/// A value of the metric.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct MetricPoint {
    pub step: u64,
    /// NaN where the task has diverged.
    pub value: f64,
}
