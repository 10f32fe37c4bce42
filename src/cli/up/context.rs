//! What every launch stands on: the secret, this machine's node (started in the background if there
//! is none), what launched nodes are told, and where the launch is written down.

use crate::{
    addresses,
    exit::CliError,
    secret::{self, ChosenSecret},
};
use data_encoding::HEXLOWER;
use nodectl_app::settings::Settings;
use nodectl_http::{Client, ClientError, socket_path};
use nodectl_launch::{
    LaunchError,
    node::ClusterFacts,
    process::Invocation,
    state::{Launches, StartedLaunch, StartedProcess, What},
};
use nodectl_ports::{bare::own_path, wall_ms};
use rand::{TryRng, rngs::SysRng};
use std::{path::PathBuf, time::Duration};
use zeroize::Zeroizing;

/// How long a node of this machine may take to start.
const START: Duration = Duration::from_secs(75);

pub struct LaunchContext {
    pub client: Client,
    pub secret: Zeroizing<String>,
    pub facts: ClusterFacts,
    pub launches: Launches,
    /// The id of this launch.
    pub launch: String,
    source: String,
    own_node: bool,
}

impl LaunchContext {
    /// `source`: what the user named, by which `down` finds the launch. `resume`: the launch that
    /// another process has begun.
    pub async fn prepare(
        settings: &Settings,
        flag: Option<Zeroizing<String>>,
        variable: Option<Zeroizing<String>>,
        source: String,
        resume: Option<String>,
    ) -> Result<Self, CliError> {
        let ChosenSecret { text: secret, .. } = secret::resolve(flag, variable, settings)?;
        let client = Client::new(socket_path(&settings.node.data_dir));
        let binary = own_binary()?;
        let mut own_node = false;
        let node = match client.node().await {
            Ok(node) => node,
            Err(ClientError::Unreachable { .. }) => {
                own_node = true;
                start_node(settings, &binary, &secret).await?;
                client.node().await?
            }
            Err(error) => return Err(error.into()),
        };
        if node.solo {
            let hint = "hint: wait for it, or give this node another --data-dir";
            return Err(CliError::Usage(format!(
                "a `nodectl run` (process {}) uses {}\n{hint}",
                node.pid, node.data_dir
            )));
        }
        let launches = Launches::below(&settings.node.data_dir);
        let before = launches
            .list()?
            .into_iter()
            .find(|launch| Some(&launch.id) == resume.as_ref());
        own_node |= before.is_some_and(|launch| launch.own_node);
        let launch = resume.map_or_else(launch_id, Ok)?;
        let facts = ClusterFacts {
            cluster: node.cluster,
            peers: peers(&node.addrs),
            launch: launch.clone(),
            binary,
            weak_secret: settings.cluster.weak_secret,
        };
        Ok(Self {
            client,
            secret,
            facts,
            launches,
            launch,
            source,
            own_node,
        })
    }

    /// A new launch's id.
    pub fn new_id() -> Result<String, CliError> {
        launch_id()
    }

    /// Writes down what is about to be started.
    pub fn keep(&self, what: What, launcher: Option<StartedProcess>) -> Result<(), LaunchError> {
        self.launches.keep(&StartedLaunch {
            id: self.launch.clone(),
            source: self.source.clone(),
            started_ms: wall_ms(),
            what,
            own_node: self.own_node,
            launcher,
        })
    }

    /// What the user named.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// The launches of what the user named, other than this one.
    pub fn earlier(&self) -> Result<Vec<StartedLaunch>, LaunchError> {
        let mut launches = self.launches.list()?;
        launches.retain(|launch| launch.source == self.source && launch.id != self.launch);
        Ok(launches)
    }
}

/// This program's file, as others can be handed it.
pub fn own_binary() -> Result<PathBuf, CliError> {
    own_path().map_err(|source| CliError::File {
        doing: "looking for this program's file".into(),
        source,
    })
}

async fn start_node(
    settings: &Settings,
    binary: &std::path::Path,
    secret: &str,
) -> Result<(), CliError> {
    let data_dir = settings.node.data_dir.display().to_string();
    let mut args = vec![
        "--data-dir",
        &data_dir,
        "join",
        "--allow-root",
        "--detach",
        "--secret-file",
        "-",
    ];
    args.extend(settings.cluster.weak_secret.then_some("--weak-secret"));
    let call = Invocation::new(&binary.display().to_string(), args, START).input(secret);
    let doing = "starting this machine's node".to_string();
    let ended = call.run().await.map_err(|source| LaunchError::Call {
        doing: doing.clone(),
        source,
    })?;
    if ended.is_ok() {
        Ok(())
    } else {
        Err(LaunchError::Refused {
            doing,
            said: ended.words(),
        }
        .into())
    }
}

/// Where others can reach this node. Loopback addresses are of use where there is nothing else: all
/// nodes are here.
fn peers(addrs: &[String]) -> Vec<String> {
    let reachable: Vec<String> = addresses::reachable(addrs).cloned().collect();
    if reachable.is_empty() {
        addrs.to_vec()
    } else {
        reachable
    }
}

/// Eight hex digits.
fn launch_id() -> Result<String, CliError> {
    let mut bytes = [0; 4];
    let drawn = SysRng.try_fill_bytes(&mut bytes);
    drawn.map_err(|error| {
        CliError::Node(anyhow::anyhow!("asking the kernel for randomness: {error}"))
    })?;
    Ok(HEXLOWER.encode(&bytes))
}

#[cfg(test)]
mod tests {
    use super::peers;

    #[test]
    fn others_are_told_addresses_that_they_can_use() {
        let addrs = |texts: &[&str]| {
            texts
                .iter()
                .map(|text| text.to_string())
                .collect::<Vec<_>>()
        };
        assert_eq!(
            peers(&addrs(&["127.0.0.1:1", "192.0.2.1:1", "[::1]:1"])),
            ["192.0.2.1:1"]
        );
        assert_eq!(peers(&addrs(&["127.0.0.1:1"])), ["127.0.0.1:1"]);
    }
}
