//! One schedule from beginning to end: a cluster, clients and faults beside each other, then
//! everything heals, jobs end, and all that was told is read again; then, perhaps, machine after
//! machine is lost.

use crate::{
    HistorySettings, check,
    clients::{ClientJob, Crowd, pause},
    common::netns::Lab,
    guests::{self, GuestPool},
    history::{self, FORMAT, HistoryLog},
    machines::{self, Site},
    nemesis::{Nemesis, REPAIR},
    plan::{FaultKind, KINDS, NemesisPlan, Rng},
    walls,
};
use serde_json::{Value, json};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    sync::{Mutex, RwLock, atomic::Ordering},
    thread,
    time::{Duration, Instant},
};

/// Jobs that have not ended by then in a cluster that is whole never will.
const ENDS_WITHIN: Duration = Duration::from_secs(150);
/// What is asked of a cluster that is whole is answered by then; all that is asked of it one after
/// the other has this much patience.
const ANSWERS_WITHIN: Duration = Duration::from_secs(30);
const DISK: &str = "96m";
const SUBMITTERS: u64 = 2;
const FAKETIME: [&str; 2] = [
    "/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1",
    "/usr/lib/faketime/libfaketimeMT.so.1",
];

/// Runs it; gives what is to be said of it, and where its history is if that was kept. None, said
/// with its reason, where it cannot run.
pub fn run(
    settings: &HistorySettings,
    seed: u64,
    seconds: u64,
) -> Option<(check::HistoryVerdict, PathBuf)> {
    let plan = NemesisPlan::new(seed, seconds, settings.only.as_deref());
    let losses = plan
        .steps
        .iter()
        .filter(|step| step.kind == FaultKind::Lost)
        .count();
    let hosts = plan.nodes + losses;
    let lab = Lab::new(hosts)?;
    let dir = tempfile::Builder::new()
        .prefix("nodectl-history-")
        .tempdir()
        .expect("a temporary directory");
    let path = dir.path();
    write_files(path, seed);
    let clocks = FAKETIME
        .iter()
        .map(Path::new)
        .find(|library| library.exists());
    let mounts = can_mount(path);
    let lacking = lacking(&lab, clocks.is_none(), mounts.clone().err());
    say_what_is_missed(&plan, seed, &lacking);
    let history_file = path.join("history.jsonl");
    let history = HistoryLog::new(&history_file).expect("writable");
    let names = |kinds: &[FaultKind]| kinds.iter().map(FaultKind::to_string).collect::<Vec<_>>();
    let skipped: BTreeMap<String, &String> = lacking
        .iter()
        .map(|(kind, why)| (kind.to_string(), why))
        .collect();
    history.note(
        "begin",
        json!({
            "format": FORMAT, "seed": seed, "seconds": seconds, "nodes": plan.nodes, "faults": names(&plan.kinds), "skipped": skipped,
            "decay": plan.decay, "repair_ms": REPAIR.as_millis() as u64,
        }),
    );
    let crowd = Crowd {
        history: history.clone(),
        nodes: RwLock::default(),
        jobs: Mutex::default(),
        over: false.into(),
        keyed: false.into(),
        dir: path.to_path_buf(),
    };
    let site = Site {
        lab: &lab,
        dir: path,
        settings,
        history: &history,
        clocks: clocks.filter(|_| plan.kinds.contains(&FaultKind::Clock)),
        disk_size: mounts.is_ok().then_some(DISK),
    };
    let started = Nemesis::new(
        site,
        &crowd,
        plan.nodes,
        hosts,
        lacking.keys().copied().collect(),
    );
    match started {
        Ok(nemesis) => faults_then_quiet(nemesis, &plan),
        Err(why) => history.note("unusable", json!({ "why": why })),
    }
    guests::merge_notes(&history, path);
    history.flush().expect("the disk of the test has room");
    let text = fs::read_to_string(&history_file).expect("written above");
    let lines = history::read(&text).expect("its format is ours");
    let verdict = check::check(&lines);
    let kept = keep(settings, seed, path, &verdict);
    Some((verdict, kept))
}

/// What nodes and tasks of the run read and write.
fn write_files(dir: &Path, seed: u64) {
    let unique = crate::common::unique();
    let secret = format!("granite lantern, orbit walnut, schedule {seed} {unique}");
    fs::write(dir.join("secret"), secret).expect("writable");
    fs::write(dir.join("task.sh"), include_str!("task.sh")).expect("writable");
    for notes in ["tasks.notes", "pool.notes"] {
        fs::write(dir.join(notes), "").expect("writable");
    }
}

fn say_what_is_missed(plan: &NemesisPlan, seed: u64, lacking: &BTreeMap<FaultKind, String>) {
    let missed = lacking
        .iter()
        .filter(|(kind, _)| plan.steps.iter().any(|step| step.kind == **kind));
    let missed: Vec<String> = missed
        .map(|(kind, why)| format!("`{kind}` {why}"))
        .collect();
    if !missed.is_empty() {
        eprintln!("SKIPPED: some faults of seed {seed}: {}", missed.join("; "));
    }
}

fn faults_then_quiet(mut nemesis: Nemesis, plan: &NemesisPlan) {
    let crowd = nemesis.crowd;
    let mut rng = Rng::new(plan.clients_seed);
    let first = nemesis.machines[0].api();
    if let Ok(api) = first.get("/v1/openapi.json", ANSWERS_WITHIN) {
        let keyed = api["components"]["schemas"]["JobRequest"]["properties"]["key"].is_object();
        crowd.keyed.store(keyed, Ordering::Relaxed);
    }
    nemesis.kept = plan.guests.pool.then_some(0);
    nemesis.silence = !plan.guests.training;
    nemesis.blobs_may = plan.decay == 0 && !plan.kinds.contains(&FaultKind::Lost);
    let pool = plan
        .guests
        .pool
        .then(|| GuestPool::open(&nemesis.site, &nemesis.machines[0], 0.1));
    let mut pool = pool.and_then(|opened| match opened {
        Ok(pool) => Some(pool),
        Err(why) => {
            eprintln!("SKIPPED: a pool beside the jobs: {why}");
            None
        }
    });
    let seeds: Vec<u64> = (0..SUBMITTERS + 3).map(|_| rng.next()).collect();
    let site = nemesis.site;
    thread::scope(|scope| {
        for number in 0..SUBMITTERS {
            let mut rng = Rng::new(seeds[number as usize]);
            scope.spawn(move || crowd.submit_jobs(&format!("j{number}"), &mut rng));
        }
        let mut readers = Rng::new(seeds[SUBMITTERS as usize]);
        scope.spawn(move || crowd.read_jobs("reader", &mut readers));
        if plan.guests.drain {
            let mut drainers = Rng::new(seeds[SUBMITTERS as usize + 1]);
            scope.spawn(move || crowd.drain_nodes("drainer", &mut drainers));
        }
        if plan.guests.training {
            let mut trainers = Rng::new(seeds[SUBMITTERS as usize + 2]);
            scope.spawn(move || guests::train(&site, crowd, &mut trainers));
        }
        nemesis.carry_out(&plan.steps);
        crowd.over.store(true, Ordering::Relaxed);
    });
    nemesis.end_all();
    nemesis.wait_whole();
    if let Some(pool) = &mut pool {
        close(&mut nemesis, pool);
    }
    // Jobs that are waited for no more.
    let mut given_up = BTreeSet::new();
    settle(&mut nemesis, &mut rng, &mut given_up);
    nemesis.wait(REPAIR);
    let mut answers = read_all(&mut nemesis, &mut rng);
    guests::count_samples(&site, crowd, &nemesis.machines[nemesis.up()[0]].name);
    for _ in 0..plan.decay {
        // What has broken already takes long to answer, and more losses would show nothing new.
        if nemesis.up().len() > 2 && answers {
            nemesis.decay(&mut rng);
            settle(&mut nemesis, &mut rng, &mut given_up);
            answers = read_all(&mut nemesis, &mut rng);
        }
    }
    nemesis.site.history.note("over", json!({}));
}

fn close(nemesis: &mut Nemesis, pool: &mut GuestPool) {
    pool.close();
    let end = Instant::now() + ENDS_WITHIN;
    while !pool.has_ended() {
        if Instant::now() > end {
            nemesis.site.history.note(
                "pool",
                json!({ "event": "hangs", "pool": "pool", "worker": "client" }),
            );
            return;
        }
        nemesis.wait(Duration::from_millis(100));
    }
}

/// Nothing is drained any more, what waits for a word gets it, and all jobs end; what does not is
/// noted with its reasons.
fn settle(nemesis: &mut Nemesis, rng: &mut Rng, given_up: &mut BTreeSet<String>) {
    let crowd = nemesis.crowd;
    let end = Instant::now() + ENDS_WITHIN;
    for (node, api) in crowd.names() {
        while !crowd.drain("drainer", &node, &api, false) && Instant::now() < end {
            nemesis.wait(Duration::from_millis(300));
        }
    }
    let jobs = crowd.jobs.lock().expect("nobody panics with it").clone();
    let mut open: Vec<&ClientJob> = jobs
        .iter()
        .filter(|job| !given_up.contains(&job.name))
        .collect();
    while !open.is_empty() && Instant::now() < end {
        open.retain(|job| match crowd.phase_of(job, rng).as_deref() {
            Some("done" | "cancelled") => false,
            Some("failed") if job.gated => !crowd.open_gate("settler", job, rng),
            Some("failed") => false,
            _ => true,
        });
        nemesis.wait(Duration::from_millis(200));
    }
    for job in open {
        given_up.insert(job.name.clone());
        let (node, api) = rng.pick(&crowd.names()).clone();
        let said = api.get(&format!("/v1/jobs/{}/explain", job.id), ANSWERS_WITHIN);
        let lines = said.map_or_else(
            |failure| json!([failure.text]),
            |answer| answer["lines"].clone(),
        );
        nemesis.site.history.note(
            "open",
            json!({ "job": job.name, "node": node, "explain": lines }),
        );
    }
}

/// Every node is asked for all results of every job, and for each file once. From here on
/// everything that was told has to be there. False if so much came to nothing that the rest was not
/// asked.
fn read_all(nemesis: &mut Nemesis, rng: &mut Rng) -> bool {
    let crowd = nemesis.crowd;
    nemesis.site.history.note("quiet", json!({}));
    let nodes = crowd.names();
    let jobs = crowd.jobs.lock().expect("nobody panics with it").clone();
    let mut patience = ANSWERS_WITHIN;
    for job in &jobs {
        let mut rows: Vec<Value> = Vec::new();
        for node in &nodes {
            let found = again(&mut patience, || {
                crowd
                    .read("final", job, node)
                    .map_err(|failure| failure.refused)
            });
            rows = found.unwrap_or(rows);
        }
        for row in rows
            .iter()
            .filter(|row| row["status"] == "done" && job.bytes > 0)
        {
            let target = rng.pick(&nodes).clone();
            again(&mut patience, || {
                crowd
                    .fetch("final", job, row, &target)
                    .map_err(|failure| failure.refused)
            });
        }
    }
    if patience.is_zero() {
        nemesis.site.history.note("silent", json!({}));
    }
    for (node, api) in &nodes {
        let call = nemesis.site.history.call("final", node, "list", json!({}));
        let list = api.get("/v1/jobs", ANSWERS_WITHIN);
        let line =
            |job: &Value| json!({ "id": job["id"], "job": job["name"], "phase": job["phase"] });
        let said =
            list.map(|list| json!({ "jobs": list.as_array().into_iter().flatten().map(line).collect::<Vec<_>>() }));
        nemesis
            .site
            .history
            .answer(call, &said.map_err(|failure| failure.text));
    }
    nemesis.site.history.note("read", json!({}));
    !patience.is_zero()
}

/// Asks until there is an answer or a refusal. Whatever came to nothing costs patience, and nothing
/// is asked without any.
fn again<T>(patience: &mut Duration, mut ask: impl FnMut() -> Result<T, bool>) -> Option<T> {
    while !patience.is_zero() {
        let begun = Instant::now();
        let refused = match ask() {
            Ok(answer) => return Some(answer),
            Err(refused) => refused,
        };
        if !refused {
            pause(Duration::from_millis(300));
        }
        *patience = patience.saturating_sub(begun.elapsed());
        if refused {
            break;
        }
    }
    None
}

/// Kinds of faults that cannot be had here, each with the reason.
fn lacking(lab: &Lab, no_clocks: bool, no_disks: Option<String>) -> BTreeMap<FaultKind, String> {
    let network = walls::lacking(lab);
    let reason = |kind: FaultKind| match kind {
        FaultKind::Cut
        | FaultKind::Part
        | FaultKind::Oneway
        | FaultKind::Reset
        | FaultKind::Loss => network.get("nft").cloned(),
        FaultKind::Delay => network.get("netem").cloned(),
        FaultKind::Slow => network.get("tbf").cloned(),
        FaultKind::Clock => no_clocks.then(|| "needs libfaketime (apt install libfaketime)".into()),
        FaultKind::Full => no_disks
            .clone()
            .map(|why| format!("a small disk cannot be mounted: {}", why.trim())),
        _ => None,
    };
    KINDS
        .into_iter()
        .filter_map(|kind| Some((kind, reason(kind)?)))
        .collect()
}

fn can_mount(dir: &Path) -> Result<(), String> {
    let at = dir.join("tried");
    fs::create_dir(&at).map_err(|error| error.to_string())?;
    machines::mount(&at, "1m")?;
    let _ = std::process::Command::new("umount")
        .arg("-l")
        .arg(&at)
        .output();
    Ok(())
}

/// Where the history lies afterwards: of a violation, and if asked to always, it is kept with the
/// nodes' logs.
fn keep(
    settings: &HistorySettings,
    seed: u64,
    dir: &Path,
    verdict: &check::HistoryVerdict,
) -> PathBuf {
    let into = settings.keep.join(format!("seed-{seed}"));
    if verdict.violations.is_empty() && !settings.keep_all {
        return into;
    }
    let names = fs::read_dir(dir)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path());
    let wanted = names.filter(|path| {
        path.extension()
            .is_some_and(|end| ["jsonl", "log", "notes"].iter().any(|one| end == *one))
    });
    let _ = fs::remove_dir_all(&into);
    if fs::create_dir_all(&into).is_ok() {
        for path in wanted {
            let _ = fs::copy(
                &path,
                into.join(path.file_name().expect("an entry has one")),
            );
        }
    }
    into
}

/// The kinds of faults that a seed's schedule has, for people.
pub fn describe(plan: &NemesisPlan) -> String {
    let kinds: BTreeSet<String> = plan
        .steps
        .iter()
        .map(|step| step.kind.to_string())
        .collect();
    let kinds: Vec<String> = kinds.into_iter().collect();
    format!(
        "{} nodes, {} faults ({}), then {} lost",
        plan.nodes,
        plan.steps.len(),
        kinds.join(" "),
        plan.decay
    )
}
