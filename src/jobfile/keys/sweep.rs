//! `[sweep]`: the metric that tasks report, and when they are given up.

use crate::{Fault, Fields, Item};
use nodectl_types::{
    defaults,
    sweep::{Goal, StopRule, Sweep},
};

const KEYS: [&str; 6] = [
    "metric",
    "goal",
    "stop",
    "min_steps",
    "min_trials",
    "reduction",
];

pub fn plan(fields: &Fields<'_, '_>) -> Result<Option<Sweep>, Fault> {
    let Some(table) = fields.table("sweep", "`[sweep]`")? else {
        return Ok(None);
    };
    table.check_keys(&KEYS)?;
    let Some(metric) = table
        .string("metric")?
        .filter(|metric| !metric.value.is_empty())
    else {
        let fault = Fault::new(table.span.clone(), "`[sweep]` names no `metric`");
        return Err(
            fault.hint("the key of what tasks report: `nodectl-metric: {\"step\": 1, \"loss\": 0.5}` has `loss`")
        );
    };
    let goal = match table.string("goal")? {
        None => Goal::Min,
        Some(goal) => match goal.value.as_str() {
            "min" => Goal::Min,
            "max" => Goal::Max,
            other => {
                return Err(unknown(
                    &goal,
                    &format!("`goal` cannot be `{other}`"),
                    &["min", "max"],
                ));
            }
        },
    };
    Ok(Some(Sweep {
        metric: metric.value,
        goal,
        stop: rule(&table)?,
    }))
}

fn rule(table: &Fields<'_, '_>) -> Result<Option<StopRule>, Fault> {
    let stop = table.string("stop")?;
    let chosen = stop.as_ref().map(|stop| stop.value.as_str());
    for (key, wanted) in [
        ("min_steps", None),
        ("min_trials", Some("median")),
        ("reduction", Some("asha")),
    ] {
        let useless = chosen.is_none() || wanted.is_some_and(|wanted| chosen != Some(wanted));
        if let Some(value) = table.get(key).filter(|_| useless) {
            let rule = wanted.unwrap_or("median");
            let fault = Fault::new(value.span(), format!("`{key}` has no effect here"));
            return Err(fault.hint(format!("it belongs to stop = \"{rule}\"")));
        }
    }
    let number = |key: &str, min, default| {
        Ok(table
            .u32(key, min)?
            .map_or(default, |number: Item<u32>| number.value))
    };
    let min_steps = u64::from(number("min_steps", 1, defaults::MIN_STEPS)?);
    let Some(stop) = stop else { return Ok(None) };
    match stop.value.as_str() {
        "median" => Ok(Some(StopRule::Median {
            min_steps,
            min_trials: number("min_trials", 1, defaults::MIN_TRIALS)?,
        })),
        "asha" => Ok(Some(StopRule::Asha {
            min_steps,
            reduction: number("reduction", 2, defaults::REDUCTION)?,
        })),
        other => Err(unknown(
            &stop,
            &format!("there is no rule `{other}` to stop by"),
            &["median", "asha"],
        )),
    }
}

fn unknown(item: &Item<String>, message: &str, known: &[&str]) -> Fault {
    Fault::new(item.span.clone(), message).suggest(&item.value, known)
}
