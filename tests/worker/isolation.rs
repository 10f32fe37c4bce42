//! What tasks are kept from: rights, core dumps, what is the node's alone.

use crate::{harness::*, podman::Podman};
use nodectl::{
    ports::{Runner, WorkerEvent},
    types::{Failure, Isolation, Outcome, TaskRecord, WorkSpec},
    worker::supervisor,
};
use std::fs;

/// Whether the kernel can hide anything.
fn can_hide() -> bool {
    supervisor::hides()
        .inspect_err(|why| eprintln!("SKIPPED: {why}"))
        .is_ok()
}

fn hidden(script: &str) -> WorkSpec {
    WorkSpec {
        isolation: Isolation {
            hides_node: Some(true),
            ..Isolation::default()
        },
        ..sh(script)
    }
}

fn stdout(record: &TaskRecord) -> String {
    String::from_utf8(record.stdout.tail.clone()).unwrap()
}

#[test]
fn tasks_gain_no_rights_and_leave_no_core_dumps_unless_they_ask_for_them() {
    let mut lab = WorkerLab::new();
    let script = "grep NoNewPrivs /proc/self/status; ulimit -Sc; [ $(ulimit -Sc) = $(ulimit -Hc) ] && echo as hard";
    assert_eq!(stdout(&lab.sh(script)), "NoNewPrivs:\t1\n0\nas hard\n");
    let isolation = Isolation {
        setuid: Some(true),
        core_dumps: true,
        ..Isolation::default()
    };
    let asked = stdout(&lab.run(WorkSpec {
        isolation,
        ..sh(script)
    }));
    let own = fs::read_to_string("/proc/self/status").unwrap();
    if own.contains("NoNewPrivs:\t0") {
        assert!(asked.starts_with("NoNewPrivs:\t0\n"), "{asked}");
    }
    assert!(asked.ends_with("as hard\n"), "{asked}");
}

#[test]
fn what_is_the_nodes_alone_is_out_of_reach() {
    if !can_hide() {
        return;
    }
    let outside = tempfile::tempdir().unwrap();
    let data = outside.path().join("data");
    fs::create_dir(&data).unwrap();
    let mut lab = WorkerLab::at(&data);
    let data = lab.store.dir().to_path_buf();
    let shown = data.display();
    fs::create_dir_all(data.join("jobs/0000000000000bcd/tasks/0-1.1")).unwrap();
    for name in [
        "secret",
        "identity",
        "jobs/0000000000000bcd/journal",
        "jobs/0000000000000bcd/tasks/0-1.1/x",
    ] {
        fs::write(data.join(name), "precious").unwrap();
    }
    fs::write(outside.path().join("beside"), "hello\n").unwrap();
    let attempts = [
        format!("cat {shown}/secret"),
        format!("echo gone > {shown}/identity"),
        format!("ln {shown}/secret mine"),
        format!("mv {shown}/secret mine"),
        format!("rm {shown}/identity"),
        format!("cat {shown}/jobs/*bcd/journal"),
        format!("cat {shown}/jobs/*bcd/tasks/0-1.1/x"),
        format!("echo > {shown}/jobs/new"),
        format!("mkdir {shown}/new"),
        "readlink /proc/$PPID/exe".to_string(),
        "head -c 1 /proc/$PPID/mem".to_string(),
        "kill -0 $PPID".to_string(),
    ];
    for attempt in &attempts {
        let record = lab.run(hidden(&format!("{attempt} && echo done; true")));
        let told = stdout(&record);
        let may = attempt.starts_with("kill") && told.contains("done") && !scopes_signals();
        assert!(
            may || (!told.contains("done") && !told.contains("precious")),
            "{attempt}: {told}"
        );
        assert_eq!(record.outcome, Outcome::Done);
    }
    assert_eq!(
        fs::read_to_string(data.join("identity")).unwrap(),
        "precious"
    );
    // All else goes on as without.
    let beside = outside.path().display();
    let usual = format!(
        "set -e; echo mine > own; mkdir d; mv own d/own; cat d/own; cat {beside}/beside; echo more >> {beside}/beside
         f=$(mktemp -p /dev/shm); echo shared > $f; cat $f; rm $f; sh -c 'ls / > /dev/null; echo fine'"
    );
    let record = lab.run(hidden(&usual));
    assert_eq!(
        stdout(&record),
        "mine\nhello\nshared\nfine\n",
        "{:?}",
        record.stderr
    );
    assert_eq!(
        fs::read_to_string(outside.path().join("beside")).unwrap(),
        "hello\nmore\n"
    );
}

/// Linux 6.12 on.
fn scopes_signals() -> bool {
    let release = rustix::system::uname()
        .release()
        .to_string_lossy()
        .into_owned();
    let mut numbers = release
        .split(['.', '-'])
        .map(|number| number.parse::<u32>().unwrap_or(0));
    (numbers.next(), numbers.next()) >= (Some(6), Some(12))
}

#[test]
fn tasks_may_use_the_api_only_where_nothing_is_hidden_from_them() {
    if !can_hide() {
        return;
    }
    let mut lab = WorkerLab::new();
    let seen = |lab: &mut WorkerLab, work: WorkSpec| {
        lab.start(
            0,
            WorkSpec {
                isolation: work.isolation.clone(),
                ..sh("echo $$ > pid; exec sleep 100")
            },
        );
        let path = lab.task_dir(0).join("pid");
        until("it says who it is", || {
            fs::read_to_string(&path).is_ok_and(|text| text.ends_with('\n'))
        });
        let pid = fs::read_to_string(&path).unwrap().trim().parse().unwrap();
        let kept_out = lab.workers().keeps_out(pid);
        Runner::stop(lab.workers(), JOB, 0, attempt(), true);
        while !matches!(lab.worker_event(), WorkerEvent::Stopped { .. }) {}
        until("its directory goes", || !lab.task_dir(0).exists());
        kept_out
    };
    let open = WorkSpec {
        isolation: Isolation {
            hides_node: Some(false),
            ..Isolation::default()
        },
        ..sh("")
    };
    assert!(!seen(&mut lab, open.clone()));
    assert!(seen(&mut lab, hidden("")));
    assert!(!seen(&mut lab, open));
    assert!(!lab.workers().keeps_out(std::process::id() as i32));
}

#[test]
fn secrets_are_files_in_memory_that_only_the_task_has() {
    let mut lab = WorkerLab::new();
    let with = |names: &[&str], script: &str| WorkSpec {
        secrets: names.iter().map(|name| name.to_string()).collect(),
        ..sh(script)
    };
    let script = "f=$NODECTL_SECRET_FILE_TOKEN; echo $f; cat $f | od -An -c | tr -d ' '; cat $f | wc -c; stat -Lc %a $f
                  echo changed > $f && echo written; env | grep -c precious; readlink $f; cat $f | wc -c; exec 3<&0; cat $f | wc -c";
    let told = stdout(&lab.run(with(&["TOKEN"], script)));
    let lines: Vec<&str> = told.lines().collect();
    assert_eq!(lines[0], "/proc/self/fd/100", "{told}");
    assert_eq!(lines[1..3], ["precious\\0bytes", "15"], "{told}");
    assert_eq!(
        lines[3..],
        ["400", "0", "/memfd:nodectl-secret (deleted)", "15", "15"],
        "{told}"
    );
    let record = lab.run(with(&["TOKEN", "OTHER"], "true"));
    assert_eq!(
        *failure(&record),
        Failure::Inputs("the secret `OTHER`: it is not known".into())
    );
    let told = stdout(&lab.sh("env | grep -c SECRET; ls /proc/self/fd"));
    assert!(
        told.starts_with("0\n") && !told.contains("100"),
        "no other task has it: {told}"
    );
}

#[test]
fn a_task_without_a_network_has_loopback_and_nothing_else() {
    let mut lab = WorkerLab::new();
    let offline = |script: &str| WorkSpec {
        isolation: Isolation {
            offline: true,
            ..Isolation::default()
        },
        ..sh(script)
    };
    let record = lab.run(offline(
        "tail -n +3 /proc/net/dev | cut -d: -f1 | tr -d ' '; grep -c 127.0.0.1 /proc/net/fib_trie; id -u",
    ));
    if let Outcome::Failed(Failure::Spawn(why)) = &record.outcome {
        return eprintln!("SKIPPED: {why}");
    }
    let told = stdout(&record);
    let mut lines = told.lines();
    assert_eq!(lines.next(), Some("lo"), "{told}");
    assert_ne!(lines.next(), Some("0"), "loopback is not up: {told}");
    assert_eq!(
        lines.next(),
        Some(rustix::process::getuid().as_raw().to_string().as_str()),
        "{told}"
    );
}

#[test]
fn a_task_of_a_machine_that_is_read_only_changes_its_own_directory_alone() {
    if !can_hide() {
        return;
    }
    if env!("CARGO_TARGET_TMPDIR").starts_with("/tmp/") {
        return eprintln!(
            "SKIPPED: the target directory is below /tmp, of which tasks have their own"
        );
    }
    let outside = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let beside = outside.path().display();
    fs::write(outside.path().join("beside"), "as it was").unwrap();
    let mut lab = WorkerLab::new();
    for hides_node in [Some(true), Some(false)] {
        let isolation = Isolation {
            read_only: true,
            hides_node,
            ..Isolation::default()
        };
        let script = format!(
            "cat {beside}/beside; echo x 2>/dev/null > {beside}/beside; echo x 2>/dev/null > {beside}/new; rm -f {beside}/beside 2>/dev/null
             echo mine > own; cat own; f=$(mktemp -p /dev/shm); echo temporary > $f; cat $f; rm $f"
        );
        let record = lab.run(WorkSpec {
            isolation,
            ..sh(&script)
        });
        assert_eq!(stdout(&record), "as it wasmine\ntemporary\n");
        assert_eq!(
            fs::read_to_string(outside.path().join("beside")).unwrap(),
            "as it was"
        );
        assert!(!outside.path().join("new").exists());
    }
}

#[test]
fn a_command_in_a_container_is_apptainers() {
    let tools = tempfile::tempdir().unwrap();
    let fake = tools.path().join("apptainer");
    fs::write(
        &fake,
        "#!/bin/sh\nfor word; do echo \"$word\"; done; grep NoNewPrivs /proc/self/status\n",
    )
    .unwrap();
    fs::set_permissions(&fake, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let mut lab = WorkerLab::new();
    let in_container = |path: String| WorkSpec {
        isolation: Isolation {
            image: Some("/images/a.sif".into()),
            ..Isolation::default()
        },
        env: vec![("PATH".into(), path)],
        ..work(&["cat", "/etc/os-release"])
    };
    let told = stdout(&lab.run(in_container(format!(
        "{}:/usr/bin:/bin",
        tools.path().display()
    ))));
    let dir = lab.task_dir(0).display().to_string();
    let expected = [
        "exec",
        "--contain",
        "--no-home",
        "--pwd",
        &dir,
        "--bind",
        &dir,
        "/images/a.sif",
        "cat",
        "/etc/os-release",
    ];
    assert_eq!(
        told.lines().take(expected.len()).collect::<Vec<_>>(),
        expected,
        "{told}"
    );
    let record = lab.run(in_container("/nowhere".into()));
    assert!(
        matches!(failure(&record), Failure::Spawn(why) if why.contains("no program `apptainer`")),
        "{record:?}"
    );
}

#[test]
fn a_command_in_podmans_container_sees_its_own_files_and_variables() {
    let Some(podman) = Podman::new() else { return };
    let mut lab = WorkerLab::new();
    let archive = format!("oci-archive:{}/tools.tar", podman.dir.path().display());
    for image in ["localhost/tools".to_string(), archive] {
        let isolation = Isolation {
            image: Some(image),
            ..Isolation::default()
        };
        let mut env = podman.env();
        env.push(("COLOUR".into(), "blue".into()));
        let script = "echo $COLOUR of $NODECTL_TASK_ID; echo made > out.txt; ls /; cat /etc/hostname-of-the-node 2>/dev/null; pwd";
        let spec = WorkSpec {
            isolation,
            env,
            outputs: vec!["out.txt".into()],
            ..work(&["sh", "-c", script])
        };
        let record = lab.run(spec);
        let told = stdout(&record);
        assert!(told.starts_with("blue of "), "{told} {record:?}");
        assert!(
            !told.contains("home\n") && told.contains("bin\n"),
            "the machine's files are seen: {told}"
        );
        assert_eq!(record.outputs.len(), 1, "{record:?}");
    }
}

#[test]
fn a_container_of_podmans_ends_with_its_task() {
    let Some(podman) = Podman::new() else { return };
    let mut lab = WorkerLab::new();
    let isolation = Isolation {
        image: Some("localhost/tools".into()),
        ..Isolation::default()
    };
    let marker = format!("tick of {}", std::process::id());
    let script = format!("trap '' TERM; while true; do echo {marker}; sleep 0.1; done");
    let timeout_ms = Some(3_000);
    let record = lab.run(WorkSpec {
        isolation,
        env: podman.env(),
        timeout_ms,
        ..work(&["sh", "-c", &script])
    });
    assert!(stdout(&record).starts_with(&marker), "{record:?}");
    assert!(
        matches!(failure(&record), Failure::Timeout { .. }),
        "{record:?}"
    );
    let processes = fs::read_dir("/proc")
        .unwrap()
        .filter_map(|entry| fs::read(entry.ok()?.path().join("cmdline")).ok());
    let left = processes
        .map(|line| String::from_utf8_lossy(&line).into_owned())
        .find(|line| line.contains(&marker));
    assert_eq!(left, None, "a container goes on after its task");
    let known = podman
        .command("podman")
        .args(["ps", "--all", "--quiet"])
        .output()
        .unwrap();
    assert_eq!(
        String::from_utf8_lossy(&known.stdout),
        "",
        "podman knows one that is gone"
    );
}
