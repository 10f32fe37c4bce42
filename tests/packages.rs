//! Packages of a program: made, installed, upgraded, removed, without touching this machine's
//! system. A script stands in for the program; what it says of itself is all that packages want.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Command, Output},
};

const VERSION: &str = env!("CARGO_PKG_VERSION");
/// The stand-in.
const PROGRAM: &str = r##"#!/bin/sh
case $1 in
--version) echo "nodectl VERSION" ;;
man) mkdir -p "$2"; echo ".TH nodectl 1" > "$2/nodectl.1" ;;
completions) echo "# for $2" ;;
*) echo "ran $*" ;;
esac
"##;

/// A directory with a program, and packages of it.
struct Shop {
    dir: tempfile::TempDir,
}

impl Shop {
    fn open() -> Self {
        let shop = Self {
            dir: tempfile::tempdir().expect("a temporary directory"),
        };
        shop.stand_in("nodectl", VERSION);
        shop
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn stand_in(&self, name: &str, version: &str) {
        let text = PROGRAM.replace("VERSION", version);
        self.executable(name, &text);
    }

    fn executable(&self, name: &str, text: &str) {
        let path = self.path(name);
        fs::write(&path, text).expect("writable");
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("our own");
    }

    /// Makes packages in a folder of their own.
    fn pack(&self, folder: &str, kinds: &[&str]) -> Output {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("packaging/packages");
        let mut command = Command::new(script);
        command.arg(self.path("nodectl")).arg(self.path(folder));
        command
            .args(kinds)
            .env("SOURCE_DATE_EPOCH", "1700000000")
            .output()
            .expect("python3 is there")
    }

    /// Makes one package and returns where it is.
    fn made(&self, folder: &str, kind: &str) -> PathBuf {
        let output = self.pack(folder, &[kind]);
        assert!(output.status.success(), "{}", both(&output));
        let mut found = fs::read_dir(self.path(folder)).expect("made");
        found.next().expect("a package").expect("readable").path()
    }

    /// A package whose version is higher, of a changed program.
    fn newer(&self, kind: &str) -> PathBuf {
        // The version is the sources': a copy of them says another.
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let copy = self.path("sources");
        fs::create_dir_all(&copy).expect("writable");
        for name in [
            "packaging",
            "config",
            "CHANGELOG.md",
            "LICENSE-MIT",
            "LICENSE-APACHE",
        ] {
            must(Command::new("cp").arg("-r").arg(root.join(name)).arg(&copy));
        }
        let manifest = fs::read_to_string(root.join("Cargo.toml")).expect("it is there");
        let version = format!("version = \"{VERSION}\"");
        let manifest = manifest.replacen(&version, "version = \"99.0.0\"", 1);
        fs::write(copy.join("Cargo.toml"), manifest).expect("writable");
        self.stand_in("newer", "99.0.0");
        let mut command = Command::new(copy.join("packaging/packages"));
        command.arg(self.path("newer")).arg(self.path("newer.d"));
        must(command.arg(kind));
        let mut found = fs::read_dir(self.path("newer.d")).expect("made");
        found.next().expect("a package").expect("readable").path()
    }
}

fn both(output: &Output) -> String {
    [&output.stdout, &output.stderr]
        .map(|bytes| String::from_utf8_lossy(bytes))
        .concat()
}

/// Runs it to its end, and returns all that it said.
fn must(command: &mut Command) -> String {
    let output = command.output();
    let output = output.unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}: {}", both(&output));
    both(&output)
}

fn is_there(program: &str) -> bool {
    let found = Command::new(program).arg("--version").output();
    if found.is_err() {
        println!("SKIPPED: no {program}");
    }
    found.is_ok()
}

/// What an installed package must have brought, below `root`.
fn assert_installed(root: &Path, zsh: &str) {
    for path in [
        "etc/nodectl/nodectl.toml",
        "usr/lib/systemd/system/nodectl.service",
        "usr/lib/sysusers.d/nodectl.conf",
        "usr/share/man/man1/nodectl.1.gz",
        "usr/share/bash-completion/completions/nodectl",
        "usr/share/fish/vendor_completions.d/nodectl.fish",
        zsh,
    ] {
        assert!(root.join(path).is_file(), "no {path}");
    }
    let unit = fs::read_to_string(root.join("usr/lib/systemd/system/nodectl.service"));
    let unit = unit.expect("it is there");
    assert!(unit.contains("\nExecStart=/usr/bin/nodectl "), "{unit}");
}

fn version_installed(root: &Path) -> String {
    must(Command::new(root.join("usr/bin/nodectl")).arg("--version"))
}

/// Debian's own reader understands what is new, where that is installed.
fn assert_debian_changelog(root: &Path) {
    let packed = root.join("usr/share/doc/nodectl/changelog.gz");
    let text = must(Command::new("gzip").args(["-dc"]).arg(packed));
    let first = format!("nodectl ({VERSION}) unstable; urgency=medium\n\n  * ");
    assert!(text.starts_with(&first), "{text}");
    if !is_there("dpkg-parsechangelog") {
        return;
    }
    let file = root.join("changelog");
    fs::write(&file, text).expect("writable");
    let read = must(Command::new("dpkg-parsechangelog").arg("-l").arg(file));
    assert!(read.contains(&format!("Version: {VERSION}\n")), "{read}");
    assert!(read.contains("Date: Tue, 14 Nov 2023"), "{read}");
}

/// dpkg below a directory of the test's own, whose scripts are told of it.
fn dpkg(root: &Path, arguments: &[&str], package: &str) -> String {
    let mut command = Command::new("dpkg");
    command
        .arg(format!("--root={}", root.display()))
        .args([
            "--force-not-root",
            "--force-script-chrootless",
            "--force-depends",
        ])
        .arg(format!("--log={}", root.join("dpkg.log").display()));
    must(command.args(arguments).arg(package))
}

#[test]
fn a_deb_is_installed_upgraded_removed_and_purged() {
    if !is_there("dpkg") {
        return;
    }
    let shop = Shop::open();
    let root = shop.path("root");
    for name in [
        "var/lib/dpkg/info",
        "var/lib/dpkg/updates",
        "var/lib/nodectl/jobs",
    ] {
        fs::create_dir_all(root.join(name)).expect("writable");
    }
    fs::write(root.join("var/lib/dpkg/status"), "").expect("writable");
    let deb = shop.made("debs", "deb");
    let install = |deb: &Path| dpkg(&root, &["--install"], deb.to_str().expect("UTF-8"));
    let said = install(&deb);
    assert_installed(&root, "usr/share/zsh/vendor-completions/_nodectl");
    assert_debian_changelog(&root);
    let secret = root.join("etc/nodectl/secret");
    let made = fs::read_to_string(&secret).expect("a secret was made");
    assert_eq!(made.len(), 35);
    assert!(!said.contains(&made), "the secret was printed");
    let mode = fs::metadata(&secret).expect("there").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);

    let settings = root.join("etc/nodectl/nodectl.toml");
    fs::write(&settings, "# mine\n").expect("writable");
    install(&shop.newer("deb"));
    assert_eq!(version_installed(&root), "nodectl 99.0.0\n");
    assert_eq!(fs::read_to_string(&secret).expect("kept"), made);
    assert_eq!(fs::read_to_string(&settings).expect("kept"), "# mine\n");

    dpkg(&root, &["--remove"], "nodectl");
    assert!(!root.join("usr/bin/nodectl").exists());
    assert!(secret.exists() && settings.exists() && root.join("var/lib/nodectl/jobs").exists());
    dpkg(&root, &["--purge"], "nodectl");
    assert!(!root.join("etc/nodectl").exists() && !root.join("var/lib/nodectl").exists());
}

/// rpm below a directory of the test's own. Its scripts would want a shell in there: they are those
/// of the deb, and run there.
fn rpm(root: &Path, arguments: &[&str], package: &str) -> String {
    let mut command = Command::new("rpm");
    command.arg("--root").arg(root);
    command.args(["--dbpath", "/var/lib/rpm", "--nodeps", "--noscripts"]);
    must(command.args(arguments).arg(package))
}

#[test]
fn an_rpm_is_installed_upgraded_and_removed() {
    if !is_there("rpm") {
        return;
    }
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        return println!("SKIPPED: rpm installs below a directory as root only");
    }
    let shop = Shop::open();
    let root = shop.path("root");
    fs::create_dir(&root).expect("writable");
    let package = shop.made("rpms", "rpm");
    let name = package.to_str().expect("UTF-8");
    assert!(must(Command::new("rpm").args(["-K", name])).contains("OK"));
    rpm(&root, &["--install"], name);
    assert_installed(&root, "usr/share/zsh/site-functions/_nodectl");
    assert_eq!(rpm(&root, &["--verify"], "nodectl"), "");
    let news = must(Command::new("rpm").args(["-qp", "--changelog", name]));
    assert!(
        news.starts_with("* Tue Nov 14 2023 ") && news.contains(&format!(" - {VERSION}-1\n- ")),
        "{news}"
    );

    let settings = root.join("etc/nodectl/nodectl.toml");
    fs::write(&settings, "# mine\n").expect("writable");
    rpm(
        &root,
        &["--upgrade"],
        shop.newer("rpm").to_str().expect("UTF-8"),
    );
    assert_eq!(version_installed(&root), "nodectl 99.0.0\n");
    assert_eq!(fs::read_to_string(&settings).expect("kept"), "# mine\n");
    rpm(&root, &["--erase"], "nodectl");
    assert!(!root.join("usr/bin/nodectl").exists());
}

/// A new environment with the wheel in it, and nothing that it needs.
fn environment_with_wheel(shop: &Shop) -> PathBuf {
    let wheel = shop.made("wheels", "wheel");
    let environment = shop.path("env");
    must(
        Command::new("python3")
            .args(["-m", "venv"])
            .arg(&environment),
    );
    let mut install = Command::new(environment.join("bin/python"));
    install.args(["-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]);
    must(install.arg(wheel));
    environment
}

fn has_venv() -> bool {
    let code = "import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 9))";
    let found = Command::new("python3").args(["-c", code]).output();
    let found = found.is_ok_and(|output| output.status.success());
    if !found {
        println!("SKIPPED: no python3 of version 3.9 or later with venv");
    }
    found
}

#[test]
fn the_wheel_brings_the_program() {
    if !has_venv() {
        return;
    }
    let shop = Shop::open();
    let environment = environment_with_wheel(&shop);
    // Another program in the PATH is not asked.
    fs::create_dir(shop.path("bin")).expect("writable");
    shop.stand_in("bin/nodectl", "99.0.0");
    let python = environment.join("bin/python");
    let run = |arguments: &[&str]| {
        let mut command = Command::new(&python);
        command.args(arguments).env_remove("PYTHONPATH");
        must(command.env("PATH", shop.path("bin")).env_remove("NODECTL"))
    };
    assert_eq!(
        run(&["-m", "nodectl", "run", "a job.toml"]),
        "ran run a job.toml\n"
    );
    let own = "from nodectl._node import binary; print(binary())";
    let found = run(&["-c", own]);
    assert_eq!(Path::new(found.trim()), environment.join("bin/nodectl"));
    must(Command::new(environment.join("bin/start_node")).arg("--help"));
    // Other libraries find their plugins.
    let plugins = "import hydra_plugins, importlib.metadata as metadata, importlib.util as util; \
                   found = metadata.distribution('nodectl').entry_points; \
                   print(*sorted({one.group for one in found if one.name != 'start_node'}), \
                   util.find_spec('snakemake_executor_plugin_nodectl') is not None, \
                   util.find_spec('hydra_plugins.hydra_nodectl_launcher') is not None)";
    assert_eq!(run(&["-c", plugins]), "ewoks.engines submitit True True\n");
}

#[test]
fn a_program_of_another_version_is_refused() {
    if !has_venv() {
        return;
    }
    let shop = Shop::open();
    let environment = environment_with_wheel(&shop);
    shop.stand_in("newer", "99.0.0");
    shop.executable("other", "#!/bin/sh\necho something else\n");
    for (program, said) in [("newer", "nodectl 99.0.0"), ("other", "no nodectl")] {
        let mut command = Command::new(environment.join("bin/python"));
        command.args(["-m", "nodectl", "nodes"]);
        command.env("NODECTL", shop.path(program));
        let output = command.output().expect("it starts");
        assert!(!output.status.success());
        let text = both(&output);
        let line = format!("{} is {said}, and this", shop.path(program).display());
        assert!(text.contains(&line), "{text}");
        assert!(
            text.contains(&format!("is nodectl {VERSION}\nhint: ")),
            "{text}"
        );
    }
    // Nor is it packed.
    shop.stand_in("nodectl", "99.0.0");
    let output = shop.pack("none", &[]);
    assert!(!output.status.success());
    let line = format!("\"nodectl 99.0.0\", and these sources are {VERSION}").replace('"', "'");
    assert!(both(&output).contains(&line), "{}", both(&output));
}

#[test]
fn the_image_is_a_layout_whose_digests_hold() {
    let shop = Shop::open();
    let image = shop.made("images", "image");
    let layout = shop.path("layout");
    fs::create_dir(&layout).expect("writable");
    must(
        Command::new("tar")
            .arg("-xf")
            .arg(image)
            .arg("-C")
            .arg(&layout),
    );
    let blob = |entry: &serde_json::Value| {
        let digest = entry["digest"].as_str().expect("a text");
        let name = digest.strip_prefix("sha256:").expect("of sha256");
        let path = layout.join("blobs/sha256").join(name);
        let sum = must(Command::new("sha256sum").arg(&path));
        assert_eq!(sum.split(' ').next(), Some(name));
        let content = fs::read(&path).expect("it is there");
        assert_eq!(entry["size"].as_u64(), Some(content.len() as u64));
        (path, content)
    };
    let json = |bytes: &[u8]| -> serde_json::Value { serde_json::from_slice(bytes).expect("JSON") };
    let index = json(&fs::read(layout.join("index.json")).expect("it is there"));
    let manifest = json(&blob(&index["manifests"][0]).1);
    let config = json(&blob(&manifest["config"]).1);
    assert_eq!(config["config"]["Entrypoint"][0], "/nodectl");
    let (layer, _) = blob(&manifest["layers"][0]);
    let sum = must(
        Command::new("sh")
            .args(["-c", "gzip -dc \"$0\" | sha256sum"])
            .arg(&layer),
    );
    let diff = format!("sha256:{}", sum.split(' ').next().expect("a sum"));
    assert_eq!(config["rootfs"]["diff_ids"][0], diff);
    let listed = must(Command::new("tar").arg("-tzf").arg(&layer));
    assert!(listed.lines().any(|line| line == "nodectl"), "{listed}");
}

/// The real program, as it is built here, is linked dynamically: it would not start in an image
/// that has nothing else, and elsewhere it needs a C library.
#[test]
fn a_program_that_needs_a_c_library_is_packed_with_that_need() {
    let shop = Shop::open();
    fs::remove_file(shop.path("nodectl")).expect("it is there");
    let program = env!("CARGO_BIN_EXE_nodectl");
    std::os::unix::fs::symlink(program, shop.path("nodectl")).expect("writable");
    let output = shop.pack("images", &["image"]);
    assert!(!output.status.success());
    assert!(
        both(&output).contains("needs a C library\nhint: "),
        "{}",
        both(&output)
    );
}

#[test]
fn packages_are_reproducible() {
    let shop = Shop::open();
    let made = |folder: &str| {
        let output = shop.pack(folder, &[]);
        assert!(output.status.success(), "{}", both(&output));
        let mut names: Vec<_> = fs::read_dir(shop.path(folder))
            .expect("made")
            .map(|entry| entry.expect("readable").file_name())
            .collect();
        names.sort();
        let read = |name: &_| fs::read(shop.path(folder).join(name)).expect("readable");
        let contents: Vec<_> = names.iter().map(read).collect();
        (names, contents)
    };
    let (first, second) = (made("first"), made("second"));
    assert_eq!(first.0.len(), 5, "{:?}", first.0);
    assert_eq!(first.0, second.0);
    assert!(first.1 == second.1, "the same sources give the same bytes");
}

#[test]
fn the_tarball_installs_what_is_beside_its_installer() {
    let shop = Shop::open();
    let tarball = shop.made("tarballs", "tarball");
    must(
        Command::new("tar")
            .arg("-xf")
            .arg(&tarball)
            .arg("-C")
            .arg(shop.dir.path()),
    );
    let name = tarball
        .file_name()
        .expect("a file")
        .to_str()
        .expect("UTF-8");
    let unpacked = shop.path(name.strip_suffix(".tar.gz").expect("its ending"));
    let root = shop.path("root");
    must(Command::new(unpacked.join("install.sh")).env("DESTDIR", &root));
    let said = must(Command::new(root.join("usr/local/bin/nodectl")).arg("--version"));
    assert_eq!(said, format!("nodectl {VERSION}\n"));
    let mut install = Command::new(unpacked.join("install.sh"));
    install.arg("--user").env("HOME", "/home/ada");
    must(install.env("DESTDIR", &root));
    assert!(root.join("home/ada/.local/bin/nodectl").exists());
}
