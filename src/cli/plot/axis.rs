//! Numbers and words along an axis. Numbers that span two orders of magnitude stand on a
//! logarithmic scale, words side by side.

use serde_json::Value as Json;

/// From this ratio of largest to smallest on, the scale is logarithmic.
const LOG_RATIO: f64 = 100.0;
/// Of the axis, kept free at both ends.
const MARGIN: f64 = 0.06;

/// A coordinate.
#[derive(Clone, Debug, PartialEq)]
pub enum Coordinate {
    Number(f64),
    Word(String),
}

impl Coordinate {
    /// None for null, lists and tables.
    pub fn of(value: &Json) -> Option<Self> {
        match value {
            Json::Number(number) => number
                .as_f64()
                .filter(|number| number.is_finite())
                .map(Self::Number),
            Json::String(text) => Some(Self::Word(text.clone())),
            Json::Bool(truth) => Some(Self::Word(truth.to_string())),
            Json::Null | Json::Array(_) | Json::Object(_) => None,
        }
    }

    fn word(&self) -> String {
        match self {
            Self::Number(value) => number(*value),
            Self::Word(word) => word.clone(),
        }
    }
}

/// How cells become positions.
#[derive(Clone, Debug, PartialEq)]
pub enum PlotAxis {
    Linear { min: f64, max: f64 },
    Log { min: f64, max: f64 },
    Words(Vec<String>),
}

impl PlotAxis {
    /// One on which all these cells have a place.
    pub fn of<'c>(cells: impl Iterator<Item = &'c Coordinate>) -> Self {
        let cells: Vec<&Coordinate> = cells.collect();
        let numbers: Option<Vec<f64>> = cells
            .iter()
            .map(|cell| match cell {
                Coordinate::Number(number) => Some(*number),
                Coordinate::Word(_) => None,
            })
            .collect();
        let Some(numbers) = numbers else {
            let mut words: Vec<String> = cells.iter().map(|cell| cell.word()).collect();
            words.sort();
            words.dedup();
            return Self::Words(words);
        };
        let min = numbers.iter().copied().fold(f64::INFINITY, f64::min);
        let max = numbers.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        if min > 0.0 && max / min >= LOG_RATIO {
            Self::Log { min, max }
        } else {
            Self::Linear { min, max }
        }
    }

    pub fn position(&self, cell: &Coordinate) -> f64 {
        match (self, cell) {
            (Self::Words(words), cell) => words.binary_search(&cell.word()).unwrap_or(0) as f64,
            (Self::Log { .. }, Coordinate::Number(number)) => number.log10(),
            (_, Coordinate::Number(number)) => *number,
            (_, Coordinate::Word(_)) => 0.0,
        }
    }

    /// What is shown, from end to end.
    pub fn range(&self) -> std::ops::Range<f64> {
        let (low, high) = match self {
            Self::Linear { min, max } => (*min, *max),
            Self::Log { min, max } => (min.log10(), max.log10()),
            Self::Words(words) => (0.0, words.len().saturating_sub(1) as f64),
        };
        let span = high - low;
        let margin = if span > 0.0 {
            span * MARGIN
        } else {
            (low.abs() * MARGIN).max(0.5)
        };
        low - margin..high + margin
    }

    pub fn label(&self, position: f64) -> String {
        match self {
            Self::Linear { .. } => number(position),
            // Between whole powers a label stands for a number that nobody wrote.
            Self::Log { .. } => number(round_to(10f64.powf(position), 2)),
            Self::Words(words) => {
                let whole = position.round();
                let near = (position - whole).abs() < 0.01 && whole >= 0.0;
                near.then(|| words.get(whole as usize).cloned())
                    .flatten()
                    .unwrap_or_default()
            }
        }
    }

    /// About how many labels it should have.
    pub fn labels(&self) -> usize {
        match self {
            Self::Words(words) => (words.len() * 4).clamp(5, 80),
            Self::Linear { .. } | Self::Log { .. } => 8,
        }
    }

    pub fn is_log(&self) -> bool {
        matches!(self, Self::Log { .. })
    }
}

/// As few digits as say it, at most five.
pub fn number(value: f64) -> String {
    let rounded = round_to(value, 5);
    if rounded != 0.0 && !(1e-5..1e7).contains(&rounded.abs()) {
        format!("{rounded:e}")
    } else {
        rounded.to_string()
    }
}

fn round_to(value: f64, digits: i32) -> f64 {
    // Through text: the nearest decimal, without the error that scaling by powers of ten leaves.
    format!("{value:.*e}", (digits - 1) as usize)
        .parse()
        .unwrap_or(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(values: &[f64]) -> PlotAxis {
        PlotAxis::of(
            values
                .iter()
                .map(|value| Coordinate::Number(*value))
                .collect::<Vec<_>>()
                .iter(),
        )
    }

    #[test]
    fn the_scale_is_logarithmic_where_that_helps() {
        assert!(numbers(&[1e-5, 1e-1]).is_log());
        assert!(
            !numbers(&[0.9, 0.98]).is_log()
                && !numbers(&[0.0, 1e5]).is_log()
                && !numbers(&[-1.0, 1e5]).is_log()
        );
        let axis = numbers(&[1e-4, 1.0]);
        assert_eq!(
            (
                axis.position(&Coordinate::Number(0.01)),
                axis.label(-2.0).as_str()
            ),
            (-2.0, "0.01")
        );
    }

    #[test]
    fn words_stand_side_by_side_in_order() {
        let cells = ["b", "a", "b"].map(|word| Coordinate::Word(word.into()));
        let axis = PlotAxis::of(cells.iter());
        assert_eq!(
            cells
                .iter()
                .map(|cell| axis.position(cell))
                .collect::<Vec<_>>(),
            [1.0, 0.0, 1.0]
        );
        assert_eq!(
            [axis.label(1.0), axis.label(0.5), axis.label(-1.0)],
            ["b", "", ""]
        );
    }

    #[test]
    fn a_range_is_never_empty() {
        for axis in [
            numbers(&[3.0]),
            numbers(&[0.0]),
            PlotAxis::Words(vec!["a".into()]),
        ] {
            assert!(axis.range().start < axis.range().end, "{axis:?}");
        }
    }

    #[test]
    fn numbers_are_short() {
        assert_eq!(
            [0.1 + 0.2, 1234567.0, 1e-7, -3.0, 0.0].map(number),
            ["0.3", "1234600", "1e-7", "-3", "0"]
        );
    }
}
