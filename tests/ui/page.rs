//! `nodectl ui` as a process, spoken to over plain HTTP; and what the pages have to show.

use crate::{
    browser::Browser,
    common::{SOON, cluster::Cluster, job::write_job, program, python::python_path},
};
use serde_json::Value;
use std::{
    fs,
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    path::Path,
    process::{Child, ChildStdout, Command, Stdio},
};

/// A page that is served until this is dropped.
pub struct Page {
    child: Child,
    /// Kept, so that the page can tell its next address.
    _stdout: BufReader<ChildStdout>,
    pub address: String,
    pub port: u16,
    cookie: String,
}

pub struct Said {
    pub status: u16,
    pub head: String,
    pub body: String,
}

impl Said {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.body))
    }
}

impl Page {
    /// Starts it; its address has not been used yet.
    pub fn start(cluster: &Cluster, node: usize, flags: &[&str]) -> Self {
        let mut command = cluster.command(node);
        command.arg("ui").args(flags).stdin(Stdio::null());
        let mut child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("nodectl starts");
        let mut stdout = BufReader::new(child.stdout.take().expect("a pipe"));
        let mut address = String::new();
        stdout.read_line(&mut address).expect("an address");
        let address = address.trim().to_string();
        let port = address
            .strip_prefix("http://127.0.0.1:")
            .and_then(|rest| rest.split('/').next())
            .and_then(|port| port.parse().ok())
            .unwrap_or_else(|| panic!("`{address}` is no address"));
        Self {
            child,
            _stdout: stdout,
            address,
            port,
            cookie: String::new(),
        }
    }

    /// Starts it, and exchanges the token for the cookie.
    pub fn open(cluster: &Cluster, node: usize, flags: &[&str]) -> Self {
        let mut page = Self::start(cluster, node, flags);
        let (_, path) = page.address.split_once("/?").expect("a token");
        let opened = page.ask("GET", &page.host(), &format!("/?{path}"), "", "");
        assert_eq!(opened.status, 303, "{}", opened.head);
        let cookie = opened.head.lines().find_map(|line| {
            let (name, value) = line.split_once(": ")?;
            (name.eq_ignore_ascii_case("set-cookie")).then_some(value)
        });
        let cookie = cookie.and_then(|cookie| cookie.split(';').next());
        page.cookie = format!("Cookie: {}\r\n", cookie.expect("a cookie"));
        page
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    fn host(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    pub fn get(&self, path: &str) -> Said {
        self.ask("GET", &self.host(), path, &self.cookie, "")
    }

    pub fn get_without_cookie(&self, path: &str) -> Said {
        self.ask("GET", &self.host(), path, "", "")
    }

    pub fn get_from(&self, host: &str, path: &str) -> Said {
        self.ask("GET", host, path, &self.cookie, "")
    }

    pub fn post(&self, path: &str, body: &str) -> Said {
        let more = format!(
            "{}Origin: http://{}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n",
            self.cookie,
            self.host(),
            body.len()
        );
        self.ask("POST", &self.host(), path, &more, body)
    }

    fn send(&self, method: &str, host: &str, path: &str, more: &str, body: &str) -> TcpStream {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).expect("it listens");
        stream.set_read_timeout(Some(SOON)).expect("a socket");
        let head = format!("{method} {path} HTTP/1.0\r\nHost: {host}\r\n{more}\r\n{body}");
        stream.write_all(head.as_bytes()).expect("it reads");
        stream
    }

    fn ask(&self, method: &str, host: &str, path: &str, more: &str, body: &str) -> Said {
        let mut bytes = Vec::new();
        let mut stream = self.send(method, host, path, more, body);
        stream.read_to_end(&mut bytes).expect("an answer");
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let (head, body) = text.split_once("\r\n\r\n").expect("a head");
        let status = head.split(' ').nth(1).and_then(|code| code.parse().ok());
        Said {
            status: status.expect("a status"),
            head: head.to_string(),
            body: body.to_string(),
        }
    }

    /// What is told as things change.
    pub fn events(&self, path: &str) -> ServerEvents {
        let stream = self.send("GET", &self.host(), path, &self.cookie, "");
        ServerEvents(BufReader::new(stream))
    }

    pub fn first_event(&self, path: &str) -> Value {
        self.events(path).next()
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Server-sent events.
pub struct ServerEvents(BufReader<TcpStream>);

impl ServerEvents {
    pub fn next(&mut self) -> Value {
        loop {
            let mut line = String::new();
            let count = self.0.read_line(&mut line).expect("news");
            assert!(count > 0, "the stream ended");
            if let Some(data) = line.strip_prefix("data: ") {
                return serde_json::from_str(data).expect("JSON");
            }
        }
    }
}

/// Three nodes of two cores, one in another rack.
pub fn busy_cluster() -> Cluster {
    let mut cluster = Cluster::of(0);
    for rack in ["a", "a", "b"] {
        cluster.add(&[
            ("NODECTL_NODE__CORES", "2"),
            ("NODECTL_NODE__LABELS", &format!("{{rack=\"{rack}\"}}")),
        ]);
    }
    cluster.wait_members(3);
    cluster
}

const FIT: &str = "i=$1; if [ $((i % 17)) = 5 ]; then echo matrix is singular >&2; exit 3; fi; \
    echo nodectl-result: '{\"residual\": 0.0'$((i * 7919 % 977))'}'";
const SWEEP: &str = "sleep 0.$1; \
    for s in 1 2 3 4; do echo nodectl-metric: '{\"step\": '$s', \"loss\": 0.'$1$s'}'; \
    sleep 0.1; done; echo nodectl-result: '{\"loss\": 0.'$1'4}'";

/// Ids of a job, a sweep, a training, a job that no node can run, and an integration.
pub fn submit_all(cluster: &Cluster) -> [String; 5] {
    let dir = cluster.dir.path();
    for file in ["lab6.h5", "lab6.poni"] {
        let example = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("config/jobs/integrate")
            .join(file);
        fs::copy(example, dir.join(file)).expect("the example is there");
    }
    fs::write(dir.join("fit.sh"), FIT).expect("writable");
    fs::write(dir.join("sweep.sh"), SWEEP).expect("writable");
    let point = |i: i32| (i % 25, i / 25);
    let points: String = (0..600)
        .map(point)
        .map(|(x, y)| format!("{x},{y},{}\n", i32::from(x > y)))
        .collect();
    fs::write(dir.join("points.csv"), points).expect("writable");
    let jobs = [
        (
            "fit-spectra",
            "command = [\"sh\", \"fit.sh\", \"{i}\"]\nsource = \"fit.sh\"\nretries = 0\n\
             params = { i = { range = [0, 60] } }\nresources = { cpus = 0.5 }\n",
        ),
        (
            "sweep-rates",
            "command = [\"sh\", \"sweep.sh\", \"{depth}\"]\nsource = \"sweep.sh\"\n\
             params = { depth = [1, 2, 3, 4, 5, 6], width = [8, 16] }\n\
             resources = { cpus = 0.5 }\n[sweep]\nmetric = \"loss\"\ngoal = \"min\"\n\
             stop = \"asha\"\nreduction = 2\n",
        ),
        (
            "classify",
            "kind = \"train\"\nseed = 5\nbatch = 50\nepochs = 40\n[data]\ntable = \"points.csv\"\n\
             standardize = true\nvalidation = 0.1\n[model]\n\
             layers = [{ dense = 16 }, \"tanh\", { dense = 2 }]\n[optimizer]\nkind = \"adam\"\n",
        ),
        (
            "needs-rack-c",
            "command = [\"true\"]\nwait = true\nwhere = \"labels.rack == 'c'\"\n",
        ),
        (
            "integrate",
            "kind = \"integrate\"\ndatasets = \"lab6.h5\"\nponi = \"lab6.poni\"\npoints = 1000\n\
             unit = \"q_nm^-1\"\ncalibrant = \"LaB6\"\nengine = \"cpu\"\nstrategy = \"split\"\n\
             frames_per_task = 2\n",
        ),
    ];
    jobs.map(|(name, text)| {
        let text = format!("name = \"{name}\"\n{text}");
        cluster.submit(0, &write_job(dir, name, &text))
    })
}

const POOL: &str = "
import sys, nodectl
class Doubler:
    def run(self, number):
        return 2 * number
with nodectl.Pool(Doubler, name='doubler', cpus=0.5, max_workers=2) as pool:
    assert pool.submit(1).result() == 2
    print('open', flush=True)
    sys.stdin.read()
";

/// A Python program that has a pool open, until this is dropped.
pub struct PoolProgram(Child);

impl PoolProgram {
    /// None where there is no Python that can.
    pub fn start(cluster: &Cluster) -> Option<Self> {
        let mut command = Command::new("python3");
        command
            .args(["-c", POOL])
            .env("PYTHONPATH", python_path()?)
            .env("NODECTL", program())
            .env("NODECTL_NODE__DATA_DIR", cluster.data_dir(0))
            .current_dir(cluster.dir.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut child = command.spawn().expect("it starts");
        let stdout = child.stdout.take().expect("a pipe");
        let this = Self(child);
        let mut said = String::new();
        BufReader::new(stdout)
            .read_line(&mut said)
            .expect("a line, or an end");
        assert_eq!(said, "open\n");
        Some(this)
    }
}

impl Drop for PoolProgram {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Dark and light, and on a telephone, where somebody wants them. The card of this heading is seen
/// whole, if there is one.
pub fn keep_pictures(browser: &Browser, name: &str, heading: &str) {
    let Some(directory) = std::env::var_os("NODECTL_UI_PICTURES") else {
        return;
    };
    let keep = |kind: &str| {
        browser.show(heading);
        let path = Path::new(&directory).join(format!("{name}-{kind}.png"));
        fs::write(path, browser.picture()).expect("writable");
    };
    browser.resize(1280, 800);
    for theme in ["dark", "light"] {
        browser.theme(theme);
        keep(theme);
    }
    browser.resize(390, 800);
    keep("narrow");
}
