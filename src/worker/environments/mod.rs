//! Python environments that jobs bring: made once a node, shared by all that want the same, removed
//! when there are too many of them.
//!
//! | file | owns |
//! |---|---|
//! | `find` | interpreters on this machine |
//! | `recipe` | what an environment is made of, and its name |
//! | `steps` | the command lines that make it, and why they failed |
//! | `make` | running them, and what they leave |
//! | `shelf` | which environments there are, and which go |
//!
//! An environment is `<data dir>/environments/<name>/`, with a file `made` in it once it is whole.
//! Programs in it know their place, so it is made where it stays; one without that file was being
//! made when a node died, and is removed.

mod find;
mod make;
mod recipe;
mod shelf;
mod steps;

use super::{
    blocking::blocking,
    directory::{Layout, Remover},
    environment::with_python,
    isolation::Confiner,
    link::SupervisorLink,
};
pub use find::ends_within;
use futures::{
    FutureExt,
    future::{BoxFuture, Shared},
};
use make::Maker;
use nodectl_types::{
    ErrorReport, Failure, JobId, MakingEnvironment, StartTask,
    python::{self, PythonEnvironment},
};
use recipe::Recipe;
use shelf::EnvironmentShelf;
use std::{
    collections::{BTreeMap, HashMap},
    ffi::{OsStr, OsString},
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};
use tokio::{runtime::Handle, sync::OnceCell};

/// Where they are, in the data directory.
const DIRECTORY: &str = "environments";
/// So long nobody tries again to make one that could not be made.
const REMEMBERED: Duration = Duration::from_secs(30);

/// An environment that is whole. It stays while somebody has this.
#[derive(Debug)]
pub struct MadeEnvironment {
    /// The environment's directory, with all that belongs to it.
    pub root: PathBuf,
    /// Where its `bin` is.
    pub prefix: PathBuf,
}

type Entries = HashMap<String, WantedEnvironment>;
type Making = Shared<BoxFuture<'static, Result<Arc<MadeEnvironment>, Arc<ErrorReport>>>>;

/// One that is made, being made, or could not be.
struct WantedEnvironment {
    making: Making,
    failed: Arc<Mutex<Option<Instant>>>,
}

impl WantedEnvironment {
    /// Whether it is in somebody's hands, will be at once, or is being made.
    fn is_in_use(&self) -> bool {
        // Whoever waits for it has a copy of the future until then.
        let is_awaited = self.making.strong_count().is_some_and(|count| count > 1);
        is_awaited
            || match self.making.peek() {
                Some(Ok(environment)) => Arc::strong_count(environment) > 1,
                Some(Err(_)) => false,
                None => true,
            }
    }
}

/// What a node needs to make environments.
pub struct Workshop {
    pub data_dir: PathBuf,
    /// What people call the node.
    pub node: String,
    pub limit_bytes: u64,
    pub nice: u8,
    /// What tasks inherit from the node.
    pub base_env: BTreeMap<OsString, OsString>,
}

/// All environments of a node.
pub struct Environments {
    maker: Arc<Maker>,
    runtime: Handle,
    entries: Mutex<Entries>,
    jobs: Mutex<HashMap<JobId, Arc<OnceCell<Arc<Recipe>>>>>,
    shelf: EnvironmentShelf,
    /// One was made, and nobody has looked since whether there is room for it.
    has_grown: Arc<AtomicBool>,
}

/// The way to what makes them: the supervisor runs the programs.
pub struct Tools<'a> {
    pub link: Option<Arc<SupervisorLink>>,
    pub confiner: &'a Arc<Confiner>,
    pub remover: &'a Remover,
}

impl Environments {
    /// Clears away what an earlier life left half made. Called inside the runtime that runs the
    /// node.
    pub fn start(workshop: Workshop, remover: &Remover) -> Self {
        let directory = workshop.data_dir.join(DIRECTORY);
        remover.remove(workplaces(&workshop.data_dir));
        let shelf = EnvironmentShelf::start(directory, workshop.limit_bytes, remover);
        Self {
            maker: Arc::new(Maker::new(workshop)),
            runtime: Handle::current(),
            entries: Mutex::default(),
            jobs: Mutex::default(),
            shelf,
            has_grown: Arc::default(),
        }
    }

    /// The environment of the task's job, once it is made; None for a job without one.
    pub async fn of<'t>(
        &self,
        task: &StartTask,
        links: &[(String, PathBuf)],
        tools: impl FnOnce() -> Tools<'t>,
    ) -> Result<Option<Arc<MadeEnvironment>>, Failure> {
        let Some(wanted) = PythonEnvironment::of(&task.work.env) else {
            return Ok(None);
        };
        let failed = |why: String| Failure::Init(self.report(&why));
        let wanted = wanted.map_err(failed)?;
        let cell = lock(&self.jobs).entry(task.job).or_default().clone();
        let planning = cell.get_or_try_init(|| async {
            let (maker, links) = (self.maker.clone(), links.to_vec());
            blocking(move || maker.plan(wanted, links))
                .await
                .map(Arc::new)
        });
        let recipe = planning.await.map_err(failed)?.clone();
        let tools = tools();
        let remover = tools.remover;
        let made = self.begin(&recipe, tools).await;
        let made = made.map_err(|report| Failure::Init((*report).clone()))?;
        self.shelf.used(&recipe.name);
        if self.has_grown.swap(false, Ordering::Relaxed) {
            self.make_room(&mut lock(&self.entries), &recipe.name, remover);
        }
        Ok(Some(made))
    }

    /// Those that are being made, for each job that waits for one.
    pub fn making(&self) -> Vec<MakingEnvironment> {
        let jobs = lock(&self.jobs);
        let making = jobs.iter().filter_map(|(job, recipe)| {
            let (step, since) = self.maker.running(&recipe.get()?.name)?;
            Some(MakingEnvironment {
                job: *job,
                step,
                for_ms: since.as_millis() as u64,
            })
        });
        making.collect()
    }

    /// Removes environments that nobody has in hands, but not the one that is `wanted` now, until
    /// the rest is within the limit.
    fn make_room(&self, entries: &mut Entries, wanted: &str, remover: &Remover) {
        let in_use = |name: &str| entries.get(name).is_some_and(WantedEnvironment::is_in_use);
        let removed = self.shelf.make_room(wanted, in_use, remover);
        entries.retain(|name, _| !removed.contains(name));
    }

    /// Forgets what a job wanted, which may leave more than the limit allows. What could not be
    /// made of it is tried again at once, should the job go on and no other want the same.
    pub fn forget(&self, job: JobId, remover: &Remover) {
        let mut jobs = lock(&self.jobs);
        let Some(recipe) = jobs.remove(&job).and_then(|wanted| wanted.get().cloned()) else {
            return;
        };
        let is_it = |other: &Arc<Recipe>| other.name == recipe.name;
        if jobs.values().any(|wanted| wanted.get().is_some_and(is_it)) {
            return;
        }
        let mut entries = lock(&self.entries);
        self.make_room(&mut entries, "", remover);
        let is_failed = |wanted: &WantedEnvironment| lock(&wanted.failed).is_some();
        if entries.get(&recipe.name).is_some_and(is_failed) {
            entries.remove(&recipe.name);
        }
    }

    fn begin(&self, recipe: &Arc<Recipe>, tools: Tools<'_>) -> Making {
        let mut entries = lock(&self.entries);
        if let Some(entry) = entries.get(&recipe.name) {
            let is_old = lock(&entry.failed).is_some_and(|at| at.elapsed() > REMEMBERED);
            if !is_old {
                return entry.making.clone();
            }
        }
        entries.retain(|_, entry| lock(&entry.failed).is_none());
        self.make_room(&mut entries, &recipe.name, tools.remover);
        let failed = Arc::new(Mutex::new(None));
        let making = self.spawn(recipe.clone(), failed.clone(), tools);
        entries.insert(
            recipe.name.clone(),
            WantedEnvironment {
                making: making.clone(),
                failed,
            },
        );
        making
    }

    /// Makes an environment to its end, also when the task that wanted it first is stopped: others
    /// want it.
    fn spawn(
        &self,
        recipe: Arc<Recipe>,
        failed: Arc<Mutex<Option<Instant>>>,
        tools: Tools<'_>,
    ) -> Making {
        let (maker, shelf) = (self.maker.clone(), self.shelf.clone());
        let (link, confiner) = (tools.link, tools.confiner.clone());
        let has_grown = self.has_grown.clone();
        let making = async move {
            let root = shelf.place(&recipe.name);
            if !shelf.has(&recipe.name) {
                let made = maker.make(&recipe, &root, link, &confiner).await;
                let kept = match made {
                    Ok(()) => {
                        let (shelf, name) = (shelf.clone(), recipe.name.clone());
                        let keep = move || shelf.keep(&name);
                        blocking(keep).await.map_err(|error| {
                            maker.report(&format!("it could not be kept: {error}"))
                        })
                    }
                    Err(report) => Err(report),
                };
                if let Err(report) = kept {
                    *lock(&failed) = Some(Instant::now());
                    let clear = move || super::directory::remove_tree(&root);
                    if let Err(error) = blocking(clear).await {
                        tracing::warn!(%error, "could not remove an environment that failed");
                    }
                    return Err(Arc::new(report));
                }
                has_grown.store(true, Ordering::Relaxed);
            }
            let prefix = root.join(steps::VENV);
            Ok(Arc::new(MadeEnvironment { root, prefix }))
        };
        let spawned = self.runtime.spawn(making);
        let gone = || Arc::new(ErrorReport::without_exception("this node is leaving"));
        async move { spawned.await.unwrap_or_else(|_| Err(gone())) }
            .boxed()
            .shared()
    }

    fn report(&self, why: &str) -> ErrorReport {
        self.maker.report(why)
    }
}

impl MadeEnvironment {
    /// A task's variables, with its programs first in the path.
    pub fn variables(&self, env: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
        with_python(env, &self.prefix)
    }

    /// The environment's interpreter.
    pub fn interpreter(&self) -> PathBuf {
        self.prefix.join("bin/python")
    }
}

fn failed_on(node: &str, why: &str) -> ErrorReport {
    ErrorReport {
        kind: python::FAILED.into(),
        message: format!("on {node}, {why}"),
        traceback: String::new(),
    }
    .bounded()
}

fn home(base_env: &BTreeMap<OsString, OsString>) -> Option<&OsStr> {
    base_env.get(OsStr::new("HOME")).map(OsString::as_os_str)
}

/// Where environments are made: among tasks' directories, since what a supervisor that died left of
/// those is killed.
fn workplaces(data_dir: &Path) -> PathBuf {
    Layout::new(data_dir).jobs.join(DIRECTORY)
}

fn exists(path: &Path) -> bool {
    path.symlink_metadata().is_ok()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
