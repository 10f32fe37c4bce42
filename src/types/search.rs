//! Parameters that are drawn while their job runs, as results of its tasks come: what each of them
//! is drawn from, and the part of it that needs no results.

use super::{Params, TaskIndex, Value, limits};
use serde::{Deserialize, Serialize};

/// What the tasks of a job draw their parameters from. Task i gets its values when it is ordered,
/// and the record of its end has them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SearchSpace {
    /// The name of each parameter, in the order of the job file.
    pub axes: Vec<(String, SearchAxis)>,
    /// How many tasks there are.
    pub count: u32,
    pub seed: u32,
}

/// What one parameter is drawn from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum SearchAxis {
    /// One of these values.
    Choice(Vec<Value>),
    /// Whole numbers, both bounds among them.
    Whole { min: i64, max: i64, log: bool },
    /// Numbers from `min` to below `max`.
    Fraction { min: f64, max: f64, log: bool },
}

impl SearchSpace {
    /// Whether something can be drawn from every axis.
    pub fn is_sound(&self) -> bool {
        let is_few = (1..=limits::MAX_SEARCH_AXES).contains(&self.axes.len());
        is_few
            && (1..=limits::MAX_TRIALS).contains(&self.count)
            && self.axes.iter().all(|(_, axis)| axis.is_sound())
    }

    /// Values that no result counts for: those of row `task` of a sample of the method "random".
    pub fn uniform(&self, task: TaskIndex) -> Params {
        let value = |(column, (name, axis)): (usize, &(String, SearchAxis))| {
            (name.clone(), axis.at(uniform(self.seed, task, column)))
        };
        self.axes.iter().enumerate().map(value).collect()
    }
}

impl SearchAxis {
    fn is_sound(&self) -> bool {
        match self {
            Self::Choice(values) => !values.is_empty(),
            Self::Whole { min, max, log } => min < max && !(*log && *min <= 0),
            Self::Fraction { min, max, log } => {
                min < max && (max - min).is_finite() && !(*log && *min <= 0.0)
            }
        }
    }

    /// The value at a coordinate from 0 to below 1.
    pub fn at(&self, coordinate: f64) -> Value {
        match self {
            Self::Choice(values) => {
                let index = (coordinate * values.len() as f64) as usize;
                values[index.min(values.len() - 1)].clone()
            }
            // Each whole number has the part of the scale from itself to the next one.
            Self::Whole { min, max, log } => {
                let value = between(*min as f64, *max as f64 + 1.0, *log, coordinate).floor();
                Value::Int((value as i64).clamp(*min, *max))
            }
            Self::Fraction { min, max, log } => {
                Value::Float(between(*min, *max, *log, coordinate).clamp(*min, *max))
            }
        }
    }
}

/// The first 53 bits of BLAKE3("nodectl sample" ‖ seed ‖ row ‖ column), the numbers as 64 bits
/// little-endian, over 2⁵³: from 0 to below 1.
pub fn uniform(seed: u32, row: u32, column: usize) -> f64 {
    let mut hasher = blake3::Hasher::new();
    hasher.update(b"nodectl sample");
    for number in [u64::from(seed), u64::from(row), column as u64] {
        hasher.update(&number.to_le_bytes());
    }
    let hash = hasher.finalize();
    let bits = u64::from_le_bytes(
        hash.as_bytes()[..8]
            .try_into()
            .expect("a hash has 32 bytes"),
    );
    (bits >> 11) as f64 / (1u64 << 53) as f64
}

fn between(min: f64, max: f64, log: bool, coordinate: f64) -> f64 {
    if log {
        (min.ln() + coordinate * (max.ln() - min.ln())).exp()
    } else {
        min + coordinate * (max - min)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn values_lie_between_their_bounds(min in -1000i64..1000, span in 1i64..1000, coordinate in 0.0..1.0f64, log: bool) {
            let min = if log { min.abs() + 1 } else { min };
            let max = min + span;
            let Value::Int(whole) = (SearchAxis::Whole { min, max, log }).at(coordinate) else { panic!() };
            prop_assert!((min..=max).contains(&whole));
            let (min, max) = (min as f64, max as f64);
            let Value::Float(fraction) = (SearchAxis::Fraction { min, max, log }).at(coordinate) else { panic!() };
            prop_assert!((min..=max).contains(&fraction));
        }
    }

    #[test]
    fn a_space_of_which_nothing_can_be_drawn_is_told() {
        let space = |axis| SearchSpace {
            axes: vec![("x".into(), axis)],
            count: 4,
            seed: 0,
        };
        let whole = |min, max, log| space(SearchAxis::Whole { min, max, log });
        assert!(whole(1, 4, true).is_sound());
        let unsound = [
            whole(4, 4, false),
            whole(0, 4, true),
            space(SearchAxis::Choice(Vec::new())),
            space(SearchAxis::Fraction {
                min: f64::NAN,
                max: 1.0,
                log: false,
            }),
            SearchSpace {
                count: 0,
                ..whole(1, 4, false)
            },
        ];
        assert!(unsound.iter().all(|space| !space.is_sound()));
    }
}
