//! `join`: a node in the foreground or in the background, and what to type on the next machine.

use super::{
    addresses,
    args::JoinArgs,
    exit::{CliError, Exit, print},
    membership, restart,
    secret::{self, ChosenSecret, SecretSource},
    solo,
};
use nodectl_app as app;
use nodectl_app::NodeEnd;
use nodectl_app::settings::Settings;
use nodectl_http::{Client, ClientError, socket_path};
use nodectl_ports::{bare::own_program, say::tell};
use nodectl_types::{text, units::format_bytes};
use nodectl_wire::api::{Finding, GpuKindName, Node, NodeSelf, Severity};
use std::{
    fs::{self, File},
    io::{self, Read, Seek, Write},
    os::unix::{fs::OpenOptionsExt, process::CommandExt},
    path::Path,
    process::{Child, Command, Stdio},
    time::Duration,
};
use tokio::time::Instant;
use zeroize::Zeroizing;

/// How long a node may take until its API answers: what it writes first may have to wait for a disk
/// that is busy with copies.
const START: Duration = Duration::from_secs(60);
const LOOK_AGAIN: Duration = Duration::from_millis(20);
/// How long a node looks for others before it says that it is alone: each tells of itself more
/// often than that.
const COMPANY: Duration = Duration::from_millis(2750);
/// Names of members that are shown; the others are counted.
const SHOWN_MEMBERS: usize = 8;
/// How much of a failed node's log is shown.
const SHOWN_LOG_BYTES: u64 = 4 << 10;

pub async fn join(
    mut args: JoinArgs,
    settings: Settings,
    variable: Option<Zeroizing<String>>,
) -> Result<Exit, CliError> {
    let client = Client::new(socket_path(&settings.node.data_dir));
    match client.node().await {
        Ok(node) => {
            already_running(&client, &node).await?;
            return match args.qr {
                true => membership::invite(&client, &settings, true).await,
                false => Ok(Exit::Done),
            };
        }
        Err(ClientError::Unreachable { .. }) => {}
        Err(error) => return Err(error.into()),
    }
    check_root(
        &settings,
        rustix::process::geteuid().is_root(),
        is_service(),
    )?;
    let secret = match args.invite.take().map(Zeroizing::new) {
        Some(code) => secret::redeem(&code, &settings).await?,
        None => secret::resolve(args.secret.take().map(Zeroizing::new), variable, &settings)?,
    };
    if args.detach {
        background(&client, &settings, &secret, args.qr).await
    } else {
        foreground(&client, settings, secret, &args).await
    }
}

/// Whoever has the secret runs programs as the node does: as root only where somebody wants that.
fn check_root(settings: &Settings, is_root: bool, is_service: bool) -> Result<(), CliError> {
    if !is_root || is_service {
        return Ok(());
    }
    let what =
        "this node runs as root, and so does everything that members of the cluster run here";
    if settings.node.allow_root {
        tell!("warning: {what}: whoever has the secret is root on this machine");
        return Ok(());
    }
    Err(CliError::Usage(format!(
        "{what}: whoever has the secret would be root on this machine\n\
         hint: run it as a user made for it (packaging/install.sh sets up a service that does), or say --allow-root"
    )))
}

/// systemd says so, and its unit says as whom the node runs.
fn is_service() -> bool {
    ["INVOCATION_ID", "CREDENTIALS_DIRECTORY"]
        .iter()
        .any(|name| std::env::var_os(name).is_some())
}

async fn already_running(client: &Client, node: &NodeSelf) -> Result<(), CliError> {
    if node.solo {
        return Err(CliError::Usage(format!(
            "a `nodectl run` (process {}) uses {}\nhint: wait for it, or give this node another --data-dir",
            node.pid, node.data_dir
        )));
    }
    print(&format!(
        "a node is running already (process {}); `nodectl leave` stops it\n",
        node.pid
    ))?;
    print(&describe(node, this_node(client).await?.as_ref()))
}

async fn foreground(
    client: &Client,
    settings: Settings,
    secret: ChosenSecret,
    args: &JoinArgs,
) -> Result<Exit, CliError> {
    let text = secret.text.clone();
    let of_node = settings.clone();
    let while_stdin = args.while_stdin;
    let unneeded = async move {
        match while_stdin {
            true => solo::stdin_ends().await,
            false => std::future::pending().await,
        }
    };
    let running = app::run_node(of_node, text, unneeded);
    tokio::pin!(running);
    let greeting = async {
        // A reader of the greeting that has gone is no reason to stop a node.
        let greeted = greet(client, &settings, &secret, args.qr).await;
        greeted.unwrap_or_else(|error| error.tell());
        std::future::pending().await
    };
    let ended = tokio::select! {
        ended = &mut running => ended,
        () = greeting => unreachable!("it waits for ever"),
    };
    match ended.map_err(CliError::Node)? {
        NodeEnd::Left => Ok(Exit::Done),
        NodeEnd::Restart(program) => {
            let args = background_args(std::env::args_os());
            Err(restart::restart(&program, args, &secret))
        }
    }
}

/// Waits for the node and prints what there is to say about it. A secret that was typed is kept,
/// unless others are here that refuse it.
async fn greet(
    client: &Client,
    settings: &Settings,
    secret: &ChosenSecret,
    qr: bool,
) -> Result<(), CliError> {
    let deadline = Instant::now() + START;
    let node = loop {
        match client.node().await {
            Ok(node) => break node,
            Err(error) if Instant::now() > deadline => return Err(error.into()),
            Err(_) => tokio::time::sleep(LOOK_AGAIN).await,
        }
    };
    print(&describe(&node, this_node(client).await?.as_ref()))?;
    secret::note_place(secret, settings)?;
    let is_new = shows(&secret.source);
    if !is_new {
        let company = Company::find(client).await?;
        print(&company.describe())?;
        if !company.refuses_the_secret()
            && let Some(aside) = secret::remember(secret, settings)?
        {
            tell!(
                "the next `join` here uses this secret; the one before is in {}",
                aside.display()
            );
        }
    }
    let shown = is_new.then_some(secret.text.as_str());
    print(&next_line(
        &secret.source,
        shown,
        &node.cluster,
        &node.addrs,
    ))?;
    if qr {
        membership::invite(client, settings, qr).await?;
    }
    // Nobody else has a secret that was just made. Whoever wanted to join others learns it here.
    if is_new && Company::find(client).await?.refuses_the_secret() {
        tell!(
            "warning: other nodes here have another secret: this machine is a cluster of its own\n\
             hint: to join theirs, `nodectl leave`, then `nodectl join --secret-file FILE` with their secret \
             (`nodectl secret show` there)"
        );
    }
    Ok(())
}

/// Whom a node that has just started finds.
enum Company {
    /// The names of other members.
    Members(Vec<String>),
    /// None so far, and what may keep others from being members.
    Alone(Vec<Finding>),
}

impl Company {
    async fn find(client: &Client) -> Result<Self, CliError> {
        let deadline = Instant::now() + COMPANY;
        loop {
            let nodes = client.nodes().await?;
            let others: Vec<_> = nodes
                .into_iter()
                .filter(|node| node.alive && !node.this_node)
                .map(|node| node.name)
                .collect();
            if !others.is_empty() {
                return Ok(Self::Members(others));
            }
            if Instant::now() >= deadline {
                return Ok(Self::Alone(client.doctor().await?.findings));
            }
            tokio::time::sleep(COMPANY / 32).await;
        }
    }

    fn describe(&self) -> String {
        match self {
            Self::Members(names) => format!("  with     {}\n", listed(names)),
            Self::Alone(findings) => {
                let alone = "  with     no other node so far; who starts later is found, too\n";
                alone.to_string() + &objections(findings)
            }
        }
    }

    fn refuses_the_secret(&self) -> bool {
        let refuses =
            |finding: &Finding| finding.check == "secret" && finding.severity != Severity::Ok;
        matches!(self, Self::Alone(findings) if findings.iter().any(refuses))
    }
}

fn listed(names: &[String]) -> String {
    let shown = names[..names.len().min(SHOWN_MEMBERS)].join(", ");
    match names.len() - names.len().min(SHOWN_MEMBERS) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

/// What keeps nodes that were seen from being members.
fn objections(findings: &[Finding]) -> String {
    let concerns = |finding: &&Finding| {
        finding.severity != Severity::Ok
            && ["secret", "version", "admission", "discovery.peer"].contains(&&*finding.check)
    };
    let line = |finding: &Finding| {
        let hint = finding
            .hint
            .as_deref()
            .map(|hint| format!("hint: {hint}\n"));
        let warning = format!("warning: {}\n", text::one_line(&finding.message));
        warning + &hint.unwrap_or_default()
    };
    findings.iter().filter(concerns).map(line).collect()
}

/// The secret is shown where it was just made and nobody knows it yet.
fn shows(source: &SecretSource) -> bool {
    matches!(source, SecretSource::Generated(_))
}

async fn this_node(client: &Client) -> Result<Option<Node>, CliError> {
    Ok(client
        .nodes()
        .await?
        .into_iter()
        .find(|node| node.this_node))
}

fn describe(node: &NodeSelf, details: Option<&Node>) -> String {
    let mut text = format!(
        "node {} ({}) of the cluster {}\n",
        node.name,
        &node.id[..node.id.len().min(8)],
        node.cluster
    );
    for addr in &node.addrs {
        text += &format!("  address  {addr}\n");
    }
    if let Some(details) = details {
        text += &format!("  cores    {}\n", details.resources.cpus);
        text += &format!(
            "  memory   {}\n",
            format_bytes(details.resources.memory_bytes)
        );
        let gpus: Vec<_> = details
            .gpus
            .iter()
            .filter(|gpu| gpu.kind != GpuKindName::Software)
            .collect();
        for gpu in &gpus {
            text += &format!(
                "  gpu      {}, {}\n",
                gpu.name,
                format_bytes(gpu.memory_bytes)
            );
        }
        if details.seeks_gpus {
            text += "  gpu      still looked for (`nodectl devices` lists them)\n";
        } else if gpus.is_empty() {
            text += "  gpu      none seen (`nodectl devices` lists them, `nodectl doctor` says why not)\n";
        }
    }
    text
}

/// What to type on the next machine.
fn next_line(
    source: &SecretSource,
    secret: Option<&str>,
    cluster: &str,
    addrs: &[String],
) -> String {
    let join = format!("{}nodectl join", membership::in_cluster(cluster));
    // Not a line with the secret in it: shells and `sudo` remember what was typed.
    let mut text = match (secret, source) {
        (Some(secret), _) => {
            format!(
                "on the next machine, which asks for the secret:\n  {join}\n  {}\n",
                text::one_line(secret)
            )
        }
        (None, SecretSource::File(path)) if !secret::is_credential(path) => {
            let path = path.display();
            format!(
                "on the next machine:\n  {join} --secret-file {path}   (with the same content)\n"
            )
        }
        (None, SecretSource::Kept(_) | SecretSource::Changed) => {
            format!(
                "on the next machine, which asks for the secret (`nodectl secret show` prints it):\n  {join}\n"
            )
        }
        (None, _) => format!("on the next machine, which asks for the secret:\n  {join}\n"),
    };
    // Discovery reaches this machine and its network; an address helps from beyond only.
    if let Some(addr) = addresses::reachable(addrs).next() {
        text += &format!("from another network, add: --peer {addr}\n");
    }
    text
}

async fn background(
    client: &Client,
    settings: &Settings,
    secret: &ChosenSecret,
    qr: bool,
) -> Result<Exit, CliError> {
    let log_path = settings.node.data_dir.join("node.log");
    let (log, begin) = open_log(&log_path)?;
    let mut child = spawn(log, &secret.text)?;
    let deadline = Instant::now() + START;
    loop {
        if let Some(status) = child
            .try_wait()
            .map_err(|source| CliError::file("waiting for", &log_path, source))?
        {
            return Err(CliError::Node(anyhow::anyhow!(
                "the node ended at once ({status})\n{}",
                tail(&log_path, begin)
            )));
        }
        match client.node().await {
            Ok(node) if node.pid == child.id() => break,
            _ if Instant::now() > deadline => {
                let _ = child.kill();
                let text = format!(
                    "the node did not answer within {} s\n{}",
                    START.as_secs(),
                    tail(&log_path, begin)
                );
                return Err(CliError::Node(anyhow::anyhow!(text)));
            }
            _ => tokio::time::sleep(LOOK_AGAIN).await,
        }
    }
    greet(client, settings, secret, qr).await?;
    tell!(
        "it runs in the background (process {}); `nodectl leave` stops it; its log: {}",
        child.id(),
        log_path.display()
    );
    Ok(Exit::Done)
}

/// The log, and where this node's part of it begins.
pub(super) fn open_log(path: &Path) -> Result<(File, u64), CliError> {
    let failed = |source| CliError::file("opening the log", path, source);
    if let Some(directory) = path.parent() {
        app::make_private_dir(directory).map_err(failed)?;
    }
    let mut log = fs::OpenOptions::new()
        .append(true)
        .create(true)
        .mode(0o600)
        .open(path)
        .map_err(failed)?;
    let begin = log.seek(io::SeekFrom::End(0)).map_err(failed)?;
    Ok((log, begin))
}

/// Starts the command once more in its own session, without `--detach`.
fn spawn(log: File, secret: &str) -> Result<Child, CliError> {
    in_background(background_args(std::env::args_os()), log, secret)
}

/// This program in its own session; the secret goes through a pipe that nobody else can read.
pub(super) fn in_background(
    args: Vec<std::ffi::OsString>,
    log: File,
    secret: &str,
) -> Result<Child, CliError> {
    let failed = |source| CliError::File {
        doing: "starting the node in the background".into(),
        source,
    };
    let mut command = Command::new(own_program());
    command.arg0("nodectl").args(args);
    command
        .args(["--secret-file", "-"])
        .env_remove(app::settings::SECRET_VARIABLE);
    command
        .stdin(Stdio::piped())
        .stdout(log.try_clone().map_err(failed)?)
        .stderr(log);
    // SAFETY: between fork and exec only setsid(2) is called, which is async-signal-safe.
    unsafe {
        command.pre_exec(|| rustix::process::setsid().map(drop).map_err(io::Error::from));
    }
    let mut child = command.spawn().map_err(failed)?;
    if let Some(mut pipe) = child.stdin.take() {
        pipe.write_all(secret.as_bytes()).map_err(failed)?;
    }
    Ok(child)
}

/// The arguments without the program, every form of the secret, and what this process does itself.
pub(super) fn background_args(
    args: impl Iterator<Item = std::ffi::OsString>,
) -> Vec<std::ffi::OsString> {
    const SECRETS: [&str; 3] = ["--secret", "--secret-file", "--invite"];
    let mut kept = Vec::new();
    let mut args = args.skip(1).peekable();
    while let Some(arg) = args.next() {
        let text = arg.to_string_lossy();
        let has_value = |flag: &&str| {
            text.strip_prefix(*flag)
                .is_some_and(|rest| rest.starts_with('='))
        };
        match &*text {
            "--detach" | "--qr" => {}
            flag if SECRETS.contains(&flag) => {
                // The code of an invitation may be left out.
                let is_value = |next: &std::ffi::OsString| {
                    flag != "--invite" || !next.to_string_lossy().starts_with('-')
                };
                args.next_if(is_value);
            }
            _ if SECRETS.iter().any(has_value) => {}
            _ => kept.push(arg),
        }
    }
    kept
}

pub(super) fn tail(path: &Path, begin: u64) -> String {
    let read = || -> io::Result<String> {
        let mut file = File::open(path)?;
        let length = file.metadata()?.len();
        file.seek(io::SeekFrom::Start(
            begin.max(length.saturating_sub(SHOWN_LOG_BYTES)),
        ))?;
        let mut bytes = Vec::new();
        file.take(SHOWN_LOG_BYTES).read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).trim_end().to_string())
    };
    match read() {
        Ok(text) if text.is_empty() => format!(
            "its log ({}) says nothing: is the disk full?",
            path.display()
        ),
        Ok(text) => format!("its log ({}) says:\n{text}", path.display()),
        Err(error) => format!("its log {} cannot be read: {error}", path.display()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{FakeNode, member};
    use nodectl_ports::NetReport;
    use nodectl_types::{Answer, Query, QueryError};

    #[test]
    fn a_background_node_gets_no_secret_on_its_command_line() {
        let line = "nodectl join --secret s --detach --name n --secret=t --secret-file f --data-dir d --secret-file=g";
        let kept = background_args(line.split(' ').map(Into::into));
        assert_eq!(kept, ["join", "--name", "n", "--data-dir", "d"]);
        for line in [
            "nodectl join --invite --port 1",
            "nodectl join --invite CODE --port 1",
            "nodectl join --invite=C --port 1",
        ] {
            assert_eq!(
                background_args(line.split(' ').map(Into::into)),
                ["join", "--port", "1"],
                "{line}"
            );
        }
    }

    #[test]
    fn the_next_line_has_a_secret_only_when_it_may_and_an_address_when_useful() {
        let generated = SecretSource::Generated("/d/secret".into());
        let addrs = ["127.0.0.1:1".to_string(), "192.0.2.7:4000".to_string()];
        insta::assert_snapshot!(next_line(&generated, Some("it's"), "default", &addrs), @r"
        on the next machine, which asks for the secret:
          nodectl join
          it's
        from another network, add: --peer 192.0.2.7:4000
        ");
        insta::assert_snapshot!(next_line(&SecretSource::File("/etc/s".into()), None, "default", &addrs[..1]), @r"
        on the next machine:
          nodectl join --secret-file /etc/s   (with the same content)
        ");
        insta::assert_snapshot!(next_line(&SecretSource::Given, None, "lab", &[]), @r"
        on the next machine, which asks for the secret:
          NODECTL_CLUSTER__NAME=lab nodectl join
        ");
    }

    #[test]
    fn members_are_named_and_what_keeps_others_out_is_said() {
        let names: Vec<_> = (0..10).map(|number| format!("n{number}")).collect();
        assert_eq!(listed(&names[..2]), "n0, n1");
        assert_eq!(listed(&names), "n0, n1, n2, n3, n4, n5, n6, n7 and 2 more");
        let finding = |check: &str, severity| Finding {
            check: check.into(),
            severity,
            message: format!("about {check}"),
            hint: Some("do this".into()),
        };
        let findings = [
            finding("network", Severity::Problem),
            finding("secret", Severity::Problem),
            finding("version", Severity::Ok),
        ];
        assert_eq!(
            objections(&findings),
            "warning: about secret\nhint: do this\n"
        );
    }

    #[test]
    fn root_is_asked_whether_that_is_meant() {
        use nodectl_app::settings::{Environment, Flags};
        let settings = |allowed: bool| {
            let flags = Flags::default()
                .set("node.name", Some("n"))
                .set("node.data_dir", Some("/d"));
            Settings::load_from(
                &Environment::default(),
                &flags.set("node.allow_root", Some(allowed)),
            )
            .unwrap()
            .0
        };
        let refused = check_root(&settings(false), true, false).unwrap_err();
        assert_eq!(refused.exit(), Exit::Usage);
        assert!(
            refused.to_string().contains("as root") && refused.to_string().contains("--allow-root"),
            "{refused}"
        );
        check_root(&settings(true), true, false).unwrap();
        check_root(&settings(false), true, true).unwrap();
        check_root(&settings(false), false, false).unwrap();
    }

    #[tokio::test]
    async fn a_second_join_says_that_one_is_running() {
        let brain = |query: &Query| match query {
            Query::Nodes => Ok(Answer::Nodes(vec![member(1, "alpha", true)])),
            _ => Err(QueryError::Leaving),
        };
        let node = FakeNode::start(brain).await;
        let this = node.client.node().await.unwrap();
        already_running(&node.client, &this).await.unwrap();
        let text = describe(&this, this_node(&node.client).await.unwrap().as_ref());
        insta::assert_snapshot!(text, @r"
        node alpha (01010101) of the cluster lab
          address  192.0.2.7:40001
          cores    8
          memory   16.0 GiB
          gpu      NVIDIA H200, 139 GiB
        ");
        let solo =
            FakeNode::start_with(|_| Err(QueryError::Leaving), NetReport::default(), true).await;
        let this = solo.client.node().await.unwrap();
        assert_eq!(
            already_running(&solo.client, &this)
                .await
                .unwrap_err()
                .exit(),
            Exit::Usage
        );
    }
}
