//! `sample = { method, count, seed }`: rows drawn from the `params` table, in place of all its
//! combinations. The rows are those of every machine and every version: row i depends on the seed,
//! the method, i and the table, not on `count`.
//!
//! *random*: the coordinate of row i in column c is the first 53 bits of BLAKE3("nodectl sample" ‖
//! seed ‖ i ‖ c), the numbers as 64 bits little-endian, over 2⁵³.
//!
//! *sobol*: Sobol points with the direction numbers of Joe and Kuo (new-joe-kuo-6.21201),
//! Owen-scrambled with the seed (Burley, Practical Hash-based Owen Scrambling, JCGT 2020), as the
//! crate `sobol_burley` computes them: 24 bits a coordinate.

use crate::{Fault, Fields, Item};
use nodectl_types::{ParamSpace, Value};
use std::ops::Range;
use toml::{
    Spanned,
    de::{DeTable, DeValue},
};

const KEYS: [&str; 3] = ["method", "count", "seed"];
const METHODS: [&str; 2] = ["random", "sobol"];
const MOST_SOBOL_ROWS: u32 = 1 << 16;
const MOST_SOBOL_COLUMNS: usize = sobol_burley::NUM_DIMENSIONS as usize;

/// How rows are drawn.
pub struct Sample {
    method: Method,
    count: Item<u32>,
    seed: u32,
}

#[derive(Clone, Copy, PartialEq)]
enum Method {
    Random,
    Sobol,
}

/// What a parameter is drawn from.
pub enum SampleSource {
    /// One of these, each as likely.
    Choice(Vec<Value>),
    /// Whole numbers, both bounds among them.
    Whole { min: i64, max: i64, log: bool },
    /// Numbers from `min` to below `max`.
    Fraction { min: f64, max: f64, log: bool },
}

pub fn plan(fields: &Fields<'_, '_>) -> Result<Option<Sample>, Fault> {
    let Some(table) = fields.table("sample", "`sample`")? else {
        return Ok(None);
    };
    table.check_keys(&KEYS)?;
    let method = match table.string("method")? {
        None => Method::Random,
        Some(method) => match method.value.as_str() {
            "random" => Method::Random,
            "sobol" => Method::Sobol,
            other => {
                let fault = Fault::new(
                    method.span.clone(),
                    format!("there is no method `{other}` of drawing samples"),
                );
                return Err(fault.suggest(other, &METHODS));
            }
        },
    };
    let Some(count) = table.u32("count", 1)? else {
        let fault = Fault::new(
            table.span.clone(),
            "`sample` does not say how many sets to draw",
        );
        return Err(fault.hint("e.g. sample = { method = \"sobol\", count = 64, seed = 1 }"));
    };
    if method == Method::Sobol && count.value > MOST_SOBOL_ROWS {
        let message = format!(
            "at most {MOST_SOBOL_ROWS} Sobol points can be drawn, not {}",
            count.value
        );
        return Err(Fault::new(count.span, message).hint("method = \"random\" has no such limit"));
    }
    let seed = table.u32("seed", 0)?.map_or(0, |seed| seed.value);
    Ok(Some(Sample {
        method,
        count,
        seed,
    }))
}

/// `{ min, max, scale }`; None if the table is none of that kind.
pub fn bounds(
    name: &str,
    table: &DeTable<'_>,
    span: Range<usize>,
) -> Result<Option<SampleSource>, Fault> {
    let known = ["min", "max", "scale"];
    if !known.iter().any(|key| table.contains_key(*key)) {
        return Ok(None);
    }
    if let Some(key) = table
        .keys()
        .find(|key| !known.contains(&key.get_ref().as_ref()))
    {
        let fault = Fault::new(
            key.span(),
            format!("the bounds of `{name}` have no key `{}`", key.get_ref()),
        );
        return Err(fault.suggest(key.get_ref(), &known));
    }
    let bound = |key: &str| match table.get(key) {
        Some(value) => number(name, value),
        None => Err(Fault::new(span.clone(), format!("`{name}` has no `{key}`"))
            .hint("write { min = …, max = … }")),
    };
    let log = match table
        .get("scale")
        .map(|scale| (scale, scale.get_ref().as_str()))
    {
        None | Some((_, Some("linear"))) => false,
        Some((_, Some("log"))) => true,
        Some((scale, other)) => {
            let fault = Fault::new(
                scale.span(),
                format!("`scale` of `{name}` is \"linear\" or \"log\""),
            );
            return Err(fault.suggest(other.unwrap_or_default(), &["linear", "log"]));
        }
    };
    let (low, high) = (bound("min")?, bound("max")?);
    let (min, max) = (low.as_f64(), high.as_f64());
    if min >= max || !(max - min).is_finite() {
        return Err(Fault::new(
            span,
            format!("`min` of `{name}` is not below its `max`"),
        ));
    }
    if log && min <= 0.0 {
        return Err(Fault::new(
            span,
            format!("`{name}` has a logarithmic scale, and a `min` that is not above 0"),
        ));
    }
    Ok(Some(match (low, high) {
        (Bound::Whole(min), Bound::Whole(max)) => SampleSource::Whole { min, max, log },
        _ => SampleSource::Fraction { min, max, log },
    }))
}

/// A bound as it was written.
enum Bound {
    Whole(i64),
    Fraction(f64),
}

impl Bound {
    fn as_f64(&self) -> f64 {
        match self {
            Self::Whole(number) => *number as f64,
            Self::Fraction(number) => *number,
        }
    }
}

fn number(name: &str, value: &Spanned<DeValue<'_>>) -> Result<Bound, Fault> {
    let number = match value.get_ref() {
        DeValue::Integer(number) => crate::to_i64(number).map(Bound::Whole),
        DeValue::Float(number) => number
            .as_str()
            .parse()
            .ok()
            .filter(|number: &f64| number.is_finite())
            .map(Bound::Fraction),
        _ => None,
    };
    number.ok_or_else(|| Fault::new(value.span(), format!("the bounds of `{name}` are numbers")))
}

/// The rows.
pub fn draw(
    sample: &Sample,
    sources: Vec<(String, SampleSource)>,
    span: Range<usize>,
) -> Result<ParamSpace, Fault> {
    let cells = sources.len().saturating_mul(sample.count.value as usize);
    if cells > super::params::MAX_VALUES {
        let message = format!(
            "{cells} values would be drawn; at most {} are possible",
            super::params::MAX_VALUES
        );
        return Err(Fault::new(sample.count.span.clone(), message));
    }
    if sample.method == Method::Sobol && sources.len() > MOST_SOBOL_COLUMNS {
        let message = format!(
            "Sobol points have at most {MOST_SOBOL_COLUMNS} parameters, not {}",
            sources.len()
        );
        return Err(Fault::new(span, message).hint("method = \"random\" has no such limit"));
    }
    let (columns, sources): (Vec<_>, Vec<_>) = sources.into_iter().unzip();
    let coordinate = |row: u32, column: usize| match sample.method {
        Method::Random => uniform(sample.seed, row, column),
        Method::Sobol => f64::from(sobol_burley::sample(row, column as u32, sample.seed)),
    };
    let row = |row: u32| (0..sources.len()).map(move |column| (row, column));
    let cells = (0..sample.count.value)
        .flat_map(row)
        .map(|(row, column)| sources[column].at(coordinate(row, column)));
    Ok(ParamSpace::Rows {
        cells: cells.collect(),
        columns,
    })
}

/// From 0 to below 1.
fn uniform(seed: u32, row: u32, column: usize) -> f64 {
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

impl SampleSource {
    /// The value at a coordinate from 0 to below 1.
    fn at(&self, coordinate: f64) -> Value {
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

    fn sample(method: Method, count: u32, seed: u32) -> Vec<Value> {
        let sample = Sample {
            method,
            count: Item {
                value: count,
                span: 0..0,
            },
            seed,
        };
        let lr = SampleSource::Fraction {
            min: 1e-5,
            max: 1e-1,
            log: true,
        };
        let layers = SampleSource::Whole {
            min: 1,
            max: 4,
            log: false,
        };
        let act =
            SampleSource::Choice(vec![Value::Text("relu".into()), Value::Text("tanh".into())]);
        let sources = vec![
            ("lr".into(), lr),
            ("layers".into(), layers),
            ("act".into(), act),
        ];
        match draw(&sample, sources, 0..0) {
            Ok(ParamSpace::Rows { cells, .. }) => cells,
            other => panic!("{:?}", other.is_ok()),
        }
    }

    /// What users have seen must not change under them.
    #[test]
    fn the_same_seed_gives_the_same_rows_for_ever() {
        for method in [Method::Random, Method::Sobol] {
            let all = sample(method, 8, 7);
            assert_eq!(
                all[..6],
                sample(method, 2, 7),
                "more rows leave the first ones as they are"
            );
            assert_ne!(all, sample(method, 8, 8));
        }
        let shown = |method| {
            let cells = sample(method, 2, 7);
            let cells = cells.iter().map(|value| match value {
                Value::Float(number) => format!("{number:.6}"),
                other => other.to_string(),
            });
            cells.collect::<Vec<_>>().join(" ")
        };
        insta::assert_snapshot!(shown(Method::Random), @"0.001787 1 relu 0.000181 1 tanh");
        insta::assert_snapshot!(shown(Method::Sobol), @"0.005291 3 tanh 0.000013 1 relu");
    }

    /// A (0, m, 1)-net: of 2^m Sobol points each interval of length 2^-m has one, scrambled or not.
    #[test]
    fn sobol_points_fill_every_interval_once() {
        for dimension in 0..8 {
            let points =
                (0..64).map(|row| (sobol_burley::sample(row, dimension, 3) * 64.0) as usize);
            let mut seen: Vec<_> = points.collect();
            seen.sort_unstable();
            assert_eq!(seen, (0..64).collect::<Vec<_>>(), "dimension {dimension}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn values_lie_between_their_bounds(min in -1000i64..1000, span in 1i64..1000, coordinate in 0.0..1.0f64, log: bool) {
            let min = if log { min.abs() + 1 } else { min };
            let max = min + span;
            let Value::Int(whole) = (SampleSource::Whole { min, max, log }).at(coordinate) else { panic!() };
            prop_assert!((min..=max).contains(&whole));
            let (min, max) = (min as f64, max as f64);
            let Value::Float(fraction) = (SampleSource::Fraction { min, max, log }).at(coordinate) else { panic!() };
            prop_assert!((min..=max).contains(&fraction));
        }
    }
}
