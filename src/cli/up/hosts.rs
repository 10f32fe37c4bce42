//! The hosts of a cluster file: all at once, each over its own `ssh`; who fails does not stop the others.

use super::{
    board::{Board, Row, State},
    ground::Ground,
};
use crate::exit::CliError;
use futures::{StreamExt, stream};
use nodectl_launch::{
    cluster_file::Host,
    node::NodeFacts,
    ssh::{self, Program, Step, Target},
    state::{HostNode, What},
};
use std::time::Duration;
use tokio::time::Instant;

/// Connections at once: more than this, and servers begin to refuse (sshd_config(5), MaxStartups).
const AT_ONCE: usize = 10;
const LOOK_AGAIN: Duration = Duration::from_millis(200);
/// How long a node that runs may take to join.
const JOIN: Duration = Duration::from_secs(120);

/// Starts a node on each host and waits until it has joined, or it is clear that it will not.
pub async fn start_hosts(
    ground: &Ground,
    hosts: Vec<Host>,
    connect: Duration,
    timeout: Option<Duration>,
    board: &Board,
) -> Result<(), CliError> {
    let program = Program::open(&ground.facts.binary).await?;
    let nodes = hosts.iter().map(|host| HostNode { target: Target::of(host), member: host.name.clone() }).collect();
    ground.keep(What::Hosts { program: program.hash.clone(), hosts: nodes }, None)?;
    for host in &hosts {
        board.add(Row::new(&host.name, &host.name, State::Connecting));
    }
    let starting =
        stream::iter(&hosts).for_each_concurrent(AT_ONCE, |host| start(ground, host, &program, connect, board));
    let deadline = Instant::now() + timeout.unwrap_or(JOIN);
    tokio::join!(starting, watch(ground, board, deadline));
    Ok(())
}

async fn start(ground: &Ground, host: &Host, program: &Program, connect: Duration, board: &Board) {
    let node = facts(host);
    let tell = |step| {
        let state = match step {
            Step::Connecting => State::Connecting,
            Step::Copying => State::Copying,
            Step::Starting => State::Starting,
            Step::Started => State::Started,
        };
        board.set(&host.name, state, "");
    };
    if let Err(error) = ssh::start(host, &node, &ground.facts, program, &ground.secret, connect, tell).await {
        board.set(&host.name, State::Failed, &error.to_string());
    }
}

/// What the node of a host is told. Its roles are labels, for `where` in job files.
fn facts(host: &Host) -> NodeFacts {
    let mut labels = host.labels.clone();
    if host.workers + host.parameter_servers > 0 {
        labels.insert("workers".into(), host.workers.to_string());
        labels.insert("parameter_servers".into(), host.parameter_servers.to_string());
    }
    NodeFacts {
        name: None,
        member: host.name.clone(),
        port: host.port,
        cores: host.cores,
        gpus: host.gpus.clone(),
        labels,
    }
}

/// Looks who has joined, until all are settled or the time is up.
async fn watch(ground: &Ground, board: &Board, deadline: Instant) {
    loop {
        if let Ok(nodes) = ground.client.nodes().await {
            board.see(&nodes, &ground.launch);
        }
        if board.is_settled() {
            return;
        }
        if Instant::now() > deadline {
            let late: Vec<Row> = board.rows().into_iter().filter(|row| !row.is_settled()).collect();
            for row in late {
                let why = match row.state {
                    State::Started => {
                        "it runs and did not join: is its way to this machine's node free? see its log there"
                    }
                    _ => "it did not start in time",
                };
                board.set(&row.member, State::Failed, why);
            }
            return;
        }
        tokio::time::sleep(LOOK_AGAIN).await;
    }
}
