//! Every setting, and where its value came from. Layers, each over the one before: built-in,
//! `/etc/nodectl/nodectl.toml`, the user's `nodectl/nodectl.toml`, `./nodectl.toml`,
//! `NODECTL_SECTION__KEY`, flags. `config/nodectl.toml` documents each key. The secret itself is no
//! setting: it is never part of what is shown.
//!
//! | file | owns |
//! |---|---|
//! | `layers` | reading files, environment and flags; origins |
//! | `check` | unknown keys, and values that types do not exclude |
//! | `policy` | `[node.policy]` |
//! | `quantity` | sizes and durations as text |

mod check;
mod layers;
mod local;
mod policy;
mod quantity;
#[cfg(test)]
mod tests;

/// A JSON schema (draft 7) of settings files, for editors.
pub const SETTINGS_SCHEMA: &str = include_str!("../../config/schema/settings.json");

pub use layers::{Environment, Flags, SECRET_VARIABLE, SYSTEM_FILE};
use nodectl_types::Resources;
pub use policy::PolicySettings;
pub use quantity::{Period, Size};
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, path::PathBuf};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Settings {
    pub node: NodeSettings,
    pub cluster: ClusterSettings,
    pub network: NetworkSettings,
    pub api: ApiSettings,
    pub jobs: JobsSettings,
    pub isolation: IsolationSettings,
    pub log: LogSettings,
}

/// This machine as a node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NodeSettings {
    pub name: String,
    pub data_dir: PathBuf,
    pub labels: BTreeMap<String, String>,
    /// Cores offered to tasks; None for all.
    pub cores: Option<f64>,
    /// Memory offered to tasks; None for all.
    pub memory: Option<Size>,
    /// User-named resources offered to tasks.
    pub resources: BTreeMap<String, f64>,
    /// False for a node that only submits: it returns every order.
    pub takes_work: bool,
    /// Whether it may run as root, and so all tasks.
    pub allow_root: bool,
    /// Whether other members may replace the node's program.
    pub upgrade_by_members: bool,
    /// How much nicer tasks are than the node.
    pub nice: u8,
    /// GPUs offered to tasks, by index or UUID; empty for all, `none` for none.
    pub gpus: Vec<String>,
    /// The node must be gone after this long: it takes no task that would not end before, and
    /// leaves in time.
    pub walltime: Option<Period>,
    pub policy: PolicySettings,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ClusterSettings {
    /// Clusters of different names are strangers even with one secret.
    pub name: String,
    pub secret_file: Option<PathBuf>,
    /// A secret that is easy to guess is warned about, and used.
    pub weak_secret: bool,
    /// `HOST:PORT` of nodes to try besides those discovered.
    pub peers: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NetworkSettings {
    /// TCP port of the swarm; 0 takes a free one.
    pub port: u16,
    /// TCP port of file transfers; 0 takes a free one.
    pub bulk_port: u16,
    /// UDP port of the beacon; 0 turns it off.
    pub beacon_port: u16,
    /// Interfaces to use; empty for all but virtual bridges.
    pub interfaces: Vec<String>,
    pub mdns: bool,
    pub kademlia: bool,
}

/// Who may use this node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ApiSettings {
    /// A group whose users may: they submit jobs, and touch their own only. None: only who runs the
    /// node.
    pub group: Option<String>,
    /// Where the node answers them, and where commands look that find no node of their own user's.
    pub socket: PathBuf,
    /// A group whose users may do as the owner: touch others' jobs, drain, pause and stop the node.
    pub admins: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JobsSettings {
    /// Ended jobs are forgotten after this long.
    pub keep: Period,
    /// The most bytes of Python environments that are kept for jobs to come.
    pub environments: Size,
}

/// What tasks are kept from whose job does not say.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct IsolationSettings {
    /// Whether programs such as sudo may gain rights.
    pub setuid: bool,
    /// Whether what is the node's alone is out of reach; None: where that takes nothing else away.
    pub hides_node: Option<bool>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LogSettings {
    pub level: LogLevel,
    pub format: LogFormat,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogLevel {
    Error,
    Warn,
    Info,
    Debug,
    Trace,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    Text,
    Json,
}

/// An effective value and the layer it came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    /// Dotted, e.g. `node.labels.rack`.
    pub key: String,
    /// As TOML; empty where nothing is set.
    pub value: String,
    /// `built-in`, a file, an environment variable or `flag`.
    pub source: String,
}

/// Settings that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    #[error("cannot read the settings in {}: {source}", path.display())]
    Unreadable {
        path: PathBuf,
        source: std::io::Error,
    },
    #[error("the settings in {} are not valid TOML: {problem}", path.display())]
    Syntax { path: PathBuf, problem: String },
    #[error("there is no setting `{key}` ({place}){}", hint.as_ref().map(|hint| format!("\nhint: {hint}")).unwrap_or_default())]
    UnknownKey {
        key: String,
        place: String,
        hint: Option<String>,
    },
    #[error("the setting `{key}` ({place}): {problem}")]
    BadValue {
        key: String,
        place: String,
        problem: String,
    },
}

impl Settings {
    /// The effective settings of this process, and the origin of each value, by key.
    pub fn load(flags: &Flags) -> Result<(Self, Vec<Origin>), SettingsError> {
        Self::load_from(&Environment::of_process(), flags)
    }

    /// Loads the settings in a given environment.
    pub fn load_from(
        environment: &Environment,
        flags: &Flags,
    ) -> Result<(Self, Vec<Origin>), SettingsError> {
        let layers = layers::Layers::read(environment, flags)?;
        let settings: Self = layers.extract()?;
        check::values(&settings).map_err(|(key, problem)| layers.bad_value(&key, problem))?;
        let origins = layers.origins(&settings);
        Ok((settings, origins))
    }

    /// Every value by its dotted key; null for what is not set.
    pub fn values(&self) -> BTreeMap<String, serde_json::Value> {
        let typed = |text: &str| {
            let table: Option<serde_json::Value> = toml::from_str(&format!("value = {text}")).ok();
            table.map(|mut table| table["value"].take())
        };
        let flat = layers::flatten(self).into_iter();
        flat.map(|(key, text)| (key, typed(&text).unwrap_or_default()))
            .collect()
    }

    /// What holds where no layer says otherwise.
    pub fn built_in(environment: &Environment) -> Self {
        Self {
            node: NodeSettings {
                name: environment.host_name.clone(),
                data_dir: environment.default_data_dir(),
                labels: BTreeMap::new(),
                cores: None,
                memory: None,
                resources: BTreeMap::new(),
                takes_work: true,
                allow_root: false,
                upgrade_by_members: false,
                nice: 10,
                gpus: Vec::new(),
                walltime: None,
                policy: PolicySettings::default(),
            },
            cluster: ClusterSettings {
                name: "default".into(),
                secret_file: None,
                weak_secret: false,
                peers: Vec::new(),
            },
            network: NetworkSettings {
                port: 0,
                bulk_port: 0,
                beacon_port: 7337,
                interfaces: Vec::new(),
                mdns: true,
                kademlia: true,
            },
            api: ApiSettings {
                group: None,
                socket: "/run/nodectl/api.sock".into(),
                admins: None,
            },
            jobs: JobsSettings {
                keep: Period::days(30),
                environments: Size(20 << 30),
            },
            isolation: IsolationSettings {
                setuid: false,
                hides_node: None,
            },
            log: LogSettings {
                level: LogLevel::Info,
                format: LogFormat::Text,
            },
        }
    }
}

impl NodeSettings {
    /// What the node offers: `detected`, cut down to the settings and less what is left to whoever
    /// sits there, with the user-named resources added.
    pub fn offered(&self, detected: Resources) -> Resources {
        let milli = |amount: f64| (amount * 1000.0).round() as u32;
        let PolicySettings {
            keep_cores,
            keep_memory,
            ..
        } = &self.policy;
        let (cpu_milli, memory_bytes) = (
            detected.cpu_milli.saturating_sub(milli(*keep_cores)),
            detected.memory_bytes.saturating_sub(keep_memory.0),
        );
        Resources {
            cpu_milli: self.cores.map_or(cpu_milli, milli),
            memory_bytes: self.memory.map_or(memory_bytes, |memory| memory.0),
            named_milli: self
                .resources
                .iter()
                .map(|(name, amount)| (name.clone(), milli(*amount)))
                .collect(),
            ..detected
        }
    }
}
