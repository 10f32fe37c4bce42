//! Calls of Python workers: the real shim, the real interpreter.

use crate::harness::*;
use nodectl::{
    ports::{Blobs, Runner, WorkerEvent},
    types::{
        BlobHash, Failure, FileEntry, Manifest, Outcome, PythonWorker, TaskRecord, Value, WorkSpec,
        WorkerRole, WorkerSpec,
    },
};
use rustix::process::{Pid, Signal, kill_process};
use std::{path::PathBuf, time::Instant};

/// Notes in a file each time that an instance is made; `run` does what it is told.
const MODULE: &str = r#"
import os, sys, time
class Worker:
    def __init__(self, notes=None, fails=None):
        print("init speaks")
        self.calls = 0
        if notes:
            with open(notes, "a") as file:
                file.write("%d\n" % os.getpid())
        if fails == "raise":
            raise RuntimeError("no such data set")
        if fails == "abort":
            os.abort()
    def run(self, do="value", value=None):
        self.calls += 1
        print("run speaks")
        if do == "value":
            return value
        if do == "calls":
            return self.calls
        if do == "pid":
            return os.getpid()
        if do == "where":
            return [os.getcwd(), os.environ["NODECTL_TASK_ID"], os.environ["NODECTL_TASK_DIR"], sorted(os.listdir("."))]
        if do == "raise":
            raise ValueError("bad value")
        if do == "abort":
            os.abort()
        if do == "exit":
            os._exit(0)
        if do == "hang":
            with open("begun", "w") as file:
                file.write("%d\n" % os.getpid())
            time.sleep(1000)
        if do == "stray":
            os.system("setsid sh -c 'setsid sh -c \"echo \\$\\$ > stray; exec sleep 1000\" & exit 0' &")
            while not os.path.exists("stray") or not open("stray").read():
                time.sleep(0.01)
            return int(open("stray").read())
        if do == "write":
            with open("made.bin", "wb") as file:
                file.write(b"x" * value)
        if do == "large":
            return "x" * value
        if do == "talk":
            sys.stdout.write("first\n" + "middle\n" * value)
            sys.stdout.flush()
            time.sleep(0.6)
            print("last")
        if do == "result":
            print('nodectl-result: {"a": 1}')
class Quiet:
    def __init__(self, notes):
        pass
    def run(self, do, value):
        if value % 5 == 4:
            open("made", "w").close()
        return [os.getcwd(), sorted(os.listdir(".")), open("params.json").read()]
"#;

struct PythonLab {
    lab: WorkerLab,
    inputs: BlobHash,
    notes: PathBuf,
}

impl PythonLab {
    fn new() -> Self {
        let lab = WorkerLab::new();
        let inputs = upload(&lab, "lib/mine.py", MODULE.as_bytes());
        let notes = lab.dir.path().join("notes");
        Self { lab, inputs, notes }
    }

    fn spec(&self, more: &str) -> WorkSpec {
        let init = format!(
            "{{\"kwargs\": {{\"notes\": {:?}{more}}}}}",
            self.notes.to_str().unwrap()
        );
        let role = WorkerRole::Calls {
            class: "lib/mine.py:Worker".into(),
            init,
        };
        let worker = Some(WorkerSpec::Python(PythonWorker {
            python: "python3".into(),
            role,
        }));
        WorkSpec {
            command: vec![],
            worker,
            inputs: Some(self.inputs),
            ..sh("")
        }
    }

    fn start(&self, task: u32, what: &str, value: i64) {
        self.start_spec(task, self.spec(""), what, value);
    }

    fn start_spec(&self, task: u32, spec: WorkSpec, what: &str, value: i64) {
        let params = vec![
            ("do".into(), Value::Text(what.into())),
            ("value".into(), Value::Int(value)),
        ];
        self.lab.start_with(task, spec, params);
    }

    fn call(&mut self, task: u32, what: &str, value: i64) -> TaskRecord {
        self.start(task, what, value);
        self.lab.ended()
    }

    /// How many instances were made.
    fn instances(&self) -> usize {
        std::fs::read_to_string(&self.notes)
            .unwrap_or_default()
            .lines()
            .count()
    }
}

pub fn upload(lab: &WorkerLab, path: &str, bytes: &[u8]) -> BlobHash {
    let hash = lab.store.blobs().put_bytes(bytes).unwrap();
    let files = vec![FileEntry {
        path: path.into(),
        bytes: bytes.len() as u64,
        hash,
        executable: false,
    }];
    lab.store
        .blobs()
        .put_bytes(&postcard::to_stdvec(&Manifest { files }).unwrap())
        .unwrap()
}

fn done(record: &TaskRecord) -> &str {
    assert_eq!(
        record.outcome,
        Outcome::Done,
        "{}",
        String::from_utf8_lossy(&record.stderr.tail)
    );
    record.value.as_deref().unwrap_or("nothing")
}

#[test]
fn an_instance_serves_many_tasks_one_after_the_other() {
    let mut lab = PythonLab::new();
    for task in 0..5 {
        assert_eq!(done(&lab.call(task, "calls", 0)), (task + 1).to_string());
    }
    assert_eq!(lab.instances(), 1);
}

#[test]
fn tasks_at_once_have_workers_of_their_own_and_a_forgotten_job_has_none() {
    let mut lab = PythonLab::new();
    (0..3).for_each(|task| lab.start(task, "pid", 0));
    let pids: std::collections::BTreeSet<i32> = (0..3)
        .map(|_| done(&lab.lab.ended()).parse().unwrap())
        .collect();
    assert_eq!(
        pids.len(),
        lab.instances(),
        "a task that came late may have found a worker"
    );
    assert!(pids.iter().all(|pid| runs(*pid)));
    lab.lab.workers().forget(JOB);
    until("the workers end", || !pids.iter().any(|pid| runs(*pid)));
    until("their directories go", || {
        !lab.lab.store.dir().join(format!("jobs/{JOB}")).exists()
    });
}

#[test]
fn values_are_results_and_without_one_the_marked_line_counts() {
    let mut lab = PythonLab::new();
    assert_eq!(done(&lab.call(0, "value", 7)), "7");
    assert_eq!(done(&lab.call(1, "result", 0)), "{\"a\": 1}");
    assert_eq!(done(&lab.call(2, "hush", 0)), "nothing");
    let large = lab.call(3, "large", 70_000);
    assert!(
        failure(&large).to_string().contains("70002 bytes as JSON"),
        "{large:?}"
    );
    assert_eq!(
        done(&lab.call(4, "calls", 0)),
        "5",
        "the worker is still the same"
    );
}

#[test]
fn each_task_has_its_own_directory_environment_streams_and_outputs() {
    let mut lab = PythonLab::new();
    let first = lab.call(0, "value", 0);
    assert_eq!(
        first.stdout.tail, b"init speaks\nrun speaks\n",
        "what `__init__` prints is its first task's"
    );
    let record = lab.call(1, "where", 0);
    let dir = lab
        .lab
        .task_dir(1)
        .canonicalize()
        .unwrap_or(lab.lab.task_dir(1));
    let dir = dir.to_str().unwrap();
    let seen: (String, String, String, Vec<String>) = serde_json::from_str(done(&record)).unwrap();
    assert_eq!(
        (seen.0.as_str(), seen.1.as_str(), seen.2.as_str()),
        (dir, "1", dir)
    );
    assert_eq!(
        seen.3,
        [".nodectl.stderr", ".nodectl.stdout", "lib", "params.json"]
    );
    assert_eq!(record.stdout.tail, b"run speaks\n");
    let mut spec = lab.spec("");
    spec.outputs = vec!["*.bin".into()];
    lab.start_spec(2, spec, "write", 10);
    let record = lab.lab.ended();
    assert_eq!(
        record
            .outputs
            .iter()
            .map(|file| (file.path.as_str(), file.bytes))
            .collect::<Vec<_>>(),
        [("made.bin", 10)]
    );
    until("directories go", || {
        (0..3).all(|task| !lab.lab.task_dir(task).exists())
    });
}

#[test]
fn a_directory_that_a_task_left_as_it_was_serves_the_next_one_which_cannot_tell() {
    let mut lab = PythonLab::new();
    let mut spec = lab.spec("");
    if let Some(WorkerSpec::Python(PythonWorker {
        role: WorkerRole::Calls { class, .. },
        ..
    })) = &mut spec.worker
    {
        *class = "lib/mine.py:Quiet".into();
    }
    for task in 0..20 {
        lab.start_spec(task, spec.clone(), "look", i64::from(task));
        let record = lab.lab.ended();
        let (place, names, params): (String, Vec<String>, String) =
            serde_json::from_str(done(&record)).unwrap();
        assert!(place.ends_with(&format!("/tasks/{task}-1.1-0")), "{place}");
        let made = if task % 5 == 4 { " made" } else { "" };
        assert_eq!(
            names.join(" "),
            format!(".nodectl.stderr .nodectl.stdout lib{made} params.json"),
            "task {task}"
        );
        assert_eq!(params, format!("{{\"do\":\"look\",\"value\":{task}}}"));
    }
    lab.lab.workers().forget(JOB);
    until("all goes", || {
        !lab.lab.store.dir().join(format!("jobs/{JOB}")).exists()
    });
}

#[test]
fn an_exception_is_told_with_its_traceback_and_the_worker_goes_on() {
    let mut lab = PythonLab::new();
    let record = lab.call(0, "raise", 0);
    match failure(&record) {
        Failure::Raised(error) => {
            assert_eq!(
                (error.kind.as_str(), error.message.as_str()),
                ("ValueError", "bad value")
            );
            assert!(
                error.traceback.contains("lib/mine.py") && error.traceback.contains("in run"),
                "{}",
                error.traceback
            );
        }
        other => panic!("expected Raised, got {other:?}"),
    }
    assert!(String::from_utf8_lossy(&record.stderr.tail).contains("ValueError: bad value"));
    assert_eq!(done(&lab.call(1, "calls", 0)), "2");
}

#[test]
fn a_process_that_dies_fails_its_task_only_and_is_replaced() {
    let mut lab = PythonLab::new();
    assert_eq!(*failure(&lab.call(0, "abort", 0)), Failure::Signal(6));
    assert_eq!(done(&lab.call(1, "calls", 0)), "1");
    assert_eq!(
        *failure(&lab.call(2, "exit", 0)),
        Failure::Exit(0),
        "an end without an answer is no success"
    );
    let pid: i32 = done(&lab.call(3, "pid", 0)).parse().unwrap();
    kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL).unwrap();
    // A zombie's other threads may still hold the stream.
    until("it is gone", || {
        !std::path::Path::new(&format!("/proc/{pid}")).exists()
    });
    assert_eq!(
        done(&lab.call(4, "calls", 0)),
        "1",
        "the death of an idle worker is nobody's failure"
    );
}

#[test]
fn a_timeout_counts_from_the_call_and_ends_the_worker() {
    let mut lab = PythonLab::new();
    let spec = WorkSpec {
        timeout_ms: Some(300),
        ..lab.spec("")
    };
    lab.start_spec(0, spec.clone(), "hang", 0);
    let begun = lab.lab.task_dir(0).join("begun");
    let pid = number_in(&begun);
    let record = lab.lab.ended();
    assert_eq!(*failure(&record), Failure::Timeout { limit_ms: 300 });
    assert!(record.duration_us >= 300_000 && !runs(pid), "{record:?}");
    lab.start_spec(1, spec, "calls", 0);
    assert_eq!(done(&lab.lab.ended()), "1");
}

#[test]
fn a_stopped_call_ends_its_worker_with_all_that_it_started() {
    let mut lab = PythonLab::new();
    let stray: i32 = done(&lab.call(0, "stray", 0)).parse().unwrap();
    assert!(runs(stray), "it belongs to the worker, which goes on");
    lab.start(1, "hang", 0);
    let pid = number_in(&lab.lab.task_dir(1).join("begun"));
    lab.lab.workers().stop(JOB, 1, attempt(), true);
    let stopped = loop {
        match lab.lab.worker_event() {
            WorkerEvent::Started { .. } => {}
            other => break other,
        }
    };
    assert!(
        matches!(stopped, WorkerEvent::Stopped { task: 1, .. }),
        "{stopped:?}"
    );
    assert!(!runs(pid) && !runs(stray));
    assert_eq!(done(&lab.call(2, "calls", 0)), "1");
}

#[test]
fn a_worker_that_cannot_start_says_why() {
    let mut lab = PythonLab::new();
    let fails = |lab: &mut PythonLab, spec: WorkSpec| {
        lab.start_spec(0, spec, "value", 0);
        let record = lab.lab.ended();
        match failure(&record) {
            Failure::Init(error) => (
                error.clone(),
                String::from_utf8_lossy(&record.stdout.tail).into_owned(),
            ),
            other => panic!("expected Init, got {other:?}"),
        }
    };
    let spec = lab.spec(", \"fails\": \"raise\"");
    let (error, stdout) = fails(&mut lab, spec);
    assert_eq!(error.to_string(), "RuntimeError: no such data set");
    assert!(
        error.traceback.contains("in __init__") && stdout.contains("init speaks"),
        "{error:?} {stdout}"
    );
    let spec = lab.spec(", \"fails\": \"abort\"");
    let (error, _) = fails(&mut lab, spec);
    assert!(
        error.message.contains("killed by signal 6")
            && error.traceback.contains("Fatal Python error"),
        "{error:?}"
    );
    let with = |lab: &PythonLab, python: &str, class: &str| {
        let mut spec = lab.spec("");
        let role = WorkerRole::Calls {
            class: class.into(),
            init: "{}".into(),
        };
        spec.worker = Some(WorkerSpec::Python(PythonWorker {
            python: python.into(),
            role,
        }));
        spec
    };
    let spec = with(&lab, "no-such-python", "lib/mine.py:Worker");
    let (error, _) = fails(&mut lab, spec);
    assert!(
        error
            .message
            .contains("no program `no-such-python` in PATH"),
        "{error:?}"
    );
    let spec = with(&lab, "/bin/false", "lib/mine.py:Worker");
    let (error, _) = fails(&mut lab, spec);
    assert!(
        error.message.contains("/bin/false") && error.message.contains("exit status 1"),
        "{error:?}"
    );
    let spec = with(&lab, "python3", "lib/mine.py:Wrker");
    let (error, _) = fails(&mut lab, spec);
    assert!(
        error.message.contains("Wrker") && error.message.contains("Worker"),
        "{error:?}"
    );
    assert_eq!(done(&lab.call(1, "calls", 0)), "1");
}

#[test]
fn a_running_calls_log_can_be_read_and_stays_bounded() {
    let mut lab = PythonLab::new();
    let spec = WorkSpec {
        log_limit_bytes: 20_000,
        output_limit_bytes: 8 << 20,
        ..lab.spec("")
    };
    lab.start_spec(0, spec, "talk", 500_000);
    let read = |lab: &WorkerLab| lab.workers().read_log(stdout_from(0));
    until("the first lines", || {
        read(&lab.lab)
            .is_ok_and(|(bytes, _)| bytes.starts_with(b"init speaks\nrun speaks\nfirst\n"))
    });
    use std::os::unix::fs::MetadataExt;
    let log = lab.lab.task_dir(0).join(".nodectl.stdout");
    until("its middle's blocks are given back", || {
        log.metadata().map_or(true, |data| {
            data.len() > 3_000_000 && data.blocks() * 512 < 100_000
        })
    });
    let record = lab.lab.ended();
    let text = String::from_utf8(lab.lab.blob(record.stdout.blob.unwrap())).unwrap();
    assert!(text.len() < 20_200 && text.starts_with("init speaks") && text.ends_with("last\n"));
    assert!(text.contains("bytes left out here"));
}

#[test]
fn too_much_memory_ends_the_worker() {
    let mut lab = PythonLab::new();
    let mut spec = lab.spec("");
    spec.resources.memory_bytes = 64 << 20;
    lab.start_spec(0, spec.clone(), "value", 0);
    done(&lab.lab.ended());
    let hog = "class Hog:\n    def run(self):\n        self.data = b'x' * (200 << 20)\n        import time; time.sleep(1000)\n";
    spec.inputs = Some(upload(&lab.lab, "hog.py", hog.as_bytes()));
    let role = WorkerRole::Calls {
        class: "hog.py:Hog".into(),
        init: "{}".into(),
    };
    spec.worker = Some(WorkerSpec::Python(PythonWorker {
        python: "python3".into(),
        role,
    }));
    let mut fresh = WorkerLab::new();
    upload(&fresh, "hog.py", hog.as_bytes());
    fresh.start(0, spec);
    assert_eq!(
        *failure(&fresh.ended()),
        Failure::OutOfMemory {
            limit_bytes: 64 << 20
        }
    );
}

/// Prints; judges only what holds on any machine.
#[test]
fn a_call_that_does_nothing_costs_far_less_than_a_process() {
    const TASKS: u32 = 1000;
    let mut lab = PythonLab::new();
    lab.call(0, "hush", 0);
    let begun = Instant::now();
    lab.start(1, "hush", 0);
    lab.start(2, "hush", 0);
    for task in 3..TASKS + 3 {
        done(&lab.lab.ended());
        if task < TASKS + 1 {
            lab.start(task, "hush", 0);
        }
    }
    let each = begun.elapsed() / TASKS;
    println!("a call: {each:?}, 2 in parallel");
    assert!(each < std::time::Duration::from_millis(20), "{each:?}");
}

/// The directories of its calls are made when it has long been started.
#[test]
fn a_worker_from_which_the_node_is_hidden_does_its_calls() {
    if let Err(why) = nodectl::worker::supervisor::hides() {
        return eprintln!("SKIPPED: {why}");
    }
    let mut lab = PythonLab::new();
    let isolation = nodectl::types::Isolation {
        hides_node: Some(true),
        ..Default::default()
    };
    let role = WorkerRole::Calls {
        class: "lib/mine.py:Worker".into(),
        init: "{}".into(),
    };
    let worker = Some(WorkerSpec::Python(PythonWorker {
        python: "python3".into(),
        role,
    }));
    let spec = WorkSpec {
        worker,
        isolation,
        ..lab.spec("")
    };
    for (task, what) in ["calls", "write", "where", "calls"].into_iter().enumerate() {
        lab.start_spec(task as u32, spec.clone(), what, 10);
        let record = lab.lab.ended();
        assert_eq!(record.outcome, Outcome::Done, "{what}: {record:?}");
        if task == 3 {
            assert_eq!(
                record.value.as_deref(),
                Some("4"),
                "one worker did them all"
            );
        }
    }
}
