//! `upgrade`: another program for this node, or for one node of the cluster after the other. Each
//! is drained, ends its tasks, takes the program from here and comes back with it; at one that does
//! not, the upgrade stops.

use super::{
    args::UpgradeArgs,
    exit::{CliError, Exit},
    signals,
};
use nodectl_app::{damage, try_program};
use nodectl_http::{Client, ClientError};
use nodectl_ports::say::tell;
use nodectl_types::{
    BlobHash,
    text::{escaped, split_hint},
    units::{counted, format_duration},
};
use nodectl_wire::api::{Node, ProgramView, ReplacementName};
use rustix::fs::{Access, access};
use std::{fs::File, io::Read, path::Path, time::Duration};
use tokio::time::{Instant, sleep};

/// How often nodes are looked at.
const PERIOD: Duration = Duration::from_millis(200);
/// How long a node may take to read its own program.
const READING: Duration = Duration::from_secs(60);
/// How long one may take to bring and check the new one.
const PREPARING: Duration = Duration::from_secs(600);

pub async fn upgrade(client: &Client, args: UpgradeArgs) -> Result<Exit, CliError> {
    let program = NewProgram::read(&args.file)?;
    program.try_here(&args.file).await?;
    let nodes = client.nodes().await?;
    let (mut chosen, away) = choose(&nodes, &args)?;
    let mut plan = Vec::new();
    for node in chosen.drain(..) {
        let runs = program_of(client, node).await?;
        plan.push((node, runs));
    }
    plan.retain(|(_, runs)| runs.hash.as_deref() != Some(&program.hash.to_string()));
    object(&plan, &program)?;
    if !away.is_empty() {
        tell!("away, and left as they are: {}", away.join(", "));
    }
    if plan.is_empty() {
        tell!("nothing to do: {}", all_run_it(&args));
        return Ok(Exit::Done);
    }
    client.put_file(&args.file, Some(program.hash)).await?;
    let count = plan.len();
    let mut interrupted = std::pin::pin!(signals::end()?);
    for (done, (node, runs)) in plan.into_iter().enumerate() {
        let rolled = Roll {
            client,
            node,
            drains: !node.draining && node.closed.is_none(),
            program: &program,
            args: &args,
        };
        let begin = Instant::now();
        let ended = tokio::select! {
            ended = rolled.run(&runs) => ended,
            () = &mut interrupted => {
                rolled.take_tasks_again().await;
                tell!("{done} of {count} nodes have the new program; the same command goes on there");
                return Ok(Exit::Interrupted);
            }
        };
        let runs_now = ended.map_err(|why| stopped(&node.name, &why, (done, count)))?;
        tell!(
            "{}: {} in {:.1} s; the program before is {}.previous",
            node.name,
            change(&runs.version, &runs_now.version),
            begin.elapsed().as_secs_f64(),
            runs.path
        );
    }
    Ok(Exit::Done)
}

fn all_run_it(args: &UpgradeArgs) -> &'static str {
    match (args.cluster, args.except.is_empty()) {
        (false, _) => "this node runs this program",
        (true, true) => "all nodes run this program",
        (true, false) => "all nodes but those of --except run this program",
    }
}

fn change(before: &str, now: &str) -> String {
    match before == now {
        true => format!("another {now}"),
        false => format!("{before} -> {now}"),
    }
}

/// Whom it concerns, this node last, and who is away. The nodes of `--except` have to be there.
fn choose<'n>(
    nodes: &'n [Node],
    args: &UpgradeArgs,
) -> Result<(Vec<&'n Node>, Vec<&'n str>), CliError> {
    if !args.cluster {
        let own = nodes.iter().filter(|node| node.this_node).collect();
        return Ok((own, Vec::new()));
    }
    let is_named = |node: &Node, named: &String| node.name == *named || node.id.starts_with(named);
    for named in &args.except {
        if !nodes.iter().any(|node| is_named(node, named)) {
            let hint = "hint: `nodectl nodes` lists them";
            return Err(CliError::Usage(format!(
                "--except: no node `{named}`\n{hint}"
            )));
        }
    }
    let wanted = |node: &&Node| !args.except.iter().any(|named| is_named(node, named));
    let (mut here, away): (Vec<_>, Vec<_>) =
        nodes.iter().filter(wanted).partition(|node| node.alive);
    here.sort_by_key(|node| (node.this_node, node.name.clone()));
    let away = away.into_iter().filter(|node| !node.left);
    Ok((here, away.map(|node| node.name.as_str()).collect()))
}

/// The program that a node runs, with its hash.
async fn program_of(client: &Client, node: &Node) -> Result<ProgramView, CliError> {
    let deadline = Instant::now() + READING;
    loop {
        let runs = client.program(Some(&node.id)).await?;
        if runs.hash.is_some() {
            return Ok(runs);
        }
        if Instant::now() > deadline {
            return Err(failed(format!(
                "{} cannot read its program {}\nhint: its log says why",
                node.name, runs.path
            )));
        }
        sleep(PERIOD).await;
    }
}

/// What is known to fail is said before anything is changed.
fn object(plan: &[(&Node, ProgramView)], program: &NewProgram) -> Result<(), CliError> {
    let objection = |(node, runs): &(&Node, ProgramView)| {
        let name = &node.name;
        if runs.architecture != program.architecture {
            return Some(format!(
                "{name} has the architecture {}, and the program is for {}",
                runs.architecture, program.architecture
            ));
        }
        let may = node.this_node || runs.by_members;
        (!may).then(|| {
            format!("{name}: its owner lets no other member replace its program (node.upgrade_by_members)")
        })
    };
    let objections: Vec<_> = plan.iter().filter_map(objection).collect();
    if objections.is_empty() {
        return Ok(());
    }
    Err(failed(format!(
        "nothing was changed:\n{}\nhint: `--except NODE` leaves a node as it is; `nodectl upgrade FILE`, typed at that machine, needs no permission",
        objections.join("\n")
    )))
}

fn stopped(name: &str, why: &str, (done, count): (usize, usize)) -> CliError {
    let rest = match count - done - 1 {
        0 => String::new(),
        more => format!("; {} not tried", counted(more, "node")),
    };
    let (why, hint) = split_hint(why);
    let hint = hint.map(|hint| format!("\nhint: {hint}"));
    failed(format!(
        "{name}: {why}\n{done} of {count} have the new program{rest}{}",
        hint.unwrap_or_default()
    ))
}

fn failed(text: String) -> CliError {
    CliError::Node(anyhow::anyhow!(text))
}

/// Who may not drain a node is told that an upgrade is the same people's to do.
fn not_drained(error: ClientError) -> String {
    match error {
        ClientError::Refused { status: 403, .. } => {
            format!("an upgrade is for those who may drain the node, which it begins with: {error}")
        }
        error => error.to_string(),
    }
}

/// One node on its way to the new program.
struct Roll<'a> {
    client: &'a Client,
    node: &'a Node,
    /// The node took tasks before, and is to take them again.
    drains: bool,
    program: &'a NewProgram,
    args: &'a UpgradeArgs,
}

impl Roll<'_> {
    /// The error is a sentence about the node; where it is still there, it works as before.
    async fn run(&self, before: &ProgramView) -> Result<ProgramView, String> {
        if self.drains {
            self.drain(true).await?;
        }
        let replaced = async {
            if !self.args.give_back {
                self.wait_until_idle().await?;
            }
            let begun = self
                .client
                .replace_program(self.name(), self.program.hash)
                .await;
            begun.map_err(|error| error.to_string())?;
            self.wait_until_back(before).await
        }
        .await;
        match replaced {
            Ok(runs) => {
                // What was said at a node is its owner's word, which its next life keeps.
                if self.drains && self.node.this_node {
                    self.drain(false).await?;
                }
                if !self.drains {
                    tell!(
                        "{}: takes no tasks, as before: `nodectl drain --off` there ends that",
                        self.node.name
                    );
                }
                Ok(runs)
            }
            Err(why) => {
                if self.drains {
                    // One that is away has forgotten it by itself.
                    let _ = self.drain(false).await;
                }
                Err(why)
            }
        }
    }

    /// Undoes what was begun, also where the node is on its way back just now.
    async fn take_tasks_again(&self) {
        let deadline = Instant::now() + self.args.away;
        while self.drains && self.drain(false).await.is_err() {
            if Instant::now() > deadline {
                tell!(
                    "{}: `nodectl drain --off` there lets it take tasks again",
                    self.node.name
                );
                return;
            }
            sleep(PERIOD).await;
        }
    }

    /// How it is named to the node that answers: as itself, by nothing.
    fn name(&self) -> Option<&str> {
        (!self.node.this_node).then_some(self.node.id.as_str())
    }

    async fn drain(&self, on: bool) -> Result<(), String> {
        let drained = self.client.drain(self.name(), on).await;
        drained.map(drop).map_err(not_drained)
    }

    async fn wait_until_idle(&self) -> Result<(), String> {
        let begin = Instant::now();
        let mut told = false;
        loop {
            let nodes = self.client.nodes().await;
            let nodes = nodes.map_err(|error| error.to_string())?;
            let node = nodes.iter().find(|node| node.id == self.node.id);
            let node = node.filter(|node| node.alive);
            let node = node.ok_or("it has gone while it ended its tasks")?;
            let load = node.load.as_ref();
            let jobs = match load {
                Some(load) if load.running == 0 && load.queued == 0 => return Ok(()),
                Some(load) => load.jobs.iter().map(|job| job.name.as_str()).collect(),
                None => Vec::new(),
            };
            let running = load.map_or(0, |load| load.running);
            if begin.elapsed() > self.args.wait {
                return Err(format!(
                    "it still runs {} ({}) after {}, and takes tasks again\n\
                     hint: `--wait` longer, or `--give-back`: then other nodes run them, from their beginning",
                    counted(running, "task"),
                    jobs.join(", "),
                    format_duration(self.args.wait)
                ));
            }
            if !std::mem::replace(&mut told, true) {
                tell!("{}: waits until its tasks have ended", self.node.name);
            }
            sleep(PERIOD).await;
        }
    }

    /// Until it says that it runs the new program.
    async fn wait_until_back(&self, before: &ProgramView) -> Result<ProgramView, String> {
        let begin = Instant::now();
        let mut last_seen = begin;
        let wanted = self.program.hash.to_string();
        loop {
            match self.client.program(self.name()).await {
                Ok(runs) if runs.hash.as_deref() == Some(&wanted) => return Ok(runs),
                Ok(runs) => match (runs.replacement, runs.failed) {
                    (ReplacementName::Failed, why) => {
                        return Err(format!(
                            "it goes on with the program that it has: {}",
                            why.unwrap_or_default()
                        ));
                    }
                    (ReplacementName::Preparing, _) if begin.elapsed() > PREPARING => {
                        return Err("it has not brought the new program here in time".into());
                    }
                    (ReplacementName::Restarting, _) => {}
                    (ReplacementName::Preparing | ReplacementName::None, _) => {
                        last_seen = Instant::now();
                    }
                },
                // The node is away, or others have not met it yet.
                Err(error) if error.is_unreachable() => {}
                Err(ClientError::Refused { status: 404, .. }) => {}
                Err(error) => return Err(error.to_string()),
            }
            if last_seen.elapsed() > self.args.away {
                let path = &before.path;
                return Err(format!(
                    "it has not come back within {}\n\
                     hint: on that machine look at the node\'s log; `mv {path}.previous {path}` and `nodectl join` (or `systemctl restart \
                     nodectl`) bring it back with the old program",
                    format_duration(self.args.away)
                ));
            }
            sleep(PERIOD).await;
        }
    }
}

/// The file that nodes are to run.
struct NewProgram {
    hash: BlobHash,
    architecture: String,
}

impl NewProgram {
    fn read(path: &Path) -> Result<Self, CliError> {
        let read = || {
            let mut file = File::open(path)?;
            let mut bytes = Vec::new();
            file.read_to_end(&mut bytes)?;
            Ok(bytes)
        };
        let bytes = read().map_err(|source| CliError::file("reading", path, source))?;
        let architecture = architecture(&bytes).ok_or_else(|| {
            CliError::Usage(format!(
                "{} is no program for Linux on x86-64 or AArch64\nhint: packages have to be unpacked: name the file `nodectl` itself",
                path.display()
            ))
        })?;
        if let Some(why) = damage(&bytes) {
            let path = path.display();
            return Err(CliError::Usage(format!(
                "{path}: {why}; nothing was changed\nhint: copy it again, and compare what `sha256sum` says of it there and here"
            )));
        }
        Ok(Self {
            hash: BlobHash::of(&bytes),
            architecture: architecture.into(),
        })
    }

    /// What can be known before any node stops taking tasks: whether it is nodectl, if it is for
    /// this machine, too, and may be executed here.
    async fn try_here(&self, path: &Path) -> Result<(), CliError> {
        if self.architecture != std::env::consts::ARCH || access(path, Access::EXEC_OK).is_err() {
            return Ok(());
        }
        let program = path.to_path_buf();
        let tried = tokio::task::spawn_blocking(move || try_program(&program)).await;
        let tried = tried.unwrap_or_else(|error| Err(error.to_string()));
        tried.map_err(|why| {
            let (why, hint) = split_hint(&why);
            let hint = hint.map(|hint| format!("\nhint: {hint}"));
            let (path, why) = (path.display(), escaped(why));
            CliError::Usage(format!(
                "{path}: {why}; nothing was changed{}",
                hint.unwrap_or_default()
            ))
        })
    }
}

/// As uname(2) calls it, by the header of an ELF file (elf(5)).
fn architecture(program: &[u8]) -> Option<&'static str> {
    let header = program.get(..20)?;
    let is_64_bit_little_endian = header.starts_with(b"\x7fELF\x02\x01");
    match (is_64_bit_little_endian, header[18], header[19]) {
        (true, 62, 0) => Some("x86_64"),
        (true, 183, 0) => Some("aarch64"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_says_what_it_is_for() {
        let own = std::fs::read("/proc/self/exe").unwrap();
        assert_eq!(architecture(&own), Some(std::env::consts::ARCH));
        let mut foreign = own[..64].to_vec();
        foreign[18] = 183;
        assert_eq!(architecture(&foreign), Some("aarch64"));
        assert_eq!(architecture(b"PK\x03\x04"), None);
        assert_eq!(architecture(b"\x7fELF"), None);
    }

    #[test]
    fn who_stopped_the_upgrade_is_named_with_what_was_done_and_the_hint_stays_last() {
        let error = stopped("beta", "it is away\nhint: look", (1, 4)).to_string();
        let lines: Vec<_> = error.lines().collect();
        assert_eq!(
            lines,
            [
                "beta: it is away",
                "1 of 4 have the new program; 2 nodes not tried",
                "hint: look"
            ]
        );
    }
}
