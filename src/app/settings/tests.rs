//! Layers and origins, errors that name place and key, and that `config/nodectl.toml` tells the
//! truth.

use super::*;
use std::path::Path;

const DOCUMENTED: &str = include_str!("../../../config/nodectl.toml");

fn environment() -> Environment {
    let variables = BTreeMap::from([("HOME".to_string(), "/users/ada".to_string())]);
    Environment {
        variables,
        files: Vec::new(),
        local_file: None,
        host_name: "box".into(),
        is_root: false,
        uid: 1000,
    }
}

/// Files of settings in a directory, the weakest first, and variables.
fn with(dir: &Path, files: &[&str], variables: &[(&str, &str)]) -> Environment {
    let mut environment = environment();
    for (index, text) in files.iter().enumerate() {
        let path = dir.join(format!("{index}.toml"));
        std::fs::write(&path, text).unwrap();
        environment.files.push(path);
    }
    environment.variables.extend(
        variables
            .iter()
            .map(|(name, value)| (name.to_string(), value.to_string())),
    );
    environment
}

fn error(files: &[&str], variables: &[(&str, &str)]) -> String {
    let dir = tempfile::tempdir().unwrap();
    let environment = with(dir.path(), files, variables);
    let error = Settings::load_from(&environment, &Flags::default())
        .expect_err("bad settings")
        .to_string();
    error.replace(&format!("{}/", dir.path().display()), "")
}

fn source<'o>(origins: &'o [Origin], key: &str) -> (&'o str, &'o str) {
    let origin = origins
        .iter()
        .find(|origin| origin.key == key)
        .unwrap_or_else(|| panic!("{key} in {origins:?}"));
    (&origin.value, origin.source.rsplit('/').next().unwrap())
}

#[test]
fn without_layers_the_built_in_values_hold() {
    let (settings, origins) = Settings::load_from(&environment(), &Flags::default()).unwrap();
    assert_eq!(settings, Settings::built_in(&environment()));
    assert_eq!(settings.node.name, "box");
    assert_eq!(
        settings.node.data_dir,
        Path::new("/users/ada/.local/share/nodectl")
    );
    assert_eq!(
        source(&origins, "network.beacon_port"),
        ("7337", "built-in")
    );
    assert_eq!(source(&origins, "node.memory"), ("", "built-in"));
    assert_eq!(source(&origins, "cluster.peers"), ("[]", "built-in"));
}

#[test]
fn each_layer_is_over_the_one_before_and_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let files = [
        "[node]\nname = 'a'\ncores = 4\nlabels = { rack = 'b', gpu = 'no' }\n[network]\nport = 1\nmdns = false",
        "[node]\nname = 'b'\nlabels.gpu = 'yes'\n[network]\nport = 2",
    ];
    let variables = [
        ("NODECTL_NETWORK__PORT", "3"),
        ("NODECTL_NODE__MEMORY", "8 GiB"),
        ("NODECTL_NODE__NAME", "007"),
    ];
    let flags = Flags::default()
        .set("network.port", Some(4u16))
        .set("node.cores", None::<u16>);
    let (settings, origins) =
        Settings::load_from(&with(dir.path(), &files, &variables), &flags).unwrap();
    assert_eq!(
        (
            settings.node.name.as_str(),
            settings.node.cores,
            settings.network.port
        ),
        ("007", Some(4.0), 4)
    );
    assert_eq!(
        (settings.node.memory, settings.network.mdns),
        (Some(Size(8 << 30)), false)
    );
    assert_eq!(
        source(&origins, "node.name"),
        ("\"007\"", "NODECTL_NODE__NAME")
    );
    assert_eq!(source(&origins, "node.cores"), ("4", "0.toml"));
    assert_eq!(source(&origins, "network.port"), ("4", "flag"));
    assert_eq!(source(&origins, "network.mdns"), ("false", "0.toml"));
    assert_eq!(
        source(&origins, "node.memory"),
        ("\"8 GiB\"", "NODECTL_NODE__MEMORY")
    );
    assert_eq!(source(&origins, "node.labels.rack"), ("\"b\"", "0.toml"));
    assert_eq!(source(&origins, "node.labels.gpu"), ("\"yes\"", "1.toml"));
}

#[test]
fn lists_and_labels_come_from_variables_too() {
    let dir = tempfile::tempdir().unwrap();
    let variables = [
        ("NODECTL_CLUSTER__PEERS", "a:1, [::1]:2"),
        ("NODECTL_NETWORK__INTERFACES", "[\"lo\"]"),
        ("NODECTL_NODE__LABELS__RACK", "7"),
        ("NODECTL_NODE__RESOURCES__LICENSES", "1.5"),
        ("NODECTL_JOBS__KEEP", "12h"),
        ("NODECTL_TASK_DIR", "/tmp/x"),
    ];
    let (settings, _) =
        Settings::load_from(&with(dir.path(), &[], &variables), &Flags::default()).unwrap();
    assert_eq!(settings.cluster.peers, ["a:1", "[::1]:2"]);
    assert_eq!(settings.network.interfaces, ["lo"]);
    assert_eq!(settings.node.labels["rack"], "7");
    assert_eq!(settings.node.resources["licenses"], 1.5);
    assert_eq!(settings.jobs.keep.0.as_secs(), 12 * 3600);
}

#[test]
fn the_secret_is_named_and_never_shown() {
    let dir = tempfile::tempdir().unwrap();
    let environment = with(dir.path(), &[], &[(SECRET_VARIABLE, "hunter2")]);
    let (settings, origins) = Settings::load_from(&environment, &Flags::default()).unwrap();
    assert_eq!(
        source(&origins, "secret"),
        ("(not shown)", "NODECTL_SECRET")
    );
    assert!(!format!("{settings:?}{origins:?}").contains("hunter2"));
}

#[test]
fn data_directories_follow_systemd_then_xdg() {
    let data_dir = |variables: &[(&str, &str)], is_root| {
        let variables = variables
            .iter()
            .map(|(name, value)| (name.to_string(), value.to_string()))
            .collect();
        Environment {
            variables,
            is_root,
            uid: 1000,
            ..Environment::default()
        }
        .default_data_dir()
    };
    assert_eq!(
        data_dir(
            &[("STATE_DIRECTORY", "/var/lib/nodectl:/x"), ("HOME", "/h")],
            true
        ),
        Path::new("/var/lib/nodectl")
    );
    assert_eq!(
        data_dir(&[("XDG_DATA_HOME", "/data"), ("HOME", "/h")], true),
        Path::new("/data/nodectl")
    );
    assert_eq!(
        data_dir(&[("XDG_DATA_HOME", "data"), ("HOME", "/h")], false),
        Path::new("/h/.local/share/nodectl")
    );
    assert_eq!(data_dir(&[], true), Path::new("/var/lib/nodectl"));
    // In a container, as a user without an account.
    let contained = [("HOME", "/")];
    assert_eq!(data_dir(&contained, false), Path::new("/tmp/nodectl-1000"));
    assert_eq!(
        data_dir(&contained, true),
        Path::new("/.local/share/nodectl")
    );
    let homeless = Environment {
        host_name: "box".into(),
        ..Environment::default()
    };
    let error = Settings::load_from(&homeless, &Flags::default())
        .unwrap_err()
        .to_string();
    assert!(
        error.starts_with("the setting `node.data_dir` (built-in): there is no home directory"),
        "{error}"
    );
}

#[test]
fn the_file_to_change_is_the_strongest_that_is_there_else_the_users_own() {
    let dir = tempfile::tempdir().unwrap();
    let [system, user] = ["system.toml", "user.toml"].map(|name| dir.path().join(name));
    let environment = Environment {
        files: vec![system.clone(), user.clone()],
        ..Environment::default()
    };
    assert_eq!(environment.own_file(), user);
    std::fs::write(&system, "").unwrap();
    assert_eq!(environment.own_file(), system);
    std::fs::write(&user, "").unwrap();
    assert_eq!(environment.own_file(), user);
    assert_eq!(Environment::default().own_file(), Path::new(SYSTEM_FILE));
}

#[test]
fn errors_name_the_place_and_the_nearest_key() {
    let syntax = error(&["[node\nname = 1"], &[]);
    assert!(
        syntax.starts_with(
            "the settings in 0.toml are not valid TOML: TOML parse error at line 1, column 6"
        ),
        "{syntax}"
    );
    for (files, variables, expected) in MISTAKES {
        assert_eq!(error(files, variables), *expected);
    }
    let level = error(&["[log]\nlevel = 'loud'"], &[]);
    assert!(
        level.contains("`log.level` (0.toml)") && level.contains("loud") && level.contains("trace"),
        "{level}"
    );
    let port = error(&["[network]\nport = 70000"], &[]);
    assert!(
        port.contains("`network.port` (0.toml)") && port.contains("70000"),
        "{port}"
    );
}

/// Files, variables, and what is said of them.
type Mistake = (
    &'static [&'static str],
    &'static [(&'static str, &'static str)],
    &'static str,
);

const MISTAKES: &[Mistake] = &[
    (
        &["[node]\nnmae = 'x'"],
        &[],
        "there is no setting `node.nmae` (0.toml)\nhint: did you mean `node.name`?",
    ),
    (
        &["[nod]\ncores = 1"],
        &[],
        "there is no setting `nod.cores` (0.toml)\nhint: did you mean `node.cores`?",
    ),
    (
        &["[node]\npeers = []"],
        &[],
        "there is no setting `node.peers` (0.toml)\nhint: did you mean `cluster.peers`?",
    ),
    (
        &["mdns = true"],
        &[],
        "there is no setting `mdns` (0.toml)\nhint: did you mean `network.mdns`?",
    ),
    (
        &[],
        &[("NODECTL_NETWORK__BECON_PORT", "1")],
        "there is no setting `network.becon_port` (NODECTL_NETWORK__BECON_PORT)\nhint: did you mean `network.beacon_port`?",
    ),
    (
        &["[node]\nresources = { gpus = 1 }"],
        &[],
        "the setting `node.resources` (0.toml): `gpus` is detected\nhint: node.cores and node.memory cut it down",
    ),
    (
        &["[cluster]\npeers = ['10.0.0.1']"],
        &[],
        "the setting `cluster.peers` (0.toml): `10.0.0.1` is not HOST:PORT, e.g. `10.0.0.5:4711` or `[fe80::1]:4711`",
    ),
    (
        &[],
        &[("NODECTL_NODE__CORES", "-1")],
        "the setting `node.cores` (NODECTL_NODE__CORES): -1 is no number of cores",
    ),
    (
        &["[jobs]\nkeep = 'long'"],
        &[],
        "the setting `jobs.keep` (0.toml): `long` is not a duration such as `90s`, `2h 30m` or `500ms`",
    ),
    (
        &["[node]\nmemory = true"],
        &[],
        "the setting `node.memory` (0.toml): a size such as \"8 GiB\"",
    ),
];

#[test]
fn unreadable_files_are_told() {
    let dir = tempfile::tempdir().unwrap();
    let mut environment = environment();
    environment.files.push(dir.path().to_path_buf());
    let error = Settings::load_from(&environment, &Flags::default()).unwrap_err();
    assert!(matches!(error, SettingsError::Unreadable { .. }), "{error}");
}

#[test]
fn what_a_node_offers_is_cut_down() {
    let mut node = Settings::built_in(&environment()).node;
    let detected = Resources {
        cpu_milli: 8000,
        memory_bytes: 64 << 30,
        gpu_milli: 1000,
        ..Resources::default()
    };
    assert_eq!(node.offered(detected.clone()), detected);
    (node.cores, node.memory) = (Some(2.5), Some(Size(1 << 30)));
    node.resources.insert("licenses".into(), 2.0);
    let offered = node.offered(detected);
    assert_eq!(
        (offered.cpu_milli, offered.memory_bytes, offered.gpu_milli),
        (2500, 1 << 30, 1000)
    );
    assert_eq!(offered.named_milli["licenses"], 2000);
}

#[test]
fn sizes_are_shown_exactly() {
    for (bytes, text) in [
        (0, "0 B"),
        (1500, "1500 B"),
        (8 << 30, "8 GiB"),
        (3 << 10, "3 KiB"),
    ] {
        assert_eq!(Size(bytes).to_string(), text);
        assert_eq!(nodectl_types::units::parse_bytes(text), Ok(bytes));
    }
}

/// `config/nodectl.toml` with every key in force.
fn uncommented() -> String {
    let is_key = |line: &str| {
        line.strip_prefix("# ").is_some_and(|rest| {
            rest.split_once(" = ")
                .is_some_and(|(key, _)| key.chars().all(|c| c.is_ascii_lowercase() || c == '_'))
        })
    };
    let uncomment = |line: &str| {
        if is_key(line) {
            line[2..].to_string()
        } else {
            line.to_string()
        }
    };
    DOCUMENTED
        .lines()
        .map(|line| uncomment(line) + "\n")
        .collect()
}

#[test]
fn the_documented_file_changes_nothing_as_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let (settings, _) =
        Settings::load_from(&with(dir.path(), &[DOCUMENTED], &[]), &Flags::default()).unwrap();
    assert_eq!(settings, Settings::built_in(&environment()));
}

#[test]
fn every_setting_is_documented_with_its_built_in_value() {
    let dir = tempfile::tempdir().unwrap();
    let text = uncommented();
    let (documented, origins) =
        Settings::load_from(&with(dir.path(), &[&text], &[]), &Flags::default()).unwrap();
    for origin in &origins {
        assert!(
            origin.source.ends_with("0.toml"),
            "{} is not documented",
            origin.key
        );
    }
    let built_in = serde_json::to_value(Settings::built_in(&environment())).unwrap();
    let documented = serde_json::to_value(documented).unwrap();
    let policy = built_in["node"]["policy"].clone();
    let sections = built_in
        .as_object()
        .unwrap()
        .iter()
        .map(|(section, keys)| (section.as_str(), keys));
    for (section, keys) in sections.chain([("node.policy", &policy)]) {
        for (key, value) in keys
            .as_object()
            .unwrap()
            .iter()
            .filter(|(key, _)| *key != "policy")
        {
            let below = DOCUMENTED
                .split_once(&format!("\n[{section}]\n"))
                .expect("a section each")
                .1;
            let line = below
                .lines()
                .find(|line| line.starts_with(&format!("# {key} = ")))
                .expect("checked above");
            let is_example = line.ends_with("# example");
            assert!(
                is_example
                    || documented.pointer(&format!("/{}/{key}", section.replace('.', "/")))
                        == Some(value),
                "{section}.{key} is not {value}"
            );
        }
    }
}

#[test]
fn the_file_of_the_current_directory_may_say_less() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("nodectl.toml");
    let load = |text: &str, mode: u32| {
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        let environment = Environment {
            local_file: Some(path.clone()),
            ..with(dir.path(), &[], &[])
        };
        Settings::load_from(&environment, &Flags::default())
            .map(|(settings, _)| settings.node.cores)
    };
    assert_eq!(load("[node]\ncores = 3\n", 0o644).unwrap(), Some(3.0));
    assert_eq!(
        load("[node]\ncores = 3\n", 0o666).unwrap(),
        None,
        "others may have written it"
    );
    for text in [
        "[cluster]\nsecret_file = 's'\n",
        "[cluster]\npeers = ['evil:1']\n",
        "[node]\ndata_dir = '/x'\n",
        "[isolation]\nsetuid = true\n",
    ] {
        let error = load(text, 0o644).unwrap_err().to_string();
        assert!(error.contains("may not say that"), "{error}");
    }
}
