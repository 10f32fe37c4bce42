//! What types do not exclude: keys that do not exist, and values without sense.

use super::{NodeSettings, Settings, SettingsError};
use figment::value::{Dict, Value};
use nodectl_types::{
    limits::MAX_LABEL_BYTES,
    suggest::nearest,
    template::is_name,
    text::{is_unsafe, shortened},
};

/// Tables whose keys users choose.
const OPEN_TABLES: [&str; 2] = ["node.labels", "node.resources"];
/// More than any machine has; keeps thousandths within 32 bits.
pub(super) const MAX_AMOUNT: f64 = 1e6;
/// Of a value in an error.
const SHOWN_CHARS: usize = 60;

/// Fails on the first key of a layer that `schema` (the built-in layer) does not have. `place` says
/// where a key stands.
pub(super) fn keys(
    layer: &Dict,
    schema: &Dict,
    place: &dyn Fn(&str) -> String,
) -> Result<(), SettingsError> {
    let known = paths(schema);
    for (section, value) in layer {
        let Value::Dict(_, table) = value else {
            return Err(unknown(section, &known, place));
        };
        let Some(Value::Dict(_, known_table)) = schema.get(section) else {
            let path = table
                .keys()
                .next()
                .map_or(section.clone(), |key| format!("{section}.{key}"));
            return Err(unknown(&path, &known, place));
        };
        for (key, value) in table {
            let path = format!("{section}.{key}");
            let Some(known_value) = known_table.get(key) else {
                return Err(unknown(&path, &known, place));
            };
            let Some(known_inner) = known_value.as_dict().filter(|_| !is_open_table(&path)) else {
                continue;
            };
            let Value::Dict(_, inner) = value else {
                return Err(unknown(&path, &known, place));
            };
            if let Some(key) = inner.keys().find(|key| !known_inner.contains_key(*key)) {
                return Err(unknown(&format!("{path}.{key}"), &known, place));
            }
        }
    }
    Ok(())
}

fn paths(schema: &Dict) -> Vec<String> {
    let mut paths = Vec::new();
    let mut tables: Vec<(String, &Dict)> = schema
        .iter()
        .filter_map(|(section, value)| Some((section.clone(), value.as_dict()?)))
        .collect();
    while let Some((path, table)) = tables.pop() {
        for (key, value) in table {
            let path = format!("{path}.{key}");
            match value {
                Value::Dict(_, inner) if !is_open_table(&path) => tables.push((path, inner)),
                _ => paths.push(path),
            }
        }
    }
    paths
}

fn unknown(path: &str, known: &[String], place: &dyn Fn(&str) -> String) -> SettingsError {
    let last = |path: &str| path.rsplit('.').next().unwrap_or_default().to_string();
    // The right key in the wrong section is nearer than any misspelling.
    let moved = known
        .iter()
        .find(|other| last(other) == last(path))
        .map(String::as_str);
    let found = moved.or_else(|| nearest(path, known.iter().map(String::as_str)));
    let hint = match found {
        Some(other) => format!("did you mean `{other}`?"),
        None => "`nodectl config show` lists every setting".to_string(),
    };
    SettingsError::UnknownKey {
        key: path.to_string(),
        place: place(path),
        hint: Some(hint),
    }
}

/// Whether users choose the keys of this table.
pub(super) fn is_open_table(path: &str) -> bool {
    OPEN_TABLES.contains(&path)
}

/// The key of the first value without sense, and what is wrong with it.
pub(super) fn values(settings: &Settings) -> Result<(), (String, String)> {
    node(&settings.node)?;
    super::policy::check(&settings.node.policy)?;
    labels(&settings.node)?;
    gpus(&settings.node)?;
    resources(&settings.node)?;
    if !settings.api.socket.is_absolute() {
        return fail(
            "api.socket",
            format!("`{}` is no absolute path", settings.api.socket.display()),
        );
    }
    if !(1..=64).contains(&settings.cluster.name.len()) {
        return fail("cluster.name", "a name has 1 to 64 bytes".into());
    }
    match settings
        .cluster
        .peers
        .iter()
        .find(|peer| !is_host_port(peer))
    {
        Some(peer) => fail(
            "cluster.peers",
            format!("`{peer}` is not HOST:PORT, e.g. `10.0.0.5:4711` or `[fe80::1]:4711`"),
        ),
        None => Ok(()),
    }
}

fn fail(key: &str, problem: String) -> Result<(), (String, String)> {
    Err((key.to_string(), problem))
}

fn node(node: &NodeSettings) -> Result<(), (String, String)> {
    let is_odd = |c: char| is_unsafe(c) || c.is_whitespace();
    if !(1..=64).contains(&node.name.len()) || node.name.contains(is_odd) {
        return fail(
            "node.name",
            format!("{:?} is no name: 1 to 64 bytes without blanks", node.name),
        );
    }
    if node.data_dir.as_os_str().is_empty() {
        return fail(
            "node.data_dir",
            "there is no home directory to put it in\nhint: set it, or --data-dir".into(),
        );
    }
    if node.nice > 19 {
        return fail(
            "node.nice",
            format!(
                "{} is no niceness: 0 (as the node) to 19 (after everybody else)",
                node.nice
            ),
        );
    }
    match node.cores {
        Some(cores) if !(0.0..=MAX_AMOUNT).contains(&cores) => {
            fail("node.cores", format!("{cores} is no number of cores"))
        }
        _ => Ok(()),
    }
}

/// A label must be something that `where` can name.
fn labels(node: &NodeSettings) -> Result<(), (String, String)> {
    let is_bad = |label: &&String| !is_name(label) || label.len() > MAX_LABEL_BYTES;
    if let Some(label) = node.labels.keys().find(is_bad) {
        let label = shortened(label, SHOWN_CHARS);
        return fail(
            "node.labels",
            format!("`{label}` cannot name a label: letters, digits, `_`, `-` and `.` can"),
        );
    }
    let is_odd = |value: &str| value.len() > MAX_LABEL_BYTES || value.contains(is_unsafe);
    match node.labels.iter().find(|(_, value)| is_odd(value)) {
        Some((label, value)) => {
            let value = shortened(value, SHOWN_CHARS);
            let problem = format!("at most {MAX_LABEL_BYTES} bytes, and no control characters");
            fail(
                "node.labels",
                format!("`{label}` cannot be `{value}`: {problem}"),
            )
        }
        None => Ok(()),
    }
}

fn gpus(node: &NodeSettings) -> Result<(), (String, String)> {
    match node
        .gpus
        .iter()
        .find(|gpu| crate::gpus::GpuChoice::parse(gpu).is_none())
    {
        Some(gpu) => fail(
            "node.gpus",
            format!("`{gpu}` is no GPU: give numbers such as 0, UUIDs, or `none`"),
        ),
        None => Ok(()),
    }
}

fn resources(node: &NodeSettings) -> Result<(), (String, String)> {
    for (name, amount) in &node.resources {
        if !is_name(name) {
            let name = shortened(name, SHOWN_CHARS);
            let problem = format!(
                "`{name}` cannot be the name of a resource: letters, digits, `_`, `-` and `.` can"
            );
            return fail("node.resources", problem);
        }
        if ["cpus", "memory", "gpus"].contains(&name.as_str()) {
            let problem =
                format!("`{name}` is detected\nhint: node.cores and node.memory cut it down");
            return fail("node.resources", problem);
        }
        if !(0.0..=MAX_AMOUNT).contains(amount) {
            return fail(
                "node.resources",
                format!("{amount} of `{name}` is no amount"),
            );
        }
    }
    Ok(())
}

fn is_host_port(text: &str) -> bool {
    let Some((host, port)) = text.rsplit_once(':') else {
        return false;
    };
    let host_is_plain =
        !host.is_empty() && (!host.contains(':') || (host.starts_with('[') && host.ends_with(']')));
    host_is_plain && port.parse::<u16>().is_ok_and(|port| port > 0)
}
