//! What a sweep is after: the metric that its tasks report, and when tasks are given up.

use serde::{Deserialize, Serialize};
use serde_json::Value as Json;

/// How the tasks of a job compare.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sweep {
    /// The key of the metric in what tasks report.
    pub metric: String,
    pub goal: Goal,
    pub stop: Option<StopRule>,
}

impl Sweep {
    /// The metric in a task's result: the result itself, if that is a number, or what it has under
    /// the metric's name. NaN where the task has diverged; None where there is no number.
    pub fn value_in(&self, result: &str) -> Option<f64> {
        let result: Json = serde_json::from_str(result).ok()?;
        let found = match &result {
            Json::Object(fields) => fields.get(&self.metric)?,
            other => other,
        };
        match found {
            Json::Number(number) => number.as_f64(),
            Json::Null => Some(f64::NAN),
            // What JSON does not have is text (`NaN`, `Infinity`).
            Json::String(text) => text.parse().ok().filter(|value: &f64| !value.is_finite()),
            Json::Bool(_) | Json::Array(_) | Json::Object(_) => None,
        }
    }

    /// The step to which a task's result belongs, 0 if it says none.
    pub fn step_in(&self, result: &str) -> u64 {
        let result: Option<Json> = serde_json::from_str(result).ok();
        let step = result.as_ref().and_then(|result| result.get("step"));
        step.and_then(Json::as_u64).unwrap_or_default()
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_metric_is_found_in_results() {
        let sweep = Sweep {
            metric: "loss".into(),
            goal: Goal::Min,
            stop: None,
        };
        let found = |result: &str| sweep.value_in(result);
        assert_eq!(found("0.5"), Some(0.5));
        assert_eq!(found(r#"{"step": 3, "loss": 2}"#), Some(2.0));
        assert_eq!(sweep.step_in(r#"{"step": 3, "loss": 2}"#), 3);
        assert!(found(r#"{"loss": "NaN"}"#).is_some_and(f64::is_nan));
        assert!(found(r#"{"loss": null}"#).is_some_and(f64::is_nan));
        let none = [
            r#"{"accuracy": 1}"#,
            r#"{"loss": "low"}"#,
            "[1]",
            "true",
            "no",
        ];
        assert!(none.iter().all(|result| found(result).is_none()));
        assert_eq!(sweep.step_in("1"), 0);
    }
}
