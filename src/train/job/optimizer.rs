//! `[optimizer]`: the rule, its rate, and how that changes.

use super::numbers::{limited, number};
use crate::plan::{DecayPlan, OptimizerPlan};
use nodectl_jobfile::{Fault, Fields, type_name};
use nodectl_types::params::Optimizer;
use toml::de::DeValue;

const KINDS: [&str; 6] = ["sgd", "momentum", "nesterov", "adam", "adamw", "adagrad"];
#[rustfmt::skip]
const KEYS: [&str; 10] = [
    "kind", "rate", "momentum", "betas", "epsilon", "weight_decay", "clip_norm", "warmup", "decay", "floor",
];

pub fn plan(fields: &Fields<'_, '_>) -> Result<OptimizerPlan, Fault> {
    let empty = toml::de::DeTable::new();
    let table = fields.table("optimizer", "[optimizer]")?;
    let table = table
        .unwrap_or_else(|| Fields::new(fields.context, &empty, "[optimizer]", fields.span.clone()));
    table.check_keys(&KEYS)?;
    let above = |number: f64| number > 0.0;
    let (optimizer, rate) = rule(&table)?;
    let rate = limited(&table, "rate", "a number above 0", above)?.unwrap_or(rate);
    let decay = decay(&table)?;
    let at_least = |number: f64| number >= 0.0;
    Ok(OptimizerPlan {
        optimizer,
        rate,
        warmup: table
            .u32("warmup", 0)?
            .map_or(0, |steps| steps.value.into()),
        decay,
        weight_decay: limited(&table, "weight_decay", "a number from 0 on", at_least)?
            .unwrap_or(0.0),
        clip_norm: limited(&table, "clip_norm", "a number above 0", above)?,
    })
}

/// The rule, and the rate that it has where none is given.
fn rule(table: &Fields<'_, '_>) -> Result<(Optimizer, f32), Fault> {
    let kind = table.string("kind")?;
    let name = kind.as_ref().map_or("adam", |kind| kind.value.as_str());
    let share = |number: f64| (0.0..1.0).contains(&number);
    let momentum =
        || Ok(limited(table, "momentum", "a fraction from 0 to below 1", share)?.unwrap_or(0.9));
    let epsilon = |usual: f32| {
        Ok(limited(table, "epsilon", "a number above 0", |number| number > 0.0)?.unwrap_or(usual))
    };
    let (optimizer, rate, own): (_, _, &[&str]) = match name {
        "sgd" => (Optimizer::Sgd, 0.01, &[]),
        "momentum" => (
            Optimizer::Momentum {
                momentum: momentum()?,
            },
            0.01,
            &["momentum"],
        ),
        "nesterov" => (
            Optimizer::Nesterov {
                momentum: momentum()?,
            },
            0.01,
            &["momentum"],
        ),
        "adam" => (
            Optimizer::Adam {
                betas: betas(table)?,
                epsilon: epsilon(1e-8)?,
            },
            0.001,
            &["betas", "epsilon"],
        ),
        "adamw" => (
            Optimizer::AdamW {
                betas: betas(table)?,
                epsilon: epsilon(1e-8)?,
            },
            0.001,
            &["betas", "epsilon"],
        ),
        "adagrad" => (
            Optimizer::Adagrad {
                epsilon: epsilon(1e-10)?,
            },
            0.01,
            &["epsilon"],
        ),
        other => {
            let span = kind
                .as_ref()
                .map_or(table.span.clone(), |kind| kind.span.clone());
            return Err(
                Fault::new(span, format!("there is no optimizer `{other}`")).suggest(other, &KINDS)
            );
        }
    };
    for key in ["momentum", "betas", "epsilon"] {
        if let Some(value) = table.get(key).filter(|_| !own.contains(&key)) {
            return Err(Fault::new(value.span(), format!("`{name}` has no `{key}`")));
        }
    }
    Ok((optimizer, rate))
}

fn betas(table: &Fields<'_, '_>) -> Result<[f32; 2], Fault> {
    let Some(value) = table.get("betas") else {
        return Ok([0.9, 0.999]);
    };
    let wrong = || {
        Fault::new(value.span(), "`betas` are two numbers from 0 to below 1")
            .hint("betas = [0.9, 0.999]")
    };
    let DeValue::Array(items) = value.get_ref() else {
        return Err(wrong());
    };
    let numbers: Vec<f64> = items
        .iter()
        .filter_map(number)
        .filter(|number| (0.0..1.0).contains(number))
        .collect();
    match numbers.as_slice() {
        [first, second] if items.len() == 2 => Ok([*first as f32, *second as f32]),
        _ => Err(wrong()),
    }
}

/// `decay = "cosine"`, or `{ every = 10, factor = 0.5 }`, in epochs.
fn decay(table: &Fields<'_, '_>) -> Result<DecayPlan, Fault> {
    const NAMES: [&str; 3] = ["constant", "cosine", "linear"];
    let share = |number: f64| (0.0..=1.0).contains(&number);
    let floor = limited(table, "floor", "a share of the rate from 0 to 1", share)?;
    let value = table.get("decay");
    let decay = match value.map(|value| value.get_ref()) {
        None => DecayPlan::Constant,
        Some(DeValue::Table(_)) => {
            let steps = table
                .table("decay", "`decay`")?
                .expect("`decay` was seen to be a table");
            steps.check_keys(&["every", "factor"])?;
            let missing =
                |key: &str| Fault::new(steps.span.clone(), format!("`decay` has no `{key}`"));
            let epochs = steps
                .u32("every", 1)?
                .ok_or_else(|| missing("every"))?
                .value;
            let factor = limited(&steps, "factor", "a number above 0", |number| number > 0.0)?;
            DecayPlan::Step {
                epochs,
                factor: factor.ok_or_else(|| missing("factor"))?,
            }
        }
        Some(DeValue::String(name)) => match &**name {
            "constant" => DecayPlan::Constant,
            "cosine" => DecayPlan::Cosine {
                floor: floor.unwrap_or(0.0),
            },
            "linear" => DecayPlan::Linear {
                floor: floor.unwrap_or(0.0),
            },
            other => {
                let span = value.expect("a value of `decay` is matched").span();
                return Err(Fault::new(span, format!("there is no `decay` \"{other}\""))
                    .suggest(other, &NAMES));
            }
        },
        Some(other) => {
            let span = value.expect("a value of `decay` is matched").span();
            let fault = Fault::new(
                span,
                format!("`decay` is a name or a table, not {}", type_name(other)),
            );
            return Err(fault
                .hint("decay = \"cosine\", or decay = { every = 10, factor = 0.5 }, in epochs"));
        }
    };
    match (table.get("floor"), decay) {
        (Some(floor), DecayPlan::Constant | DecayPlan::Step { .. }) => Err(Fault::new(
            floor.span(),
            "`floor` is where a \"cosine\" or \"linear\" decay ends",
        )),
        _ => Ok(decay),
    }
}
