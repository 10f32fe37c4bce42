//! Python environments that jobs bring: made by the real interpreters of this machine, of wheels
//! that the tests write, so that no test needs a network. `uv` is a stand-in where one is needed;
//! where the machine has the real one, that makes all the others too.

use crate::harness::*;
use nodectl::{
    ports::{Blobs, Runner, WorkerEvent},
    types::{
        BlobHash, FileEntry, JobId, Manifest, Outcome, PythonWorker, StartTask, TaskRecord,
        WorkSpec, WorkerRole, WorkerSpec, python::PythonEnvironment,
    },
};
use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
    time::Duration,
};

const SHOW: &str =
    "import sys, lab_one; print('%d.%d' % sys.version_info[:2], lab_one.VALUE, sys.prefix)";

/// pip takes seconds of processor time, which a busy machine gives slowly.
const PATIENT: Duration = Duration::from_secs(300);

/// A wheel as the format has it, of one module.
fn wheel(directory: &Path, name: &str, value: u32) {
    let script = r#"
import sys, zipfile
directory, name, value = sys.argv[1:]
info = name + "-1.0.dist-info/"
files = {
    name + ".py": "VALUE = " + value + "\n",
    info + "METADATA": "Metadata-Version: 2.1\nName: " + name + "\nVersion: 1.0\n",
    info + "WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
}
record = "".join(path + ",,\n" for path in files) + info + "RECORD,,\n"
with zipfile.ZipFile(directory + "/" + name + "-1.0-py3-none-any.whl", "w") as archive:
    for path, text in files.items():
        archive.writestr(path, text)
    archive.writestr(info + "RECORD", record)
"#;
    let made = Command::new("python3")
        .args(["-c", script])
        .arg(directory)
        .args([name, &value.to_string()])
        .status();
    assert!(made.unwrap().success());
}

/// The job's files, all below `directory`.
fn upload(lab: &WorkerLab, directory: &Path) -> BlobHash {
    fn collect(lab: &WorkerLab, directory: &Path, prefix: &str, files: &mut Vec<FileEntry>) {
        for entry in fs::read_dir(directory).unwrap() {
            let entry = entry.unwrap();
            let path = format!("{prefix}{}", entry.file_name().to_str().unwrap());
            if entry.path().is_dir() {
                collect(lab, &entry.path(), &format!("{path}/"), files);
                continue;
            }
            let bytes = fs::read(entry.path()).unwrap();
            files.push(FileEntry {
                path,
                bytes: bytes.len() as u64,
                hash: lab.store.blobs().put_bytes(&bytes).unwrap(),
                executable: false,
            });
        }
    }
    let mut files = Vec::new();
    collect(lab, directory, "", &mut files);
    files.sort_by(|one, other| one.path.cmp(&other.path));
    let manifest = postcard::to_stdvec(&Manifest { files }).unwrap();
    lab.store.blobs().put_bytes(&manifest).unwrap()
}

/// A lab, and the files of its jobs: a list of one package, whose wheel is there.
struct EnvironmentLab {
    lab: WorkerLab,
    files: tempfile::TempDir,
}

impl EnvironmentLab {
    fn new() -> Self {
        Self::of(WorkerLab::new())
    }

    fn of(mut lab: WorkerLab) -> Self {
        lab.patience = PATIENT;
        let files = tempfile::tempdir().unwrap();
        fs::create_dir(files.path().join("wheels")).unwrap();
        wheel(&files.path().join("wheels"), "lab_one", 1);
        fs::write(files.path().join("requirements.txt"), "-r base.txt\n").unwrap();
        fs::write(files.path().join("base.txt"), "lab_one==1.0\n").unwrap();
        Self { lab, files }
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.files.path().join(name), text).unwrap();
    }

    /// Python that shows itself, in this environment.
    fn work(&self, environment: &PythonEnvironment) -> WorkSpec {
        WorkSpec {
            env: vec![environment.variable()],
            inputs: Some(upload(&self.lab, self.files.path())),
            ..work(&["python", "-c", SHOW])
        }
    }

    fn start(&self, job: u64, task: u32, work: &WorkSpec) {
        self.lab.workers().start(StartTask {
            job: JobId(job),
            task,
            attempt: attempt(),
            work: Arc::new(work.clone()),
            params: vec![],
            gpus: vec![],
            holders: vec![],
            needs: Vec::new(),
            place: None,
        });
    }

    fn run(&mut self, job: u64, environment: &PythonEnvironment) -> TaskRecord {
        let work = self.work(environment);
        self.start(job, 0, &work);
        self.lab.ended()
    }

    /// The directories of environments that there are.
    fn kept(&self) -> Vec<PathBuf> {
        let directory = self.lab.store.dir().join("environments");
        let entries = fs::read_dir(directory).into_iter().flatten();
        let mut kept: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
        kept.sort();
        kept
    }
}

fn listed() -> PythonEnvironment {
    PythonEnvironment {
        requirements: Some("requirements.txt".into()),
        wheels: Some("wheels".into()),
        ..PythonEnvironment::default()
    }
}

fn said(record: &TaskRecord) -> String {
    assert_eq!(record.outcome, Outcome::Done, "{record:?}");
    String::from_utf8_lossy(&record.stdout.tail)
        .trim()
        .to_string()
}

fn why(record: &TaskRecord) -> String {
    failure(record).to_string()
}

/// Two minor versions of Python on this machine, the node's own first.
fn two_pythons() -> Option<[String; 2]> {
    let version = |program: &Path| {
        let ask = "import sys; print('%d.%d' % sys.version_info[:2])";
        let output = Command::new(program).args(["-c", ask]).output().ok()?;
        output
            .status
            .success()
            .then(|| String::from_utf8_lossy(&output.stdout).trim().to_string())
    };
    let own = version(Path::new("python3"))?;
    let below = PathBuf::from(std::env::var_os("HOME")?).join(".pyenv/versions");
    let others = fs::read_dir(below)
        .ok()?
        .flatten()
        .map(|entry| entry.path().join("bin/python3"));
    let mut others: Vec<String> = others.filter_map(|program| version(&program)).collect();
    others.sort();
    let is_new = |other: &String| {
        let minor = other
            .strip_prefix("3.")
            .and_then(|minor| minor.parse::<u32>().ok());
        *other != own && minor.is_some_and(|minor| minor >= 9)
    };
    let other = others.into_iter().find(is_new)?;
    Some([own, other])
}

#[test]
fn a_job_has_the_python_that_it_asks_for_and_its_packages() {
    let Some([own, other]) = two_pythons() else {
        return eprintln!("SKIPPED: this machine has one Python only");
    };
    let mut lab = EnvironmentLab::new();
    for (job, version) in [(1, &own), (2, &other)] {
        let environment = PythonEnvironment {
            version: Some(version.clone()),
            ..listed()
        };
        let said = said(&lab.run(job, &environment));
        assert!(said.starts_with(&format!("{version} 1 ")), "{said}");
        assert!(said.contains("/environments/"), "{said}");
    }
    assert_eq!(lab.kept().len(), 2);
}

#[test]
fn a_worker_runs_in_it_too() {
    let mut lab = EnvironmentLab::new();
    lab.write(
        "mine.py",
        "import sys, lab_one\nclass Mine:\n    def run(self):\n        return [lab_one.VALUE, sys.prefix]\n",
    );
    let role = WorkerRole::Calls {
        class: "mine.py:Mine".into(),
        init: "{}".into(),
    };
    let python = "python-of-no-node".into();
    let work = WorkSpec {
        command: vec![],
        worker: Some(WorkerSpec::Python(PythonWorker { python, role })),
        ..lab.work(&listed())
    };
    lab.start(1, 0, &work);
    let record = lab.lab.ended();
    assert_eq!(record.outcome, Outcome::Done, "{record:?}");
    let value = record.value.unwrap();
    assert!(
        value.starts_with("[1, ") && value.contains("/environments/"),
        "{value}"
    );
}

#[test]
fn what_many_tasks_want_at_once_is_made_once() {
    let mut lab = EnvironmentLab::new();
    let work = lab.work(&listed());
    for job in 1..=4 {
        (0..5).for_each(|task| lab.start(job, task, &work));
    }
    let said: std::collections::BTreeSet<String> =
        (0..20).map(|_| said(&lab.lab.ended())).collect();
    assert_eq!(said.len(), 1, "{said:?}");
    assert_eq!(lab.kept().len(), 1);
    // Its name follows from what it is made of.
    lab.write("base.txt", "lab_one\n");
    lab.run(9, &listed());
    assert_eq!(lab.kept().len(), 2);
}

#[test]
fn the_line_that_says_why_is_told_with_its_node() {
    let mut lab = EnvironmentLab::new();
    lab.write("base.txt", "lab_none==1.0\n");
    let why = why(&lab.run(1, &listed()));
    assert!(why.starts_with("environment failed: on bench, `"), "{why}");
    assert!(
        why.contains("lab_none") || why.contains("lab-none"),
        "{why}"
    );
    assert!(
        !why.contains(|c: char| c.is_control() && c != '\n'),
        "{why:?}"
    );
    assert!(lab.kept().is_empty(), "nothing is left of it");
    // Who comes soon after is told at once.
    assert_eq!(self::why(&lab.run(2, &listed())), why);
}

#[test]
fn a_python_that_is_not_there_is_named_with_those_that_are() {
    if Command::new("uv").arg("--version").output().is_ok() {
        return eprintln!("SKIPPED: uv would fetch it");
    }
    let mut lab = EnvironmentLab::new();
    let environment = PythonEnvironment {
        version: Some("3.99".into()),
        ..PythonEnvironment::default()
    };
    let why = why(&lab.run(1, &environment));
    assert!(why.contains("there is no Python 3.99, only 3."), "{why}");
}

#[test]
fn what_a_killed_node_left_half_made_is_not_used() {
    let mut lab = EnvironmentLab::new();
    said(&lab.run(1, &listed()));
    let [whole] = &lab.kept()[..] else {
        panic!("one environment")
    };
    let data = lab.lab.store.dir().to_path_buf();
    // As it is before the last step, with something broken in it.
    fs::remove_file(whole.join("made")).unwrap();
    // A link to the machine's own Python, which is to stay as it is.
    fs::remove_file(whole.join("venv/bin/python")).unwrap();
    fs::write(whole.join("venv/bin/python"), "broken").unwrap();
    fs::create_dir(data.join("environments/0123")).unwrap();
    lab.lab.workers = None;
    let EnvironmentLab { lab: old, files } = lab;
    let WorkerLab { store, dir, .. } = old;
    drop(store);
    let mut again = EnvironmentLab {
        lab: WorkerLab {
            patience: PATIENT,
            ..WorkerLab::at(&data)
        },
        files,
    };
    assert!(again.kept().is_empty(), "{:?}", again.kept());
    assert!(said(&again.run(1, &listed())).contains("/environments/"));
    drop(dir);
}

#[test]
fn those_used_longest_ago_go_when_there_are_too_many() {
    let lab = WorkerLab::changed(None, None, |config| config.environments_bytes = 1);
    let mut lab = EnvironmentLab::of(lab);
    // Larger than the limit, each alone: all but the last go, unless somebody has them.
    let work = WorkSpec {
        command: vec!["sh".into(), "-c".into(), "echo > begun; sleep 1000".into()],
        ..lab.work(&listed())
    };
    lab.start(1, 0, &work);
    assert!(matches!(
        lab.lab.worker_event(),
        WorkerEvent::Started { .. }
    ));
    for job in 2..=4 {
        lab.write("base.txt", &format!("lab_one==1.0  # {job}\n"));
        said(&lab.run(job, &listed()));
    }
    assert_eq!(lab.kept().len(), 2, "the one in use and the last");
    lab.lab.workers().stop(JobId(1), 0, attempt(), true);
    assert!(matches!(
        lab.lab.worker_event(),
        WorkerEvent::Stopped { .. }
    ));
    lab.write("base.txt", "lab_one==1.0  # 5\n");
    said(&lab.run(5, &listed()));
    assert_eq!(lab.kept().len(), 1);
}

/// How many bytes an environment has, as its own file says.
fn bytes(environment: &Path) -> u64 {
    let made = fs::read_to_string(environment.join("made"));
    made.unwrap().parse().unwrap()
}

#[test]
fn the_limit_holds_with_the_one_that_was_made_last() {
    let mut first = EnvironmentLab::new();
    said(&first.run(1, &listed()));
    let one = bytes(&first.kept()[0]);
    let lab = WorkerLab::changed(None, None, |config| config.environments_bytes = one * 5 / 2);
    let mut lab = EnvironmentLab::of(lab);
    for job in 1..=4 {
        lab.write("base.txt", &format!("lab_one==1.0  # {job}\n"));
        said(&lab.run(job, &listed()));
        let kept: u64 = lab.kept().iter().map(|kept| bytes(kept)).sum();
        assert!(kept <= one * 5 / 2, "{kept} bytes of {one} each");
    }
    assert_eq!(lab.kept().len(), 2);
}

/// A project whose package needs nothing of the network to be built, and one package besides.
const PROJECT: &str = r#"
[project]
name = "lab-two"
version = "1.0"
requires-python = ">=3.9"
dependencies = ["lab-one"]
[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]
"#;
const BACKEND: &str = r#"
import os, zipfile
def build_wheel(directory, config=None, metadata=None):
    name, info = "lab_two-1.0-py3-none-any.whl", "lab_two-1.0.dist-info/"
    files = {
        "lab_two.py": "VALUE = 2\n",
        info + "METADATA": "Metadata-Version: 2.1\nName: lab-two\nVersion: 1.0\nRequires-Dist: lab-one\n",
        info + "WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    with zipfile.ZipFile(os.path.join(directory, name), "w") as archive:
        for path, text in files.items():
            archive.writestr(path, text)
        archive.writestr(info + "RECORD", "".join(path + ",,\n" for path in [*files, info + "RECORD"]))
    return name
"#;

#[test]
fn a_lock_and_a_project_are_what_uv_says() {
    let mut lab = EnvironmentLab::new();
    lab.write("pyproject.toml", PROJECT);
    lab.write("backend.py", BACKEND);
    let mut lock = Command::new("uv");
    lock.args(["lock", "--offline", "--no-index", "--find-links", "wheels"]);
    match lock.current_dir(lab.files.path()).output() {
        Ok(output) => assert!(output.status.success(), "{output:?}"),
        Err(error) => return eprintln!("SKIPPED: no uv here (pip install uv): {error}"),
    }
    let locked = PythonEnvironment {
        lock: Some("uv.lock".into()),
        wheels: Some("wheels".into()),
        ..PythonEnvironment::default()
    };
    assert!(said(&lab.run(1, &locked)).contains(" 1 /"));
    let project = PythonEnvironment {
        lock: None,
        project: Some(".".into()),
        ..locked.clone()
    };
    let both = "import lab_one, lab_two; print(lab_one.VALUE, lab_two.VALUE)";
    let work = WorkSpec {
        command: vec!["python".into(), "-c".into(), both.into()],
        ..lab.work(&project)
    };
    lab.start(2, 0, &work);
    assert_eq!(said(&lab.lab.ended()), "1 2");
    // A lock that names what is nowhere: uv's own line, and the node's name.
    let lock = lab.files.path().join("uv.lock");
    let text = fs::read_to_string(&lock)
        .unwrap()
        .replace("lab-one", "lab-nowhere");
    fs::write(&lock, text).unwrap();
    let why = why(&lab.run(3, &locked));
    assert!(
        why.starts_with("environment failed: on bench, `uv "),
        "{why}"
    );
}

#[test]
fn an_archive_of_conda_is_unpacked_and_told_its_place() {
    let mut lab = EnvironmentLab::new();
    let packed = tempfile::tempdir().unwrap();
    let bin = packed.path().join("bin");
    fs::create_dir(&bin).unwrap();
    fs::write(bin.join("activate"), "").unwrap();
    let script = |name: &str, text: &str| {
        use std::os::unix::fs::PermissionsExt;
        fs::write(bin.join(name), text).unwrap();
        fs::set_permissions(bin.join(name), fs::Permissions::from_mode(0o755)).unwrap();
    };
    script(
        "conda-unpack",
        "#!/bin/sh\necho unpacked > \"$VIRTUAL_ENV/place\"\n",
    );
    script("python", "#!/bin/sh\ncat \"$VIRTUAL_ENV/place\"\n");
    let packed = Command::new("tar")
        .arg("czf")
        .arg(lab.files.path().join("env.tar.gz"))
        .arg("-C")
        .arg(packed.path())
        .arg("bin")
        .status();
    assert!(packed.unwrap().success());
    let environment = PythonEnvironment {
        conda: Some("env.tar.gz".into()),
        ..PythonEnvironment::default()
    };
    assert_eq!(said(&lab.run(1, &environment)), "unpacked");
    lab.write("broken.tar.gz", "no archive");
    let environment = PythonEnvironment {
        conda: Some("broken.tar.gz".into()),
        ..PythonEnvironment::default()
    };
    let why = why(&lab.run(2, &environment));
    assert!(why.contains("`tar`: "), "{why}");
}

#[test]
fn a_stopped_task_does_not_wait_for_it() {
    let mut lab = EnvironmentLab::new();
    let work = lab.work(&listed());
    lab.start(1, 0, &work);
    lab.lab.workers().stop(JobId(1), 0, attempt(), true);
    assert!(matches!(
        lab.lab.worker_event(),
        WorkerEvent::Stopped { .. }
    ));
    // It is made all the same, and is there for the next.
    said(&lab.run(2, &listed()));
    assert_eq!(lab.kept().len(), 1);
}

#[test]
fn a_job_without_one_is_as_before() {
    let mut lab = WorkerLab::new();
    let record = lab.sh("echo ${VIRTUAL_ENV:-none}; echo ${NODECTL_ENVIRONMENT:-none}");
    let own = std::env::var("VIRTUAL_ENV").unwrap_or("none".into());
    assert_eq!(said(&record), format!("{own}\nnone"));
}
