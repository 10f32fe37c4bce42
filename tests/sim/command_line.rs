//! `cargo run --release -p nodectl-sim -- [OPTIONS]`: the simulation, as long as you like.
//!
//! `--seeds N --from S`, or `--hours H`; `--jobs N` threads; `--shrink SEED`, perhaps
//! with the `--rule RULE` by which it is to fail; `--drop 1,2,…` leaves faults and acts out;
//! `--all` goes on after a failure and counts; `--ignore RULE`; `--scenarios NAME` runs those whose
//! name contains it, `--scenarios :` all. `SIM_TRACE=1` tells the story, `SIM_TRACE=2` everything.

use nodectl_sim::runs;
use std::collections::BTreeSet;

const USAGE: &str = "usage: sim [--seeds N] [--from SEED] [--hours H] [--jobs N] [--shrink SEED [--rule RULE]] [--drop LIST] [--ignore RULE]… [--scenarios NAME] [--all]";

fn main() {
    let mut arguments = std::env::args().skip(1);
    let traced = std::env::var("SIM_TRACE").map_or(0, |level| level.parse().unwrap_or(1));
    let jobs = std::thread::available_parallelism().map_or(1, usize::from);
    let mut options = runs::RunOptions {
        traced,
        jobs,
        ..runs::RunOptions::default()
    };
    let mut scenarios = None;
    let (mut from, mut seeds, mut shrink, mut dropped) = (0, 1_000, None, BTreeSet::new());
    while let Some(argument) = arguments.next() {
        if argument == "--all" {
            options.keep_going = true;
            continue;
        }
        let value = arguments.next();
        let number = value.as_ref().and_then(|text| text.parse().ok());
        match (argument.as_str(), number, value) {
            ("--seeds", Some(number), _) => seeds = number,
            ("--from", Some(number), _) => from = number,
            ("--jobs", Some(number), _) => options.jobs = number as usize,
            ("--shrink", Some(number), _) => shrink = Some(number),
            ("--hours", _, Some(text)) if text.parse::<f64>().is_ok() => {
                options.hours = text.parse().ok()
            }
            ("--scenarios", _, Some(name)) => scenarios = Some(name),
            ("--rule", _, Some(rule)) => options.rule = Some(rule),
            ("--ignore", _, Some(rule)) => options.ignored.push(rule),
            ("--drop", _, Some(list)) => dropped.extend(
                list.split(',')
                    .filter_map(|item| item.parse::<usize>().ok()),
            ),
            _ => {
                eprintln!("{USAGE}");
                std::process::exit(2)
            }
        }
    }
    if let Some(name) = scenarios {
        std::process::exit(i32::from(!runs::scenarios(&name)));
    }
    if let Some(seed) = shrink {
        return runs::shrink(seed, &dropped, &options);
    }
    if !dropped.is_empty() || options.traced > 0 {
        std::process::exit(i32::from(!runs::one(from, &dropped, &options)));
    }
    if !runs::many(from, seeds, &options) {
        std::process::exit(1);
    }
    println!("passed");
}
