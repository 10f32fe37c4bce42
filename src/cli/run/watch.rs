//! `run --follow DIR`: integrates files as they appear below a directory, until it is told to stop.
//! A file is taken once it has rested for a moment and can be read; one that changes afterwards is
//! integrated again.

use super::{
    follow,
    followed::Followed,
    interrupt::{self, Interrupts, RunPlan},
    progress::ProgressDisplay,
    submit, summary,
};
use crate::{
    args::RunArgs,
    exit::{CliError, Exit, print},
    output, solo,
};
use nodectl_app::settings::Settings;
use nodectl_azint::{self as azint, frames::Stack};
use nodectl_http::Client;
use nodectl_jobfile::{Following, PlannedJob};
use nodectl_ports::wall_ms;
use nodectl_workloads::load_following;
use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

/// How often the directory is looked at.
const PERIOD: Duration = Duration::from_millis(500);
/// A file that did not change for so long is whole, if it can be read.
const REST: Duration = Duration::from_secs(2);
/// One that cannot be read is tried after this long, so that the user learns why.
const PATIENCE: Duration = Duration::from_secs(60);
/// Files that are integrated together.
const MOST_AT_ONCE: usize = 16;
/// How deep below the directory files are looked for.
const MAX_DEPTH: usize = 32;

/// Length and time of change, of a file together with those that it leads to: a master file stays
/// as it is while its data files grow.
type FileStamp = (u64, u64);

/// Files and what is known of them.
struct FileWatch {
    dir: PathBuf,
    /// Directories below it that results are written to.
    results: Vec<PathBuf>,
    /// Since when a file has been as it is.
    resting: BTreeMap<PathBuf, (FileStamp, Instant)>,
    /// As it was when it was integrated.
    taken: BTreeMap<PathBuf, FileStamp>,
    /// Files that could not be read even then: they are tried again when they can be.
    unreadable: BTreeSet<PathBuf>,
    /// What a file leads to, as far as it was looked into.
    led_to: BTreeMap<PathBuf, Vec<PathBuf>>,
}

/// Runs the job of a file on what appears below `dir`.
pub async fn watch(args: RunArgs, dir: &Path, settings: &Settings) -> Result<Exit, CliError> {
    if !dir.is_dir() {
        return Err(CliError::Usage(format!(
            "{} is not a directory",
            dir.display()
        )));
    }
    // Mistakes in the job file show at once.
    let jobs = load_following(
        args.job_file(),
        &Following {
            files: Vec::new(),
            root: dir.to_path_buf(),
        },
    )?;
    let watch = FileWatch::new(dir, results(&jobs, args.follow.into.as_deref()))?;
    let (client, mut stay) = solo::connect(settings, true).await?;
    if let Some(node) = stay
        .own()
        .filter(|_| jobs.iter().any(PlannedJob::concerns_gpus))
    {
        node.gpus_known().await;
    }
    let ended = integrate_all(&client, &args, watch, stay.is_solo()).await;
    stay.end().await;
    ended
}

async fn integrate_all(
    client: &Client,
    args: &RunArgs,
    mut watch: FileWatch,
    solo: bool,
) -> Result<Exit, CliError> {
    let mut interrupts = Interrupts::listen()?;
    let plan = RunPlan::new(&args.follow, solo);
    let mut exit = Exit::Done;
    tell!("watching {}; Ctrl-C ends it", watch.dir.display());
    loop {
        let files = watch.ready(Instant::now());
        if files.is_empty() {
            tokio::select! {
                () = tokio::time::sleep(PERIOD) => continue,
                _ = interrupts.next() => return Ok(exit),
            }
        }
        let following = Following {
            files,
            root: watch.dir.clone(),
        };
        let jobs = load_following(args.job_file(), &following)?;
        let file = Some(args.job_file());
        let jobs = super::with_what_there_is(client, file, jobs, Some(&following)).await?;
        let into = runs(&jobs, args.follow.into.as_deref()).join(wall_ms().to_string());
        let key = submit::CommandKey::draw();
        let submitting = submit::submit(client, jobs, Some(&into), &key, None);
        let Some(submitted) = interrupts.submitting(submitting).await else {
            return Ok(Exit::Interrupted);
        };
        let (ended, is_over) = follow_batch(client, &submitted?, &plan, &mut interrupts).await?;
        // One bad file is told of, and does not end the watch.
        if ended != Exit::Done {
            exit = ended;
        }
        if is_over {
            return Ok(exit);
        }
    }
}

/// Follows what was submitted. Also tells whether the watch is to end.
async fn follow_batch(
    client: &Client,
    jobs: &[Followed],
    plan: &RunPlan,
    interrupts: &mut Interrupts,
) -> Result<(Exit, bool), CliError> {
    let progress = ProgressDisplay::choose(plan.list.quiet, plan.verbose);
    let following = follow::follow_all(client, jobs, &progress);
    tokio::pin!(following);
    let (ends, is_over) = tokio::select! {
        ends = &mut following => (ends?, false),
        _ = interrupts.next() => {
            tell!("ends with what is running; Ctrl-C again cancels it");
            match interrupt::guard(client, jobs, plan, &progress, interrupts, following).await? {
                interrupt::EndedBy::Followed { ends, .. } => (ends, true),
                interrupt::EndedBy::Detached => return Ok((Exit::Interrupted, true)),
            }
        }
    };
    if !plan.list.quiet {
        summary::tell(&ends);
    }
    if !plan.list.json && !plan.list.quiet {
        summary::print_single_tasks(client, &ends).await?;
    }
    print(&output::choose(plan.list).summary(&ends))?;
    Ok((summary::exit(&ends), is_over))
}

/// Where the directories of tasks go: beside the results.
fn runs(jobs: &[PlannedJob], into: Option<&Path>) -> PathBuf {
    let delivery = jobs.iter().find_map(|job| job.delivery.as_ref());
    let beside = delivery.map_or(PathBuf::from("runs"), |delivery| {
        delivery.directory.join("runs")
    });
    into.map_or(beside, Path::to_path_buf)
}

/// Every directory that results are written to.
fn results(jobs: &[PlannedJob], into: Option<&Path>) -> Vec<PathBuf> {
    let deliveries = jobs
        .iter()
        .filter_map(|job| job.delivery.as_ref())
        .map(|delivery| delivery.directory.clone());
    deliveries.chain([runs(jobs, into)]).collect()
}

impl FileWatch {
    fn new(dir: &Path, results: Vec<PathBuf>) -> Result<Self, CliError> {
        let absolute =
            |path: &Path| std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf());
        let (dir, results) = (
            absolute(dir),
            results
                .iter()
                .map(|path| absolute(path))
                .collect::<Vec<_>>(),
        );
        if results.contains(&dir) {
            let told = format!(
                "results would be written into {}, which is watched",
                dir.display()
            );
            return Err(CliError::Usage(format!(
                "{told}\nhint: a directory below or beside it may be `output`"
            )));
        }
        Ok(Self {
            dir,
            results,
            resting: BTreeMap::new(),
            taken: BTreeMap::new(),
            unreadable: BTreeSet::new(),
            led_to: BTreeMap::new(),
        })
    }

    /// The files that are to be integrated now, for the first time or again.
    fn ready(&mut self, now: Instant) -> Vec<PathBuf> {
        let found = azint::files_below(&self.dir, MAX_DEPTH, &self.results);
        let names: BTreeSet<&PathBuf> = found.iter().map(|(path, _)| path).collect();
        self.resting.retain(|path, _| names.contains(path));
        let mut ready = Vec::new();
        for (path, own) in found {
            let state = self.with_led_to(&path, own);
            let failed = self.unreadable.contains(&path);
            if self.taken.get(&path) == Some(&state) && !failed {
                continue;
            }
            let (known, since) = self.resting.entry(path.clone()).or_insert((state, now));
            if *known != state {
                (*known, *since) = (state, now);
            }
            let rested = now.duration_since(*since);
            // A master file may come after the files that it leads to.
            let rest = match azint::is_data_file(&path) {
                true => PATIENCE,
                false => REST,
            };
            if rested < rest {
                continue;
            }
            match Stack::open(&path, None, None) {
                // What it leads to may still be written.
                Ok(stack) if self.leads_to_more(&path, &stack) => {
                    let state = self.with_led_to(&path, own);
                    self.resting.insert(path, (state, now));
                }
                // Files may still come.
                Ok(stack) if stack.lacks_files() && rested < PATIENCE => {}
                Ok(_) => {
                    self.unreadable.remove(&path);
                    ready.push((path, state));
                }
                Err(_) if rested >= PATIENCE && !failed => {
                    self.unreadable.insert(path.clone());
                    ready.push((path, state));
                }
                Err(_) => {}
            }
            if ready.len() == MOST_AT_ONCE {
                break;
            }
        }
        let take = |(path, state): (PathBuf, FileStamp)| {
            self.resting.remove(&path);
            self.taken.insert(path.clone(), state);
            path
        };
        ready.into_iter().map(take).collect()
    }

    /// Learns what a file leads to; true if that is news.
    fn leads_to_more(&mut self, path: &Path, stack: &Stack) -> bool {
        let others: Vec<_> = stack
            .files()
            .into_iter()
            .filter(|file| file != path)
            .collect();
        let before = self.led_to.get(path).map_or(&[][..], Vec::as_slice);
        let is_news = before != others;
        if is_news {
            self.led_to.insert(path.to_path_buf(), others);
        }
        is_news
    }

    fn with_led_to(&self, path: &Path, own: FileStamp) -> FileStamp {
        let others = self.led_to.get(path).into_iter().flatten();
        let states = others.filter_map(|file| Some(azint::seen(&file.metadata().ok()?)));
        states.fold(own, |(bytes, changed), (more, later)| {
            (bytes + more, changed.max(later))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{fs, slice};

    #[test]
    fn a_file_is_taken_when_it_rests_and_again_when_it_changed() {
        let dir = tempfile::tempdir().unwrap();
        let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/frames");
        fs::create_dir(dir.path().join("scan")).unwrap();
        let (path, bad) = (dir.path().join("scan/a.h5"), dir.path().join("bad.h5"));
        fs::copy(fixture.join("chunked.h5"), &path).unwrap();
        fs::copy(
            fixture.join("eiger_data_000001.h5"),
            dir.path().join("eiger_data_000001.h5"),
        )
        .unwrap();
        fs::write(&bad, "not yet").unwrap();
        let results = dir.path().join("patterns");
        fs::create_dir(&results).unwrap();
        fs::copy(fixture.join("chunked.h5"), results.join("of_a.h5")).unwrap();
        let (mut watch, start) = (
            FileWatch::new(dir.path(), vec![results]).unwrap(),
            Instant::now(),
        );
        let mut ready = |seconds: u64| watch.ready(start + Duration::from_secs(seconds));
        assert_eq!(ready(0), Vec::<PathBuf>::new(), "it may still be written");
        assert_eq!(ready(3), slice::from_ref(&path));
        assert_eq!(ready(6), Vec::<PathBuf>::new(), "once is enough");
        fs::copy(fixture.join("tiles.h5"), &path).unwrap();
        assert_eq!(ready(7), Vec::<PathBuf>::new());
        assert_eq!(ready(10), [path]);
        // Why one cannot be read is worth knowing. Data that no master file leads to are taken
        // by themselves.
        let data = dir.path().join("eiger_data_000001.h5");
        assert_eq!(ready(70), [bad, data]);
    }

    #[test]
    fn a_master_file_is_taken_again_when_what_it_leads_to_has_changed() {
        let dir = tempfile::tempdir().unwrap();
        let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/frames");
        let bring = |name: &str, as_name: &str| {
            fs::copy(fixture.join(name), dir.path().join(as_name)).unwrap();
        };
        bring("eiger_master.h5", "eiger_master.h5");
        let master = dir.path().join("eiger_master.h5");
        let (mut watch, start) = (
            FileWatch::new(dir.path(), vec![dir.path().join("out")]).unwrap(),
            Instant::now(),
        );
        let mut ready = |seconds: u64| watch.ready(start + Duration::from_secs(seconds));
        let none = Vec::<PathBuf>::new();
        assert_eq!(ready(0), none);
        assert_eq!(ready(59), none, "its data may be on their way");
        assert_eq!(
            ready(60),
            slice::from_ref(&master),
            "why it cannot be read is worth knowing"
        );
        assert_eq!(ready(200), none, "once");
        bring("eiger_data_000001.h5", "eiger_data_000001.h5");
        bring("eiger_data_000002.h5", "eiger_data_000002.h5");
        assert_eq!(ready(203), none, "they may still be written");
        assert_eq!(ready(206), slice::from_ref(&master));
        assert_eq!(ready(300), none);
        bring("eiger_data_000001.h5", "eiger_data_000002.h5");
        let data = fs::File::options()
            .write(true)
            .open(dir.path().join("eiger_data_000002.h5"));
        let later = std::time::SystemTime::now() + Duration::from_secs(5);
        data.unwrap().set_modified(later).unwrap();
        assert_eq!(ready(301), none);
        assert_eq!(ready(304), [master]);
    }

    #[test]
    fn results_have_a_directory_of_their_own() {
        let dir = tempfile::tempdir().unwrap();
        let refused = |results: &Path| {
            FileWatch::new(&dir.path().join("raw"), vec![results.to_path_buf()]).is_err()
        };
        assert!(refused(&dir.path().join("raw")));
        assert!(!refused(&dir.path().join("raw/patterns")) && !refused(dir.path()));
    }
}
