//! Parameters that are drawn while a job runs, in requests: the keys `params` and `sample` of job
//! files.

use super::submit::{BadJob, ParamsRequest, bad, scalar};
use nodectl_types::{ParamSpace, SearchAxis, SearchSpace, limits};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value as Json};
use utoipa::ToSchema;

/// Each task's parameters are drawn from the grid's when it is ordered, by what came of the others:
/// from a list of values, or from between bounds, `{"min": 1e-5, "max": 0.1, "scale": "log"}`. The
/// job has a `sweep` then.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SampleRequest {
    pub method: MethodRequest,
    /// How many tasks there are.
    pub count: u32,
    #[serde(default)]
    pub seed: u32,
}

/// Job files know more methods: their rows do not depend on results, so whoever writes a request
/// draws them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum MethodRequest {
    /// The tree-structured Parzen estimator.
    Tpe,
}

/// The bounds of a number.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Bounds {
    min: serde_json::Number,
    max: serde_json::Number,
    #[serde(default)]
    scale: Scale,
}

#[derive(Clone, Copy, Default, PartialEq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Scale {
    #[default]
    Linear,
    Log,
}

impl SampleRequest {
    pub(super) fn into_space(self, params: Option<ParamsRequest>) -> Result<ParamSpace, BadJob> {
        let MethodRequest::Tpe = self.method;
        let Some(ParamsRequest::Grid(axes)) = params else {
            let problem = "it draws from a grid of `params`, and there is none";
            return Err(bad("sample", problem));
        };
        let axes: Vec<_> = axes
            .into_iter()
            .map(|(name, from)| Ok((name.clone(), axis(&name, from)?)))
            .collect::<Result<_, BadJob>>()?;
        let most = limits::MAX_SEARCH_AXES;
        if axes.len() > most {
            let problem = format!("{} parameters; at most {most} can be drawn", axes.len());
            return Err(bad("params.grid", problem));
        }
        let (count, most) = (self.count, limits::MAX_TRIALS);
        if !(1..=most).contains(&count) {
            let problem = format!("1 to {most} sets can be drawn, not {count}");
            return Err(bad("sample.count", problem));
        }
        Ok(ParamSpace::Search(SearchSpace {
            axes,
            count,
            seed: self.seed,
        }))
    }
}

fn axis(name: &str, from: Json) -> Result<SearchAxis, BadJob> {
    let field = format!("params.grid.{name}");
    match from {
        Json::Array(values) => {
            let values = values.into_iter().map(|value| scalar(&field, value));
            let values = values.collect::<Result<Vec<_>, _>>()?;
            match values.is_empty() {
                true => Err(bad(field, "it has no values: nothing can be drawn")),
                false => Ok(SearchAxis::Choice(values)),
            }
        }
        Json::Object(bounds) => between(&field, bounds),
        other => {
            let problem = format!("`{other}` is neither a list of values nor bounds");
            Err(bad(field, problem))
        }
    }
}

fn between(field: &str, bounds: Map<String, Json>) -> Result<SearchAxis, BadJob> {
    let bounds: Bounds = serde_json::from_value(Json::Object(bounds))
        .map_err(|error| bad(field, error.to_string()))?;
    let log = bounds.scale == Scale::Log;
    let (min, max) = (bounds.min.as_f64(), bounds.max.as_f64());
    let (Some(min), Some(max)) = (min, max) else {
        return Err(bad(field, "a bound is too large a number"));
    };
    if min >= max || !(max - min).is_finite() {
        return Err(bad(field, "`min` is not below `max`"));
    }
    if log && min <= 0.0 {
        let problem = "its scale is logarithmic, and `min` is not above 0";
        return Err(bad(field, problem));
    }
    Ok(match (bounds.min.as_i64(), bounds.max.as_i64()) {
        (Some(min), Some(max)) => SearchAxis::Whole { min, max, log },
        _ => SearchAxis::Fraction { min, max, log },
    })
}

#[cfg(test)]
mod tests {
    use super::super::JobRequest;
    use super::*;
    use serde_json::json;

    fn space(params: Json, sample: Json) -> Result<ParamSpace, String> {
        let request = json!({ "name": "fit", "command": ["fit", "{x}"], "params": { "grid": params },
            "sample": sample, "sweep": { "metric": "loss" } });
        let request: JobRequest =
            serde_json::from_value(request).map_err(|error| error.to_string())?;
        let draft = request.into_draft().map_err(|error| error.to_string())?;
        draft.check().map_err(|error| error.to_string())?;
        Ok(draft.params)
    }

    #[test]
    fn what_cannot_be_drawn_from_is_told() {
        let tpe = || json!({ "method": "tpe", "count": 20 });
        let x = |axis: Json| json!({ "x": axis });
        for (params, sample, problem) in [
            (x(json!([])), tpe(), "`params.grid.x`: it has no values"),
            (x(json!(3)), tpe(), "neither a list of values nor bounds"),
            (
                x(json!({ "min": 1, "max": 1 })),
                tpe(),
                "`min` is not below `max`",
            ),
            (
                x(json!({ "min": 0, "max": 1, "scale": "log" })),
                tpe(),
                "logarithmic",
            ),
            (x(json!({ "min": 0, "max": 1, "step": 1 })), tpe(), "`step`"),
            (
                x(json!([1])),
                json!({ "method": "sobol", "count": 1 }),
                "sobol",
            ),
            (
                x(json!([1])),
                json!({ "method": "tpe", "count": 10_001 }),
                "1 to 10000",
            ),
        ] {
            let error = space(params, sample).unwrap_err();
            assert!(error.contains(problem), "{error}");
        }
    }

    #[test]
    fn whole_bounds_are_of_whole_numbers() {
        let drawn = |axis: Json| {
            let params = json!({ "x": axis });
            let found = space(params, json!({ "method": "tpe", "count": 20, "seed": 3 }));
            match found.unwrap() {
                ParamSpace::Search(space) => (space.axes[0].1.clone(), space.count, space.seed),
                other => panic!("{other:?}"),
            }
        };
        let whole = SearchAxis::Whole {
            min: 1,
            max: 9,
            log: true,
        };
        assert_eq!(
            drawn(json!({ "min": 1, "max": 9, "scale": "log" })),
            (whole, 20, 3)
        );
        let (axis, ..) = drawn(json!({ "min": 1.0, "max": 9 }));
        assert!(matches!(axis, SearchAxis::Fraction { .. }), "{axis:?}");
    }
}
