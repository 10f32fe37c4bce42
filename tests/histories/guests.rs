//! Clients that are programs of their own: a pool's, and trainings whose samples are counted.

use crate::{
    clients::{ClientJob, Crowd, pause},
    history::HistoryLog,
    machines::{LabMachine, Site},
    plan::Rng,
};
use serde_json::{Value, json};
use std::{
    fs,
    path::Path,
    process::{Child, Command, Stdio},
    sync::atomic::Ordering,
    time::Duration,
};

/// The training's table has 600 points; a tenth of them is for validation.
const SAMPLES: u64 = 540;
const EPOCHS: usize = 40;
const COMMAND_SECONDS: &str = "60";

/// A pool that is open until it is told to end.
pub struct GuestPool {
    child: Child,
}

impl GuestPool {
    /// None, with the reason, without a Python that has the package and what it needs.
    pub fn open(site: &Site, machine: &LabMachine, seconds: f64) -> Result<Self, String> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let python = |arguments: &[&str]| {
            let mut command = Command::new("python3");
            let installed = Path::new(env!("CARGO_TARGET_TMPDIR")).join("../python");
            let path = std::env::join_paths([root.join("packaging/python"), installed])
                .expect("no colons in them");
            command
                .args(arguments)
                .env("PYTHONPATH", path)
                .env("NODECTL_NODE__DATA_DIR", machine.data_dir());
            command.current_dir(site.dir);
            command
        };
        let tried = python(&["-c", "import nodectl, cloudpickle"]).output();
        if !tried.is_ok_and(|output| output.status.success()) {
            return Err("no python3 with cloudpickle".into());
        }
        let notes = site.dir.join("pool.notes");
        let log = fs::File::create(site.dir.join("pool.log")).map_err(|error| error.to_string())?;
        let script = root.join("tests/histories/pool.py");
        let mut command = python(&[]);
        command
            .arg(script)
            .arg(notes)
            .arg("pool")
            .arg(format!("{seconds}"));
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(log);
        let child = command.spawn().map_err(|error| error.to_string())?;
        Ok(Self { child })
    }

    /// Asks it to end what it is at, and to close.
    pub fn close(&mut self) {
        drop(self.child.stdin.take());
    }

    pub fn has_ended(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }
}

impl Drop for GuestPool {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Has one small training run after the other until all is over, so that faults find one whatever
/// the machine's speed.
pub fn train(site: &Site, crowd: &Crowd, rng: &mut Rng) {
    let is_over = || crowd.over.load(Ordering::Relaxed);
    for number in 0.. {
        let (node, _) = rng.pick(&crowd.names()).clone();
        let job = submit_training(site, crowd, &node, &format!("training-{number}"));
        while !is_over() {
            let phase = job.as_ref().map(|job| crowd.phase_of(job, rng));
            pause(Duration::from_millis(300));
            // Or it was not submitted.
            if phase.is_none_or(|phase| phase.is_some_and(|phase| phase != "running")) {
                break;
            }
        }
        if is_over() {
            return;
        }
    }
}

/// Submits a training by two workers in `bsp`, through the command line as a person would.
fn submit_training(site: &Site, crowd: &Crowd, node: &str, name: &str) -> Option<ClientJob> {
    let class = |x: i32, y: i32| if x + y > 40 { 2 } else { i32::from(x > y) };
    let lines: String = (0..600)
        .map(|i| (i % 25, i / 25))
        .map(|(x, y)| format!("{x},{y},{}\n", class(x, y)))
        .collect();
    let file = site.dir.join("training.toml");
    let text = format!(
        "kind = \"train\"\nname = \"{name}\"\nseed = 5\nbatch = 50\nworkers = 2\nepochs = {EPOCHS}\n[data]\ntable = \"points.csv\"\n\
         standardize = true\nvalidation = 0.1\n[model]\nlayers = [{{ dense = 24 }}, \"tanh\", {{ dense = 3 }}]\n\
         [optimizer]\nkind = \"momentum\"\nrate = 0.1\n"
    );
    fs::write(site.dir.join("points.csv"), lines)
        .and_then(|()| fs::write(&file, text))
        .ok()?;
    let fields = json!({ "job": name, "tasks": 2, "bytes": 0, "ms": 0, "sort": "training" });
    let call = site.history.call("training", node, "submit", fields);
    let output = command(
        site,
        node,
        &["run", "--detach", "--quiet", &file.display().to_string()],
    );
    let id = output
        .as_deref()
        .ok()
        .and_then(|said| said.split_whitespace().last())
        .unwrap_or_default()
        .to_string();
    site.history
        .answer(call, &output.map(|_| json!({ "id": id })));
    let job = ClientJob {
        name: name.into(),
        id,
        tasks: 2,
        bytes: 0,
        gated: false,
    };
    (!job.id.is_empty()).then(|| {
        crowd
            .jobs
            .lock()
            .expect("nobody panics with it")
            .push(job.clone());
        job
    })
}

/// Notes of each training how many samples its epochs were made of.
pub fn count_samples(site: &Site, crowd: &Crowd, node: &str) {
    let jobs = crowd.jobs.lock().expect("nobody panics with it").clone();
    for job in jobs.iter().filter(|job| job.name.starts_with("training")) {
        count_samples_of(site, job, node);
    }
}

fn count_samples_of(site: &Site, job: &ClientJob, node: &str) {
    let into = site.dir.join(&job.name);
    let said = command(
        site,
        node,
        &["results", &job.id, "--into", &into.display().to_string()],
    );
    let tables = fs::read_dir(&into)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path().join("metrics.csv"));
    let table = tables
        .filter_map(|path| fs::read_to_string(path).ok())
        .next();
    let Some(table) = table else {
        let why = format!(
            "no metrics.csv of it; {}",
            said.map_or_else(|error| error, |_| String::new())
        );
        site.history.note(
            "trained",
            json!({ "job": job.name, "epochs": EPOCHS, "samples": SAMPLES, "error": why }),
        );
        return;
    };
    let counts: Vec<u64> = table.lines().skip(1).map(samples).collect();
    site.history.note(
        "trained",
        json!({ "job": job.name, "epochs": EPOCHS, "samples": SAMPLES, "counts": counts }),
    );
}

/// A row ends with an epoch's seconds, and its samples a second.
fn samples(row: &str) -> u64 {
    let mut cells = row
        .rsplit(',')
        .map(|cell| cell.parse::<f64>().unwrap_or(0.0));
    let (speed, seconds) = (cells.next().unwrap_or(0.0), cells.next().unwrap_or(0.0));
    (speed * seconds).round() as u64
}

fn command(site: &Site, node: &str, arguments: &[&str]) -> Result<String, String> {
    let dir = site.dir;
    let mut command = Command::new("timeout");
    command.arg(COMMAND_SECONDS).arg(&site.settings.nodectl);
    let path = std::env::var_os("PATH").unwrap_or_default();
    command
        .env_clear()
        .env("PATH", path)
        .env("HOME", dir)
        .env("XDG_CONFIG_HOME", dir)
        .env("NO_COLOR", "1");
    command
        .current_dir(dir)
        .arg("--data-dir")
        .arg(LabMachine::data_dir_of(site, node))
        .args(arguments)
        .stdin(Stdio::null());
    let output = command.output().map_err(|error| error.to_string())?;
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    if output.status.success() {
        Ok(stdout)
    } else {
        Err(String::from_utf8_lossy(&output.stderr).trim().to_string())
    }
}

/// Puts what tasks and a pool noted into the history.
pub fn merge_notes(history: &HistoryLog, dir: &Path) {
    for line in fs::read_to_string(dir.join("tasks.notes"))
        .unwrap_or_default()
        .lines()
    {
        let words: Vec<&str> = line.split(' ').collect();
        let [event, job, task, attempt, node, time] = words[..] else {
            continue;
        };
        let (Ok(task), Ok(time)) = (task.parse::<u64>(), time.parse::<u64>()) else {
            continue;
        };
        let fields =
            json!({ "event": event, "job": job, "task": task, "attempt": attempt, "node": node });
        history.note_at(history.at_unix_ns(time), "run", fields);
    }
    for line in fs::read_to_string(dir.join("pool.notes"))
        .unwrap_or_default()
        .lines()
    {
        let Ok(Value::Object(mut fields)) = serde_json::from_str(line) else {
            continue;
        };
        let time = fields
            .remove("unix_ns")
            .and_then(|time| time.as_u64())
            .unwrap_or(0);
        history.note_at(history.at_unix_ns(time), "pool", Value::Object(fields));
    }
}
