//! The hosts of a cluster file: all at once, each over its own `ssh`; who fails does not stop the
//! others.

use super::{
    context::LaunchContext,
    table::{HostState, LaunchTable, Row},
};
use crate::exit::CliError;
use futures::{StreamExt, stream};
use nodectl_launch::{
    cluster_file::Host,
    node::{LAUNCH_LABEL, LaunchFacts, MEMBER_LABEL},
    ssh::{self, HostStart, RemoteProgram, SshTarget, StartStep},
    state::{HostNode, What},
};
use std::time::Duration;
use tokio::time::Instant;

/// Connections at once: more than this, and servers begin to refuse (sshd_config(5), MaxStartups).
const AT_ONCE: usize = 10;
const LOOK_AGAIN: Duration = Duration::from_millis(200);
/// How long nodes of an earlier `up` may take to be seen by a node here that has just started.
const SEEN: Duration = Duration::from_secs(3);
/// How long a node that runs may take to join.
const JOIN: Duration = Duration::from_secs(120);

/// The hosts that have no node of an earlier `up` of the same file; the others are shown as joined.
pub async fn without_those_up(
    context: &LaunchContext,
    hosts: Vec<Host>,
    table: &LaunchTable,
) -> Result<Vec<Host>, CliError> {
    let earlier: Vec<String> = context
        .earlier()?
        .into_iter()
        .map(|launch| launch.id)
        .collect();
    if earlier.is_empty() {
        return Ok(hosts);
    }
    let deadline = Instant::now() + SEEN;
    loop {
        let nodes = context.client.nodes().await?;
        let node_on = |host: &Host| {
            nodes.iter().find(|node| {
                let is_of_launch = |id: &String| earlier.contains(id);
                node.alive
                    && node.labels.get(MEMBER_LABEL) == Some(&host.name)
                    && node.labels.get(LAUNCH_LABEL).is_some_and(is_of_launch)
            })
        };
        let all_up = hosts.iter().all(|host| node_on(host).is_some());
        if !all_up && Instant::now() < deadline {
            tokio::time::sleep(LOOK_AGAIN).await;
            continue;
        }
        for (host, node) in hosts.iter().filter_map(|host| Some((host, node_on(host)?))) {
            let mut row = Row::new(&host.name, &host.name, HostState::Joined);
            row.note = format!("up already, as {}", node.name);
            row.gpus = Some(node.gpus.iter().filter(|gpu| gpu.used).count());
            table.add(row);
        }
        return Ok(hosts
            .iter()
            .filter(|host| node_on(host).is_none())
            .cloned()
            .collect());
    }
}

/// Starts a node on each host and waits until it has joined, or it is clear that it will not.
pub async fn start_hosts(
    context: &LaunchContext,
    hosts: Vec<Host>,
    connect: Duration,
    timeout: Option<Duration>,
    table: &LaunchTable,
) -> Result<(), CliError> {
    let program = RemoteProgram::open(&context.facts.binary).await?;
    let nodes = hosts
        .iter()
        .map(|host| HostNode {
            target: SshTarget::of(host),
            member: host.name.clone(),
        })
        .collect();
    context.keep(
        What::Hosts {
            program: program.hash.clone(),
            hosts: nodes,
        },
        None,
    )?;
    for host in &hosts {
        table.add(Row::new(&host.name, &host.name, HostState::Connecting));
    }
    let starting = stream::iter(&hosts).for_each_concurrent(AT_ONCE, |host| {
        start(context, host, &program, connect, table)
    });
    let deadline = Instant::now() + timeout.unwrap_or(JOIN);
    tokio::join!(starting, watch(context, table, deadline));
    Ok(())
}

async fn start(
    context: &LaunchContext,
    host: &Host,
    program: &RemoteProgram,
    connect: Duration,
    table: &LaunchTable,
) {
    let node = facts(host);
    let tell = |step| {
        let state = match step {
            StartStep::Connecting => HostState::Connecting,
            StartStep::Copying => HostState::Copying,
            StartStep::Starting => HostState::Starting,
            StartStep::Started => HostState::Started,
        };
        table.set(&host.name, state, "");
    };
    let start = HostStart {
        host,
        node: &node,
        facts: &context.facts,
        program,
        secret: &context.secret,
        connect,
    };
    if let Err(error) = ssh::start(&start, tell).await {
        let error = error.to_string();
        // Its row says whose it is.
        let why = error.strip_prefix(&format!("{}: ", host.name));
        table.set(&host.name, HostState::Failed, why.unwrap_or(&error));
    }
}

/// What the node of a host is told. Its roles are labels, for `where` in job files.
fn facts(host: &Host) -> LaunchFacts {
    let mut labels = host.labels.clone();
    if host.workers + host.parameter_servers > 0 {
        labels.insert("workers".into(), host.workers.to_string());
        labels.insert(
            "parameter_servers".into(),
            host.parameter_servers.to_string(),
        );
    }
    LaunchFacts {
        name: None,
        member: host.name.clone(),
        port: host.port,
        cores: host.cores,
        gpus: host.gpus.clone(),
        labels,
    }
}

/// Looks who has joined, until all are settled or the time is up.
async fn watch(context: &LaunchContext, table: &LaunchTable, deadline: Instant) {
    loop {
        if let Ok(nodes) = context.client.nodes().await {
            table.see(&nodes, &context.launch);
        }
        if table.is_settled() {
            return;
        }
        if Instant::now() > deadline {
            let late: Vec<Row> = table
                .rows()
                .into_iter()
                .filter(|row| !row.is_settled())
                .collect();
            for row in late {
                let why = match row.state {
                    HostState::Started => {
                        "it runs, but has not joined: can it reach this machine's node? its log there says more"
                    }
                    _ => "it did not start in time",
                };
                table.set(&row.member, HostState::Failed, why);
            }
            return;
        }
        tokio::time::sleep(LOOK_AGAIN).await;
    }
}
