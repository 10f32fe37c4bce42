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
        .env("HOME", "/home/ada")
        .env_remove("XDG_CONFIG_HOME")
        .env_remove("XDG_DATA_HOME")
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

/// All files below a directory, by their paths in it.
fn files(root: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let mut left = vec![root.to_path_buf()];
    while let Some(directory) = left.pop() {
        for entry in fs::read_dir(directory).expect("a directory") {
            let path = entry.expect("readable").path();
            if path.is_dir() {
                left.push(path);
            } else {
                let below = path.strip_prefix(root).expect("below it");
                found.push(below.display().to_string());
            }
        }
    }
    found.sort();
    found
}

/// What was installed is there, in the places of the machine or of a user.
fn assert_complete(root: &Path, prefix: &str, unit: &str) {
    for path in [
        "bin/nodectl",
        "share/man/man1/nodectl.1",
        "share/man/man1/nodectl-run.1",
        "share/bash-completion/completions/nodectl",
        "share/zsh/site-functions/_nodectl",
        "share/fish/vendor_completions.d/nodectl.fish",
    ] {
        assert!(root.join(prefix).join(path).is_file(), "{prefix}/{path}");
    }
    let unit = fs::read_to_string(root.join(unit)).expect("a unit");
    assert!(unit.contains("ExecStart="), "{unit}");
}

#[test]
fn what_was_installed_is_removed_and_nothing_else() {
    for (flags, prefix, unit, secret) in [
        (
            &[][..],
            "usr/local",
            "etc/systemd/system/nodectl.service",
            "etc/nodectl/secret",
        ),
        (
            &["--user"],
            "home/ada/.local",
            "home/ada/.config/systemd/user/nodectl.service",
            "home/ada/.config/nodectl/secret",
        ),
    ] {
        let dest = tempfile::tempdir().expect("a temporary directory");
        let root = dest.path();
        let own = root.join(prefix).join("bin/mine");
        fs::create_dir_all(own.parent().expect("a directory")).expect("writable");
        fs::write(&own, "").expect("writable");
        let with = |more: &[&str]| {
            let done = install(root, &[flags, more].concat());
            assert!(done.status.success(), "{}", text(&done.stderr));
            text(&done.stdout)
        };
        with(&[env!("CARGO_BIN_EXE_nodectl")]);
        assert_complete(root, prefix, unit);
        // What an earlier version brought goes with the next one.
        let list = root.join(secret).with_file_name("installed");
        let old = format!("/{prefix}/share/man/man1/nodectl-old.1");
        fs::write(root.join(&old[1..]), "").expect("writable");
        let listed = fs::read_to_string(&list).expect("a list");
        fs::write(&list, format!("{listed}{old}\n")).expect("writable");
        with(&[env!("CARGO_BIN_EXE_nodectl")]);
        assert!(!root.join(&old[1..]).exists());
        assert_complete(root, prefix, unit);
        let said = with(&["--uninstall"]);
        assert!(said.contains("are left"), "{said}");
        assert_eq!(
            files(root),
            [secret.to_string(), format!("{prefix}/bin/mine")]
        );
        assert!(
            !root.join(prefix).join("share").exists(),
            "it was not there"
        );
        let again = install(root, &[flags, &["--uninstall"]].concat());
        assert!(!again.status.success());
    }
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
        (vec!["/bin/true"], "but not nodectl"),
        (vec!["--uninstall"], "nothing is known to be installed"),
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
fn the_service_files_are_valid() {
    for (unit, whose) in [
        ("nodectl.service", "--system"),
        ("nodectl.user.service", "--user"),
    ] {
        let path = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("packaging")
            .join(unit);
        let Ok(done) = Command::new("systemd-analyze")
            .args(["verify", whose])
            .arg(path)
            .output()
        else {
            return eprintln!("SKIPPED: no systemd-analyze");
        };
        let complaints = text(&done.stderr);
        let about_unit = complaints.lines().filter(|line| line.contains(unit));
        let wrong: Vec<&str> = about_unit
            .filter(|line| !line.contains("bin/nodectl"))
            .collect();
        assert!(wrong.is_empty(), "{wrong:?}");
    }
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
