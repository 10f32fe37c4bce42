//! Sweeps in requests: what their tasks report, and when tasks are given up.

use super::submit::{BadJob, bad};
use nodectl_types::{
    defaults,
    sweep::{Goal, StopRule, Sweep},
};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// How the tasks of a sweep compare.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SweepRequest {
    /// The key of the metric in what tasks report.
    pub metric: String,
    #[serde(default)]
    pub goal: GoalRequest,
    /// When a task is hopeless; without it none is.
    #[serde(default)]
    pub stop: Option<StopRequest>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum GoalRequest {
    #[default]
    Min,
    Max,
}

/// None is given up before it has reported `min_steps` steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum StopRequest {
    /// Worse than the median of the tasks that are done, of which there are `min_trials` at least.
    Median {
        #[serde(default = "min_steps")]
        min_steps: u64,
        #[serde(default = "min_trials")]
        min_trials: u32,
    },
    /// Not the best one in `reduction` at step `min_steps`, and at each step `reduction` times the
    /// one before.
    Asha {
        #[serde(default = "min_steps")]
        min_steps: u64,
        #[serde(default = "reduction")]
        reduction: u32,
    },
}

impl SweepRequest {
    pub(super) fn into_sweep(self) -> Result<Sweep, BadJob> {
        if self.metric.is_empty() {
            return Err(bad(
                "sweep.metric",
                "a sweep's tasks report a metric, and this names none",
            ));
        }
        let goal = match self.goal {
            GoalRequest::Min => Goal::Min,
            GoalRequest::Max => Goal::Max,
        };
        let stop = self.stop.map(|stop| match stop {
            StopRequest::Median {
                min_steps,
                min_trials,
            } => StopRule::Median {
                min_steps,
                min_trials,
            },
            StopRequest::Asha {
                min_steps,
                reduction,
            } => StopRule::Asha {
                min_steps,
                reduction,
            },
        });
        match stop {
            Some(StopRule::Median { min_steps: 0, .. } | StopRule::Asha { min_steps: 0, .. }) => {
                Err(bad("sweep.stop.min_steps", "steps are counted from 1"))
            }
            Some(StopRule::Median { min_trials: 0, .. }) => {
                Err(bad("sweep.stop.median.min_trials", "at least 1"))
            }
            Some(StopRule::Asha {
                reduction: 0 | 1, ..
            }) => Err(bad("sweep.stop.asha.reduction", "at least 2")),
            stop => Ok(Sweep {
                metric: self.metric,
                goal,
                stop,
            }),
        }
    }
}

fn min_steps() -> u64 {
    defaults::MIN_STEPS.into()
}

fn min_trials() -> u32 {
    defaults::MIN_TRIALS
}

fn reduction() -> u32 {
    defaults::REDUCTION
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sweep(json: &str) -> Result<Sweep, String> {
        let request: SweepRequest =
            serde_json::from_str(json).map_err(|error| error.to_string())?;
        request.into_sweep().map_err(|error| error.to_string())
    }

    #[test]
    fn a_rule_has_the_defaults_of_job_files_and_is_checked() {
        let asha =
            sweep(r#"{"metric": "loss", "goal": "max", "stop": {"asha": {"reduction": 4}}}"#)
                .unwrap();
        assert_eq!(
            (asha.goal, asha.stop),
            (
                Goal::Max,
                Some(StopRule::Asha {
                    min_steps: 1,
                    reduction: 4
                })
            )
        );
        let plain = sweep(r#"{"metric": "loss"}"#).unwrap();
        assert_eq!((plain.goal, plain.stop), (Goal::Min, None));
        let median = sweep(r#"{"metric": "loss", "stop": {"median": {}}}"#).unwrap();
        assert_eq!(
            median.stop,
            Some(StopRule::Median {
                min_steps: 1,
                min_trials: 5
            })
        );
        assert!(
            sweep(r#"{"metric": ""}"#)
                .unwrap_err()
                .contains("sweep.metric")
        );
        assert!(
            sweep(r#"{"metric": "a", "stop": {"asha": {"reduction": 1}}}"#)
                .unwrap_err()
                .contains("reduction")
        );
        assert!(
            sweep(r#"{"metric": "a", "stop": {"hyperband": {}}}"#)
                .unwrap_err()
                .contains("hyperband")
        );
    }
}
