//! What a launched node is told, as arguments of `nodectl join` and variables of its environment.

use std::{collections::BTreeMap, path::PathBuf};

/// The label that says by which launch a node was started.
pub const LAUNCH_LABEL: &str = "launch";
/// The label that says which member of its launch a node is.
pub const MEMBER_LABEL: &str = "member";

/// What every node of a launch is told.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ClusterFacts {
    /// The cluster's name.
    pub cluster: String,
    /// Where nodes can be reached, so that nobody depends on multicast: `HOST:PORT`.
    pub peers: Vec<String>,
    /// Names the launch, in labels and on disk.
    pub launch: String,
    /// This program, to be copied or called.
    pub binary: PathBuf,
    /// Whoever launches wants the secret although it is easy to guess.
    pub weak_secret: bool,
}

/// What one node is told besides.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LaunchFacts {
    pub name: Option<String>,
    /// Which member of the launch it is: unique within it.
    pub member: String,
    /// TCP port of its swarm; any if None.
    pub port: Option<u16>,
    pub cores: Option<f64>,
    /// GPUs by index or UUID; all if None, none if empty.
    pub gpus: Option<Vec<String>>,
    pub labels: BTreeMap<String, String>,
}

impl LaunchFacts {
    /// The arguments of `nodectl` after the data directory, but for what only the machine knows:
    /// GPUs and walltime.
    pub fn join_args(&self, facts: &ClusterFacts) -> Vec<String> {
        // It runs as whom the cluster file or the scheduler says; where that is root, it is meant.
        let mut args: Vec<String> = vec!["join".into(), "--allow-root".into()];
        let mut option =
            |name: &str, value: &str| args.extend([name.to_string(), value.to_string()]);
        if let Some(name) = &self.name {
            option("--name", name);
        }
        facts.peers.iter().for_each(|peer| option("--peer", peer));
        if let Some(port) = self.port {
            option("--port", &port.to_string());
        }
        if let Some(cores) = self.cores {
            option("--cores", &cores.to_string());
        }
        option("--label", &format!("{LAUNCH_LABEL}={}", facts.launch));
        option("--label", &format!("{MEMBER_LABEL}={}", self.member));
        for (key, value) in &self.labels {
            option("--label", &format!("{key}={value}"));
        }
        args.extend(facts.weak_secret.then(|| "--weak-secret".to_string()));
        args
    }
}

/// Shell that forgets what the launching machine's environment says of itself as a node: schedulers
/// hand the environment on.
pub const FORGET_NODE_SETTINGS: &str =
    "for v in $(env | sed -n 's/^\\(NODECTL_NODE__[A-Z_]*\\)=.*/\\1/p'); do unset \"$v\"; done";

/// Lines of shell that turn GPU indices in the variable `gpus` into UUIDs where NVIDIA's tool is
/// there: drivers count GPUs in different orders.
pub const GPUS_BY_UUID: &str = "case \"$gpus\" in *[!0-9,]*|'') ;; *) uuids=$(nvidia-smi -i \"$gpus\" --query-gpu=uuid \
     --format=csv,noheader 2>/dev/null | tr -s '\\n ' ',,') && [ -n \"$uuids\" ] && gpus=${uuids%,} ;; esac";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_told_its_peers_and_where_it_belongs() {
        let peers = vec!["192.0.2.1:7000".to_string(), "[2001:db8::1]:7000".into()];
        let facts = ClusterFacts {
            cluster: "lab".into(),
            peers,
            launch: "ab12".into(),
            binary: "/bin/nodectl".into(),
            weak_secret: true,
        };
        let labels = BTreeMap::from([("rack".to_string(), "b 1".to_string())]);
        let node = LaunchFacts {
            name: Some("h1".into()),
            member: "h1".into(),
            port: Some(1024),
            cores: Some(2.5),
            labels,
            ..LaunchFacts::default()
        };
        let line = super::super::shell::join(node.join_args(&facts).iter().map(String::as_str));
        let expected = "join --allow-root --name h1 --peer 192.0.2.1:7000 --peer '[2001:db8::1]:7000' --port 1024 --cores 2.5 \
                        --label launch=ab12 --label member=h1 --label 'rack=b 1' --weak-secret";
        assert_eq!(line, expected);
    }

    #[test]
    fn gpu_indices_become_uuids_where_something_can_translate_them() {
        let directory = tempfile::tempdir().unwrap();
        let path = format!(
            "{}:{}",
            directory.path().display(),
            std::env::var("PATH").unwrap_or_default()
        );
        let translated = |given: &str| {
            let script = format!("gpus='{given}'; {GPUS_BY_UUID}; printf %s \"$gpus\"");
            let output = std::process::Command::new("sh")
                .args(["-c", &script])
                .env("PATH", &path)
                .output();
            String::from_utf8(output.expect("there is a shell").stdout).unwrap()
        };
        let tool = directory.path().join("nvidia-smi");
        let put = |text: &str| {
            std::fs::write(&tool, text).unwrap();
            std::fs::set_permissions(&tool, std::os::unix::fs::PermissionsExt::from_mode(0o755))
                .unwrap();
        };
        put("#!/bin/sh\nexit 9\n");
        for given in ["0,1", "none", "", "GPU-ab"] {
            assert_eq!(translated(given), given);
        }
        put("#!/bin/sh\nprintf 'GPU-aa\\nGPU-bb\\n'\n");
        assert_eq!(translated("0,1"), "GPU-aa,GPU-bb");
    }
}
