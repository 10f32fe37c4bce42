//! The installer and the service file, without touching this machine's system.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::Path,
    process::{Command, Output},
};

fn install(dest: &Path, arguments: &[&str]) -> Output {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("packaging/install.sh");
    Command::new(script)
        .args(arguments)
        .env("DESTDIR", dest)
        .output()
        .expect("bash is there")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn installing_again_upgrades_and_keeps_the_secret() {
    let dest = tempfile::tempdir().expect("a temporary directory");
    let binary = env!("CARGO_BIN_EXE_nodectl");
    let first = install(dest.path(), &[binary]);
    assert!(first.status.success(), "{}", text(&first.stderr));
    let secret = dest.path().join("etc/nodectl/secret");
    let made = fs::read_to_string(&secret).expect("a secret was made");
    assert_eq!(made.len(), 35);
    assert_eq!(
        fs::metadata(&secret)
            .expect("it exists")
            .permissions()
            .mode()
            & 0o777,
        0o600
    );
    assert!(
        !text(&first.stdout).contains(&made),
        "the secret was printed"
    );

    assert!(install(dest.path(), &[binary]).status.success());
    assert_eq!(fs::read_to_string(&secret).expect("still there"), made);
    let installed = dest.path().join("usr/local/bin/nodectl");
    assert_eq!(
        fs::metadata(installed).expect("installed").len(),
        fs::metadata(binary).expect("built").len()
    );
    assert!(
        dest.path()
            .join("etc/systemd/system/nodectl.service")
            .exists()
    );
}

#[test]
fn a_given_secret_is_installed() {
    let dest = tempfile::tempdir().expect("a temporary directory");
    let given = dest.path().join("given");
    fs::write(&given, "correct horse battery staple\n").expect("writable");
    let done = install(
        dest.path(),
        &[
            "--secret-file",
            given.to_str().expect("UTF-8"),
            env!("CARGO_BIN_EXE_nodectl"),
        ],
    );
    assert!(done.status.success(), "{}", text(&done.stderr));
    assert_eq!(
        fs::read(dest.path().join("etc/nodectl/secret")).expect("installed"),
        fs::read(given).expect("given")
    );
}

#[test]
fn mistakes_are_named() {
    let dest = tempfile::tempdir().expect("a temporary directory");
    for (arguments, complaint) in [
        (
            vec!["/nonexistent/nodectl"],
            "no program at /nonexistent/nodectl",
        ),
        (
            vec!["--secret-file", "/nonexistent", "/bin/true"],
            "secret file /nonexistent is missing",
        ),
        (vec!["--secret"], "unknown option --secret"),
    ] {
        let done = install(dest.path(), &arguments);
        assert!(!done.status.success());
        assert!(
            text(&done.stderr).contains(complaint),
            "{}",
            text(&done.stderr)
        );
    }
}

/// What the security of a node as a service rests on.
#[test]
fn the_service_file_confines_the_node_and_brings_it_back() {
    let unit =
        fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("packaging/nodectl.service"));
    let unit = unit.expect("it is part of the sources");
    for line in [
        "User=nodectl",
        "WorkingDirectory=/",
        "Restart=on-failure",
        "RestartPreventExitStatus=2",
        "StartLimitIntervalSec=0",
        "StateDirectoryMode=0700",
        "RuntimeDirectory=nodectl",
        "Environment=NODECTL_API__GROUP=nodectl",
        "NoNewPrivileges=yes",
        "CapabilityBoundingSet=",
        "LimitCORE=0",
    ] {
        assert!(unit.lines().any(|found| found == line), "no line {line}");
    }
}

/// systemd's own checker, where it is installed. It may say that the program is not, nothing else.
#[test]
fn the_service_file_is_valid() {
    let unit = Path::new(env!("CARGO_MANIFEST_DIR")).join("packaging/nodectl.service");
    let Ok(done) = Command::new("systemd-analyze")
        .arg("verify")
        .arg(&unit)
        .output()
    else {
        return eprintln!("SKIPPED: no systemd-analyze");
    };
    let complaints = text(&done.stderr);
    let about_unit = complaints
        .lines()
        .filter(|line| line.contains("nodectl.service"));
    let wrong: Vec<&str> = about_unit
        .filter(|line| !line.contains("/usr/local/bin/nodectl"))
        .collect();
    assert!(wrong.is_empty(), "{wrong:?}");
}

/// Every crate of a release comes from crates.io, is known by its hash and has a licence that
/// `deny.toml` allows.
#[test]
fn the_bill_of_materials_names_every_crate_with_its_hash_and_licence() {
    let has_toml = Command::new("python3")
        .args(["-c", "import tomllib"])
        .output()
        .is_ok_and(|done| done.status.success());
    if !has_toml {
        eprintln!("SKIPPED: packaging/sbom needs Python 3.11");
        return;
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("packaging/sbom");
    let made = || {
        Command::new(&script)
            .env("CARGO_NET_OFFLINE", "true")
            .output()
            .expect("python runs")
    };
    let (first, second) = (made(), made());
    assert!(first.status.success(), "{}", text(&first.stderr));
    assert_eq!(
        first.stdout, second.stdout,
        "the same sources give the same bytes"
    );
    let document: serde_json::Value = serde_json::from_slice(&first.stdout).expect("JSON");
    assert_eq!(
        (&document["bomFormat"], &document["specVersion"]),
        (&"CycloneDX".into(), &"1.5".into())
    );
    let components = document["components"].as_array().expect("a list");
    let is_whole = |component: &serde_json::Value| {
        let hash = component["hashes"][0]["content"]
            .as_str()
            .unwrap_or_default();
        let licence = component["licenses"][0]["expression"]
            .as_str()
            .unwrap_or_default();
        hash.len() == 64
            && !licence.is_empty()
            && component["purl"]
                .as_str()
                .is_some_and(|purl| purl.contains('@'))
    };
    assert!(components.len() > 100 && components.iter().all(is_whole));
    assert!(
        components
            .iter()
            .any(|component| component["name"] == "ring")
    );
}
