//! Numbers and words along an axis. Numbers that span two orders of magnitude stand on a
//! logarithmic scale, words side by side.

use serde_json::Value as Json;

/// From this ratio of largest to smallest on, the scale is logarithmic.
const LOG_RATIO: f64 = 100.0;
/// Of the axis, kept free at both ends.
const MARGIN: f64 = 0.06;

/// Of the distance of the quartiles, how far beyond them values still count.
const FENCE: f64 = 3.0;
/// Values that would get less of the axis than this are flattened by the others.
const FLAT: f64 = 0.2;

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

    /// One for results. Where a few lie so far out that the others would be one line, they have no
    /// place on it: `position` puts them on its edge.
    pub fn of_results(values: impl Iterator<Item = f64>) -> Self {
        let values: Vec<f64> = values.filter(|value| value.is_finite()).collect();
        let near = near(&values);
        let cells: Vec<_> = near.into_iter().map(Coordinate::Number).collect();
        Self::of(cells.iter())
    }

    /// Whether a number has a place between the ends.
    pub fn holds(&self, number: f64) -> bool {
        match self {
            Self::Linear { min, max } | Self::Log { min, max } => (*min..=*max).contains(&number),
            Self::Words(_) => true,
        }
    }

    /// Where a number is drawn: beyond the ends, on the edge.
    pub fn shown(&self, number: f64) -> f64 {
        let range = self.range();
        if self.holds(number) {
            return self.position(&Coordinate::Number(number));
        }
        let is_below =
            matches!(self, Self::Linear { min, .. } | Self::Log { min, .. } if number < *min);
        if is_below { range.start } else { range.end }
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

/// The values without those that would flatten the others: those beyond three times the distance
/// of the quartiles (Tukey's outer fences), on a logarithmic scale where all are positive. None is
/// left out where the others take a good part of the axis all the same.
fn near(values: &[f64]) -> Vec<f64> {
    let is_log = values.iter().all(|value| *value > 0.0);
    let place = |value: f64| if is_log { value.log10() } else { value };
    let mut places: Vec<f64> = values.iter().map(|value| place(*value)).collect();
    places.sort_by(f64::total_cmp);
    let [Some(first), Some(last)] = [places.first(), places.last()] else {
        return Vec::new();
    };
    let quartile = |share: f64| places[((places.len() - 1) as f64 * share).round() as usize];
    let (low, high) = (quartile(0.25), quartile(0.75));
    // Values that are nearly equal have a neighbourhood, too: half a decade, or a tenth of them.
    let least = if is_log {
        0.5
    } else {
        (quartile(0.5).abs() * 0.1).max(f64::MIN_POSITIVE)
    };
    let fence = ((high - low) * FENCE).max(least);
    let (low, high) = (low - fence, high + fence);
    let is_near = |value: &f64| (low..=high).contains(&place(*value));
    let shown = high.min(*last) - low.max(*first);
    if (last - first) * FLAT <= shown {
        return values.to_vec();
    }
    values.iter().copied().filter(is_near).collect()
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
    fn a_diverged_run_does_not_flatten_the_others() {
        let usual = [0.31, 0.35, 0.4, 0.42, 0.5, 0.7];
        let with = |more: &[f64]| PlotAxis::of_results(usual.iter().chain(more).copied());
        for far in [&[5.97e258][..], &[1e30, f64::INFINITY, f64::NAN], &[-1e9]] {
            let axis = with(far);
            assert_eq!(axis, with(&[]), "{far:?}");
            assert!(far.iter().all(|value| !axis.holds(*value)));
        }
        let axis = with(&[1e30, -1e30]);
        assert_eq!(
            (axis.shown(1e30), axis.shown(-1e30), axis.shown(f64::NAN)),
            (axis.range().end, axis.range().start, axis.range().end)
        );
        // Decades that are filled are no outliers.
        assert!(PlotAxis::of_results((-9..9).map(|power| 10f64.powi(power))).holds(1e8));
        assert!(with(&[0.9, 2.0]).holds(2.0));
        assert!(PlotAxis::of_results([1.0, 1.0, 1.0, 50.0].into_iter()).holds(1.0));
        assert!(PlotAxis::of_results([0.0, 0.0, 0.0].into_iter()).holds(0.0));
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
