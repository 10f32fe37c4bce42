//! Reads a history and says which promises it breaks. Knows the format of
//! `docs/internals/histories.md` and the promises, and nothing of the product: no type of it, no
//! file of it. A pure function.
//!
//! | file | owns |
//! |---|---|
//! | `model` | a history's lines, put together to jobs, tasks, faults |
//! | `jobs` | promises about jobs, their tasks and results |
//! | `work` | promises about what runs: nothing computed again, nothing stopped without need |
//! | `others` | nodes, pools, trainings |
//! | `story` | the few lines that a violation is about |

mod jobs;
mod model;
mod others;
mod story;
#[cfg(test)]
mod tests;
mod work;

use model::Model;
use serde_json::Value;
use std::{collections::BTreeMap, fmt};

/// A promise that was broken.
#[derive(Clone, Debug, PartialEq)]
pub struct Violation {
    /// The promise's name, by which runs are compared.
    pub promise: &'static str,
    pub text: String,
    /// What led to it, in the order of time.
    pub story: Vec<String>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct HistoryVerdict {
    pub violations: Vec<Violation>,
    /// What is no violation and worth a number.
    pub counts: BTreeMap<&'static str, u64>,
}

/// What a history breaks, and what it consists of.
pub fn check(lines: &[Value]) -> HistoryVerdict {
    let model = Model::new(lines);
    let mut verdict = HistoryVerdict {
        violations: Vec::new(),
        counts: model.counts(),
    };
    jobs::check(&model, &mut verdict);
    work::check(&model, &mut verdict);
    others::check(&model, &mut verdict);
    verdict
}

impl HistoryVerdict {
    fn add(&mut self, promise: &'static str, text: String, story: Vec<String>) {
        self.violations.push(Violation {
            promise,
            text,
            story,
        });
    }

    fn count(&mut self, what: &'static str) {
        *self.counts.entry(what).or_default() += 1;
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "VIOLATION {}: {}", self.promise, self.text)?;
        self.story
            .iter()
            .try_for_each(|line| writeln!(f, "  {line}"))
    }
}

impl fmt::Display for HistoryVerdict {
    /// Of each promise the shortest story, and what else broke it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut promises: BTreeMap<&str, Vec<&Violation>> = BTreeMap::new();
        for violation in &self.violations {
            promises
                .entry(violation.promise)
                .or_default()
                .push(violation);
        }
        for of_promise in promises.values_mut() {
            of_promise.sort_by_key(|violation| violation.story.len());
            write!(f, "{}", of_promise[0])?;
            of_promise[1..]
                .iter()
                .try_for_each(|violation| writeln!(f, "  and: {}", violation.text))?;
        }
        let counts: Vec<String> = self
            .counts
            .iter()
            .map(|(what, count)| format!("{what} {count}"))
            .collect();
        write!(
            f,
            "violations {}; {}",
            self.violations.len(),
            counts.join(", ")
        )
    }
}
