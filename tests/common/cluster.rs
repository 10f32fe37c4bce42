//! Nodes: start, kill, restart, ask.

use super::{
    NEVER, SOON, http::NodeApi, netns::Lab, output_within, program, python::COMPILED, wait_until,
};
use nodectl::net::Secret;
use serde_json::Value;
use std::{
    fs,
    net::UdpSocket,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Output, Stdio},
    time::Duration,
};
use tempfile::TempDir;

/// How the nodes of a cluster find each other.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Discovery {
    Beacon,
    Mdns,
    /// None: only peers that are named.
    Peers,
}

pub struct Cluster {
    pub dir: TempDir,
    nodes: Vec<ClusterNode>,
    discovery: Discovery,
    beacon_port: u16,
    /// The networks of the nodes, if they do not share the machine's loopback.
    pub lab: Option<Lab>,
}

struct ClusterNode {
    child: Option<Child>,
    data_dir: PathBuf,
    secret_file: PathBuf,
    settings: Vec<(String, String)>,
    /// What it runs, if not the program under test.
    program: Option<PathBuf>,
}

impl Cluster {
    /// Nodes on loopback that all see each other.
    pub fn of(count: usize) -> Self {
        let mut cluster = Self::empty(Discovery::Beacon);
        cluster.grow(count);
        cluster
    }

    /// Each node in a network namespace of its own, all on one bridge.
    pub fn in_lab(lab: Lab, count: usize, discovery: Discovery) -> Self {
        let mut cluster = Self::empty(discovery);
        cluster.lab = Some(lab);
        cluster.grow(count);
        cluster
    }

    pub fn empty(discovery: Discovery) -> Self {
        let dir = tempfile::Builder::new()
            .prefix("nodectl-")
            .tempdir()
            .expect("a temporary directory");
        // As `join` makes it, which is not stretched: of another one each node would take a tenth
        // of a second of a processor to start.
        let secret = Secret::generate();
        fs::write(dir.path().join("secret"), secret.reveal()).expect("writable");
        // Let go at once: nodes share the port among themselves.
        let free = UdpSocket::bind("127.0.0.1:0")
            .and_then(|socket| socket.local_addr())
            .expect("a free port");
        let beacon_port = if discovery == Discovery::Beacon {
            free.port()
        } else {
            0
        };
        Self {
            dir,
            nodes: Vec::new(),
            discovery,
            beacon_port,
            lab: None,
        }
    }

    fn grow(&mut self, count: usize) {
        for _ in 0..count {
            self.add(&[]);
        }
        self.wait_members(count);
    }

    /// Starts one more node; returns its number, its name is `n` and the number.
    pub fn add(&mut self, settings: &[(&str, &str)]) -> usize {
        let secret_file = self.dir.path().join("secret");
        self.add_with_secret(&secret_file, settings)
    }

    pub fn add_with_secret(&mut self, secret_file: &Path, settings: &[(&str, &str)]) -> usize {
        let number = self.prepare_with_secret(secret_file, settings);
        self.restart(number);
        number
    }

    /// Starts a node that is not running, on the data directory that it had.
    pub fn restart(&mut self, number: usize) {
        self.spawn(number);
        let socket = self.api(number).socket;
        wait_until(SOON, "the node answers on its socket", || {
            self.assert_running(number);
            std::os::unix::net::UnixStream::connect(&socket).is_ok()
        });
    }

    /// Names a node that `spawn` is to start; returns its number.
    pub fn prepare(&mut self, settings: &[(&str, &str)]) -> usize {
        let secret_file = self.dir.path().join("secret");
        self.prepare_with_secret(&secret_file, settings)
    }

    fn prepare_with_secret(&mut self, secret_file: &Path, settings: &[(&str, &str)]) -> usize {
        let number = self.nodes.len();
        let settings = settings
            .iter()
            .map(|(key, value)| (key.to_string(), value.to_string()))
            .collect();
        let data_dir = self.dir.path().join(format!("n{number}"));
        self.nodes.push(ClusterNode {
            child: None,
            data_dir,
            secret_file: secret_file.to_path_buf(),
            settings,
            program: None,
        });
        number
    }

    /// Starts one more node, which runs a program of its own.
    pub fn add_with_program(&mut self, program: &Path, settings: &[(&str, &str)]) -> usize {
        let number = self.prepare(settings);
        self.nodes[number].program = Some(program.to_path_buf());
        self.restart(number);
        number
    }

    /// Starts a node's process and waits for nothing.
    pub fn spawn(&mut self, number: usize) {
        assert!(self.nodes[number].child.is_none(), "n{number} runs");
        let mut command = self.in_network(number);
        let log = fs::File::options()
            .create(true)
            .append(true)
            .open(self.log_path(number))
            .expect("writable");
        command
            .arg("join")
            .arg("--secret-file")
            .arg(&self.nodes[number].secret_file);
        command.args(["--name", &format!("n{number}")]);
        command
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("a descriptor"))
            .stderr(log);
        // SAFETY: one system call, no allocation, no lock. Nodes must not outlive a test that was
        // killed.
        unsafe {
            command.pre_exec(|| {
                use rustix::process::{Signal, set_parent_process_death_signal};
                Ok(set_parent_process_death_signal(Some(Signal::KILL))?)
            });
        }
        self.nodes[number].child = Some(command.spawn().expect("nodectl starts"));
    }

    fn assert_running(&mut self, number: usize) {
        let child = self.nodes[number].child.as_mut().expect("it was started");
        if let Some(status) = child.try_wait().expect("our child") {
            panic!("n{number} ended with {status}");
        }
    }

    /// `kill -9`.
    pub fn kill9(&mut self, number: usize) {
        let mut child = self.nodes[number].child.take().expect("it runs");
        child.kill().expect("our child");
        child.wait().expect("our child");
    }

    /// Waits for a node that was told to leave.
    pub fn wait_exit(&mut self, number: usize, limit: Duration) -> ExitStatus {
        let mut child = self.nodes[number].child.take().expect("it runs");
        let mut status = None;
        wait_until(limit, "the node has left", || {
            status = child.try_wait().expect("our child");
            status.is_some()
        });
        status.expect("wait_until saw it")
    }

    pub fn pid(&self, number: usize) -> u32 {
        self.nodes[number].child.as_ref().expect("it runs").id()
    }

    /// Where the nodes announce themselves; 0 where they do not.
    pub fn beacon_port(&self) -> u16 {
        self.beacon_port
    }

    pub fn is_running(&self, number: usize) -> bool {
        self.nodes[number].child.is_some()
    }

    pub fn data_dir(&self, number: usize) -> &Path {
        &self.nodes[number].data_dir
    }

    pub fn log(&self, number: usize) -> String {
        fs::read_to_string(self.log_path(number)).unwrap_or_default()
    }

    fn log_path(&self, number: usize) -> PathBuf {
        self.dir.path().join(format!("n{number}.log"))
    }

    /// Waits until every running node sees as many alive members.
    pub fn wait_members(&self, count: usize) {
        let running: Vec<usize> = (0..self.nodes.len())
            .filter(|number| self.is_running(*number))
            .collect();
        for number in running {
            wait_until(SOON, &format!("n{number} sees {count} members"), || {
                self.members(number).len() == count
            });
        }
    }

    /// The names of the members that a node sees alive, in order.
    pub fn members(&self, number: usize) -> Vec<String> {
        let alive = self
            .nodes_json(number)
            .into_iter()
            .filter(|node| node["alive"] == true);
        let mut names: Vec<String> = alive.map(|node| text(&node["name"])).collect();
        names.sort();
        names
    }

    fn nodes_json(&self, number: usize) -> Vec<Value> {
        self.answer(number, "/v1/nodes")
            .as_array()
            .expect("a list of nodes")
            .clone()
    }

    /// The node that coordinates a job, asked of another one.
    pub fn coordinator(&self, asked: usize, job: &str) -> Option<usize> {
        let id = self.job(asked, job)["coordinator"].as_str()?.to_string();
        let node = self
            .nodes_json(asked)
            .into_iter()
            .find(|node| node["id"] == id.as_str())?;
        text(&node["name"]).strip_prefix('n')?.parse().ok()
    }

    fn api(&self, number: usize) -> NodeApi {
        NodeApi::at(&self.nodes[number].data_dir)
    }

    /// What a node's API answers where one looks, such as at `/v1/nodes`; none while it refuses, or
    /// does not answer. To be asked again and again: what a command with `--json` shows, without
    /// the process.
    pub fn ask(&self, number: usize, path: &str) -> Option<Value> {
        self.api(number).get(path, NEVER).ok()
    }

    /// What a node's API answers where one looks; panics, saying why, if there is no answer.
    pub fn answer(&self, number: usize, path: &str) -> Value {
        let answer = self.api(number).get(path, NEVER);
        answer.unwrap_or_else(|failure| panic!("n{number}: {path}: {}", failure.text))
    }

    /// A job as a node knows it: what `nodectl job --json` shows.
    pub fn job(&self, number: usize, job: &str) -> Value {
        self.answer(number, &format!("/v1/jobs/{job}"))
    }

    /// `nodectl` with a node's settings, in the test's own network.
    pub fn command(&self, number: usize) -> Command {
        let mut command = Command::new(program());
        self.configure(&mut command, number);
        command
    }

    /// The same inside the node's network namespace, where it has one.
    pub fn in_network(&self, number: usize) -> Command {
        let program = self.nodes[number].program.clone().unwrap_or_else(program);
        let mut command = match &self.lab {
            Some(lab) => lab.command(number, program),
            None => Command::new(program),
        };
        self.configure(&mut command, number);
        command
    }

    /// Nothing of the user's own settings gets in.
    fn configure(&self, command: &mut Command, number: usize) {
        let home = self.dir.path();
        let path = std::env::var_os("PATH").unwrap_or_default();
        command
            .env_clear()
            .env("PATH", path)
            .env("HOME", home)
            .env("XDG_CONFIG_HOME", home)
            .current_dir(home);
        command
            .env("NO_COLOR", "1")
            .env("RUST_BACKTRACE", "1")
            .env("NODECTL_NODE__ALLOW_ROOT", "true")
            // Beside other tests and compilations, tasks get their part of the processors.
            .env("NODECTL_NODE__NICE", "0");
        command.env("NODECTL_NETWORK__BEACON_PORT", self.beacon_port.to_string());
        command.env(
            "NODECTL_NETWORK__MDNS",
            (self.discovery == Discovery::Mdns).to_string(),
        );
        if self.lab.is_none() {
            command.env("NODECTL_NETWORK__INTERFACES", "[\"lo\"]");
        }
        if let Some(node) = self.nodes.get(number) {
            command.envs(node.settings.iter().map(|(key, value)| (key, value)));
            command.arg("--data-dir").arg(&node.data_dir);
        }
    }

    pub fn run(&self, number: usize, arguments: &[&str]) -> Output {
        output_within(NEVER, self.command(number).args(arguments))
    }

    /// The command's stdout; panics unless it exits with 0.
    pub fn ok(&self, number: usize, arguments: &[&str]) -> String {
        let output = self.run(number, arguments);
        assert!(
            output.status.success(),
            "n{number}: nodectl {arguments:?}: {}\n{}",
            output.status,
            both(&output)
        );
        String::from_utf8(output.stdout).expect("UTF-8")
    }

    pub fn json(&self, number: usize, arguments: &[&str]) -> Value {
        let text = self.ok(number, arguments);
        serde_json::from_str(&text)
            .unwrap_or_else(|error| panic!("nodectl {arguments:?}: {error}\n{text}"))
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for child in self.nodes.iter_mut().filter_map(|node| node.child.as_mut()) {
            let _ = child.kill();
            let _ = child.wait();
        }
        // What Python compiled of modules in there.
        let compiled = format!("{}{}", COMPILED.1, self.dir.path().display());
        let _ = fs::remove_dir_all(compiled);
        if std::thread::panicking() {
            for number in 0..self.nodes.len() {
                let log = self.log(number);
                let lines: Vec<&str> = log.lines().collect();
                eprintln!(
                    "--- log of n{number}\n{}",
                    lines[lines.len().saturating_sub(40)..].join("\n")
                );
            }
        }
    }
}

/// Both streams of a command.
pub fn both(output: &Output) -> String {
    format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}

pub fn text(value: &Value) -> String {
    value
        .as_str()
        .unwrap_or_else(|| panic!("{value} is no text"))
        .to_string()
}
