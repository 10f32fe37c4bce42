//! `psd-run`'s cluster file, and the words that it adds to a worker's command (Poseidon, reference
//! of `psd_run`). Unlike there, the numbers of workers and servers may differ.

use super::{
    LaunchError,
    cluster_file::{check_host, read},
    shell::quote,
    ssh::find_data_dir,
};
use nodectl_types::servers::{SOCKET, SOCKET_VARIABLE, VARIABLE};
use serde_json::{Map, Value};
use std::path::{Path, PathBuf};

const KNOWN: [&str; 6] = [
    "worker_nodes",
    "server_nodes",
    "master_node",
    "pem_file",
    "virtualenv",
    "username",
];
/// Machines of a list; a process each.
const MAX_NODES: usize = 4096;

/// Who takes part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoseidonCluster {
    pub workers: Vec<String>,
    pub servers: Vec<String>,
    /// This machine if None.
    pub master: Option<String>,
    pub pem_file: Option<PathBuf>,
    pub virtualenv: Option<String>,
    pub username: Option<String>,
}

/// Who logs in on machines of AWS, for whose key `pem_file` is.
const AWS_USER: &str = "ubuntu";

impl PoseidonCluster {
    /// Who logs in on other machines; ssh's own choice if None. The reference's default is that of
    /// AWS's images; elsewhere no such user is to be expected.
    pub fn user(&self) -> Option<&str> {
        let of_aws = self.pem_file.as_ref().map(|_| AWS_USER);
        self.username.as_deref().or(of_aws)
    }
}

/// What scripts may be told besides; what is None keeps the script's own default, and nothing is
/// added for it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ScriptOptions {
    pub num_push_threads: Option<u32>,
    pub num_pull_threads: Option<u32>,
    /// Bytes.
    pub block_size: Option<u64>,
    pub use_sfb: bool,
}

pub fn load(path: &Path) -> Result<PoseidonCluster, LaunchError> {
    let (text, file) = (read(path)?, path.display().to_string());
    let cluster = parse(&text, &file)?;
    if let Some(key) = &cluster.pem_file
        && !at_home(key).is_file()
    {
        let problem = format!("`pem_file` names {}, which is no file here", key.display());
        return Err(LaunchError::bad_file(
            place(&text, &file, "pem_file"),
            problem,
            None,
        ));
    }
    Ok(cluster)
}

/// A path as ssh takes it: `~/` is the home directory.
fn at_home(path: &Path) -> PathBuf {
    match (path.strip_prefix("~"), std::env::var_os("HOME")) {
        (Ok(below), Some(home)) => Path::new(&home).join(below),
        _ => path.to_path_buf(),
    }
}

/// `FILE:LINE` of a field.
fn place(text: &str, file: &str, key: &str) -> String {
    match text.find(&format!("\"{key}\"")) {
        Some(offset) => format!("{file}:{}", super::cluster_file::line_of(text, offset)),
        None => file.to_string(),
    }
}

pub fn parse(text: &str, file: &str) -> Result<PoseidonCluster, LaunchError> {
    let object: Map<String, Value> = serde_json::from_str(text).map_err(|error| {
        let hint = "it is a JSON object with `worker_nodes` and `server_nodes`".to_string();
        LaunchError::bad_file(
            format!("{file}:{}", error.line().max(1)),
            error.to_string(),
            hint,
        )
    })?;
    let place = |key: &str| place(text, file, key);
    if let Some(key) = object.keys().find(|key| !KNOWN.contains(&key.as_str())) {
        let hint = format!(
            "there are {}",
            KNOWN.map(|key| format!("`{key}`")).join(", ")
        );
        return Err(LaunchError::bad_file(
            place(key),
            format!("there is no field `{key}`"),
            hint,
        ));
    }
    let hosts = |key: &str| {
        list(&object, key).map_err(|problem| {
            let hint = format!("`{key}` is a list of addresses, e.g. [\"192.0.2.7\"]");
            LaunchError::bad_file(place(key), problem, hint)
        })
    };
    let word = |key: &str| match object.get(key) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) if !text.is_empty() => Ok(Some(text.clone())),
        Some(other) => Err(LaunchError::bad_file(
            place(key),
            format!("`{key}` is a text, not {other}"),
            None,
        )),
    };
    let master = word("master_node")?;
    if let Some(problem) = master.as_deref().and_then(|host| check_host(host).err()) {
        return Err(LaunchError::bad_file(place("master_node"), problem, None));
    }
    Ok(PoseidonCluster {
        workers: hosts("worker_nodes")?,
        servers: hosts("server_nodes")?,
        master,
        pem_file: word("pem_file")?.map(PathBuf::from),
        virtualenv: word("virtualenv")?,
        username: word("username")?,
    })
}

fn list(object: &Map<String, Value>, key: &str) -> Result<Vec<String>, String> {
    let Some(value) = object.get(key) else {
        return Err(format!("the field `{key}` is missing"));
    };
    let Some(values) = value.as_array() else {
        return Err(format!("`{key}` is {value}"));
    };
    let hosts = values.iter().map(|host| match host.as_str() {
        Some(host) => check_host(host).map(|()| host.to_string()),
        None => Err(format!("{host} in `{key}` is no address")),
    });
    let hosts: Vec<String> = hosts.collect::<Result<_, _>>()?;
    match hosts.len() {
        0 => Err(format!("`{key}` is empty")),
        count if count > MAX_NODES => Err(format!(
            "`{key}` has {count} addresses, more than {MAX_NODES}"
        )),
        _ => Ok(hosts),
    }
}

/// What a worker's script finds in its environment if it uses `nodectl.params`: the parameter
/// servers, through the node `member` of the launch on its host, and which of how many workers it
/// is.
#[derive(Clone, Debug)]
pub struct ScriptSharing<'a> {
    pub launch: &'a str,
    pub member: &'a str,
    pub client: usize,
    pub workers: usize,
    /// What is not given is as the script itself says.
    pub options: &'a ScriptOptions,
}

impl ScriptSharing<'_> {
    fn lines(&self) -> Vec<String> {
        let mut settings = serde_json::json!({ "workers": self.workers });
        let ScriptOptions {
            num_push_threads,
            num_pull_threads,
            block_size,
            use_sfb,
        } = *self.options;
        let given = [
            ("block_bytes", block_size),
            ("num_push_threads", num_push_threads.map(u64::from)),
            ("num_pull_threads", num_pull_threads.map(u64::from)),
        ];
        for (name, value) in given {
            if let Some(value) = value {
                settings[name] = value.into();
            }
        }
        if use_sfb {
            settings["use_sfb"] = true.into();
        }
        let variables = format!(
            "{SOCKET_VARIABLE}=\"$n/{SOCKET}\" {VARIABLE}={} NODECTL_JOB_ID=psd-{} NODECTL_TASK_ID={}",
            quote(&settings.to_string()),
            self.launch,
            self.client
        );
        vec![
            find_data_dir(self.launch, self.member),
            format!("export {variables}"),
        ]
    }
}

/// Script of a remote shell that runs a worker's command in the launcher's directory, if that is
/// there too. When the connection's standard input ends, the command and all it started are
/// stopped: `ssh` alone would leave them behind.
pub fn worker_script(
    command: &str,
    directory: &Path,
    virtualenv: Option<&str>,
    sharing: &ScriptSharing<'_>,
) -> String {
    let mut lines = sharing.lines();
    lines.push(format!(
        "cd {} 2>/dev/null || :",
        quote(&directory.display().to_string())
    ));
    lines.push("exec 3<&0".to_string());
    if let Some(root) = virtualenv {
        let root = quote(root.trim_end_matches('/'));
        lines.push(format!(
            "VIRTUAL_ENV={root}; PATH=\"$VIRTUAL_ENV/bin:$PATH\"; export VIRTUAL_ENV PATH"
        ));
    }
    lines.push(format!(
        "setsid sh -c {} </dev/null 3<&- & w=$!",
        quote(command)
    ));
    lines.push(
        "{ cat <&3; kill -TERM \"-$w\"; sleep 5; kill -KILL \"-$w\"; } >/dev/null 2>&1 & k=$!"
            .to_string(),
    );
    lines.push("wait $w; s=$?; kill $k 2>/dev/null; exit $s".to_string());
    lines.join("\n")
}

/// A worker's command with what `psd_run` adds, in its order; `client` counts workers from 0.
pub fn worker_command(
    command: &str,
    master_address: &str,
    client: usize,
    options: &ScriptOptions,
) -> String {
    let mut line = format!(
        "{command} --distributed=True --master_address={} --client_id={client}",
        quote(master_address)
    );
    let mut add = |name: &str, value: Option<String>| {
        if let Some(value) = value {
            line += &format!(" --{name}={value}");
        }
    };
    add(
        "num_push_threads",
        options.num_push_threads.map(|threads| threads.to_string()),
    );
    add(
        "num_pull_threads",
        options.num_pull_threads.map(|threads| threads.to_string()),
    );
    add(
        "block_size",
        options.block_size.map(|bytes| bytes.to_string()),
    );
    add("use_sfb", options.use_sfb.then(|| "True".to_string()));
    line
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Stdio;

    #[test]
    fn the_references_fields_are_read_and_numbers_may_differ() {
        let text = r#"{"worker_nodes": ["10.0.0.1", "10.0.0.2"], "server_nodes": ["10.0.0.3"], "master_node": "10.0.0.4",
            "pem_file": "/k.pem", "virtualenv": "/venv", "username": "ubuntu"}"#;
        let cluster = parse(text, "cluster.json").unwrap();
        assert_eq!(
            (
                cluster.workers.len(),
                cluster.servers.len(),
                cluster.master.as_deref()
            ),
            (2, 1, Some("10.0.0.4"))
        );
        assert_eq!(
            (cluster.username.as_deref(), cluster.virtualenv.as_deref()),
            (Some("ubuntu"), Some("/venv"))
        );
        let least = parse(r#"{"worker_nodes": ["a"], "server_nodes": ["a"]}"#, "f").unwrap();
        assert_eq!(
            (least.master, least.pem_file, least.username),
            (None, None, None)
        );
    }

    #[test]
    fn a_key_that_is_not_there_is_a_mistake_and_one_that_is_means_aws() {
        let directory = tempfile::tempdir().expect("a directory");
        let (file, key) = (directory.path().join("c.json"), directory.path().join("k"));
        let text = format!(
            "{{\"worker_nodes\": [\"a\"], \"server_nodes\": [\"a\"],\n \"pem_file\": \"{}\"}}",
            key.display()
        );
        std::fs::write(&file, &text).expect("it is written");
        let missing = load(&file).expect_err("no key").to_string();
        let said = format!(
            "c.json:2: `pem_file` names {}, which is no file here",
            key.display()
        );
        assert!(missing.contains(&said), "{missing}");
        std::fs::write(&key, "").expect("it is written");
        let mut cluster = load(&file).expect("the key is there");
        assert_eq!(cluster.user(), Some("ubuntu"));
        cluster.username = Some("ada".into());
        assert_eq!(cluster.user(), Some("ada"));
        (cluster.username, cluster.pem_file) = (None, None);
        assert_eq!(cluster.user(), None, "ssh decides");
    }

    #[test]
    fn mistakes_are_named_with_their_field() {
        for (text, said) in [
            (
                r#"{"worker_nodes": ["a"]}"#,
                "f: the field `server_nodes` is missing",
            ),
            (
                "{\n\"worker_nodes\": [],\n\"server_nodes\": [\"a\"]}",
                "f:2: `worker_nodes` is empty",
            ),
            (
                "{\"worker_nodes\": \"a\", \"server_nodes\": [\"a\"]}",
                "f:1: `worker_nodes` is \"a\"",
            ),
            (
                "{\"worker_nodes\": [1], \"server_nodes\": [\"a\"]}",
                "1 in `worker_nodes` is no address",
            ),
            (
                "{\"worker_nodes\": [\"-x\"], \"server_nodes\": [\"a\"]}",
                "`-x` is no host's name",
            ),
            (
                "{\n\n\"worker_node\": []}",
                "f:3: there is no field `worker_node`",
            ),
            ("{\n\"worker_nodes\" [", "f:2:"),
            ("[]", "f:1:"),
        ] {
            let error = parse(text, "f").expect_err(text).to_string();
            assert!(error.contains(said), "{text}: {error}");
        }
    }

    #[test]
    fn a_script_that_shares_parameters_finds_its_node_and_its_number() {
        let options = ScriptOptions {
            block_size: Some(65_536),
            num_push_threads: Some(4),
            use_sfb: true,
            ..ScriptOptions::default()
        };
        let sharing = ScriptSharing {
            launch: "ab",
            member: "server0",
            client: 1,
            workers: 3,
            options: &options,
        };
        let script = worker_script("env", Path::new("/nowhere"), None, &sharing);
        let mut shell = std::process::Command::new("sh");
        let shell = shell.args(["-c", &script]).env("XDG_DATA_HOME", "/data");
        let mut run = shell
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("there is a shell");
        // Its end would stop the command.
        let _connection = run.stdin.take();
        let told = String::from_utf8(run.wait_with_output().unwrap().stdout).unwrap();
        for line in [
            "NODECTL_PSERVER_SOCKET=/data/nodectl-launched/ab-server0/pserver.sock",
            "NODECTL_PSERVER={\"workers\":3,\"block_bytes\":65536,\"num_push_threads\":4,\"use_sfb\":true}",
            "NODECTL_JOB_ID=psd-ab",
            "NODECTL_TASK_ID=1",
        ] {
            assert!(told.lines().any(|told| told == line), "{line} in {told}");
        }
    }

    #[test]
    fn a_worker_gets_what_psd_run_adds_and_nothing_else_unasked() {
        let plain = worker_command(
            "python train.py --lr 0.1",
            "tcp://10.0.0.4:5555",
            1,
            &ScriptOptions::default(),
        );
        assert_eq!(
            plain,
            "python train.py --lr 0.1 --distributed=True --master_address=tcp://10.0.0.4:5555 --client_id=1"
        );
        let options = ScriptOptions {
            num_push_threads: Some(4),
            num_pull_threads: Some(8),
            block_size: Some(4 << 20),
            use_sfb: true,
        };
        let told = worker_command("x", "a", 0, &options);
        assert!(
            told.ends_with(
                "--num_push_threads=4 --num_pull_threads=8 --block_size=4194304 --use_sfb=True"
            ),
            "{told}"
        );
    }
}
