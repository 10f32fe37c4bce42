//! The real binary without a cluster: what it shows to other processes, exit codes, errors.

use std::{
    fs::{self, Permissions},
    os::unix::{fs::PermissionsExt, net::UnixListener, process::CommandExt},
    path::Path,
    process::{Child, Command, Output, Stdio},
    time::{Duration, Instant},
};

fn nodectl(data_dir: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nodectl"));
    command
        .arg("--data-dir")
        .arg(data_dir)
        .current_dir(data_dir)
        .stdin(Stdio::null());
    command
        .env_remove("NODECTL_SECRET")
        .env("XDG_CONFIG_HOME", data_dir)
        .env("NODECTL_NODE__ALLOW_ROOT", "true");
    command
}

fn output(command: &mut Command) -> (Option<i32>, String, String) {
    let Output {
        status,
        stdout,
        stderr,
    } = command.output().expect("the binary runs");
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    (status.code(), text(stdout), text(stderr))
}

/// Ends the process with the test.
struct RunningNode(Child);

impl Drop for RunningNode {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Polls a file of /proc until it no longer holds the secret.
fn wiped(process: &RunningNode, file: &str, secret: &str) -> String {
    let path = format!("/proc/{}/{file}", process.0.id());
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        let text =
            String::from_utf8_lossy(&fs::read(&path).expect("the process runs")).into_owned();
        // Between fork and exec, it is still this test's own.
        let is_child =
            text.contains("NODECTL_MARK") || (file == "cmdline" && text.contains("join"));
        if is_child && !text.contains(secret) {
            return text;
        }
        assert!(Instant::now() < deadline, "{path} still shows the secret");
        std::thread::yield_now();
    }
}

#[test]
fn a_secret_that_is_easy_to_guess_is_refused_unless_it_is_wanted() {
    let directory = tempfile::tempdir().unwrap();
    let refused = nodectl(directory.path())
        .args(["join", "--secret", "123456"])
        .output()
        .unwrap();
    let said = String::from_utf8(refused.stderr).unwrap();
    assert_eq!(refused.status.code(), Some(2), "{said}");
    assert!(
        said.contains("easy to guess")
            && said.contains("--weak-secret")
            && !said.contains("123456"),
        "{said}"
    );
    // As programs do that bring a password of their own; this one then cannot use its data
    // directory.
    let file = directory.path().join("file");
    std::fs::write(&file, "").unwrap();
    for (flags, setting) in [(&["--weak-secret"][..], "false"), (&[], "true")] {
        let mut join = nodectl(&file.join("below"));
        join.current_dir(&directory)
            .args(["join", "--secret", "123456"])
            .args(flags);
        let taken = join
            .env("NODECTL_CLUSTER__WEAK_SECRET", setting)
            .output()
            .unwrap();
        let said = String::from_utf8(taken.stderr).unwrap();
        assert!(
            said.contains("warning: the secret is easy to guess"),
            "{said}"
        );
        assert_ne!(taken.status.code(), Some(2), "{said}");
    }
}

#[test]
fn secrets_are_wiped_from_the_argument_list_and_the_environment() {
    for spelling in [
        &["join", "--secret", "correct-horse-9"][..],
        &["join", "--secret=correct-horse-9"],
    ] {
        let directory = tempfile::tempdir().unwrap();
        // Somebody who listens and never answers keeps the command where it is.
        let _listener = UnixListener::bind(directory.path().join("api.sock")).unwrap();
        let mut command = nodectl(directory.path());
        command
            .args(spelling)
            .env("NODECTL_SECRET", "battery-staple-7")
            .env("NODECTL_MARK", "1");
        let process = RunningNode(
            command
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .unwrap(),
        );
        let cmdline = wiped(&process, "cmdline", "correct-horse-9");
        assert!(cmdline.contains("xxxxxxxxxxxxxxx"), "{cmdline:?}");
        let environment = wiped(&process, "environ", "battery-staple-7");
        assert!(environment.contains("NODECTL_SECRET=xxxxxxxxxxxxxxxx"));
    }
}

#[test]
fn settings_of_the_current_directory_are_announced() {
    let directory = tempfile::tempdir().unwrap();
    let shown = |directory: &Path| output(nodectl(directory).args(["config", "show", "--json"]));
    let (code, stdout, stderr) = shown(directory.path());
    assert_eq!((code, stderr.as_str()), (Some(0), ""), "{stdout}");
    fs::write(
        directory.path().join("nodectl.toml"),
        "[jobs]\nkeep = \"7d\"\n",
    )
    .unwrap();
    let (code, stdout, stderr) = shown(directory.path());
    assert_eq!(
        (code, stderr.as_str()),
        (
            Some(0),
            "note: the settings in ./nodectl.toml are used, too\n"
        )
    );
    assert!(stdout.contains("nodectl.toml"), "{stdout}");
}

#[test]
fn exit_codes_are_as_documented() {
    let directory = tempfile::tempdir().unwrap();
    let (code, _, stderr) = output(nodectl(directory.path()).arg("nodes"));
    assert_eq!(code, Some(3), "{stderr}");
    assert!(
        stderr.contains("no node runs here") && stderr.contains("hint:"),
        "{stderr}"
    );
    let (code, _, stderr) = output(nodectl(directory.path()).args(["run", "missing.toml"]));
    assert_eq!(code, Some(2), "{stderr}");
    let (code, _, stderr) = output(nodectl(directory.path()).args(["nodes", "--json", "--quiet"]));
    assert_eq!(code, Some(2), "{stderr}");
    let (code, stdout, _) = output(nodectl(directory.path()).arg("--version"));
    assert_eq!((code, stdout.starts_with("nodectl ")), (Some(0), true));
}

#[test]
fn a_bad_job_file_shows_the_place() {
    let directory = tempfile::tempdir().unwrap();
    fs::write(
        directory.path().join("job.toml"),
        "name = \"j\"\ncomand = [\"true\"]\n",
    )
    .unwrap();
    let (code, _, stderr) = output(nodectl(directory.path()).args(["run", "job.toml"]));
    assert_eq!(code, Some(2));
    assert!(
        stderr.contains("job.toml:2:1") && stderr.contains("`command`"),
        "{stderr}"
    );
}

#[test]
fn what_needs_no_node_works_without_one() {
    let directory = tempfile::tempdir().unwrap();
    let (code, _, stderr) = output(nodectl(directory.path()).args(["init", "quickstart"]));
    assert_eq!(code, Some(0), "{stderr}");
    assert!(directory.path().join("quickstart.toml").exists());
    let (code, _, stderr) = output(nodectl(directory.path()).args(["init", "quickstart"]));
    assert_eq!(code, Some(2), "{stderr}");
    let (code, stdout, _) = output(nodectl(directory.path()).args(["config", "show"]));
    assert_eq!(code, Some(0));
    assert!(
        stdout
            .lines()
            .any(|line| line.starts_with("node.data_dir") && line.ends_with("flag")),
        "{stdout}"
    );
    let (code, stdout, _) = output(nodectl(directory.path()).args(["completions", "bash"]));
    assert_eq!((code, stdout.contains("_nodectl")), (Some(0), true));
    let (code, stdout, _) = output(nodectl(directory.path()).arg("man"));
    assert_eq!((code, stdout.contains(".TH nodectl")), (Some(0), true));
}

#[test]
fn what_was_not_understood_is_answered_with_what_to_type() {
    let directory = tempfile::tempdir().unwrap();
    for (arguments, part) in [
        (&["submit", "job.toml"][..], "hint: `nodectl run JOB.toml`"),
        (&["job.toml"], "hint: `nodectl run job.toml`"),
        (&["jobz"], "hint: some similar subcommands exist: 'jobs'"),
        (&["logs"], "or `last`; `nodectl jobs` lists them"),
        (
            &["run", "--each", "a", "b", "--", "wc"],
            "--each 'logs/*.txt'",
        ),
        (
            &["run", "--memory", "10", "--", "true"],
            "hint: give a unit, e.g. \"4 GiB\"",
        ),
    ] {
        let (code, _, stderr) = output(nodectl(directory.path()).args(arguments));
        assert_eq!(code, Some(2), "{stderr}");
        assert!(
            stderr.contains(part) && !stderr.contains("tip:"),
            "{arguments:?}: {stderr}"
        );
    }
}

/// Nothing is submitted whose results would have no place.
#[test]
fn a_directory_that_cannot_be_written_to_is_told_before_anything_runs() {
    let directory = tempfile::tempdir().unwrap();
    let others = directory.path().join("others");
    fs::create_dir(&others).unwrap();
    fs::write(others.join("job.toml"), "command = [\"true\"]\n").unwrap();
    fs::set_permissions(&others, Permissions::from_mode(0o555)).unwrap();
    let data = directory.path().join("data");
    fs::create_dir(&data).unwrap();
    fs::set_permissions(directory.path(), Permissions::from_mode(0o755)).unwrap();
    let mut run = nodectl(&data);
    run.current_dir(&others).args(["run", "job.toml"]);
    if rustix::process::geteuid().is_root() {
        std::os::unix::fs::chown(&data, Some(65534), Some(65534)).unwrap();
        run.uid(65534).gid(65534);
    }
    let Ok(ended) = run.output() else {
        println!(
            "SKIPPED: another user cannot start {}",
            env!("CARGO_BIN_EXE_nodectl")
        );
        return;
    };
    let said = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.code(), Some(2), "{said}");
    assert!(
        said.contains("current directory: Permission denied"),
        "{said}"
    );
    assert!(
        said.contains("--into DIR") && !said.contains("submitted"),
        "{said}"
    );
}

#[test]
fn up_takes_no_flags_that_mean_nothing() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    fs::write(dir.path().join("hosts.csv"), "").expect("writable");
    let refused = [
        (
            "--slurm --partition local --max 3",
            "--max means nothing with it",
        ),
        (
            "--slurm --partition local --time 1h",
            "--time means nothing with it",
        ),
        (
            "--slurm --partition local --detach",
            "--detach means nothing with it",
        ),
        ("--condor --partition local", "use --slurm"),
        ("--slurm --idle 3s", "--max"),
        ("--slurm --tasks-per-node 2", "--max"),
        ("--slurm --min 3 --max 2", "--min 3 is more than --max 2"),
        ("--slurm --max 2 --strict", "cannot be used with"),
        ("hosts.csv --max 2", "cannot be used with"),
        ("hosts.csv --nodes 2", "cannot be used with"),
    ];
    for (flags, why) in refused {
        let words = flags.split(' ');
        let (code, _, said) = output(nodectl(dir.path()).arg("up").args(words));
        assert!(
            code == Some(2) && said.contains(why),
            "{flags}: {code:?} {said}"
        );
    }
    assert!(!dir.path().join("api.sock").exists(), "no node was started");
}
