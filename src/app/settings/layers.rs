//! Reads the layers and remembers which of them each value came from.

use super::{Origin, Settings, SettingsError, check, local};
use figment::{
    Figment, Metadata, Profile, Provider,
    error::Kind,
    providers::Serialized,
    value::{Dict, Map, Value},
};
use nodectl_ports::say::tell;
use std::{
    collections::BTreeMap,
    io,
    path::{Path, PathBuf},
};

/// The variable that may hold the secret. No setting: it is only ever named, never shown.
pub const SECRET_VARIABLE: &str = "NODECTL_SECRET";
const PREFIX: &str = "NODECTL_";
pub const SYSTEM_FILE: &str = "/etc/nodectl/nodectl.toml";
const BUILT_IN: &str = "built-in";
const VARIABLES: &str = "environment";
const FLAG: &str = "flag";

/// What settings depend on besides flags.
#[derive(Clone, Debug, Default)]
pub struct Environment {
    pub variables: BTreeMap<String, String>,
    /// Settings files, from the weakest to the strongest; those that do not exist are passed over.
    pub files: Vec<PathBuf>,
    /// The file of the current directory, which comes last and may say less.
    pub local_file: Option<PathBuf>,
    pub host_name: String,
    pub is_root: bool,
    pub uid: u32,
}

/// Settings given on the command line.
#[derive(Clone, Debug, Default)]
pub struct Flags(Dict);

impl Environment {
    pub fn of_process() -> Self {
        let text = |(name, value): (std::ffi::OsString, std::ffi::OsString)| {
            Some((name.into_string().ok()?, value.into_string().ok()?))
        };
        let variables: BTreeMap<String, String> = std::env::vars_os().filter_map(text).collect();
        let mut environment = Self {
            variables,
            files: Vec::new(),
            local_file: Some("nodectl.toml".into()),
            host_name: rustix::system::uname()
                .nodename()
                .to_string_lossy()
                .into_owned(),
            is_root: rustix::process::geteuid().is_root(),
            uid: rustix::process::geteuid().as_raw(),
        };
        let user = environment.directory("XDG_CONFIG_HOME", ".config");
        environment.files.push(SYSTEM_FILE.into());
        environment
            .files
            .extend(user.map(|directory| directory.join("nodectl/nodectl.toml")));
        environment
    }

    /// The settings file to change: the strongest that is there, else where this user's would be.
    pub fn own_file(&self) -> PathBuf {
        let mut strongest_first = self.files.iter().rev();
        let there = strongest_first.find(|file| file.exists());
        let own = there.or(self.files.last());
        own.cloned().unwrap_or_else(|| SYSTEM_FILE.into())
    }

    /// systemd's state directory, the user's data directory, or /var/lib/nodectl for a root without
    /// a home. Empty if there is none of them. A container engine says that the home of a user
    /// without an account is `/`, where that user may make nothing: then it is in /tmp.
    pub(super) fn default_data_dir(&self) -> PathBuf {
        let given = self
            .variables
            .get("STATE_DIRECTORY")
            .and_then(|list| list.split(':').next());
        if let Some(directory) = given.filter(|directory| !directory.is_empty()) {
            return PathBuf::from(directory);
        }
        if !self.is_root && self.directory("XDG_DATA_HOME", "") == Some("/".into()) {
            return format!("/tmp/nodectl-{}", self.uid).into();
        }
        match self.directory("XDG_DATA_HOME", ".local/share") {
            Some(directory) => directory.join("nodectl"),
            None if self.is_root => PathBuf::from("/var/lib/nodectl"),
            None => PathBuf::new(),
        }
    }

    /// A directory of the XDG base directory specification: relative values are ignored, as it
    /// demands.
    fn directory(&self, variable: &str, below_home: &str) -> Option<PathBuf> {
        let absolute = |name: &str| {
            self.variables
                .get(name)
                .map(PathBuf::from)
                .filter(|path| path.is_absolute())
        };
        absolute(variable).or_else(|| absolute("HOME").map(|home| home.join(below_home)))
    }
}

impl Flags {
    /// Sets `section.key`, if the flag was given.
    pub fn set(mut self, key: &str, value: Option<impl Into<Value>>) -> Self {
        if let Some(value) = value {
            insert(&mut self.0, key, value.into());
        }
        self
    }
}

/// A layer that is in memory already.
struct SettingsLayer {
    name: &'static str,
    values: Dict,
}

impl Provider for SettingsLayer {
    fn metadata(&self) -> Metadata {
        Metadata::named(self.name)
    }

    fn data(&self) -> figment::Result<Map<Profile, Dict>> {
        Ok(Map::from([(Profile::Default, self.values.clone())]))
    }
}

/// All layers, merged.
pub(super) struct Layers {
    figment: Figment,
    secret_is_set: bool,
}

impl Layers {
    pub(super) fn read(environment: &Environment, flags: &Flags) -> Result<Self, SettingsError> {
        let built_in = dict(
            Serialized::defaults(Settings::built_in(environment))
                .data()
                .unwrap_or_default(),
        );
        let mut figment = Figment::from(SettingsLayer {
            name: BUILT_IN,
            values: built_in.clone(),
        });
        for path in &environment.files {
            if let Some(values) = file(path)? {
                check::keys(&values, &built_in, &|_| path.display().to_string())?;
                figment = figment.merge(FileLayer { path, values });
            }
        }
        if let Some((path, values)) = local_file(environment)? {
            check::keys(&values, &built_in, &|_| path.display().to_string())?;
            local::check(path, &values)?;
            figment = figment.merge(FileLayer { path, values });
        }
        let variables = variables(environment, &built_in);
        check::keys(&variables, &built_in, &variable_name)?;
        check::keys(&flags.0, &built_in, &|_| FLAG.to_string())?;
        let figment = figment
            .merge(SettingsLayer {
                name: VARIABLES,
                values: variables,
            })
            .merge(SettingsLayer {
                name: FLAG,
                values: flags.0.clone(),
            });
        Ok(Self {
            figment,
            secret_is_set: environment.variables.contains_key(SECRET_VARIABLE),
        })
    }

    pub(super) fn extract(&self) -> Result<Settings, SettingsError> {
        self.figment
            .extract()
            .map_err(|error| self.bad_value(&error.path.join("."), in_words(&error.kind)))
    }

    pub(super) fn bad_value(&self, key: &str, problem: String) -> SettingsError {
        SettingsError::BadValue {
            key: key.to_string(),
            place: self.source(key),
            problem,
        }
    }

    /// Every effective value and its layer, by key; a secret in the environment is named, never
    /// shown.
    pub(super) fn origins(&self, settings: &Settings) -> Vec<Origin> {
        let flat = flatten(settings).into_iter();
        let mut origins: Vec<_> = flat
            .map(|(key, value)| Origin {
                source: self.source(&key),
                key,
                value,
            })
            .collect();
        if self.secret_is_set {
            let source = SECRET_VARIABLE.to_string();
            origins.push(Origin {
                key: "secret".into(),
                value: "(not shown)".into(),
                source,
            });
        }
        origins
    }

    fn source(&self, key: &str) -> String {
        match self.figment.find_metadata(key) {
            None => BUILT_IN.to_string(),
            Some(metadata) if metadata.name == VARIABLES => variable_name(key),
            Some(metadata) => metadata.name.to_string(),
        }
    }
}

/// What is wrong with a value's type, without the names that types have in Rust.
fn in_words(kind: &Kind) -> String {
    let Kind::InvalidType(actual, expected) = kind else {
        return kind.to_string();
    };
    let wanted = match expected.as_str() {
        "f64" | "f32" | "u8" | "u16" | "u32" | "u64" | "usize" | "i64" => "a number",
        "a boolean" | "bool" => "true or false",
        "a string" | "path string" => "text in quotes",
        "a sequence" => "a list, in brackets",
        other => other,
    };
    format!("{wanted} is wanted here, not {actual}")
}

/// The values of a settings file.
struct FileLayer<'p> {
    path: &'p Path,
    values: Dict,
}

impl Provider for FileLayer<'_> {
    fn metadata(&self) -> Metadata {
        Metadata::named(self.path.display().to_string())
    }

    fn data(&self) -> figment::Result<Map<Profile, Dict>> {
        Ok(Map::from([(Profile::Default, self.values.clone())]))
    }
}

/// The file of the current directory, if it can be trusted and is not read already.
fn local_file(environment: &Environment) -> Result<Option<(&Path, Dict)>, SettingsError> {
    let Some(path) = environment.local_file.as_deref() else {
        return Ok(None);
    };
    if local::is_one_of(path, &environment.files) {
        return Ok(None);
    }
    match local::distrust(path) {
        Ok(None) => {
            let values = file(path)?;
            if values.is_some() {
                tell!("note: the settings in ./{} are used, too", path.display());
            }
            Ok(values.map(|values| (path, values)))
        }
        Ok(Some(why)) => {
            let shown = path.display();
            tell!(
                "warning: the settings in ./{shown} are not used: {why}\nhint: chmod go-w . {shown}, if they are yours"
            );
            Ok(None)
        }
        // There is none, as a rule.
        Err(_) => Ok(None),
    }
}

/// None if there is no such file.
fn file(path: &Path) -> Result<Option<Dict>, SettingsError> {
    match std::fs::read_to_string(path) {
        Ok(text) => {
            let syntax = |error: toml::de::Error| SettingsError::Syntax {
                path: path.to_path_buf(),
                problem: error.to_string().trim_end().to_string(),
            };
            toml::from_str(&text).map(Some).map_err(syntax)
        }
        Err(error)
            if matches!(
                error.kind(),
                io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
            ) =>
        {
            Ok(None)
        }
        Err(source) => Err(SettingsError::Unreadable {
            path: path.to_path_buf(),
            source,
        }),
    }
}

fn dict(data: Map<Profile, Dict>) -> Dict {
    data.into_values().next().unwrap_or_default()
}

/// `NODECTL_SECTION__KEY=value`. Names without `__` are no settings: tasks and other tools have
/// some of their own.
fn variables(environment: &Environment, built_in: &Dict) -> Dict {
    let mut values = Dict::new();
    for (name, text) in &environment.variables {
        let Some(name) = name.strip_prefix(PREFIX) else {
            continue;
        };
        let key = name.to_lowercase().replace("__", ".");
        if key.contains('.') && key.split('.').all(|part| !part.is_empty()) {
            insert(&mut values, &key, typed(&key, text, built_in));
        }
    }
    values
}

/// A variable's text as the type that its setting has: a name of digits stays text, a list may do
/// without brackets.
fn typed(key: &str, text: &str, built_in: &Dict) -> Value {
    let mut parts = key.split('.');
    let section = parts.next().and_then(|section| built_in.get(section));
    let default = parts.fold(section, |value, part| value?.as_dict()?.get(part));
    match default {
        Some(Value::String(..)) => Value::from(text),
        _ if key.starts_with("node.labels.") => Value::from(text),
        Some(Value::Array(..)) => literal(text)
            .filter(|value| value.as_array().is_some())
            .unwrap_or_else(|| {
                let items = text
                    .trim()
                    .trim_start_matches('[')
                    .trim_end_matches(']')
                    .split(',')
                    .map(str::trim);
                Value::from(
                    items
                        .filter(|item| !item.is_empty())
                        .map(str::to_string)
                        .collect::<Vec<String>>(),
                )
            }),
        _ => literal(text).unwrap_or_else(|| Value::from(text)),
    }
}

/// A value as TOML has it.
fn literal(text: &str) -> Option<Value> {
    toml::from_str::<Dict>(&format!("value = {}", text.trim()))
        .ok()?
        .remove("value")
}

fn variable_name(key: &str) -> String {
    format!("{PREFIX}{}", key.to_uppercase().replace('.', "__"))
}

fn insert(values: &mut Dict, key: &str, value: Value) {
    match key.split_once('.') {
        None => {
            values.insert(key.to_string(), value);
        }
        Some((first, rest)) => {
            let table = values
                .entry(first.to_string())
                .or_insert_with(|| Value::from(Dict::new()));
            if !matches!(table, Value::Dict(..)) {
                *table = Value::from(Dict::new());
            }
            if let Value::Dict(_, table) = table {
                insert(table, rest, value);
            }
        }
    }
}

/// Every value by its dotted key, as TOML.
pub(super) fn flatten(settings: &Settings) -> Vec<(String, String)> {
    let values = dict(Serialized::defaults(settings).data().unwrap_or_default());
    let mut flat = Vec::new();
    for (section, value) in &values {
        flatten_into(&mut flat, section, value);
    }
    flat
}

fn flatten_into(flat: &mut Vec<(String, String)>, path: &str, value: &Value) {
    match value {
        // A table that users fill is shown although it is empty.
        Value::Dict(_, table) if !(table.is_empty() && check::is_open_table(path)) => {
            table
                .iter()
                .for_each(|(key, value)| flatten_into(flat, &format!("{path}.{key}"), value));
        }
        _ => flat.push((path.to_string(), shown(value))),
    }
}

/// A value as TOML has it; nothing for what is not set.
fn shown(value: &Value) -> String {
    match value {
        Value::String(_, text) => format!("{text:?}"),
        Value::Empty(..) => String::new(),
        Value::Bool(_, truth) => truth.to_string(),
        Value::Char(_, c) => format!("{:?}", c.to_string()),
        Value::Num(_, number) => {
            let whole = number
                .to_i128()
                .or_else(|| number.to_u128_lossy().and_then(|n| i128::try_from(n).ok()));
            match (number.to_f64(), whole) {
                (Some(fraction), _) => fraction.to_string(),
                (None, Some(whole)) => whole.to_string(),
                (None, None) => String::new(),
            }
        }
        Value::Array(_, items) => format!(
            "[{}]",
            items.iter().map(shown).collect::<Vec<_>>().join(", ")
        ),
        Value::Dict(_, table) => {
            let entries = table
                .iter()
                .map(|(key, value)| format!("{key} = {}", shown(value)));
            let entries = entries.collect::<Vec<_>>().join(", ");
            if entries.is_empty() {
                "{}".to_string()
            } else {
                format!("{{ {entries} }}")
            }
        }
    }
}
