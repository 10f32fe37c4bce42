//! Nodes on hosts that the system's `ssh` reaches: the user's configuration, agent and jumps apply.
//! Each host keeps copies of this program by their hash, so that one is sent only where it is
//! missing or different. A node runs in the background there, in a directory of its own; `stop` has
//! it leave and removes that.

use super::{
    LaunchError,
    cluster_file::Host,
    node::{ClusterFacts, FORGET_NODE_SETTINGS, GPUS_BY_UUID, LaunchFacts},
    process::{Finished, Invocation},
    shell::{join, quote},
};
use data_encoding::HEXLOWER;
use serde::{Deserialize, Serialize};
use std::{
    io,
    path::{Path, PathBuf},
    time::Duration,
};
use zeroize::Zeroizing;

/// A node that does not answer its own command by then is not there; it says so itself sooner.
const START_LIMIT: Duration = Duration::from_secs(75);
/// Tasks get some seconds to end.
const STOP_LIMIT: Duration = Duration::from_secs(60);
/// For the program's bytes, on a slow line.
const COPY_LIMIT: Duration = Duration::from_secs(600);
/// The start script's answer when the program is missing or different.
const NO_PROGRAM: i32 = 90;
/// `ssh`'s own failures, as its manual says.
const SSH_FAILED: i32 = 255;
/// Of each hash, in file names.
const SHOWN_HASH: usize = 16;
/// Where nodes and copies of the program live on a host.
const HOME: &str = "d=\"${XDG_DATA_HOME:-$HOME/.local/share}/nodectl-launched\"";

/// How to reach a host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SshTarget {
    pub host: String,
    pub user: Option<String>,
    pub port: Option<u16>,
    pub key: Option<PathBuf>,
}

/// This program, as hosts keep it.
#[derive(Clone, Debug)]
pub struct RemoteProgram {
    pub path: PathBuf,
    /// SHA-256, since every machine has a tool that computes it; 64 hex digits.
    pub hash: String,
}

/// What the start of a node has got to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartStep {
    Connecting,
    Copying,
    Starting,
    Started,
}

impl RemoteProgram {
    /// Reads and hashes it, on a thread that may block.
    pub async fn open(path: &Path) -> Result<Self, LaunchError> {
        let (path, read) = (path.to_path_buf(), path.to_path_buf());
        let opened = tokio::task::spawn_blocking(move || Self::read(&read)).await;
        opened.unwrap_or_else(|error| {
            Err(LaunchError::Unreadable {
                path,
                source: io::Error::other(error),
            })
        })
    }

    fn read(path: &Path) -> Result<Self, LaunchError> {
        let unreadable = |source| LaunchError::Unreadable {
            path: path.to_path_buf(),
            source,
        };
        let mut context = ring::digest::Context::new(&ring::digest::SHA256);
        let mut file = std::fs::File::open(path).map_err(unreadable)?;
        let mut piece = vec![0; 1 << 20];
        loop {
            match io::Read::read(&mut file, &mut piece).map_err(unreadable)? {
                0 => break,
                count => context.update(&piece[..count]),
            }
        }
        let hash = HEXLOWER.encode(context.finish().as_ref());
        Ok(Self {
            path: path.to_path_buf(),
            hash,
        })
    }
}

impl SshTarget {
    pub fn of(host: &Host) -> Self {
        Self {
            host: host.name.clone(),
            user: host.user.clone(),
            port: host.ssh_port,
            key: host.key.clone(),
        }
    }

    /// This machine needs no `ssh`.
    fn is_here(&self) -> bool {
        ["localhost", "127.0.0.1", "::1"].contains(&self.host.as_str()) && self.port.is_none()
    }

    /// A command of the remote shell. Whoever does not let us in is told within `connect`.
    pub fn call(&self, script: &str, connect: Duration, limit: Duration) -> Invocation {
        if self.is_here() {
            return Invocation::new("sh", ["-c", script], limit);
        }
        let mut args: Vec<String> = vec!["-o".into(), "BatchMode=yes".into()];
        args.extend([
            "-o".into(),
            format!("ConnectTimeout={}", connect.as_secs().max(1)),
        ]);
        if let Some(user) = &self.user {
            args.extend(["-l".into(), user.clone()]);
        }
        if let Some(port) = self.port {
            args.extend(["-p".into(), port.to_string()]);
        }
        if let Some(key) = &self.key {
            args.extend(["-i".into(), key.display().to_string()]);
        }
        // Whatever shell the user has there, it hands this to a POSIX one.
        args.extend([
            "--".into(),
            self.host.clone(),
            format!("exec sh -c {}", quote(script)),
        ]);
        Invocation::new("ssh", args, connect + limit)
    }

    /// A call that has to succeed. `doing`, as errors say it.
    async fn demand(&self, doing: &str, call: Invocation) -> Result<Finished, LaunchError> {
        let finished = call.run().await.map_err(|source| LaunchError::Call {
            doing: format!("{}: {doing}", self.host),
            source,
        })?;
        if finished.is_ok() {
            Ok(finished)
        } else {
            Err(self.refused(doing, &finished))
        }
    }

    fn refused(&self, doing: &str, finished: &Finished) -> LaunchError {
        let said = last_error(&finished.words()).to_string();
        let doing = match finished.code {
            // It begins most of its lines with its own name.
            Some(SSH_FAILED) if said.starts_with("ssh:") => self.host.clone(),
            Some(SSH_FAILED) => format!("{}: ssh", self.host),
            _ => format!("{}: {doing}", self.host),
        };
        LaunchError::Refused { doing, said }
    }
}

/// Of what a node, or the command that started it, said: its last error, which is the cause of
/// those before.
fn last_error(said: &str) -> &str {
    const MARK: &str = "error: ";
    let starts_line = |at: &usize| *at == 0 || said[..*at].ends_with('\n');
    let mut places = said.rmatch_indices(MARK).map(|(at, _)| at);
    let last = places.find(starts_line);
    last.map_or(said, |at| &said[at + MARK.len()..])
}

/// A node that is to be started on a host.
pub struct HostStart<'a> {
    pub host: &'a Host,
    pub node: &'a LaunchFacts,
    pub facts: &'a ClusterFacts,
    pub program: &'a RemoteProgram,
    pub secret: &'a Zeroizing<String>,
    /// The time that a connection may take.
    pub connect: Duration,
}

/// Starts a node on a host; `tell` hears how far it is. The secret goes through the connection's
/// standard input. Returns what `join` printed.
pub async fn start(start: &HostStart<'_>, tell: impl Fn(StartStep)) -> Result<String, LaunchError> {
    let HostStart {
        host,
        node,
        facts,
        program,
        secret,
        connect,
    } = *start;
    let target = SshTarget::of(host);
    let failed = |source| LaunchError::Call {
        doing: format!("{}: starting a node", host.name),
        source,
    };
    let environment = environment(host);
    let script = start_script(host, node, facts, program, environment.len());
    let input = Zeroizing::new([environment.as_bytes(), secret.as_bytes()].concat());
    let call = target
        .call(&script, connect, START_LIMIT)
        .input(input.as_slice());
    tell(StartStep::Connecting);
    let mut finished = call.clone().run().await.map_err(failed)?;
    if finished.code == Some(NO_PROGRAM) {
        tell(StartStep::Copying);
        copy(&target, program, connect).await?;
        tell(StartStep::Starting);
        finished = call.run().await.map_err(failed)?;
    }
    if !finished.is_ok() {
        return Err(target.refused("the node did not start", &finished));
    }
    tell(StartStep::Started);
    Ok(finished.stdout)
}

async fn copy(
    target: &SshTarget,
    program: &RemoteProgram,
    connect: Duration,
) -> Result<(), LaunchError> {
    let call = target
        .call(&copy_script(&program.hash), connect, COPY_LIMIT)
        .input_file(program.path.clone());
    target.demand("copying the program", call).await.map(drop)
}

/// Lines of shell that set `n` to a node's data directory on its host.
pub fn find_data_dir(launch: &str, member: &str) -> String {
    format!("{HOME}\n{}", data_dir(launch, member))
}

/// The node's log so far.
pub async fn log(
    target: &SshTarget,
    launch: &str,
    member: &str,
    connect: Duration,
) -> Result<String, LaunchError> {
    let script = [HOME, &data_dir(launch, member), "cat \"$n/node.log\""].join("\n");
    let call = target.call(&script, connect, STOP_LIMIT);
    let finished = target.demand("reading the node's log", call).await?;
    Ok(finished.stdout)
}

/// Has a node leave, gives its tasks back, and removes what it kept. A node that is gone already is
/// no error.
pub async fn stop(
    target: &SshTarget,
    launch: &str,
    member: &str,
    hash: &str,
    connect: Duration,
) -> Result<(), LaunchError> {
    let call = target.call(&stop_script(launch, member, hash), connect, STOP_LIMIT);
    target.demand("stopping the node", call).await.map(drop)
}

fn program_path(hash: &str) -> String {
    format!(
        "b=\"$d/bin/nodectl-{}\"",
        &hash[..SHOWN_HASH.min(hash.len())]
    )
}

fn data_dir(launch: &str, member: &str) -> String {
    let plain = |c: char| {
        if c.is_ascii_alphanumeric() || "._-".contains(c) {
            c
        } else {
            '_'
        }
    };
    format!(
        "n=\"$d/{launch}-{}\"",
        member.chars().map(plain).collect::<String>()
    )
}

/// Lines of shell that set what the host's environment is to be. Passwords may be in it, and
/// everybody on both machines can read arguments: it goes ahead of the secret.
fn environment(host: &Host) -> Zeroizing<String> {
    let lines = host
        .environment
        .iter()
        .map(|(key, value)| format!("export {key}={}\n", quote(value)));
    Zeroizing::new(lines.collect())
}

/// The script that starts a node. It reads so many bytes of environment before the node reads its
/// secret.
fn start_script(
    host: &Host,
    node: &LaunchFacts,
    facts: &ClusterFacts,
    program: &RemoteProgram,
    environment_bytes: usize,
) -> String {
    let mut lines = vec![
        HOME.to_string(),
        program_path(&program.hash),
        data_dir(&facts.launch, &node.member),
    ];
    lines.push(format!(
        "{{ test -x \"$b\" && h=$(sha256sum < \"$b\") && test \"${{h%% *}}\" = {}; }} || exit {NO_PROGRAM}",
        program.hash
    ));
    lines.push(FORGET_NODE_SETTINGS.to_string());
    lines.push(format!(
        "export NODECTL_CLUSTER__NAME={}",
        quote(&facts.cluster)
    ));
    if environment_bytes > 0 {
        // Byte by byte: what comes after it is not this program's to read.
        lines.push(format!(
            "eval \"$(dd bs=1 count={environment_bytes} 2>/dev/null)\""
        ));
    }
    if let Some(python) = &host.python {
        let python = python.trim_end_matches('/');
        let directory = quote(python.strip_suffix("/bin").unwrap_or(python));
        lines.push(format!(
            "p={directory}; test -d \"$p/bin\" && p=\"$p/bin\"; export PATH=\"$p:$PATH\""
        ));
    }
    let mut gpus = "";
    if let Some(given) = &node.gpus {
        let list = if given.is_empty() {
            "none".to_string()
        } else {
            given.join(",")
        };
        lines.push(format!("gpus={}", quote(&list)));
        lines.push(GPUS_BY_UUID.to_string());
        gpus = " --gpus \"$gpus\"";
    }
    let args = node.join_args(facts);
    let args = join(args.iter().map(String::as_str));
    lines.push(format!(
        "exec \"$b\" --data-dir \"$n\" {args}{gpus} --detach --secret-file -"
    ));
    lines.join("\n")
}

fn copy_script(hash: &str) -> String {
    let receive = format!(
        "mkdir -p \"$d/bin\" && cat > \"$b.$$\" && chmod 755 \"$b.$$\" && h=$(sha256sum < \"$b.$$\") && \
         test \"${{h%% *}}\" = {hash} && mv \"$b.$$\" \"$b\" || {{ rm -f \"$b.$$\"; echo 'the copy is damaged, or the \
         disk is full' >&2; exit 1; }}"
    );
    ["umask 077", HOME, &program_path(hash), &receive].join("\n")
}

fn stop_script(launch: &str, member: &str, hash: &str) -> String {
    // 3: no node answers; it is gone already. One that has just left may still write a last file,
    // so its process is waited for.
    let leave = "test -e \"$n\" || exit 0; p=$(cat \"$n/lock\" 2>/dev/null); \"$b\" --data-dir \"$n\" leave; s=$?; \
                 test $s = 0 || test $s = 3 || exit $s; \
                 for i in $(seq 100); do kill -0 \"$p\" 2>/dev/null || break; sleep 0.1; done; rm -rf \"$n\"";
    [HOME, &program_path(hash), &data_dir(launch, member), leave].join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn program() -> RemoteProgram {
        RemoteProgram {
            path: "/x".into(),
            hash: "ab".repeat(32),
        }
    }

    #[test]
    fn why_a_node_did_not_start_is_the_last_error() {
        let said = "warning: as root\nerror: the node ended at once\nits log says:\nwarning: as root\n\
                    error: cannot listen on TCP port 1024\nhint: choose another port";
        assert_eq!(
            last_error(said),
            "cannot listen on TCP port 1024\nhint: choose another port"
        );
        assert_eq!(last_error("sh: no error: here"), "sh: no error: here");
        assert_eq!(last_error("error: gone"), "gone");
    }

    #[test]
    fn the_start_script_has_everything_but_the_secret() {
        let host = Host {
            name: "h1".into(),
            python: Some("/opt/my venv/".into()),
            environment: [("A".to_string(), "it's".to_string())].into(),
            ..Host::default()
        };
        let node = LaunchFacts {
            member: "h1".into(),
            gpus: Some(vec!["0".into(), "1".into()]),
            ..LaunchFacts::default()
        };
        let facts = ClusterFacts {
            cluster: "lab".into(),
            launch: "c0ffee".into(),
            ..ClusterFacts::default()
        };
        let script = start_script(&host, &node, &facts, &program(), 7);
        for part in [
            "export NODECTL_CLUSTER__NAME=lab",
            "p='/opt/my venv'",
            "gpus=0,1",
            "--secret-file -",
            "count=7 ",
        ] {
            assert!(script.contains(part), "{part} in {script}");
        }
        assert!(
            !script.contains("it'"),
            "arguments are no place for an environment: {script}"
        );
        for script in [
            script,
            copy_script(&program().hash),
            stop_script("a", "b", &program().hash),
        ] {
            let checked = std::process::Command::new("sh")
                .args(["-n", "-c", &script])
                .status()
                .expect("there is a shell");
            assert!(checked.success(), "{script}");
        }
    }

    #[test]
    fn the_environment_goes_ahead_of_the_secret() {
        let directory = tempfile::tempdir().unwrap();
        let said = directory.path().join("said");
        let program = directory.path().join("nodectl");
        let text = format!(
            "#!/bin/sh\n{{ env | grep '^TOKEN'; cat; }} > {}\n",
            said.display()
        );
        std::fs::write(&program, text).unwrap();
        std::fs::set_permissions(
            &program,
            std::os::unix::fs::PermissionsExt::from_mode(0o755),
        )
        .unwrap();
        let environment = [
            ("TOKEN".to_string(), "it's \"$5\"".to_string()),
            ("TOKEN_B".into(), "2".into()),
        ]
        .into();
        let host = Host {
            name: "h1".into(),
            environment,
            ..Host::default()
        };
        let given = super::environment(&host);
        let (node, facts) = (LaunchFacts::default(), ClusterFacts::default());
        let script = start_script(&host, &node, &facts, &self::program(), given.len());
        // What looks for the program is left out.
        let (_, after) = script
            .split_once("unset \"$v\"; done")
            .expect("it forgets settings first");
        let script = format!("n=/n b={}; {after}", program.display());
        let mut shell = std::process::Command::new("sh");
        let mut shell = shell
            .args(["-c", &script])
            .stdin(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let mut input = shell.stdin.take().unwrap();
        std::io::Write::write_all(&mut input, &[given.as_bytes(), b"the secret"].concat()).unwrap();
        drop(input);
        assert!(shell.wait().unwrap().success(), "{script}");
        let said = std::fs::read_to_string(said).unwrap();
        assert_eq!(said, "TOKEN=it's \"$5\"\nTOKEN_B=2\nthe secret");
    }

    #[test]
    fn the_systems_ssh_gets_no_password_prompt_and_no_options_from_a_host_name() {
        let target = SshTarget {
            host: "h1".into(),
            user: Some("ada".into()),
            port: Some(2222),
            key: Some("/k".into()),
        };
        let call = target.call("true", Duration::from_secs(5), Duration::from_secs(1));
        let expected =
            "-o BatchMode=yes -o ConnectTimeout=5 -l ada -p 2222 -i /k -- h1 exec sh -c true";
        assert_eq!(
            (call.program.as_str(), call.args.join(" ").as_str()),
            ("ssh", expected)
        );
    }

    #[test]
    fn the_program_is_known_by_its_hash() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("p");
        std::fs::write(&path, "abc").unwrap();
        let known = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"; // FIPS 180-4, example of SHA-256
        assert_eq!(RemoteProgram::read(&path).unwrap().hash, known);
    }
}
