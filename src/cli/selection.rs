//! Which results are shown, and in which order: `results --sort`, `--best`, `-n`; and what a result
//! has under a name.

use super::args::{GoalArg, ResultsArgs};
use nodectl_types::suggest::nearest;
use nodectl_wire::api::{StatusName, SweepView, TaskResult};
use serde_json::Value as Json;
use std::{cmp::Ordering, collections::BTreeSet};

/// Results in the order and the number that are wanted. The error says what is wrong with the
/// flags.
pub fn select(
    mut results: Vec<TaskResult>,
    args: &ResultsArgs,
    sweep: Option<&SweepView>,
) -> Result<Vec<TaskResult>, String> {
    if args.best {
        let sweep = sweep.ok_or(
            "the job has no [sweep], so it does not say what is best\n\
             hint: `--sort KEY -n 1` shows the least, `--sort -KEY -n 1` the greatest",
        )?;
        results = best(&results, sweep).into_iter().cloned().collect();
    }
    if let Some(key) = &args.sort {
        let (name, falls) = key
            .strip_prefix('-')
            .map_or((key.as_str(), false), |name| (name, true));
        if let Some(unknown) = unknown(&results, name).filter(|_| !results.is_empty()) {
            return Err(unknown);
        }
        sort(&mut results, name, falls);
    }
    results.truncate(args.number.unwrap_or(usize::MAX));
    Ok(results)
}

/// The best of those that are done, by the metric and the goal of their sweep.
pub fn best<'a>(results: &'a [TaskResult], sweep: &SweepView) -> Option<&'a TaskResult> {
    results
        .iter()
        .filter(|result| result.status == StatusName::Done)
        .min_by_key(|result| SortKey::of(result, &sweep.metric, sweep.goal != "min"))
}

/// By a column; those that have none, or no number, come last either way, equals in the order of
/// tasks.
fn sort(results: &mut [TaskResult], name: &str, falls: bool) {
    results.sort_by_cached_key(|result| SortKey::of(result, name, falls));
}

/// What a result is sorted by: numbers before text.
struct SortKey {
    value: Option<Json>,
    falls: bool,
    task: u32,
}

impl SortKey {
    fn of(result: &TaskResult, name: &str, falls: bool) -> Self {
        Self {
            value: column(result, name).filter(|value| value != "NaN"),
            falls,
            task: result.task,
        }
    }
}

impl Ord for SortKey {
    fn cmp(&self, other: &Self) -> Ordering {
        let turned = |order: Ordering| if self.falls { order.reverse() } else { order };
        let order = match (&self.value, &other.value) {
            (Some(a), Some(b)) => turned(compare(a, b)),
            (a, b) => b.is_some().cmp(&a.is_some()),
        };
        order.then(self.task.cmp(&other.task))
    }
}

impl PartialOrd for SortKey {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for SortKey {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for SortKey {}

fn compare(a: &Json, b: &Json) -> Ordering {
    match (number(a), number(b)) {
        (Some(a), Some(b)) => a.total_cmp(&b),
        (a, b) if a.is_some() != b.is_some() => b.is_some().cmp(&a.is_some()),
        _ => word(a).cmp(&word(b)),
    }
}

/// Infinities are strings in JSON.
fn number(value: &Json) -> Option<f64> {
    match value.as_str() {
        Some("Infinity") => Some(f64::INFINITY),
        Some("-Infinity") => Some(f64::NEG_INFINITY),
        _ => value.as_f64(),
    }
}

/// A task's parameters in a line: `lr=0.1 act=relu`.
pub fn params(result: &TaskResult) -> String {
    let params = result.params.iter();
    let params: Vec<_> = params
        .map(|(name, value)| format!("{name}={}", word(value)))
        .collect();
    params.join(" ")
}

/// A value as people write it: text without quotes.
pub fn word(value: &Json) -> String {
    value
        .as_str()
        .map_or_else(|| value.to_string(), str::to_string)
}

/// Says that no result has anything of this name, and what there is instead.
pub fn unknown(results: &[TaskResult], name: &str) -> Option<String> {
    if results.iter().any(|result| column(result, name).is_some()) {
        return None;
    }
    let names: BTreeSet<String> = results.iter().take(1000).flat_map(names).collect();
    let hint = match nearest(name, names.iter().map(String::as_str)) {
        Some(name) => format!("did you mean `{name}`?"),
        None => format!(
            "there are {}",
            names.into_iter().collect::<Vec<_>>().join(", ")
        ),
    };
    Some(format!("no result has a `{name}`\nhint: {hint}"))
}

/// A value by the name of a parameter, of a part of the task's result (`accuracy`,
/// `test.accuracy`), or `task`, `seconds`, `node`, `status`; `value` is the result itself.
pub fn column(result: &TaskResult, name: &str) -> Option<Json> {
    if let Some(value) = result.params.get(name) {
        return Some(value.clone());
    }
    let name = name.strip_prefix("value.").unwrap_or(name);
    let mut part = result.value.as_ref();
    if name != "value" {
        for key in name.split('.') {
            part = part.and_then(|value| value.get(key));
        }
    }
    part.cloned().or_else(|| match name {
        "task" => Some(result.task.into()),
        "seconds" => Some(result.seconds.into()),
        "node" => Some(
            result
                .node_name
                .clone()
                .unwrap_or_else(|| result.node.clone())
                .into(),
        ),
        "status" => Some(result.status.word().into()),
        _ => None,
    })
}

fn names(result: &TaskResult) -> Vec<String> {
    let mut names: Vec<String> = result.params.keys().cloned().collect();
    match &result.value {
        Some(Json::Object(fields)) => names.extend(fields.keys().cloned()),
        Some(_) => names.push("value".into()),
        None => {}
    }
    names.push("seconds".into());
    names
}

/// Whether the least value of a column is the best, or the greatest, if the job's sweep says so of
/// it.
pub fn goal_of(name: &str, sweep: Option<&SweepView>) -> Option<GoalArg> {
    let metric = name.rsplit('.').next().unwrap_or(name);
    let sweep = sweep.filter(|sweep| sweep.metric == metric)?;
    Some(match sweep.goal.as_str() {
        "min" => GoalArg::Min,
        _ => GoalArg::Max,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use serde_json::json;

    #[derive(Parser)]
    struct SelectionLine {
        #[command(flatten)]
        args: ResultsArgs,
    }

    fn args(line: &[&str]) -> ResultsArgs {
        SelectionLine::parse_from(["results", "last"].iter().chain(line)).args
    }

    fn result(task: u32, rate: f64, value: Json) -> TaskResult {
        let stream = json!({"tail": "", "complete": true, "total_bytes": 0});
        let json = json!({"task": task, "status": "done", "attempt": "1.1", "node": "0101", "seconds": 1.0,
            "params": {"rate": rate}, "value": value, "outputs": [], "started_ms": 0, "cpu_seconds": 0.0,
            "max_rss_bytes": 0, "stdout": stream, "stderr": stream});
        serde_json::from_value(json).expect("a result")
    }

    fn tasks(line: &[&str], sweep: Option<&SweepView>) -> Result<Vec<u32>, String> {
        let results = vec![
            result(0, 0.3, json!({"loss": 9.5})),
            result(1, 0.1, json!({"loss": 10.0})),
            result(2, 0.2, Json::Null),
            result(3, 0.1, json!({"loss": -1})),
            result(4, 0.4, json!({"loss": "NaN"})),
            result(5, 0.5, json!({"loss": "Infinity"})),
        ];
        let selected = select(results, &args(line), sweep)?;
        Ok(selected.iter().map(|result| result.task).collect())
    }

    #[test]
    fn results_are_sorted_by_any_column_with_those_that_lack_it_last() {
        assert_eq!(tasks(&["--sort", "loss"], None), Ok(vec![3, 0, 1, 5, 2, 4]));
        assert_eq!(
            tasks(&["--sort", "-loss"], None),
            Ok(vec![5, 1, 0, 3, 2, 4])
        );
        assert_eq!(tasks(&["--sort=rate", "-n", "3"], None), Ok(vec![1, 3, 2]));
        let error = tasks(&["--sort", "los"], None).expect_err("no such column");
        assert!(error.contains("did you mean `loss`"), "{error}");
    }

    #[test]
    fn the_best_is_what_the_sweep_says() {
        let sweep = |goal: &str| SweepView {
            metric: "loss".into(),
            goal: goal.into(),
        };
        assert_eq!(tasks(&["--best"], Some(&sweep("min"))), Ok(vec![3]));
        assert_eq!(tasks(&["--best"], Some(&sweep("max"))), Ok(vec![5]));
        assert!(tasks(&["--best"], None).is_err());
    }
}
