//! Files that name hosts. Nabu's cluster file has a line for each job of a training,
//! `ps,HOST,PORT,GPU` or `worker,HOST,PORT,GPU`, where the GPU may be empty; the lines of one host
//! become one node. Our own inventory is TOML, with what `ssh` and the node need to know of each
//! host. Every mistake is named with its line.

use super::LaunchError;
use serde::Deserialize;
use std::{
    collections::BTreeMap,
    io::Read,
    path::{Path, PathBuf},
};

/// The largest file; hosts are counted in tens or hundreds.
const MAX_BYTES: u64 = 4 << 20;
/// As many as a full mesh of nodes is meant for, and some.
const MAX_HOSTS: usize = 4096;
const LINE_IS: &str =
    "a line is `ps,HOST,PORT,GPU` or `worker,HOST,PORT,GPU`; the GPU may be empty";

/// A machine that `ssh` reaches, and the node that it is to become.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Host {
    /// As `ssh` knows it.
    pub name: String,
    pub user: Option<String>,
    pub ssh_port: Option<u16>,
    /// The private key, for `ssh -i`.
    pub key: Option<PathBuf>,
    /// TCP port of the node; any if None.
    pub port: Option<u16>,
    /// GPUs by index or UUID; all if None, none if empty.
    pub gpus: Option<Vec<String>>,
    pub cores: Option<f64>,
    pub parameter_servers: u32,
    pub workers: u32,
    /// A virtual environment, or a directory with `python3`: first in the node's PATH.
    pub python: Option<String>,
    pub environment: BTreeMap<String, String>,
    pub labels: BTreeMap<String, String>,
}

/// The hosts of a file: TOML if its name ends so, else Nabu's format.
pub fn load(path: &Path) -> Result<Vec<Host>, LaunchError> {
    let text = read(path)?;
    let name = path.display().to_string();
    let is_toml = path
        .extension()
        .is_some_and(|extension| extension.eq_ignore_ascii_case("toml"));
    if is_toml {
        parse_inventory(&text, &name)
    } else {
        parse_nabu(&text, &name)
    }
}

/// The text of a file of bounded size.
pub(super) fn read(path: &Path) -> Result<String, LaunchError> {
    let unreadable = |source| LaunchError::Unreadable {
        path: path.to_path_buf(),
        source,
    };
    let mut bytes = Vec::new();
    std::fs::File::open(path)
        .and_then(|file| file.take(MAX_BYTES + 1).read_to_end(&mut bytes))
        .map_err(unreadable)?;
    let place = path.display().to_string();
    if bytes.len() as u64 > MAX_BYTES {
        return Err(LaunchError::bad_file(
            place,
            format!("it is larger than {} MiB", MAX_BYTES >> 20),
            None,
        ));
    }
    String::from_utf8(bytes).map_err(|error| {
        let line = error.as_bytes()[..error.utf8_error().valid_up_to()]
            .split(|byte| *byte == b'\n')
            .count();
        LaunchError::bad_file(
            format!("{place}:{line}"),
            "the text is not UTF-8 from here on",
            None,
        )
    })
}

/// What a line of Nabu's file says.
struct NabuLine<'t> {
    is_worker: bool,
    host: &'t str,
    port: u16,
    gpu: Option<&'t str>,
}

/// Hosts in the order of their first lines.
pub fn parse_nabu(text: &str, file: &str) -> Result<Vec<Host>, LaunchError> {
    let mut hosts: Vec<Host> = Vec::new();
    let mut taken: BTreeMap<(String, u16), usize> = BTreeMap::new();
    let lines = text.lines().map(without_comment).enumerate();
    let numbered = lines.filter(|(_, line)| !line.trim().is_empty());
    for (number, text) in numbered.map(|(index, line)| (index + 1, line)) {
        let bad = |problem: String| {
            LaunchError::bad_file(format!("{file}:{number}"), problem, LINE_IS.to_string())
        };
        let line = parse_line(text).map_err(&bad)?;
        if let Some(first) = taken.insert((line.host.to_string(), line.port), number) {
            return Err(bad(format!(
                "port {} of {} is taken by line {first}",
                line.port, line.host
            )));
        }
        let position = hosts
            .iter()
            .position(|host| host.name == line.host)
            .unwrap_or_else(|| {
                let host = Host {
                    name: line.host.to_string(),
                    port: Some(line.port),
                    gpus: Some(Vec::new()),
                    ..Host::default()
                };
                hosts.push(host);
                hosts.len() - 1
            });
        add_line(&mut hosts[position], &line);
    }
    check_count(&hosts, file)?;
    Ok(hosts)
}

/// What stands before a `#`, which no host's name has.
fn without_comment(line: &str) -> &str {
    line.split_once('#').map_or(line, |(before, _)| before)
}

fn parse_line(text: &str) -> Result<NabuLine<'_>, String> {
    let fields: Vec<&str> = text.split(',').map(str::trim).collect();
    let [kind, host, port, gpu] = fields[..] else {
        return Err(format!(
            "`{}` has {} fields, not 4",
            text.trim(),
            fields.len()
        ));
    };
    let is_worker = match kind {
        "ps" => false,
        "worker" => true,
        other => return Err(format!("`{other}` is neither `ps` nor `worker`")),
    };
    check_host(host)?;
    let port = port
        .parse()
        .ok()
        .filter(|port| *port > 0)
        .ok_or_else(|| format!("`{port}` is no port from 1 to 65535"))?;
    match gpu {
        "" => Ok(NabuLine {
            is_worker,
            host,
            port,
            gpu: None,
        }),
        gpu if gpu.parse::<u16>().is_ok() => Ok(NabuLine {
            is_worker,
            host,
            port,
            gpu: Some(gpu),
        }),
        other => Err(format!("`{other}` is no number of a GPU, such as 0")),
    }
}

/// A name that `ssh` takes for a host and for nothing else.
pub(super) fn check_host(host: &str) -> Result<(), String> {
    let odd = |c: char| c.is_whitespace() || c.is_control() || "'\"\\$`;&|<>()".contains(c);
    if host.is_empty() || host.starts_with('-') || host.contains(odd) || host.len() > 255 {
        return Err(format!("`{host}` is no host's name"));
    }
    Ok(())
}

/// One more job on a host. A worker without a GPU of its own may use any.
fn add_line(host: &mut Host, line: &NabuLine<'_>) {
    host.parameter_servers += u32::from(!line.is_worker);
    host.workers += u32::from(line.is_worker);
    match (line.gpu, &mut host.gpus) {
        (Some(gpu), Some(gpus)) if !gpus.iter().any(|known| known == gpu) => {
            gpus.push(gpu.to_string())
        }
        (None, gpus) if line.is_worker => *gpus = None,
        _ => {}
    }
}

fn check_count(hosts: &[Host], file: &str) -> Result<(), LaunchError> {
    match hosts.len() {
        0 => Err(LaunchError::bad_file(
            file,
            "it names no host",
            LINE_IS.to_string(),
        )),
        count if count > MAX_HOSTS => Err(LaunchError::bad_file(
            file,
            format!("{count} hosts are more than {MAX_HOSTS}"),
            None,
        )),
        _ => Ok(()),
    }
}

/// The inventory as it is written: what stands on top holds for every host that does not say
/// otherwise.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct InventoryFile {
    user: Option<String>,
    ssh_port: Option<u16>,
    key: Option<PathBuf>,
    python: Option<String>,
    #[serde(default)]
    environment: BTreeMap<String, String>,
    #[serde(default)]
    labels: BTreeMap<String, String>,
    #[serde(default)]
    host: Vec<toml::Spanned<HostEntry>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct HostEntry {
    name: String,
    user: Option<String>,
    ssh_port: Option<u16>,
    key: Option<PathBuf>,
    python: Option<String>,
    port: Option<u16>,
    gpus: Option<Vec<GpuEntry>>,
    cores: Option<f64>,
    #[serde(default)]
    parameter_servers: u32,
    #[serde(default)]
    workers: u32,
    #[serde(default)]
    environment: BTreeMap<String, String>,
    #[serde(default)]
    labels: BTreeMap<String, String>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "a GPU's number, such as 0, or its UUID")]
enum GpuEntry {
    Index(u16),
    Uuid(String),
}

/// Hosts of our own TOML.
pub fn parse_inventory(text: &str, file: &str) -> Result<Vec<Host>, LaunchError> {
    let inventory: InventoryFile = toml::from_str(text).map_err(|error| {
        let place = error.span().map_or_else(
            || file.to_string(),
            |span| format!("{file}:{}", line_of(text, span.start)),
        );
        LaunchError::bad_file(place, error.message().to_string(), None)
    })?;
    let mut hosts: Vec<Host> = Vec::with_capacity(inventory.host.len());
    for entry in &inventory.host {
        let place = || format!("{file}:{}", line_of(text, entry.span().start));
        let host = inventory.host(entry.get_ref());
        check_entry(&host).map_err(|problem| LaunchError::bad_file(place(), problem, None))?;
        if hosts.iter().any(|other| other.name == host.name) {
            let hint = "one node a machine is enough: it uses all cores and GPUs".to_string();
            return Err(LaunchError::bad_file(
                place(),
                format!("`{}` is named twice", host.name),
                hint,
            ));
        }
        hosts.push(host);
    }
    if hosts.is_empty() {
        let hint = "write a `[[host]]` with `name = \"…\"` for each machine".to_string();
        return Err(LaunchError::bad_file(file, "it names no host", hint));
    }
    check_count(&hosts, file)?;
    Ok(hosts)
}

fn check_entry(host: &Host) -> Result<(), String> {
    check_host(&host.name)?;
    host.user.as_deref().map_or(Ok(()), |user| {
        check_host(user).map_err(|_| format!("`{user}` is no user's name"))
    })?;
    if let Some(key) = host.environment.keys().find(|key| !is_variable(key)) {
        return Err(format!("`{key}` cannot name a variable of the environment"));
    }
    match host.cores {
        Some(cores) if !(cores > 0.0 && cores <= 1e6) => {
            Err(format!("{cores} is no number of cores"))
        }
        _ => Ok(()),
    }
}

/// A name that a shell can export (XBD 8.1).
pub(super) fn is_variable(name: &str) -> bool {
    !name.is_empty()
        && !name.starts_with(|c: char| c.is_ascii_digit())
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

/// The line of a byte, counted from 1.
pub(super) fn line_of(text: &str, offset: usize) -> usize {
    text.as_bytes()
        .iter()
        .take(offset)
        .filter(|byte| **byte == b'\n')
        .count()
        + 1
}

impl InventoryFile {
    fn host(&self, entry: &HostEntry) -> Host {
        let over = |common: &BTreeMap<String, String>, own: &BTreeMap<String, String>| {
            common
                .iter()
                .chain(own)
                .map(|(key, value)| (key.clone(), value.clone()))
                .collect()
        };
        let gpu = |gpu: &GpuEntry| match gpu {
            GpuEntry::Index(index) => index.to_string(),
            GpuEntry::Uuid(uuid) => uuid.clone(),
        };
        Host {
            name: entry.name.clone(),
            user: entry.user.clone().or_else(|| self.user.clone()),
            ssh_port: entry.ssh_port.or(self.ssh_port),
            key: entry.key.clone().or_else(|| self.key.clone()),
            port: entry.port,
            gpus: entry
                .gpus
                .as_ref()
                .map(|gpus| gpus.iter().map(gpu).collect()),
            cores: entry.cores,
            parameter_servers: entry.parameter_servers,
            workers: entry.workers,
            python: entry.python.clone().or_else(|| self.python.clone()),
            environment: over(&self.environment, &entry.environment),
            labels: over(&self.labels, &entry.labels),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const REFERENCE: &str = "ps,ps1.example.com,1024,\nps,ps2.example.com,1024,\nworker,worker1.example.com,1024,0\n\
                             worker,worker1.example.com,1025,1\nworker,worker2.example.com,1024,0\n";

    fn told(result: Result<Vec<Host>, LaunchError>) -> String {
        result.expect_err("a bad file").to_string()
    }

    #[test]
    fn nabus_own_example_becomes_four_nodes() {
        let hosts = parse_nabu(REFERENCE, "cluster.csv").unwrap();
        let names: Vec<_> = hosts
            .iter()
            .map(|host| (host.name.as_str(), host.parameter_servers, host.workers))
            .collect();
        let first = [
            "ps1.example.com",
            "ps2.example.com",
            "worker1.example.com",
            "worker2.example.com",
        ];
        assert_eq!(
            names,
            [
                (first[0], 1, 0),
                (first[1], 1, 0),
                (first[2], 0, 2),
                (first[3], 0, 1)
            ]
        );
        assert_eq!(
            hosts[0].gpus,
            Some(vec![]),
            "a parameter server needs no GPU"
        );
        assert_eq!(hosts[2].gpus, Some(vec!["0".to_string(), "1".into()]));
        assert_eq!((hosts[2].port, hosts[1].port), (Some(1024), Some(1024)));
        let any = parse_nabu("worker,a,1,\nworker,a,2,1", "f").unwrap();
        assert_eq!(
            any[0].gpus, None,
            "a worker without a GPU of its own may use any"
        );
    }

    #[test]
    fn comments_and_blank_lines_say_nothing() {
        let text = "# our lab\n\nps, a, 1,  # no GPU\n  # worker,b,1,0\nworker,b,2,0#the old one\n";
        let hosts = parse_nabu(text, "f").unwrap();
        let names: Vec<_> = hosts.iter().map(|host| host.name.as_str()).collect();
        assert_eq!(names, ["a", "b"]);
        let late = told(parse_nabu("# one\n# two\nwroker,b,1,0", "f"));
        assert!(late.contains("f:3: `wroker`"), "{late}");
        assert!(told(parse_nabu("# nobody", "f")).contains("it names no host"));
    }

    #[test]
    fn a_bad_line_is_named_with_its_number_and_what_is_expected() {
        for (text, said) in [
            (
                "ps,a,1,\nwroker,b,1,0",
                "f:2: `wroker` is neither `ps` nor `worker`",
            ),
            ("ps,a,1,\n\nworker,b,0,0", "f:3: `0` is no port"),
            ("worker,b,70000,0", "f:1: `70000` is no port"),
            ("worker,b,1", "f:1: `worker,b,1` has 3 fields, not 4"),
            ("worker,-oProxyCommand=x,1,", "is no host's name"),
            ("worker,a b,1,", "is no host's name"),
            ("worker,a,1,x", "`x` is no number of a GPU"),
            (
                "worker,a,1,0\nps,a,1,",
                "f:2: port 1 of a is taken by line 1",
            ),
            ("\n", "it names no host"),
        ] {
            let error = told(parse_nabu(text, "f"));
            assert!(
                error.contains(said) && error.contains("hint: a line is"),
                "{text:?}: {error}"
            );
        }
    }

    #[test]
    fn an_inventory_has_defaults_that_hosts_override() {
        let text = "user = 'ada'\nkey = '/k'\nlabels = { room = '1' }\n[environment]\nA = '1'\n\
                    [[host]]\nname = 'gpu1'\ngpus = [0, 'GPU-ab']\nlabels = { rack = 'b' }\n\
                    [[host]]\nname = 'gpu2'\nuser = 'bob'\nssh_port = 2222\nport = 7000\npython = '/opt/venv'\nenvironment = { A = '2' }\n";
        let hosts = parse_inventory(text, "lab.toml").unwrap();
        assert_eq!(hosts.len(), 2);
        assert_eq!(
            (hosts[0].user.as_deref(), hosts[1].user.as_deref()),
            (Some("ada"), Some("bob"))
        );
        assert_eq!(hosts[0].gpus, Some(vec!["0".to_string(), "GPU-ab".into()]));
        assert_eq!(
            (
                hosts[0].environment["A"].as_str(),
                hosts[1].environment["A"].as_str()
            ),
            ("1", "2")
        );
        assert_eq!(
            (
                hosts[0].labels.len(),
                hosts[1].labels.len(),
                hosts[1].ssh_port
            ),
            (2, 1, Some(2222))
        );
        for (text, said) in [
            (
                "[[host]]\nname = 'a'\nnmae = 'b'",
                "f:3: unknown field `nmae`",
            ),
            (
                "[[host]]\nname = 'a'\n\n[[host]]\nname = 'a'",
                "f:4: `a` is named twice",
            ),
            ("[[host]]\nuser = 'a'", "missing field `name`"),
            ("[[host]]\nname = 'a'\nport = 70000", "f:3:"),
            (
                "[[host]]\nname = 'a'\nenvironment = { 'x y' = '1' }",
                "cannot name a variable",
            ),
            ("user = 'a'", "it names no host"),
            ("user = ", "f:1:"),
        ] {
            let error = told(parse_inventory(text, "f"));
            assert!(error.contains(said), "{text:?}: {error}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
        #[test]
        fn any_text_is_read_or_refused(text in "(ps|worker|,|\\.|a|0|1|\n|-| |é){0,40}") {
            if let Ok(hosts) = parse_nabu(&text, "f") {
                prop_assert!(hosts.iter().all(|host| check_host(&host.name).is_ok()));
                let jobs: u32 = hosts.iter().map(|host| host.workers + host.parameter_servers).sum();
                prop_assert_eq!(jobs as usize, text.lines().filter(|line| !line.trim().is_empty()).count());
            }
        }
    }
}
