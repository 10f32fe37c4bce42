//! How several workers share the parameters: `consistency`, `shares`, `compression`, `block_size`,
//! `replicas`, `use_sfb`, `num_push_threads`, `num_pull_threads`.

use super::numbers::{limited, number};
use crate::plan::{Outer, Sharing, Streaming};
use nodectl_jobfile::{Fault, Fields, Item, type_name};
use nodectl_types::servers::{
    Compression, Consistency, MAX_GRACE, MAX_STREAMS, MAX_WORKERS, Merge, ServerSettings, Shares,
    TopKValues,
};
use std::ops::Range;
use toml::de::DeValue;

const CONSISTENCIES: [&str; 4] = ["bsp", "ssp", "async", "local"];
const COMPRESSIONS: [&str; 7] = ["none", "f16", "bf16", "int8", "int4", "int2", "topk"];
/// Keys of `consistency`: of both its tables, and of `local` alone.
const TABLE_KEYS: [&str; 9] = [
    "ssp",
    "local",
    "rate",
    "momentum",
    "quorum",
    "grace",
    "fragments",
    "delay",
    "mix",
];
const CONSISTENCY_HINT: &str = "consistency = \"bsp\", \"async\", { ssp = 2 } with its staleness, or { local = 20 } with its steps";

pub fn plan(fields: &Fields<'_, '_>) -> Result<Sharing, Fault> {
    let usual = Sharing::default();
    let (consistency, outer, streaming) = consistency(fields)?;
    let replicas = fields.u32("replicas", 1)?;
    let size = fields.bytes("block_size")?;
    let sharing = Sharing {
        consistency,
        outer,
        streaming,
        shares: shares(fields, consistency)?,
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

/// How large a part of each batch a worker has.
fn shares(fields: &Fields<'_, '_>, consistency: Consistency) -> Result<Shares, Fault> {
    let Some(value) = fields.get("shares") else {
        return Ok(Shares::Equal);
    };
    match value.get_ref() {
        DeValue::String(name) if name == "equal" => Ok(Shares::Equal),
        DeValue::String(name) if name == "pace" && consistency.is_synchronous() => Ok(Shares::Pace),
        DeValue::String(name) if name == "pace" => {
            let message = "`shares = \"pace\"` needs workers that end their steps together";
            let fault = Fault::new(value.span(), message);
            Err(fault
                .hint("consistency = \"bsp\", or { local = 20 } without `quorum` and fragments"))
        }
        _ => Err(Fault::new(
            value.span(),
            "`shares` is \"equal\" or \"pace\"",
        )),
    }
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

fn consistency(fields: &Fields<'_, '_>) -> Result<(Consistency, Outer, Streaming), Fault> {
    let usual = |consistency| (consistency, Outer::default(), Streaming::default());
    let Some(value) = fields.get("consistency") else {
        return Ok(usual(Consistency::Bsp));
    };
    match value.get_ref() {
        DeValue::String(name) => match &**name {
            "bsp" => Ok(usual(Consistency::Bsp)),
            "async" => Ok(usual(Consistency::Async)),
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
            if table.get("local").is_some() {
                return local(&table);
            }
            let is_ssp = table.get("ssp").is_some();
            table.check_keys(if is_ssp { &["ssp"] } else { &TABLE_KEYS })?;
            let missing =
                || Fault::new(value.span(), "`consistency` names no mode").hint(CONSISTENCY_HINT);
            let staleness = table.u32("ssp", 0)?.ok_or_else(missing)?.value.into();
            Ok(usual(Consistency::Ssp { staleness }))
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

/// Rounds of steps that each worker takes by itself, and their outer steps.
fn local(table: &Fields<'_, '_>) -> Result<(Consistency, Outer, Streaming), Fault> {
    // All but `ssp`.
    table.check_keys(&TABLE_KEYS[1..])?;
    let steps = table
        .u32("local", 1)?
        .expect("`local` was found in the table")
        .value;
    let usual = Outer::default();
    let rate = limited(table, "rate", "a number above 0", |rate| rate > 0.0)?;
    let momentum = limited(table, "momentum", "a share from 0 to below 1", |share| {
        (0.0..1.0).contains(&share)
    })?;
    let outer = Outer {
        rate: rate.unwrap_or(usual.rate),
        momentum: momentum.unwrap_or(usual.momentum),
    };
    let streaming = streaming(table, steps)?;
    let merge = merge(table, streaming != Streaming::default())?;
    Ok((Consistency::Local { steps, merge }, outer, streaming))
}

/// `quorum` and `grace`. Where fragments take their outer steps in turn, each waits for all workers
/// without.
fn merge(table: &Fields<'_, '_>, streams: bool) -> Result<Option<Merge>, Fault> {
    let quorum = table.u32("quorum", 1)?;
    let grace = table.duration("grace")?;
    let Some(quorum) = quorum else {
        if let Some(grace) = grace {
            let fault = Fault::new(grace.span, "`grace` needs a `quorum`");
            return Err(fault.hint("{ local = 20, quorum = 3, grace = \"2 s\" }"));
        }
        let all = Merge {
            quorum: MAX_WORKERS,
            grace_millis: 0,
        };
        return Ok(streams.then_some(all));
    };
    let millis = grace.as_ref().map_or(0, |grace| grace.value.as_millis());
    match (u64::try_from(millis), grace) {
        (Ok(grace_millis), _) if grace_millis <= MAX_GRACE => Ok(Some(Merge {
            quorum: quorum.value,
            grace_millis,
        })),
        (_, grace) => {
            let span = grace.map_or(quorum.span, |grace| grace.span);
            Err(Fault::new(span, "`grace` is at most an hour"))
        }
    }
}

/// `fragments`, `delay` and `mix`, in rounds of so many steps.
fn streaming(table: &Fields<'_, '_>, steps: u32) -> Result<Streaming, Fault> {
    let fragments = table.u32("fragments", 1)?;
    let fragments = match fragments {
        Some(Item { value, span }) if value > steps => {
            let message = format!("{value} fragments are more than the {steps} steps of a round");
            return Err(Fault::new(span, message));
        }
        fragments => fragments.map_or(1, |fragments| fragments.value),
    };
    let most = steps / fragments;
    let delay = match table.u32("delay", 0)? {
        Some(Item { value, span }) if value > most => {
            let message =
                format!("`delay` is at most {most}, a fragment's steps of a round, not {value}");
            return Err(Fault::new(span, message));
        }
        delay => delay.map_or(0, |delay| delay.value),
    };
    let mix = limited(table, "mix", "a share from 0 to 1", |share| {
        (0.0..=1.0).contains(&share)
    })?;
    let usual = if delay > 0 { 0.5 } else { 0.0 };
    Ok(Streaming {
        fragments,
        delay,
        mix: mix.unwrap_or(usual),
    })
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
            "int4" => Ok(Compression::Int4),
            "int2" => Ok(Compression::Int2),
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
            top_k(&table, value.span())
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

fn top_k(table: &Fields<'_, '_>, span: Range<usize>) -> Result<Compression, Fault> {
    table.check_keys(&["topk", "values"])?;
    let share = table
        .get("topk")
        .and_then(number)
        .filter(|share| *share > 0.0 && *share <= 1.0);
    let Some(share) = share else {
        let fault = Fault::new(
            span,
            "`topk` is the fraction of the gradient that is sent, its largest numbers: above 0, at most 1",
        );
        return Err(fault.hint("compression = { topk = 0.01 }"));
    };
    let values = match table
        .get("values")
        .map(|value| (value.get_ref(), value.span()))
    {
        None => TopKValues::default(),
        Some((DeValue::String(name), _)) if name == "bf16" => TopKValues::Bf16,
        Some((DeValue::String(name), _)) if name == "int2" => TopKValues::Int2,
        Some((_, span)) => {
            let fault = Fault::new(span, "`values` of `compression` are \"bf16\" or \"int2\"");
            return Err(fault.hint("compression = { topk = 0.01, values = \"int2\" }"));
        }
    };
    Ok(Compression::TopK {
        fraction: share as f32,
        values,
    })
}
