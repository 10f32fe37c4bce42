//! What tasks are kept from: whether this node can be hidden from them, and what each job's tasks
//! reach all the same.

use super::{
    directory::{Layout, PYTHON_DIRECTORY},
    protocol::Confinement,
    supervisor,
};
use nodectl_ports::{bare::own_path, drivers::DRIVERS};
use nodectl_types::{Builtin, Isolation, StartTask, WorkSpec, WorkerSpec, servers};
use std::{
    ffi::OsStr,
    fs, io,
    os::unix::{
        ffi::OsStrExt,
        fs::{DirBuilderExt, MetadataExt},
    },
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
};

/// Tasks' home where that of the node's user is hidden from them, in the data directory.
pub const HOME: &str = "home";
/// Checkpoints, which workers write themselves, in the data directory.
const CHECKPOINTS: &str = "checkpoints";
/// Of what stands beside hidden things each costs a task's start some microseconds.
const MOST_BESIDE: usize = 1_000;
/// statfs(2).
const AUTOFS_MAGIC: i64 = 0x0187;

/// What jobs get that do not say otherwise.
#[derive(Clone, Debug, Default)]
pub struct IsolationPolicy {
    pub setuid: bool,
    /// None: wherever that takes nothing away that tasks may need.
    pub hides_node: Option<bool>,
    /// Files and directories of secrets, besides the data directory.
    pub secrets: Vec<PathBuf>,
}

/// Of one node.
#[derive(Debug)]
pub struct Confiner {
    setuid: bool,
    /// Whether the node is hidden from tasks whose job does not say.
    hides: bool,
    /// All that is hidden where it is.
    private: Vec<PathBuf>,
    data_dir: PathBuf,
    jobs: Layout,
    /// Tasks' home, if it is in the data directory.
    home: Option<PathBuf>,
    program: Option<PathBuf>,
    /// A job has asked for it.
    asked: AtomicBool,
}

impl Confiner {
    /// `data_dir` is absolute and without links. `home` is the tasks'.
    pub fn new(data_dir: &Path, policy: &IsolationPolicy, home: Option<&OsStr>) -> Self {
        let private = private(data_dir, policy);
        let hides = !policy.setuid
            && policy
                .hides_node
                .unwrap_or_else(|| why_not(data_dir, policy).is_none());
        let program = own_path().ok();
        let home = home
            .map(PathBuf::from)
            .filter(|home| home.starts_with(data_dir));
        let (data_dir, jobs) = (data_dir.to_path_buf(), Layout::new(data_dir));
        Self {
            setuid: policy.setuid,
            hides,
            private,
            data_dir,
            jobs,
            home,
            program,
            asked: AtomicBool::new(false),
        }
    }

    /// Whether it may have been hidden from some task.
    pub fn is_any_hidden(&self) -> bool {
        self.hides || self.asked.load(Ordering::Relaxed)
    }

    /// For a process that runs in `dir`: an attempt's, or a worker's, which has those of its calls
    /// too. The Python environment of its job, if there is one, is below `environment`.
    pub fn confine(
        &self,
        task: &StartTask,
        dir: &Path,
        environment: Option<&Path>,
    ) -> io::Result<Confinement> {
        let Isolation {
            setuid,
            hides_node,
            core_dumps,
            offline,
            read_only,
            ref image,
        } = task.work.isolation;
        let setuid = setuid.unwrap_or(self.setuid && hides_node != Some(true));
        let bytes = |path: &PathBuf| path.as_os_str().as_bytes().to_vec();
        let mut confinement = Confinement {
            setuid,
            core_dumps,
            offline,
            ..Confinement::default()
        };
        if image.is_some() {
            // Containers are made with rights that a domain takes away, and hide more than it does.
            return Ok(Confinement {
                setuid: true,
                ..confinement
            });
        }
        confinement.read_only = read_only;
        let hides = !setuid && hides_node.unwrap_or(self.hides && !writes_elsewhere(&task.work));
        if !hides && !read_only {
            return Ok(confinement);
        }
        if hides {
            self.asked.store(true, Ordering::Relaxed);
            confinement.hidden = self.private.iter().map(bytes).collect();
        }
        let job = self.jobs.job(task.job);
        let mut own = vec![dir.to_path_buf()];
        own.extend(self.home.clone());
        if task.work.worker.is_some() {
            own.push(job.join("tasks"));
        }
        if trains(&task.work) {
            own.push(self.data_dir.join(CHECKPOINTS).join(task.job.to_string()));
        }
        for dir in &own {
            // What is not there when the domain is made is not in it.
            fs::DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(dir)?;
        }
        let read = [
            job.join("input"),
            job.join("after"),
            job.join("needs"),
            job.join("inputs"),
            self.data_dir.join(PYTHON_DIRECTORY),
            self.data_dir.join(DRIVERS),
        ]
        .into_iter()
        .chain(self.program.clone())
        .chain(environment.map(Path::to_path_buf));
        confinement.own = own.iter().map(bytes).collect();
        confinement.read = read.map(|path| bytes(&path)).collect();
        Ok(confinement)
    }
}

impl Confiner {
    /// For programs that make an environment in `own`, of a job's files.
    pub fn confine_making(
        &self,
        own: &[&Path],
        files: &[(String, PathBuf)],
    ) -> io::Result<Confinement> {
        let bytes = |path: &Path| path.as_os_str().as_bytes().to_vec();
        if !self.hides {
            return Ok(Confinement::default());
        }
        let own = own.iter().copied().chain(self.home.as_deref());
        Ok(Confinement {
            hidden: self.private.iter().map(|path| bytes(path)).collect(),
            own: own.map(bytes).collect(),
            read: files.iter().map(|(_, path)| bytes(path)).collect(),
            ..Confinement::default()
        })
    }
}

/// Whether its tasks write checkpoints beside the node.
fn trains(work: &WorkSpec) -> bool {
    let is_model = match part(work) {
        Some(Builtin::Train) => true,
        Some(Builtin::Kernel | Builtin::Integrate) | None => false,
    };
    is_model || work.env.iter().any(|(name, _)| name == servers::VARIABLE)
}

/// This program's own part that leaves its results where its user says, which may be anywhere.
fn writes_elsewhere(work: &WorkSpec) -> bool {
    match part(work) {
        Some(Builtin::Integrate) => true,
        Some(Builtin::Kernel | Builtin::Train) | None => false,
    }
}

/// The part of this program whose calls the tasks are, if they are.
fn part(work: &WorkSpec) -> Option<Builtin> {
    match work.worker.as_ref()? {
        WorkerSpec::Builtin(builtin) => Some(builtin.part),
        WorkerSpec::Python(_) | WorkerSpec::Log => None,
    }
}

/// What is hidden where anything is.
fn private(data_dir: &Path, policy: &IsolationPolicy) -> Vec<PathBuf> {
    // What comes through a pipe has no place.
    let is_kept = |path: &PathBuf| (path.is_file() || path.is_dir()) && !path.starts_with(data_dir);
    let secrets = policy
        .secrets
        .iter()
        .filter_map(|path| path.canonicalize().ok())
        .filter(is_kept);
    secrets.chain([data_dir.to_path_buf()]).collect()
}

/// Why tasks are not kept from what is this node's alone, where jobs do not say whether. None: they
/// are.
pub fn why_not(data_dir: &Path, policy: &IsolationPolicy) -> Option<String> {
    if policy.setuid {
        return Some("tasks may gain rights (isolation.setuid)".into());
    }
    if policy.hides_node == Some(false) {
        return Some("it is switched off (isolation.hides_node)".into());
    }
    if let Err(why) = supervisor::hides() {
        return Some(format!("the kernel cannot: {why}"));
    }
    if policy.hides_node == Some(true) {
        return None;
    }
    private(data_dir, policy)
        .iter()
        .find_map(|path| path.ancestors().skip(1).find_map(needed_whole))
}

/// Beside what is hidden, tasks reach what is there when they start, and can make nothing new.
/// Where that would be felt, nothing is hidden.
fn needed_whole(directory: &Path) -> Option<String> {
    let shown = directory.display();
    if fs::metadata(directory).is_ok_and(|metadata| metadata.mode() & 0o002 != 0) {
        return Some(format!(
            "to hide them would keep tasks from making files in {shown}, as everybody may"
        ));
    }
    if rustix::fs::statfs(directory).is_ok_and(|found| found.f_type == AUTOFS_MAGIC) {
        return Some(format!(
            "what is in {shown} is mounted when it is asked for"
        ));
    }
    match fs::read_dir(directory).map(|entries| entries.take(MOST_BESIDE + 1).count()) {
        Ok(count) if count > MOST_BESIDE => Some(format!(
            "there are more than {MOST_BESIDE} things in {shown}, all of which each task's start would have to name"
        )),
        Ok(_) => None,
        Err(error) => Some(format!("what else is in {shown} cannot be seen: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nodectl_types::{Attempt, JobId};
    use std::{os::unix::fs::PermissionsExt, sync::Arc};

    fn task(isolation: Isolation) -> StartTask {
        let work = Arc::new(WorkSpec {
            isolation,
            ..WorkSpec::plain("a", &["true"])
        });
        let attempt = Attempt {
            epoch: 1,
            claim: 0,
            number: 1,
        };
        StartTask {
            job: JobId(1),
            task: 0,
            attempt,
            work,
            params: vec![],
            gpus: vec![],
            holders: vec![],
            needs: Vec::new(),
            place: None,
        }
    }

    #[test]
    fn jobs_say_more_than_the_node_and_rights_more_than_hiding() {
        let dir = tempfile::tempdir().unwrap();
        let of = |setuid, hides_node, isolation: Isolation| {
            let policy = IsolationPolicy {
                setuid,
                hides_node,
                secrets: Vec::new(),
            };
            let made = Confiner::new(dir.path(), &policy, None)
                .confine(&task(isolation), &dir.path().join("t"), None)
                .unwrap();
            (made.setuid, !made.hidden.is_empty())
        };
        let says = |setuid, hides_node| Isolation {
            setuid,
            hides_node,
            ..Isolation::default()
        };
        assert_eq!(of(false, Some(true), says(None, None)), (false, true));
        assert_eq!(of(false, Some(true), says(Some(true), None)), (true, false));
        assert_eq!(
            of(false, Some(true), says(None, Some(false))),
            (false, false)
        );
        assert_eq!(of(false, Some(false), says(None, None)), (false, false));
        assert_eq!(of(true, Some(true), says(None, None)), (true, false));
        assert_eq!(of(true, None, says(None, Some(true))), (false, true));
        assert_eq!(
            of(false, Some(false), says(None, Some(true))),
            (false, true)
        );
    }

    #[test]
    fn where_everybody_makes_files_nothing_is_hidden_unasked() {
        let dir = tempfile::tempdir().unwrap();
        let shared = dir.path().join("shared");
        fs::create_dir(&shared).unwrap();
        fs::set_permissions(&shared, fs::Permissions::from_mode(0o1777)).unwrap();
        assert!(needed_whole(&shared).unwrap().contains("everybody may"));
        fs::set_permissions(&shared, fs::Permissions::from_mode(0o755)).unwrap();
        assert_eq!(needed_whole(&shared), None);
        for number in 0..=MOST_BESIDE {
            fs::write(shared.join(number.to_string()), "").unwrap();
        }
        assert!(needed_whole(&shared).unwrap().contains("more than 1000"));
        let policy = |hides_node| IsolationPolicy {
            hides_node,
            ..IsolationPolicy::default()
        };
        assert!(
            why_not(&shared, &policy(Some(false)))
                .unwrap()
                .contains("hides_node")
        );
        assert!(
            why_not(
                &shared,
                &IsolationPolicy {
                    setuid: true,
                    ..policy(Some(true))
                }
            )
            .unwrap()
            .contains("setuid")
        );
    }
}
