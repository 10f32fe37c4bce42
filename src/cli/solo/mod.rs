//! Nodes that live as long as somebody needs them: inside of `run` and other commands where no node
//! runs; and of `solo` and `join --while-stdin`, as long as the program that started it, which
//! holds the other end of its standard input. However that program ends, the kernel closes the
//! pipe.
//!
//! Two commands without a node work side by side: the second one is a guest of the node inside the
//! first, which stays until its guests are done. What a command left unfinished because it was
//! killed is put aside by the next node here, until somebody asks for it.
//!
//! | file | owns |
//! |---|---|
//! | `mod` | finding the node or starting one |
//! | `lease` | how a command waits for its guests |

mod lease;

use super::{
    exit::{CliError, Exit, print},
    place,
};
use lease::Lease;
use nodectl_app as app;
use nodectl_app::{StartedNode, settings::Settings};
use nodectl_http::{Client, ClientError};
use nodectl_ports::say::tell;
use nodectl_wire::api::JobLine;
use std::{
    io,
    path::PathBuf,
    time::{Duration, Instant},
};
use tokio::signal::unix::{SignalKind, signal};

/// How long another command's node may take to answer, or to end.
const OTHERS_PATIENCE: Duration = Duration::from_secs(30);
const LOOK_AGAIN: Duration = Duration::from_millis(100);
/// Jobs that were put aside, named in one remark.
const MOST_NAMED: usize = 5;

/// What keeps the node there that a command works on.
#[derive(Default)]
pub struct Stay {
    /// The node inside this process.
    own: Option<StartedNode>,
    /// The lease of another command, which waits for this one; or no guests, please.
    lease: Option<Lease>,
    data_dir: PathBuf,
}

impl Stay {
    /// The node is inside this command or another, and ends with it.
    pub fn is_solo(&self) -> bool {
        self.own.is_some() || self.lease.is_some()
    }

    /// The node inside this process, if there is one.
    pub fn own(&mut self) -> Option<&mut StartedNode> {
        self.own.as_mut()
    }

    /// The command is done: its node ends when its guests are done too.
    pub async fn end(self) {
        let Self {
            own: Some(node),
            lease,
            data_dir,
        } = self
        else {
            return;
        };
        if lease.is_none() {
            let told = || {
                tell!(
                    "another command works on the node inside this one: waiting for it (Ctrl-C ends both)"
                )
            };
            // Kept until the node has ended, so that no guest comes meanwhile. One that cannot be
            // had is no reason to stay.
            let _alone = tokio::select! {
                lease = Lease::when_alone(&data_dir, told) => lease.ok(),
                () = interrupted() => None,
            };
            return node.stop().await;
        }
        node.stop().await;
    }
}

/// Runs a node without a network; prints the path of its socket once it answers there, and a second
/// line once it knows its GPUs.
pub async fn solo(settings: &Settings) -> Result<Exit, CliError> {
    let mut node = app::start_solo(settings).await.map_err(CliError::Node)?;
    print(&format!("{}\n", node.socket.display()))?;
    let ended = tokio::select! {
        () = stdin_ends() => Ok(()),
        ended = tell_and_stay(&mut node) => ended,
    };
    node.stop().await;
    ended.map(|()| Exit::Done).map_err(CliError::Node)
}

/// Returns when the node has left.
async fn tell_and_stay(node: &mut StartedNode) -> anyhow::Result<()> {
    node.gpus_known().await;
    // Whoever started it may have gone: then stdin ends, too.
    let _ = print("its GPUs are known\n");
    node.left().await
}

/// The node that runs here, also inside another command, or one inside this process.
pub async fn connect(settings: &Settings, may_start: bool) -> Result<(Client, Stay), CliError> {
    let client = Client::new(place::socket(settings));
    let begin = Instant::now();
    loop {
        let is_patient = begin.elapsed() < OTHERS_PATIENCE;
        let found = match client.node().await {
            Ok(node) if !node.solo => return Ok((client, Stay::default())),
            Ok(_) if !may_start => return Err(nothing_to_detach_from()),
            Ok(_) => guest_of(settings, &client).await?,
            Err(error @ ClientError::Unreachable { .. }) if may_start => {
                let found = started(settings, is_patient).await?;
                if found.is_some() && error.is_forbidden_socket() {
                    tell!(
                        "only this machine's own node, inside this command, does the work: {error}"
                    );
                }
                found
            }
            // The node ends: it was another command's, which is done.
            Err(ClientError::Lost { .. }) if is_patient => None,
            Err(error) => return Err(error.into()),
        };
        if let Some(found) = found {
            return Ok(found);
        }
        if !is_patient {
            let problem = "the node inside another command neither ends nor takes guests";
            return Err(CliError::Node(anyhow::anyhow!(
                "{problem}\nhint: end that command, or name another --data-dir"
            )));
        }
        tokio::time::sleep(LOOK_AGAIN).await;
    }
}

/// As a guest of the node inside another command; None while that ends.
async fn guest_of(
    settings: &Settings,
    client: &Client,
) -> Result<Option<(Client, Stay)>, CliError> {
    let Some(lease) = Lease::shared(&settings.node.data_dir)? else {
        return Ok(None);
    };
    // Looked again with the lock in hand: from now on the other command waits for this one.
    let is_there = client.node().await.is_ok();
    let stay = Stay {
        lease: Some(lease),
        ..Stay::default()
    };
    Ok(is_there.then(|| (client.clone(), stay)))
}

/// With a node inside this process; None while another command is about to start its own, or to end
/// it.
async fn started(
    settings: &Settings,
    is_patient: bool,
) -> Result<Option<(Client, Stay)>, CliError> {
    match app::start_solo(settings).await {
        Ok(node) => {
            let client = Client::new(node.socket.clone());
            let stay = Stay {
                own: Some(node),
                lease: None,
                data_dir: settings.node.data_dir.clone(),
            };
            Ok(Some((client, stay)))
        }
        Err(error) if app::is_in_use(&error) && is_patient => Ok(None),
        Err(error) => Err(CliError::Node(error)),
    }
}

fn nothing_to_detach_from() -> CliError {
    CliError::Usage(
        "the only node here is inside another command and ends with it: nothing would run the job then\n\
         hint: `nodectl join --detach` starts one that stays"
            .into(),
    )
}

/// For going on with what an earlier command left: as `connect`, but starts a node only if
/// something is left.
pub async fn connect_to_left(settings: &Settings) -> Result<(Client, Stay), CliError> {
    let client = Client::new(place::socket(settings));
    match client.node().await {
        Err(ClientError::Unreachable { .. }) if !app::has_left_jobs(&settings.node.data_dir) => {
            Ok((client, Stay::default()))
        }
        _ => connect(settings, true).await,
    }
}

/// For a look at what earlier commands left: the node that runs here, or one for this moment,
/// without guests.
pub async fn look_at_left(settings: &Settings) -> Result<(Client, Stay), CliError> {
    let data_dir = settings.node.data_dir.clone();
    let client = Client::new(place::socket(settings));
    let is_left = || app::has_left_jobs(&data_dir);
    let begin = Instant::now();
    let is_patient = || begin.elapsed() < OTHERS_PATIENCE;
    let is_gone = async || {
        matches!(
            client.node().await,
            Err(ClientError::Unreachable { .. } | ClientError::Lost { .. })
        )
    };
    // Files first: a node that hangs takes its time to answer.
    while is_patient() && is_left() && is_gone().await {
        if let Some(lease) = Lease::alone(&data_dir)?
            && let Some((client, stay)) = started(settings, is_patient()).await?
        {
            let lease = Some(lease);
            return Ok((client, Stay { lease, ..stay }));
        }
        // Somebody who was faster has a node in a moment, or ends one.
        tokio::time::sleep(LOOK_AGAIN).await;
    }
    Ok((client, Stay::default()))
}

/// Says which jobs an earlier command left unfinished.
pub async fn tell_of_left(client: &Client) {
    let Ok(jobs) = client.jobs().await else {
        return;
    };
    let left: Vec<&JobLine> = jobs.iter().filter(|job| job.aside).collect();
    let Some(first) = left.first() else { return };
    let named: Vec<_> = left
        .iter()
        .take(MOST_NAMED)
        .map(|job| format!("{} ({})", job.id, job.name))
        .collect();
    let more = if left.len() > MOST_NAMED { ", …" } else { "" };
    let id = &first.id;
    tell!(
        "left unfinished by a command that was killed: {}{more}\n\
         hint: `nodectl attach {id}` goes on with it, `nodectl cancel {id}` ends it, `nodectl remove {id}` forgets it",
        named.join(", ")
    );
}

async fn interrupted() {
    let (Ok(mut interrupt), Ok(mut terminate)) = (
        signal(SignalKind::interrupt()),
        signal(SignalKind::terminate()),
    ) else {
        return std::future::pending().await;
    };
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
}

/// Returns when nobody can write to the standard input any more. What is written there is passed
/// over.
pub async fn stdin_ends() {
    let (ended, end) = tokio::sync::oneshot::channel();
    // A thread of its own: nothing interrupts a read, and the runtime would wait for it.
    std::thread::spawn(move || {
        let _ = io::copy(&mut io::stdin(), &mut io::sink());
        let _ = ended.send(());
    });
    let _ = end.await;
}

#[cfg(test)]
mod tests {
    use super::*;
    use nodectl_app::settings::Environment;
    use nodectl_http as http;

    #[tokio::test]
    async fn a_node_that_ends_while_it_is_asked_is_one_that_has_ended() {
        let dir = tempfile::tempdir().unwrap();
        let mut settings = Settings::built_in(&Environment::default());
        settings.node.data_dir = dir.path().to_path_buf();
        let socket = http::socket_path(dir.path());
        let listener = tokio::net::UnixListener::bind(&socket).unwrap();
        let ending = tokio::spawn(async move {
            listener.accept().await.unwrap();
            std::fs::remove_file(socket).unwrap();
        });
        let (_, mut stay) = connect(&settings, true)
            .await
            .map_err(|error| error.to_string())
            .unwrap();
        ending.await.unwrap();
        assert!(stay.own().is_some());
        stay.end().await;
    }
}
