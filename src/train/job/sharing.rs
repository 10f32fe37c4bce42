//! How several workers share the parameters: `consistency`, `compression`, `block_size`,
//! `replicas`, `use_sfb`, `num_push_threads`, `num_pull_threads`.

use super::numbers::{limited, number};
use crate::plan::{Outer, Sharing};
use nodectl_jobfile::{Fault, Fields, type_name};
use nodectl_types::servers::{Compression, Consistency, MAX_STREAMS, ServerSettings};
use toml::de::DeValue;

const CONSISTENCIES: [&str; 4] = ["bsp", "ssp", "async", "local"];
const COMPRESSIONS: [&str; 5] = ["none", "f16", "bf16", "int8", "topk"];
const CONSISTENCY_HINT: &str = "consistency = \"bsp\", \"async\", { ssp = 2 } with its staleness, or { local = 20 } with its steps";

pub fn plan(fields: &Fields<'_, '_>) -> Result<Sharing, Fault> {
    let usual = Sharing::default();
    let (consistency, outer) = consistency(fields)?;
    let replicas = fields.u32("replicas", 1)?;
    let size = fields.bytes("block_size")?;
    let sharing = Sharing {
        consistency,
        outer,
        compression: compression(fields)?,
        block_bytes: size.as_ref().map_or(usual.block_bytes, |size| size.value),
        replicas: replicas
            .as_ref()
            .map_or(usual.replicas, |replicas| replicas.value),
        use_sfb: use_sfb(fields)?,
        num_push_threads: threads(fields, "num_push_threads")?.unwrap_or(usual.num_push_threads),
        num_pull_threads: threads(fields, "num_pull_threads")?.unwrap_or(usual.num_pull_threads),
    };
    let is_block = ServerSettings::is_block(sharing.block_bytes);
    if let Some(size) = size.filter(|_| !is_block) {
        let message = format!(
            "`block_size` is a multiple of 64 bytes, up to 1 GiB, not {}",
            size.value
        );
        return Err(Fault::new(size.span, message).hint("block_size = \"4 MiB\""));
    }
    if let Some(replicas) = replicas.filter(|replicas| replicas.value > 16) {
        return Err(Fault::new(
            replicas.span,
            format!("{} replicas are more than 16", replicas.value),
        ));
    }
    Ok(sharing)
}

/// Whether dense layers' gradients go as sufficient factors: `"auto"`, where that costs less.
fn use_sfb(fields: &Fields<'_, '_>) -> Result<Option<bool>, Fault> {
    let Some(value) = fields.get("use_sfb") else {
        return Ok(None);
    };
    match value.get_ref() {
        DeValue::Boolean(chosen) => Ok(Some(*chosen)),
        DeValue::String(name) if name == "auto" => Ok(None),
        _ => Err(Fault::new(
            value.span(),
            "`use_sfb` is \"auto\", true or false",
        )),
    }
}

fn threads(fields: &Fields<'_, '_>, key: &str) -> Result<Option<u32>, Fault> {
    let Some(threads) = fields.u32(key, 1)? else {
        return Ok(None);
    };
    if threads.value > MAX_STREAMS {
        return Err(Fault::new(
            threads.span,
            format!(
                "{} streams between two nodes are more than {MAX_STREAMS}",
                threads.value
            ),
        ));
    }
    Ok(Some(threads.value))
}

fn consistency(fields: &Fields<'_, '_>) -> Result<(Consistency, Outer), Fault> {
    let outer = Outer::default();
    let Some(value) = fields.get("consistency") else {
        return Ok((Consistency::Bsp, outer));
    };
    match value.get_ref() {
        DeValue::String(name) => match &**name {
            "bsp" => Ok((Consistency::Bsp, outer)),
            "async" => Ok((Consistency::Async, outer)),
            "ssp" | "local" => Err(
                Fault::new(value.span(), format!("\"{name}\" needs a number"))
                    .hint(CONSISTENCY_HINT),
            ),
            other => {
                let fault = Fault::new(
                    value.span(),
                    format!("there is no `consistency` \"{other}\""),
                );
                Err(fault.suggest(other, &CONSISTENCIES))
            }
        },
        DeValue::Table(_) => {
            let table = fields
                .table("consistency", "`consistency`")?
                .expect("`consistency` was seen to be a table");
            let is_local = table.get("local").is_some();
            table.check_keys(if is_local {
                &["local", "rate", "momentum"]
            } else {
                &["ssp"]
            })?;
            if !is_local {
                let staleness = table.u32("ssp", 0)?;
                let missing = || {
                    Fault::new(value.span(), "`consistency` names no mode").hint(CONSISTENCY_HINT)
                };
                let staleness = staleness.ok_or_else(missing)?.value.into();
                return Ok((Consistency::Ssp { staleness }, outer));
            }
            let steps = table
                .u32("local", 1)?
                .expect("`local` was found in the table")
                .value;
            let rate = limited(&table, "rate", "a number above 0", |rate| rate > 0.0)?;
            let momentum = limited(&table, "momentum", "a share from 0 to below 1", |share| {
                (0.0..1.0).contains(&share)
            })?;
            let outer = Outer {
                rate: rate.unwrap_or(outer.rate),
                momentum: momentum.unwrap_or(outer.momentum),
            };
            Ok((Consistency::Local { steps }, outer))
        }
        other => {
            let message = format!(
                "`consistency` is a name or a table, not {}",
                type_name(other)
            );
            Err(Fault::new(value.span(), message).hint(CONSISTENCY_HINT))
        }
    }
}

fn compression(fields: &Fields<'_, '_>) -> Result<Compression, Fault> {
    let Some(value) = fields.get("compression") else {
        return Ok(Compression::None);
    };
    match value.get_ref() {
        DeValue::String(name) => match &**name {
            "none" => Ok(Compression::None),
            "f16" => Ok(Compression::F16),
            "bf16" => Ok(Compression::Bf16),
            "int8" => Ok(Compression::Int8),
            "topk" => Err(Fault::new(value.span(), "\"topk\" needs a fraction")
                .hint("compression = { topk = 0.01 }")),
            other => {
                let fault = Fault::new(
                    value.span(),
                    format!("there is no `compression` \"{other}\""),
                );
                Err(fault.suggest(other, &COMPRESSIONS))
            }
        },
        DeValue::Table(_) => {
            let table = fields
                .table("compression", "`compression`")?
                .expect("`compression` was seen to be a table");
            table.check_keys(&["topk"])?;
            let share = table
                .get("topk")
                .and_then(number)
                .filter(|share| *share > 0.0 && *share <= 1.0);
            let wrong = || {
                let fault = Fault::new(
                    value.span(),
                    "`topk` is the fraction of the gradient that is sent, its largest numbers: above 0, at most 1",
                );
                fault.hint("compression = { topk = 0.01 }")
            };
            share
                .map(|share| Compression::TopK {
                    fraction: share as f32,
                })
                .ok_or_else(wrong)
        }
        other => {
            let message = format!(
                "`compression` is a name or a table, not {}",
                type_name(other)
            );
            Err(Fault::new(value.span(), message).hint("compression = \"f16\", or { topk = 0.01 }"))
        }
    }
}
