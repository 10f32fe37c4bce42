//! Making an environment: its programs run one after the other under the supervisor, as tasks do,
//! with limits of time, output and size, kept from what is this node's alone.

use super::{
    super::{
        blocking::blocking,
        directory,
        environment::{with_node_tools, with_python},
        isolation::Confiner,
        link::SupervisorLink,
        protocol::{Launch, ProcessEnd, STDERR_FILE, STDOUT_FILE, TASK_DIR_VARIABLE},
        staging::Staged,
    },
    Workshop, failed_on, find, home, lock,
    recipe::{self, Recipe},
    shelf::EnvironmentShelf,
    steps::{self, MakingPlace, MakingStep, PROJECT, VENV},
};
use nodectl_types::{ErrorReport, python::PythonEnvironment, text};
use std::{
    collections::HashMap,
    fs,
    io::{self, Read, Seek, SeekFrom},
    os::unix::{ffi::OsStrExt, fs::PermissionsExt},
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

/// What one program may take.
const PATIENCE: Duration = Duration::from_secs(30 * 60);
const GRACE: Duration = Duration::from_secs(2);
/// Of what it writes.
const LOG_BYTES: u64 = 4 << 20;
/// No file of an environment is larger, nor than the limit of all together.
const FILE_BYTES: u64 = 8 << 30;
/// Of its end, so much is looked at.
const LAST_BYTES: u64 = 64 << 10;
/// Of which people are shown the last.
const SHOWN_LINES: usize = 12;
/// Where the network seems to be at fault, another try begins after each of these.
const PAUSES: [Duration; 2] = [Duration::from_secs(2), Duration::from_secs(8)];

pub struct Maker {
    workshop: Workshop,
    /// What runs now for each environment that is being made, by its name, and since when.
    running: Mutex<HashMap<String, (String, Instant)>>,
}

/// How a program failed.
struct FailedStep {
    why: String,
    output: String,
}

/// What the programs run with.
struct Bench<'a> {
    root: &'a Path,
    work: PathBuf,
    links: &'a [(String, PathBuf)],
    link: Arc<SupervisorLink>,
    confiner: &'a Confiner,
}

impl Maker {
    pub fn new(workshop: Workshop) -> Self {
        Self {
            workshop,
            running: Mutex::default(),
        }
    }

    /// What runs now to make this environment, and for how long.
    pub fn running(&self, name: &str) -> Option<(String, Duration)> {
        let running = lock(&self.running);
        let (step, since) = running.get(name)?;
        Some((step.clone(), since.elapsed()))
    }

    fn runs(&self, name: &str, step: &str) {
        lock(&self.running).insert(name.into(), (step.into(), Instant::now()));
    }

    pub fn report(&self, why: &str) -> ErrorReport {
        failed_on(&self.workshop.node, why)
    }

    /// Finds its Python, and names it. Blocks.
    pub fn plan(
        &self,
        wanted: PythonEnvironment,
        links: Vec<(String, PathBuf)>,
    ) -> Result<Recipe, String> {
        let interpreter = match wanted.conda {
            Some(_) => None,
            None => self.interpreter(wanted.version.as_deref())?,
        };
        Recipe::new(wanted, interpreter, links)
            .map_err(|error| format!("what it is made of cannot be read: {error}"))
    }

    /// None where uv has to fetch it.
    fn interpreter(&self, wanted: Option<&str>) -> Result<Option<find::Interpreter>, String> {
        let base = &self.workshop.base_env;
        let search = find::search_path(base);
        let seen = match find::interpreter(wanted, &search, home(base)) {
            Ok(found) => return Ok(Some(found)),
            Err(seen) => seen,
        };
        if wanted.is_some() && !find::on_path("uv", &search).is_empty() {
            return Ok(None);
        }
        let wanted = wanted.unwrap_or("3");
        let seen = match seen[..] {
            [] => "none at all".into(),
            _ => format!("only {}", seen.join(", ")),
        };
        Err(format!(
            "there is no Python {wanted}, {seen}\n\
             hint: install it there, or uv, which fetches it; `nodectl doctor JOB` asks all nodes"
        ))
    }

    /// Makes it at `root`. What is there when this fails is the caller's to remove.
    pub async fn make(
        &self,
        recipe: &Arc<Recipe>,
        root: &Path,
        link: Option<Arc<SupervisorLink>>,
        confiner: &Confiner,
    ) -> Result<(), ErrorReport> {
        let told = |why: &str| self.report(why);
        let link = link.ok_or_else(|| told("this node is leaving"))?;
        let work = super::workplaces(&self.workshop.data_dir).join(&recipe.name);
        let bench = Bench {
            root,
            work,
            links: &recipe.links,
            link,
            confiner,
        };
        let begun = Instant::now();
        self.runs(&recipe.name, "prepare");
        let made = self.make_on(&bench, recipe).await;
        lock(&self.running).remove(&recipe.name);
        made?;
        let seconds = begun.elapsed().as_secs_f64();
        tracing::info!(name = recipe.name, seconds, "made a Python environment");
        Ok(())
    }

    async fn make_on(&self, bench: &Bench<'_>, recipe: &Arc<Recipe>) -> Result<(), ErrorReport> {
        let told = |why: &str| self.report(why);
        tracing::info!(name = recipe.name, "making a Python environment");
        let prepare = {
            let (recipe, root, work) =
                (recipe.clone(), bench.root.to_path_buf(), bench.work.clone());
            move || prepare(&recipe, &root, &work)
        };
        let prepared = blocking(prepare).await;
        prepared.map_err(|error| told(&format!("its directory could not be made: {error}")))?;
        let made = self.run_all(recipe, bench).await;
        let clear = {
            let work = bench.work.clone();
            move || directory::remove_tree(&work)
        };
        if let Err(error) = blocking(clear).await {
            tracing::warn!(%error, "could not remove where an environment was made");
        }
        made
    }

    async fn run_all(&self, recipe: &Recipe, bench: &Bench<'_>) -> Result<(), ErrorReport> {
        let search = find::search_path(&self.workshop.base_env);
        let place = MakingPlace {
            root: bench.root,
            search: &search,
        };
        for step in steps::of(recipe, &place) {
            self.runs(&recipe.name, &step.name);
            self.run_patiently(&step, bench).await?;
        }
        let unpack = bench.root.join(VENV).join("bin/conda-unpack");
        if recipe.wanted.conda.is_some() && super::exists(&unpack) {
            let command = vec![unpack.to_string_lossy().into_owned()];
            let step = MakingStep {
                name: "conda-unpack".into(),
                command,
            };
            self.run_patiently(&step, bench).await?;
        }
        let python = bench.root.join(VENV).join("bin/python");
        if python.exists() {
            Ok(())
        } else {
            Err(self.report("what was made has no bin/python"))
        }
    }

    /// Once more where the network may have been to blame.
    async fn run_patiently(&self, step: &MakingStep, bench: &Bench<'_>) -> Result<(), ErrorReport> {
        let mut pauses = PAUSES.iter();
        loop {
            let Err(failed) = self.run(step, bench).await else {
                return Ok(());
            };
            let again = pauses
                .next()
                .filter(|_| steps::is_worth_another_try(&failed.output));
            let Some(pause) = again else {
                let mut report = self.report(&format!("`{}`: {}", step.name, failed.why));
                report.traceback = last_lines(&failed.output);
                return Err(report.bounded());
            };
            tracing::info!(
                step = step.name,
                why = failed.why,
                "tries again: the network may be at fault"
            );
            tokio::time::sleep(*pause).await;
        }
    }

    async fn run(&self, step: &MakingStep, bench: &Bench<'_>) -> Result<(), FailedStep> {
        let launched = bench.link.launch(self.launch(step, bench)?);
        let ended = launched.ended.await;
        let (end, _) = ended.unwrap_or((ProcessEnd::Stopped, Default::default()));
        if end == ProcessEnd::Exited(0) {
            return Ok(());
        }
        let work = bench.work.clone();
        let output = blocking(move || output(&work)).await;
        let why = match &end {
            ProcessEnd::TimedOut => {
                format!("it took longer than {} minutes", PATIENCE.as_secs() / 60)
            }
            ProcessEnd::Exited(_) => steps::reason(&output).unwrap_or_else(|| end.describe()),
            end => end.describe(),
        };
        Err(FailedStep { why, output })
    }

    fn launch(&self, step: &MakingStep, bench: &Bench<'_>) -> Result<Launch, FailedStep> {
        let mut env = with_node_tools(&self.workshop.base_env, bench.root);
        let mut mark = format!("{TASK_DIR_VARIABLE}=").into_bytes();
        mark.extend(bench.work.as_os_str().as_bytes());
        env.push(mark);
        let confinement = bench
            .confiner
            .confine_making(&[bench.root, &bench.work], bench.links)
            .map_err(|error| FailedStep {
                why: error.to_string(),
                output: String::new(),
            })?;
        Ok(Launch {
            id: 0,
            dir: bench.work.as_os_str().as_bytes().to_vec(),
            command: step.command.clone(),
            env: with_python(env, &bench.root.join(VENV)),
            timeout_ms: u64::try_from(PATIENCE.as_millis()).ok(),
            grace_ms: u64::try_from(GRACE.as_millis()).unwrap_or_default(),
            file_limit_bytes: self.workshop.limit_bytes.max(FILE_BYTES),
            log_limit_bytes: LOG_BYTES,
            memory_bytes: 0,
            nice: self.workshop.nice,
            secrets: Vec::new(),
            confinement,
        })
    }
}

/// Empty directories, with the job's files where they are looked for.
fn prepare(recipe: &Recipe, root: &Path, work: &Path) -> io::Result<()> {
    EnvironmentShelf::clear(root)?;
    EnvironmentShelf::clear(work)?;
    let links = Staged {
        links: recipe.links.clone(),
        own: None,
    };
    directory::make(work, &links, &Vec::new())?;
    if recipe.wanted.conda.is_some() {
        fs::create_dir(root.join(VENV))?;
    }
    let Some(project) = steps::project(recipe) else {
        return Ok(());
    };
    let copy = root.join(PROJECT);
    fs::create_dir(&copy)?;
    if recipe.wanted.lock.is_some() {
        for name in ["uv.lock", "pyproject.toml"] {
            let path = format!("{project}/{name}");
            fs::copy(
                recipe::place(&recipe.links, path.trim_start_matches("./")),
                copy.join(name),
            )?;
        }
        return Ok(());
    }
    if project == "." {
        return recipe
            .links
            .iter()
            .try_for_each(|(name, from)| copy_tree(from, &copy.join(name)));
    }
    let from = recipe::place(&recipe.links, &project);
    fs::remove_dir(&copy)?;
    copy_tree(&from, &copy)
}

/// What is staged cannot be written to; the copy can.
fn copy_tree(from: &Path, to: &Path) -> io::Result<()> {
    let metadata = fs::symlink_metadata(from)?;
    if metadata.is_dir() {
        fs::create_dir(to)?;
        for entry in fs::read_dir(from)? {
            let entry = entry?;
            copy_tree(&entry.path(), &to.join(entry.file_name()))?;
        }
    } else if metadata.is_file() {
        fs::copy(from, to)?;
        let mode = metadata.permissions().mode() | 0o600;
        fs::set_permissions(to, fs::Permissions::from_mode(mode))?;
    }
    Ok(())
}

/// The ends of both streams.
fn output(work: &Path) -> String {
    let end = |name: &str| -> io::Result<Vec<u8>> {
        let mut file = fs::File::open(work.join(name))?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(LAST_BYTES)))?;
        let mut bytes = Vec::new();
        file.take(LAST_BYTES).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    let read = |name| end(name).unwrap_or_default();
    let bytes = [read(STDOUT_FILE), read(STDERR_FILE)].concat();
    String::from_utf8_lossy(&bytes).into_owned()
}

fn last_lines(output: &str) -> String {
    let lines: Vec<&str> = output
        .lines()
        .filter(|line| !line.trim().is_empty())
        .collect();
    let shown = lines[lines.len().saturating_sub(SHOWN_LINES)..].join("\n");
    text::lines(&shown).into_owned()
}
