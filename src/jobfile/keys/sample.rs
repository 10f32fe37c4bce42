//! `sample = { method, count, seed }`: rows drawn from the `params` table, in place of all its
//! combinations. The rows are those of every machine and every version: row i depends on the seed,
//! the method, i and the table, not on `count`.
//!
//! *random*: the coordinate of row i in column c follows from the seed, i and c
//! (`types::search::uniform`).
//!
//! *sobol*: Sobol points with the direction numbers of Joe and Kuo (new-joe-kuo-6.21201),
//! Owen-scrambled with the seed (Burley, Practical Hash-based Owen Scrambling, JCGT 2020), as the
//! crate `sobol_burley` computes them: 24 bits a coordinate.
//!
//! *tpe*: no rows but what they are drawn from: the job's coordinator draws each when its task is
//! ordered, from the results that there are by then; those of *random*, while there are few.

use crate::{Fault, Fields, Item};
use nodectl_types::{ParamSpace, SearchAxis, SearchSpace, limits, search::uniform};
use std::ops::Range;
use toml::{
    Spanned,
    de::{DeTable, DeValue},
};

const KEYS: [&str; 3] = ["method", "count", "seed"];
const METHODS: [&str; 3] = ["random", "sobol", "tpe"];
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
    Tpe,
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
            "tpe" => Method::Tpe,
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
    if method == Method::Tpe {
        check_tpe(fields, &table, &count)?;
    }
    let seed = table.u32("seed", 0)?.map_or(0, |seed| seed.value);
    Ok(Some(Sample {
        method,
        count,
        seed,
    }))
}

/// Sets that are drawn by what came of others need something to go by.
fn check_tpe(
    fields: &Fields<'_, '_>,
    table: &Fields<'_, '_>,
    count: &Item<u32>,
) -> Result<(), Fault> {
    if fields.get("sweep").is_none() {
        let fault = Fault::new(
            table.span.clone(),
            "`method = \"tpe\"` draws by what tasks come to, and the job names no metric",
        );
        return Err(fault.hint("add e.g. [sweep] with metric = \"loss\" and goal = \"min\""));
    }
    if count.value > limits::MAX_TRIALS {
        let message = format!(
            "at most {} sets can be drawn by what tasks come to, not {}",
            limits::MAX_TRIALS,
            count.value
        );
        return Err(
            Fault::new(count.span.clone(), message).hint("method = \"random\" has no such limit")
        );
    }
    if let Some(repeat) = fields.u32("repeat", 1)?.filter(|repeat| repeat.value > 1) {
        let message = "each set that is drawn by what tasks come to runs once";
        return Err(Fault::new(repeat.span, message).hint("remove `repeat`"));
    }
    if let Some(names) = fields.string("task_names")? {
        let message =
            "the parameters of tasks are drawn while the job runs, too late to name them by";
        return Err(Fault::new(names.span, message).hint("remove `task_names`"));
    }
    Ok(())
}

/// `{ min, max, scale }`; None if the table is none of that kind.
pub fn bounds(
    name: &str,
    table: &DeTable<'_>,
    span: Range<usize>,
) -> Result<Option<SearchAxis>, Fault> {
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
        (Bound::Whole(min), Bound::Whole(max)) => SearchAxis::Whole { min, max, log },
        _ => SearchAxis::Fraction { min, max, log },
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
    sources: Vec<(String, SearchAxis)>,
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
    if sample.method == Method::Tpe {
        if sources.len() > limits::MAX_SEARCH_AXES {
            let message = format!(
                "at most {} parameters can be drawn by what tasks come to, not {}",
                limits::MAX_SEARCH_AXES,
                sources.len()
            );
            return Err(Fault::new(span, message));
        }
        return Ok(ParamSpace::Search(SearchSpace {
            axes: sources,
            count: sample.count.value,
            seed: sample.seed,
        }));
    }
    let (columns, sources): (Vec<_>, Vec<_>) = sources.into_iter().unzip();
    let coordinate = |row: u32, column: usize| match sample.method {
        Method::Random | Method::Tpe => uniform(sample.seed, row, column),
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

#[cfg(test)]
mod tests {
    use super::*;
    use nodectl_types::Value;

    fn sample(method: Method, count: u32, seed: u32) -> Vec<Value> {
        let sample = Sample {
            method,
            count: Item {
                value: count,
                span: 0..0,
            },
            seed,
        };
        let lr = SearchAxis::Fraction {
            min: 1e-5,
            max: 1e-1,
            log: true,
        };
        let layers = SearchAxis::Whole {
            min: 1,
            max: 4,
            log: false,
        };
        let act = SearchAxis::Choice(vec![Value::Text("relu".into()), Value::Text("tanh".into())]);
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
}
