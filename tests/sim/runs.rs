//! One seed, many seeds, the shrinking of one that fails.

use crate::{
    plan::{Act, FaultPlan},
    script::Scenario,
    verdict::{RunVerdict, Statistics},
    world::{START, SimWorld},
};
use nodectl_types::limits::JOB_REPLICAS;
use std::{
    collections::{BTreeMap, BTreeSet},
    panic::AssertUnwindSafe,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

/// How long a healed cluster may take to finish everything, beside what all tasks take on one slow
/// core.
const CALM: Duration = Duration::from_secs(1_800);
const SLOWEST: u32 = 3;
/// After that it has so long to bring all copies up to date, and between two losses, beside the
/// time that copying takes.
const QUIET: Duration = Duration::from_secs(100);
/// The longest that a node lives that knows its end, and stays away then.
const LIFETIMES: Duration = Duration::from_secs(60);
/// So many seeds reach every branch, if the simulation is any good.
const ENOUGH: u64 = 100_000;
/// Seeds with the same finding that are named besides the first.
const NAMED: usize = 20;

/// How to run.
#[derive(Clone, Debug, Default)]
pub struct RunOptions {
    pub keep_going: bool,
    pub ignored: Vec<String>,
    pub traced: u32,
    pub jobs: usize,
    pub hours: Option<f64>,
    /// The first seed that fails is shrunk.
    pub shrinks: bool,
    /// Of a shrunk seed: the rule by which it is to fail.
    pub rule: Option<String>,
}

/// What a run came to.
pub(crate) struct RunReport {
    pub statistics: Statistics,
    pub findings: BTreeMap<&'static str, String>,
}

/// Runs a plan: the storm, the calm after it, and the decay.
pub(crate) fn run(plan: FaultPlan, options: &RunOptions) -> RunReport {
    let run = AssertUnwindSafe(|| {
        let mut world = SimWorld::new(plan, options.traced);
        let RunOptions {
            keep_going,
            ignored,
            ..
        } = options;
        world.verdict = RunVerdict {
            keep_going: *keep_going,
            ignored: ignored.clone(),
            ..RunVerdict::default()
        };
        live(&mut world);
        RunReport {
            statistics: std::mem::take(&mut world.statistics),
            findings: world.verdict.findings,
        }
    });
    std::panic::catch_unwind(run).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_string()));
        let findings = BTreeMap::from([("the core panics", text.unwrap_or_default())]);
        RunReport {
            statistics: Statistics::default(),
            findings,
        }
    })
}

/// What files there will be shows while it runs: they go to holders beside each other.
fn run_until_content(world: &mut SimWorld, patience: Duration) {
    let deadline = world.now + patience;
    let is_over = |world: &SimWorld| world.now >= deadline + world.copying() * JOB_REPLICAS as u32;
    while !world.is_content() && !is_over(world) && !world.verdict.is_final() {
        world.run_for(Duration::from_millis(500));
    }
}

fn live(world: &mut SimWorld) {
    world.run_until(START + world.plan.heals_at);
    world.heal();
    // Whoever knew the end of its time before that still goes, and comes back for good.
    if world
        .plan
        .machines
        .iter()
        .any(|machine| machine.lifetime.is_some())
    {
        world.run_for(LIFETIMES);
    }
    let longest = |want: &crate::user::WantedJob| {
        Duration::from_millis(want.plan.longest_ms) * want.plan.tasks
    };
    let work = world.user.wants.iter().map(longest).sum::<Duration>() + world.pools.work();
    let patience = CALM + work * SLOWEST;
    run_until_content(world, patience);
    if !world.is_content() && world.may_wait_for_the_lost() {
        world.act(Act::Forget);
        run_until_content(world, patience);
    }
    if !world.is_content() && !world.verdict.is_final() {
        let story = world.open_wants();
        world.fail("jobs do not end", story);
    }
    let quiet = QUIET + world.copying();
    world.run_for(quiet);
    if world.verdict.is_final() {
        return;
    }
    world.check_quiet();
    while world.plan.decays && !world.verdict.is_final() {
        let up = world.up();
        if up.len() < 2 {
            break;
        }
        // Whoever knows most goes first, every other time.
        let job = world.user.jobs.keys().next().copied();
        let evil = job
            .and_then(|job| world.coordinator(job))
            .filter(|_| world.number().is_multiple_of(2));
        let victim = evil.unwrap_or(up[world.number() as usize % up.len()]);
        world.lose(victim);
        world.run_for(quiet);
        world.check_quiet();
    }
}

/// What many runs came to.
#[derive(Default)]
struct RunTotals {
    statistics: Statistics,
    /// By rule and seed.
    findings: BTreeMap<&'static str, BTreeMap<u64, String>>,
    seeds: u64,
}

impl RunTotals {
    fn add(&mut self, seed: u64, report: RunReport) {
        self.seeds += 1;
        self.statistics.add(&report.statistics);
        for (rule, text) in report.findings {
            self.findings.entry(rule).or_default().insert(seed, text);
        }
    }

    fn print(&self, took: Duration) {
        let (done, seconds) = (self.seeds, took.as_secs_f64());
        println!("{}", self.statistics);
        println!(
            "{done} seeds in {seconds:.1} s, {:.1} a second",
            done as f64 / seconds
        );
        for (rule, stories) in &self.findings {
            let Some((seed, text)) = stories.first_key_value() else {
                continue;
            };
            println!(
                "FAILED {} times: {rule}; first with seed {seed}: {text}",
                stories.len()
            );
            let others = stories.keys().skip(1).take(NAMED);
            let others: Vec<_> = others.map(u64::to_string).collect();
            if !others.is_empty() {
                println!("  also with seeds {}", others.join(", "));
            }
            let sim = "cargo run --release -p nodectl-sim --";
            println!("  replay: SIM_TRACE=1 {sim} --from {seed} --seeds 1");
            println!("  shrink: {sim} --shrink {seed}");
        }
    }
}

/// Runs one seed without these of its faults and acts, and says what it came to. True if all is
/// well.
pub fn one(seed: u64, dropped: &BTreeSet<usize>, options: &RunOptions) -> bool {
    let report = run(FaultPlan::draw(seed).without(dropped), options);
    println!("{}", report.statistics);
    for (rule, text) in &report.findings {
        println!("FAILED: {rule}: {text}");
    }
    report.findings.is_empty()
}

/// Runs seeds on several threads, until one fails or all passed. True if all is well.
pub fn many(from: u64, count: u64, options: &RunOptions) -> bool {
    let began = Instant::now();
    let deadline = options
        .hours
        .map(|hours| began + Duration::from_secs_f64(hours * 3_600.0));
    let next = AtomicU64::new(from);
    let over = AtomicBool::new(false);
    let totals = Mutex::new(RunTotals::default());
    let work = || {
        while !over.load(Ordering::Relaxed) {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            let late = deadline.is_some_and(|deadline| Instant::now() > deadline);
            if late || (deadline.is_none() && seed >= from + count) {
                break;
            }
            let report = run(FaultPlan::draw(seed), options);
            over.fetch_or(
                !options.keep_going && !report.findings.is_empty(),
                Ordering::Relaxed,
            );
            totals
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .add(seed, report);
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..options.jobs.max(1) {
            scope.spawn(work);
        }
    });
    let totals = totals.into_inner().unwrap_or_else(PoisonError::into_inner);
    totals.print(began.elapsed());
    let first = totals.findings.values().flat_map(BTreeMap::keys).min();
    if let Some(seed) = first.filter(|_| options.shrinks) {
        shrink(*seed, &BTreeSet::new(), options);
    }
    let missed = totals.statistics.missed();
    if !missed.is_empty() {
        println!("never reached: {}", missed.join("; "));
    }
    totals.findings.is_empty() && (missed.is_empty() || totals.seeds < ENOUGH)
}

/// Drops faults and acts from a failing seed while it still fails by the same rule, and tells what
/// is left.
pub fn shrink(seed: u64, dropped: &BTreeSet<usize>, options: &RunOptions) {
    let plan = FaultPlan::draw(seed);
    // Other rules must not end a run before this one does.
    let options = &RunOptions {
        keep_going: options.keep_going || options.rule.is_some(),
        ..options.clone()
    };
    let fails = |dropped: &BTreeSet<usize>| run(plan.clone().without(dropped), options).findings;
    let wanted = |rule: &str| {
        options
            .rule
            .as_ref()
            .is_none_or(|wanted| rule.contains(wanted))
    };
    let Some((rule, _)) = fails(dropped).into_iter().find(|(rule, _)| wanted(rule)) else {
        println!("seed {seed} passes");
        return;
    };
    let mut dropped = dropped.clone();
    let mut size = plan.items.len().div_ceil(2);
    while size > 0 {
        let left: Vec<_> = (0..plan.items.len())
            .filter(|index| !dropped.contains(index))
            .collect();
        let mut smaller = false;
        for chunk in left.chunks(size) {
            let mut more = dropped.clone();
            more.extend(chunk.iter().copied());
            if fails(&more).contains_key(rule) {
                dropped = more;
                smaller = true;
            }
        }
        if !smaller || size > 1 {
            size /= 2;
        }
    }
    let text = fails(&dropped).remove(rule).unwrap_or_default();
    let plan = plan.clone().without(&dropped);
    println!("seed {seed}: {rule}: {text}");
    println!(
        "{} nodes, decays: {}, with no more than",
        plan.machines.len(),
        plan.decays
    );
    print!("{}", plan.story());
    let list: Vec<_> = dropped.iter().map(usize::to_string).collect();
    println!(
        "replay: SIM_TRACE=1 cargo run --release -p nodectl-sim -- --from {seed} --seeds 1 --drop {}",
        if list.is_empty() {
            "none".into()
        } else {
            list.join(",")
        }
    );
}

/// Runs the scenarios whose names contain a text, on several threads unless a trace is to be read.
/// True if all pass.
pub fn scenarios(name: &str) -> bool {
    let named = |(scenario, _): &Scenario| scenario.contains(name);
    let next = Mutex::new(crate::scenarios::all().into_iter().filter(named));
    let failed = AtomicBool::new(false);
    let take = || next.lock().unwrap_or_else(PoisonError::into_inner).next();
    let work = || {
        while let Some((scenario, run)) = take() {
            let began = Instant::now();
            let result = std::panic::catch_unwind(run);
            let word = if result.is_ok() { "passed" } else { "FAILED" };
            println!(
                "{word} {scenario} in {:.1} s",
                began.elapsed().as_secs_f64()
            );
            failed.fetch_or(result.is_err(), Ordering::Relaxed);
        }
    };
    let threads = match std::env::var_os("SIM_TRACE") {
        Some(_) => 1,
        None => std::thread::available_parallelism().map_or(1, usize::from),
    };
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(work);
        }
    });
    !failed.into_inner()
}
