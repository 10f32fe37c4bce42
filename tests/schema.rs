//! The schemas of job files and of settings, for editors: which keys there are and of which types is
//! asked of the readers themselves, what they mean of the comments in `config`. `UPDATE_SCHEMA=1
//! cargo test --test schema` writes `config/schema` anew.

use nodectl::{
    app::settings::{Environment, Flags, SETTINGS_SCHEMA, Settings},
    azint, kernel, train,
    workloads::{self, JOB_SCHEMA, MAP_KEYS, templates},
};
use serde_json::{Map, Value, json};
use std::{collections::BTreeMap, fs, path::Path};
use toml::Table;

const SETTINGS: &str = include_str!("../config/nodectl.toml");

/// A kind of job as the schema has it: a template whose keys are tried out, and what explains them.
struct KindOfJob {
    kind: &'static str,
    keys: Vec<&'static str>,
    comments: BTreeMap<String, Comment>,
    job: Table,
    dir: tempfile::TempDir,
}

/// JSON's name of a type, the reader's, and a value of it.
const TYPES: [(&str, &str, &str); 6] = [
    ("string", "a string", "\"x\""),
    ("integer", "a whole number", "1"),
    ("number", "a fraction", "1.5"),
    ("boolean", "a truth value", "true"),
    ("array", "a list", "[]"),
    ("object", "a table", "{}"),
];

impl KindOfJob {
    fn new(kind: &'static str, shown: &[&str], keys: &[&'static str]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let template = templates::find(shown[0]).expect("there is one");
        for (path, bytes) in template.files {
            let path = dir.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, bytes).unwrap();
        }
        let text = |name: &&str| {
            let template = templates::find(name).expect("there is one");
            std::str::from_utf8(template.files[0].1).expect("text")
        };
        Self {
            kind,
            keys: keys.to_vec(),
            comments: shown
                .iter()
                .rev()
                .flat_map(|name| comments(text(name)))
                .collect(),
            job: toml::from_str(text(&shown[0])).expect("a template is TOML"),
            dir,
        }
    }

    /// What the reader says of the template with another value for a key; nothing where it is
    /// content.
    fn objection(&self, key: &str, value: &str) -> String {
        let mut job = self.job.clone();
        let value: Table = toml::from_str(&format!("it = {value}")).expect("TOML");
        job.insert(key.into(), value["it"].clone());
        let text = toml::to_string(&job).expect("a table");
        match workloads::parse(&text, &self.dir.path().join("job.toml")) {
            Ok(_) => String::new(),
            Err(error) => error.to_string(),
        }
    }

    /// The types that a key can have; `wrap` puts a value where the key is.
    fn types(&self, key: &str, name: &str, wrap: impl Fn(&str) -> String) -> Vec<&'static str> {
        let is_taken = |(_, called, sample): &&(&'static str, &str, &str)| {
            let objection = self.objection(key, &wrap(sample));
            !(objection.contains(&format!("`{name}` is "))
                && objection.contains(&format!(", not {called}")))
        };
        TYPES
            .iter()
            .filter(is_taken)
            .map(|(json, ..)| *json)
            .collect()
    }

    /// The keys of a table that a key can be; none where users choose them.
    fn inner_keys(&self, key: &str) -> Vec<String> {
        let objection = self.objection(key, "{ zzzzzzzz = 1 }");
        let Some((_, hint)) = objection
            .split_once("has no key `zzzzzzzz`")
            .and_then(|(_, rest)| rest.split_once("there are "))
        else {
            return Vec::new();
        };
        let quoted = hint.lines().next().unwrap_or_default().split('`');
        quoted.skip(1).step_by(2).map(str::to_string).collect()
    }

    fn property(&self, key: &str) -> Value {
        if key == "kind" {
            return json!({"const": self.kind, "description": "The kind of job."});
        }
        let types = self.types(key, key, str::to_string);
        let mut property = property_of(&types, self.comments.get(key));
        let inner = match types.contains(&"object") {
            true => self.inner_keys(key),
            false => Vec::new(),
        };
        if !inner.is_empty() {
            let of_inner = |name: &String| {
                let types = self.types(key, name, |value| format!("{{ {name} = {value} }}"));
                let comment = self.comments.get(&format!("{key}.{name}"));
                (name.clone(), Value::from(property_of(&types, comment)))
            };
            let properties: Map<_, _> = inner.iter().map(of_inner).collect();
            property.insert("properties".into(), properties.into());
            property.insert("additionalProperties".into(), false.into());
        }
        property.into()
    }

    fn schema(&self) -> Value {
        let property = |key: &&'static str| (key.to_string(), self.property(key));
        let properties: Map<_, _> = self.keys.iter().map(property).collect();
        let required: &[&str] = if self.kind == "map" { &[] } else { &["kind"] };
        json!({
            "type": "object",
            "properties": properties,
            "required": required,
            "additionalProperties": false,
        })
    }
}

/// A key of these types. JSON's numbers include whole ones; where all types will do, none is named.
fn property_of(types: &[&'static str], comment: Option<&Comment>) -> Map<String, Value> {
    let has_number = types.contains(&"number");
    let listed: Vec<_> = types
        .iter()
        .filter(|name| !(has_number && **name == "integer"))
        .collect();
    let mut property = Map::new();
    if let Some(comment) = comment {
        property.insert("description".into(), comment.text.as_str().into());
        property.extend(
            comment
                .example
                .clone()
                .map(|it| ("examples".into(), json!([it]))),
        );
    }
    match listed[..] {
        [one] => drop(property.insert("type".into(), json!(one))),
        _ if types.len() < TYPES.len() => drop(property.insert("type".into(), json!(listed))),
        _ => {}
    }
    property
}

/// What a file in `config` says of a key.
#[derive(Clone, Debug, Default)]
struct Comment {
    text: String,
    /// The value that it shows, if that is a plain one.
    example: Option<Value>,
}

/// What the comments of a file say of each key, `key` or `table.key`: beside it, or above it.
fn comments(text: &str) -> BTreeMap<String, Comment> {
    let mut found: BTreeMap<String, Comment> = BTreeMap::new();
    let (mut table, mut above, mut last) = (String::new(), String::new(), None::<String>);
    for line in text.lines() {
        let entry = last.as_ref().and_then(|key| found.get_mut(key));
        if let (Some(more), Some(entry)) = (continuation(line), entry) {
            entry.text += &format!(" {more}");
            continue;
        }
        let bare = line.strip_prefix("# ").unwrap_or(line);
        let Some(name) = named_by(bare, &mut table) else {
            // What stands above several keys in a row is said of each.
            if last.take().is_some() || bare == line {
                above.clear();
            }
            if bare != line {
                above += &format!(" {bare}");
            }
            continue;
        };
        let beside = bare.split_once("  # ").map(|(_, comment)| comment.trim());
        let beside = beside.filter(|comment| *comment != "example");
        let text = beside.unwrap_or(above.trim()).to_string();
        let example = toml::from_str::<Table>(bare).ok();
        let example = example
            .and_then(|table| table.into_iter().next())
            .filter(|(_, value)| !value.is_table());
        let example = example.map(|(_, value)| serde_json::to_value(value).expect("plain"));
        found
            .entry(name.clone())
            .or_insert(Comment { text, example });
        last = Some(name);
    }
    found.retain(|_, comment| !comment.text.is_empty());
    found
}

/// A line that goes on with the comment of the line before.
fn continuation(line: &str) -> Option<&str> {
    let rest = line.strip_prefix('#')?;
    let is_indented = rest.starts_with("        ");
    is_indented.then(|| rest.trim_start_matches([' ', '#']))
}

/// The key or table that a line is about, commented out or not; `table` is the one that it is in.
fn named_by(line: &str, table: &mut String) -> Option<String> {
    if let Some((name, _)) = line.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        let is_list = name.starts_with('[');
        *table = format!("{name}.");
        return (!is_list).then(|| name.to_string());
    }
    let (key, _) = line.split_once(" = ")?;
    let is_key = key.chars().all(|c| c.is_ascii_lowercase() || c == '_');
    is_key.then(|| format!("{table}{key}"))
}

fn schema_of_jobs() -> Value {
    let mut kinds = [
        KindOfJob::new("map", &["map", "worker"], &MAP_KEYS),
        KindOfJob::new("kernel", &["kernel"], &kernel::KEYS),
        KindOfJob::new("train", &["train"], &train::KEYS),
        KindOfJob::new("integrate", &["integrate"], &azint::KEYS),
    ];
    // Keys that all kinds have are explained in the first.
    let shared = kinds[0].comments.clone();
    for kind in &mut kinds[1..] {
        let missing = shared.iter().filter(|(key, _)| !key.contains('.'));
        for (key, comment) in missing {
            kind.comments.entry(key.clone()).or_insert(comment.clone());
        }
    }
    let mut jobs: Map<_, _> = kinds
        .iter()
        .map(|kind| (kind.kind.to_string(), kind.schema()))
        .collect();
    // A training is a model, or a script with keys of its own.
    let script: Map<_, _> = train::SCRIPT_KEYS
        .iter()
        .filter(|key| !train::KEYS.contains(key))
        .map(|key| (key.to_string(), kinds[0].property(key)))
        .collect();
    if let Some(Value::Object(train)) = jobs["train"].get_mut("properties") {
        train.extend(script);
    }
    // One key decides what a job has to be: so editors mark the key that is wrong, and not all of
    // them. taplo takes what it proposes from `anyOf` alone, which with `{}` lets everything pass.
    let mut job = json!({"$ref": "#/definitions/map"});
    let mut proposed = vec![json!({}), job.clone()];
    for kind in jobs.keys().filter(|kind| *kind != "map") {
        let own = json!({"$ref": format!("#/definitions/{kind}")});
        proposed.push(own.clone());
        job = json!({
            "if": {"properties": {"kind": {"const": kind}}, "required": ["kind"]},
            "then": own,
            "else": job,
        });
    }
    job["anyOf"] = proposed.into();
    jobs.insert("job".into(), job);
    let several = json!({"properties": {"job": {
        "type": "array",
        "description": "Several jobs in one file. Each has a name, and `after` says for which it waits.",
        "items": {"$ref": "#/definitions/job"},
    }}});
    let mut only_several = several.clone();
    only_several["additionalProperties"] = false.into();
    json!({
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "A job file of nodectl",
        "type": "object",
        "if": {"required": ["job"]},
        "then": only_several,
        "else": {"$ref": "#/definitions/job"},
        "anyOf": [{}, several, {"$ref": "#/definitions/job"}],
        "definitions": jobs,
    })
}

/// What the reader of settings says of one value.
fn objection_to_setting(dir: &Path, table: &str, key: &str, value: &str) -> String {
    let path = dir.join("nodectl.toml");
    fs::write(&path, format!("[{table}]\n{key} = {value}\n")).unwrap();
    let environment = Environment {
        files: vec![path],
        host_name: "box".into(),
        variables: BTreeMap::from([("HOME".into(), "/nowhere".into())]),
        ..Environment::default()
    };
    match Settings::load_from(&environment, &Flags::default()) {
        Ok(_) => String::new(),
        Err(error) => error.to_string(),
    }
}

fn schema_of_settings() -> Value {
    let dir = tempfile::tempdir().unwrap();
    let mut root = Map::new();
    for (path, comment) in comments(SETTINGS) {
        let Some((table, key)) = path.rsplit_once('.') else {
            continue;
        };
        let is_taken = |(_, _, sample): &&(&'static str, &str, &str)| {
            let objection = objection_to_setting(dir.path(), table, key, sample);
            !objection.contains(" is wanted here, not ")
        };
        let types: Vec<_> = TYPES
            .iter()
            .filter(is_taken)
            .map(|(json, ..)| *json)
            .collect();
        let mut properties = &mut root;
        for name in table.split('.') {
            let inner = properties
                .entry(name)
                .or_insert_with(|| json!({"type": "object", "additionalProperties": false}));
            let inner = inner.as_object_mut().expect("it was made here");
            let inner = inner.entry("properties").or_insert_with(|| json!({}));
            properties = inner.as_object_mut().expect("it was made here");
        }
        properties.insert(key.into(), property_of(&types, Some(&comment)).into());
    }
    json!({
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "Settings of nodectl",
        "type": "object",
        "properties": root,
        "additionalProperties": false,
    })
}

fn assert_checked_in(name: &str, schema: &Value) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("config/schema")
        .join(name);
    let generated = serde_json::to_string_pretty(schema).expect("JSON") + "\n";
    if std::env::var_os("UPDATE_SCHEMA").is_some() {
        fs::write(&path, &generated).expect("the source tree is writable");
    }
    assert!(
        generated == fs::read_to_string(&path).unwrap_or_default(),
        "config/schema/{name} is stale: UPDATE_SCHEMA=1 cargo test --test schema"
    );
}

#[test]
fn the_schema_of_jobs_is_what_their_reader_takes() {
    assert_checked_in("job.json", &schema_of_jobs());
}

#[test]
fn the_schema_of_settings_is_what_their_reader_takes() {
    assert_checked_in("settings.json", &schema_of_settings());
}

/// Some that a mistake of the generator would change.
#[test]
fn types_and_words_of_some_keys_are_as_the_readers_have_them() {
    let jobs: Value = serde_json::from_str(JOB_SCHEMA).unwrap();
    let of = |path: &str| {
        let found = jobs.pointer(&format!("/definitions/{path}"));
        found.unwrap_or_else(|| panic!("{path}"))
    };
    assert_eq!(of("map/properties/retries/type"), "integer");
    assert_eq!(of("map/properties/speculate/type"), "boolean");
    assert_eq!(of("map/properties/timeout/type"), "string");
    assert_eq!(of("map/properties/isolation/additionalProperties"), false);
    assert_eq!(
        of("map/properties/isolation/properties/network/type"),
        "boolean"
    );
    assert_eq!(of("train/properties/epochs/examples/0"), 10);
    let words = of("kernel/properties/retries/description");
    assert_eq!(words, "how often a task that fails is tried again");
    let settings: Value = serde_json::from_str(SETTINGS_SCHEMA).unwrap();
    let nice = &settings["properties"]["node"]["properties"]["nice"];
    assert_eq!(
        (&nice["type"], &nice["examples"][0]),
        (&json!("integer"), &json!(10))
    );
    let policy = &settings["properties"]["node"]["properties"]["policy"]["properties"];
    assert_eq!(policy["only_when_idle"]["type"], "boolean");
}
