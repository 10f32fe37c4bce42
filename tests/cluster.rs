//! Clusters of real nodes on loopback: what users are promised, nodes dying included. Reads like
//! the README's walk-through.

mod common;

use common::{
    LATER, SOON,
    cluster::{Cluster, Discovery, both},
    job::{CountedJob, assert_all_squares, read_results, run_to_end, stdout, write_job},
    processes_with, unique, wait_until,
};
use rustix::process::{Pid, Signal, kill_process};
use std::{fs, process::Command};

#[test]
fn three_nodes_see_each_other() {
    let cluster = Cluster::of(3);
    for node in 0..3 {
        assert_eq!(cluster.members(node), ["n0", "n1", "n2"]);
    }
    let quiet = cluster.ok(0, &["nodes", "--quiet"]);
    assert_eq!(quiet.lines().count(), 3, "{quiet}");
}

#[test]
fn a_wrong_secret_sees_nothing_and_both_users_are_told() {
    let mut cluster = Cluster::of(1);
    let other = cluster.dir.path().join("other-secret");
    fs::write(&other, "velvet harbor, cactus marble, thunder pencil").expect("writable");
    cluster.add_with_secret(&other, &[]);
    for node in 0..2 {
        wait_until(SOON, "doctor speaks of the other secret", || {
            both(&cluster.run(node, &["doctor"])).contains("share this secret")
        });
        wait_until(SOON, "the log speaks of the other secret", || {
            cluster.log(node).contains("share this secret")
        });
    }
    assert_eq!(cluster.members(0), ["n0"]);
    assert_eq!(cluster.members(1), ["n1"]);
}

#[test]
fn a_job_runs_on_every_node_and_its_results_come_back() {
    let cluster = Cluster::of(3);
    let job = CountedJob::new(&cluster, "squares", 50, "sleep 0.1", "");
    let into = cluster.dir.path().join("out");
    let (code, output) = run_to_end(&cluster, 0, &job.file, &into);
    assert_eq!(code, Some(0), "{output}");
    let results = read_results(&into);
    assert_all_squares(&results, 50);
    assert!(into.join("results.csv").exists());
    let nodes: std::collections::BTreeSet<String> = results
        .values()
        .map(|result| result["node"].to_string())
        .collect();
    assert_eq!(nodes.len(), 3, "{nodes:?}");
}

#[test]
fn a_worker_node_may_die() {
    let mut cluster = Cluster::of(3);
    let job = CountedJob::new(&cluster, "squares", 50, "sleep 0.2", "");
    let id = cluster.submit(0, &job.file);
    cluster.wait_done(0, &id, 5, LATER);
    let holder = cluster.coordinator(0, &id).expect("a running job has one");
    let victim = (0..3)
        .find(|node| *node != holder && *node != 0)
        .expect("three nodes");
    cluster.kill9(victim);
    assert_eq!(cluster.wait_end(0, &id), "done");
    assert_all_squares(&cluster.results(0, &id), 50);
}

#[test]
fn the_coordinator_may_die() {
    let mut cluster = Cluster::of(3);
    let job = CountedJob::new(&cluster, "squares", 50, "sleep 0.2", "");
    let id = cluster.submit(0, &job.file);
    cluster.wait_done(0, &id, 5, LATER);
    let holder = cluster.coordinator(0, &id).expect("a running job has one");
    cluster.kill9(holder);
    let survivor = (holder + 1) % 3;
    assert_eq!(cluster.wait_end(survivor, &id), "done");
    assert_ne!(cluster.coordinator(survivor, &id), Some(holder));
    assert_all_squares(&cluster.results(survivor, &id), 50);
}

#[test]
fn all_nodes_may_die_and_acknowledged_results_are_not_computed_again() {
    let mut cluster = Cluster::of(3);
    let job = CountedJob::new(&cluster, "squares", 40, "sleep 0.2", "speculate = false");
    let id = cluster.submit(0, &job.file);
    cluster.wait_done(0, &id, 10, LATER);
    let acknowledged = cluster.results(0, &id);
    assert!(
        (10..40).contains(&acknowledged.len()),
        "{} results: too late to kill",
        acknowledged.len()
    );
    (0..3).for_each(|node| cluster.kill9(node));
    (0..3).for_each(|node| cluster.restart(node));
    assert_eq!(cluster.wait_end(0, &id), "done");
    let results = cluster.results(0, &id);
    assert_all_squares(&results, 40);
    let executions = job.executions();
    for (task, before) in &acknowledged {
        assert_eq!(
            executions[task], 1,
            "task {task} was acknowledged and computed again"
        );
        assert_eq!(
            results[task]["attempt"], before["attempt"],
            "the result of task {task} changed"
        );
    }
}

/// A holder's data directory is copied in the middle of a job. The copy is refused beside its
/// original and instead of it, until a person has decided; then it is a node of its own, and what
/// it has counts once.
#[test]
fn a_copied_data_directory_is_no_second_node_of_the_same_name() {
    let mut cluster = Cluster::of(2);
    let job = CountedJob::new(&cluster, "squares", 30, "sleep 0.2", "speculate = false");
    let id = cluster.submit(0, &job.file);
    cluster.wait_done(0, &id, 8, LATER);
    let acknowledged = cluster.results(0, &id);
    let copy = cluster.prepare(&[]);
    // While it stands still: nothing that is copied vanishes meanwhile.
    let original = Pid::from_raw(cluster.pid(1) as i32).expect("a process");
    kill_process(original, Signal::STOP).expect("our child");
    let copied = Command::new("cp")
        .arg("-a")
        .args([cluster.data_dir(1), cluster.data_dir(copy)])
        .status();
    kill_process(original, Signal::CONT).expect("our child");
    assert!(copied.expect("cp runs").success());
    let refused = |cluster: &mut Cluster, times: usize| {
        cluster.spawn(copy);
        assert!(!cluster.wait_exit(copy, LATER).success());
        let log = cluster.log(copy);
        assert_eq!(log.matches("is a copy").count(), times, "{log}");
        let identity = cluster.data_dir(copy).join("identity");
        assert!(log.contains(&identity.display().to_string()), "{log}");
    };
    refused(&mut cluster, 1);
    cluster.kill9(1);
    refused(&mut cluster, 2);
    fs::remove_file(cluster.data_dir(copy).join("identity")).expect("it was copied");
    cluster.restart(copy);
    cluster.restart(1);
    cluster.wait_members(3);
    assert_eq!(cluster.wait_end(copy, &id), "done");
    for node in 0..3 {
        let results = cluster.results(node, &id);
        assert_all_squares(&results, 30);
        for (task, before) in &acknowledged {
            assert_eq!(results[task]["attempt"], before["attempt"], "task {task}");
        }
    }
    let executions = job.executions();
    let again: Vec<_> = acknowledged
        .keys()
        .filter(|task| executions[task] != 1)
        .collect();
    assert!(again.is_empty(), "computed again: {again:?}");
    cluster.kill9(0);
    cluster.kill9(1);
    assert_all_squares(&cluster.results(copy, &id), 30);
}

#[test]
fn a_killed_node_leaves_no_process_behind() {
    let mut cluster = Cluster::of(1);
    let naps = [unique(), unique()].map(|word| format!("1000.{word}"));
    // A child of the task too, and one that has left its process group.
    let script = format!("setsid sleep {} & exec sleep {}", naps[0], naps[1]);
    let text = format!("name = \"nap\"\ncommand = [\"sh\", \"-c\", \"{script}\"]\n");
    cluster.submit(0, &write_job(cluster.dir.path(), "nap", &text));
    wait_until(SOON, "both sleep", || {
        naps.iter().all(|nap| !processes_with(nap).is_empty())
    });
    cluster.kill9(0);
    wait_until(SOON, "neither sleeps", || {
        naps.iter().all(|nap| processes_with(nap).is_empty())
    });
}

#[test]
fn a_node_that_leaves_hands_its_work_back() {
    let mut cluster = Cluster::of(2);
    let job = CountedJob::new(&cluster, "squares", 30, "sleep 0.2", "");
    let id = cluster.submit(0, &job.file);
    cluster.wait_done(0, &id, 4, LATER);
    cluster.ok(1, &["leave"]);
    assert!(cluster.wait_exit(1, SOON).success());
    cluster.wait_members(1);
    let events = cluster.ok(0, &["events"]);
    assert!(
        events.contains("n1 left the cluster") && !events.contains("n1 died"),
        "{events}"
    );
    assert_eq!(cluster.wait_end(0, &id), "done");
    assert_all_squares(&cluster.results(0, &id), 30);
}

#[test]
fn a_node_that_comes_back_is_a_member_again() {
    let mut cluster = Cluster::of(2);
    cluster.kill9(1);
    wait_until(SOON, "n0 is alone", || cluster.members(0) == ["n0"]);
    cluster.restart(1);
    cluster.wait_members(2);
}

#[test]
fn a_cancelled_job_stops_its_tasks() {
    let cluster = Cluster::of(2);
    let nap = format!("1000.{}", unique());
    let text = format!("name = \"nap\"\ncommand = [\"sleep\", \"{nap}\"]\nrepeat = 4\n");
    let id = cluster.submit(0, &write_job(cluster.dir.path(), "nap", &text));
    wait_until(SOON, "tasks sleep", || !processes_with(&nap).is_empty());
    cluster.ok(1, &["cancel", &id]);
    assert_eq!(cluster.wait_end(0, &id), "cancelled");
    wait_until(SOON, "nothing sleeps", || processes_with(&nap).is_empty());
}

#[test]
fn failed_tasks_are_shown_and_can_be_tried_again() {
    let cluster = Cluster::of(2);
    let flag = cluster.dir.path().join("flag");
    // Odd tasks fail until the flag is there.
    let script = format!(
        "test $(( {{i}} % 2 )) = 0 || test -e {} || exit 3",
        flag.display()
    );
    let job = CountedJob::new(
        &cluster,
        "half",
        8,
        &script,
        "retries = 1\nspeculate = false",
    );
    let into = cluster.dir.path().join("out");
    let (code, output) = run_to_end(&cluster, 0, &job.file, &into);
    assert_eq!(code, Some(1), "{output}");
    assert!(output.contains("exit status 3"), "{output}");
    assert_eq!(job.executions()[&1], 2, "one retry");
    let id = cluster.json(0, &["jobs", "--json"])[0]["id"]
        .as_str()
        .expect("an id")
        .to_string();
    fs::write(&flag, "").expect("writable");
    cluster.ok(0, &["retry", &id, "--failed"]);
    wait_until(LATER, "the job is done", || {
        cluster.phase(0, &id).as_deref() == Some("done")
    });
    assert_all_squares(&cluster.results(0, &id), 8);
    assert_eq!(job.executions()[&0], 1, "what was done is not done again");
}

#[test]
fn a_job_that_no_node_could_run_is_refused() {
    let cluster = Cluster::of(1);
    let text = "name = \"huge\"\ncommand = [\"true\"]\n[resources]\nmemory = \"900 TiB\"\n";
    let file = write_job(cluster.dir.path(), "huge", text);
    let output = cluster.run(0, &["run", file.to_str().expect("UTF-8")]);
    assert!(!output.status.success());
    assert!(both(&output).contains("memory"), "{}", both(&output));
}

#[test]
fn a_program_that_is_missing_is_named() {
    let cluster = Cluster::of(1);
    let program = format!("no-such-program-{}", unique());
    let text = format!("name = \"missing\"\ncommand = [\"{program}\"]\nretries = 0\n");
    let file = write_job(cluster.dir.path(), "missing", &text);
    let (code, output) = run_to_end(&cluster, 0, &file, &cluster.dir.path().join("out"));
    assert_eq!(code, Some(1), "{output}");
    assert!(output.contains(&program), "{output}");
}

#[test]
fn a_later_job_reads_the_results_of_an_earlier_one() {
    let cluster = Cluster::of(2);
    let text = r#"
[[job]]
name = "first"
command = ["sh", "-c", "echo text-{i} > out.txt"]
params = { i = [1, 2, 3] }
outputs = ["out.txt"]

[[job]]
name = "second"
after = ["first"]
command = ["sh", "-c", "wc -l < first/results.jsonl; cat first/*/out.txt | sort"]
"#;
    let file = write_job(cluster.dir.path(), "two", text);
    let (code, output) = run_to_end(&cluster, 0, &file, &cluster.dir.path().join("out"));
    assert_eq!(code, Some(0), "{output}");
    let jobs = cluster.json(0, &["jobs", "--json"]);
    let second = jobs
        .as_array()
        .expect("a list")
        .iter()
        .find(|job| job["name"] == "second")
        .expect("submitted");
    let results = cluster.results(1, second["id"].as_str().expect("an id"));
    let printed = stdout(&results[&0]);
    assert_eq!(
        printed.split_whitespace().collect::<Vec<_>>(),
        ["3", "text-1", "text-2", "text-3"]
    );
}

#[test]
fn outputs_are_fetched_from_wherever_they_were_made() {
    let cluster = Cluster::of(3);
    let script =
        "mkdir -p made; head -c 300000 /dev/zero | tr \"\\\\0\" x > made/{i}.bin; sleep 0.1";
    let job = CountedJob::new(&cluster, "files", 12, script, "outputs = [\"made/*.bin\"]");
    let into = cluster.dir.path().join("out");
    let (code, output) = run_to_end(&cluster, 0, &job.file, &into);
    assert_eq!(code, Some(0), "{output}");
    for task in 0..12 {
        let found = find_file(&into, &format!("{task}.bin"))
            .unwrap_or_else(|| panic!("no output of task {task}"));
        assert_eq!(fs::read(found).expect("readable"), vec![b'x'; 300_000]);
    }
}

#[test]
fn uploaded_files_reach_the_tasks() {
    let cluster = Cluster::of(2);
    let dir = cluster.dir.path().join("project");
    fs::create_dir_all(dir.join("texts")).expect("writable");
    for name in ["a", "b", "c"] {
        fs::write(dir.join(format!("texts/{name}.txt")), name.repeat(10)).expect("writable");
    }
    let text =
        "name = \"count\"\ncommand = [\"wc\", \"-c\", \"{file}\"]\nfiles = \"texts/*.txt\"\n";
    let file = write_job(&dir, "count", text);
    let into = cluster.dir.path().join("out");
    let (code, output) = run_to_end(&cluster, 0, &file, &into);
    assert_eq!(code, Some(0), "{output}");
    let results = read_results(&into);
    assert_eq!(results.len(), 3);
    assert!(
        results
            .values()
            .all(|result| stdout(result).starts_with("10 ")),
        "{results:?}"
    );
    // They are called after their files.
    for name in ["a", "b", "c"] {
        let said = fs::read_to_string(into.join(name).join("stdout")).expect("its directory");
        assert!(said.contains(&format!("texts/{name}.txt")), "{said}");
    }
}

/// A table of parameters that no message holds, seen from every node.
#[test]
fn a_job_of_many_rows_is_known_everywhere_with_its_parameters() {
    let cluster = Cluster::of(2);
    let rows: String = (0..300_000)
        .map(|i| format!("{i},a text that makes the row longer {i}\n"))
        .collect();
    fs::write(
        cluster.dir.path().join("rows.csv"),
        format!("i,text\n{rows}"),
    )
    .expect("writable");
    let text = "name = \"rows\"\ncommand = [\"echo\", \"{text}\"]\nparams = \"rows.csv\"\nspeculate = false\n";
    let id = cluster.submit(0, &write_job(cluster.dir.path(), "rows", text));
    for node in 0..2 {
        cluster.wait_done(node, &id, 20, LATER);
    }
    cluster.ok(0, &["cancel", &id]);
    for node in 0..2 {
        assert_eq!(cluster.wait_end(node, &id), "cancelled");
        let results = cluster.results(node, &id);
        let done: Vec<_> = results
            .values()
            .filter(|result| result["status"] == "done")
            .collect();
        assert!(done.len() >= 20, "{} results", done.len());
        for result in done {
            let task = result["task"].as_u64().expect("a number");
            assert_eq!(result["params"]["i"], task, "{result}");
            assert_eq!(
                result["params"]["text"],
                format!("a text that makes the row longer {task}")
            );
        }
    }
}

fn find_file(dir: &std::path::Path, name: &str) -> Option<std::path::PathBuf> {
    fs::read_dir(dir)
        .ok()?
        .flatten()
        .map(|entry| entry.path())
        .find_map(|path| {
            if path.is_dir() {
                find_file(&path, name)
            } else {
                path.ends_with(name).then_some(path)
            }
        })
}

#[test]
fn what_forgotten_jobs_kept_is_removed() {
    let mut cluster = Cluster::empty(Discovery::Peers);
    cluster.add(&[("NODECTL_JOBS__KEEP", "0s")]);
    let file = write_job(
        cluster.dir.path(),
        "big",
        "name = \"big\"\ncommand = [\"sh\", \"-c\", \"head -c 200000 /dev/zero > zeros\"]\noutputs = [\"zeros\"]\n",
    );
    let id = cluster.submit(0, &file);
    assert_eq!(cluster.wait_end(0, &id), "done");
    let blobs = cluster.data_dir(0).join("blobs");
    assert_eq!(bytes_below(&blobs), 200_000);
    // Forgotten at the first start, swept at the next.
    for _ in 0..2 {
        cluster.kill9(0);
        cluster.restart(0);
        let journal = cluster.data_dir(0).join("jobs").join(&id).join("journal");
        wait_until(SOON, "the job is forgotten", || !journal.exists());
    }
    assert_eq!(cluster.phase(0, &id), None);
    assert_eq!(bytes_below(&blobs), 0);
}

fn bytes_below(dir: &std::path::Path) -> u64 {
    let entries = fs::read_dir(dir)
        .expect("readable")
        .map(|entry| entry.expect("readable"));
    entries
        .map(|entry| {
            if entry.path().is_dir() {
                bytes_below(&entry.path())
            } else {
                entry.metadata().expect("there").len()
            }
        })
        .sum()
}

#[test]
fn a_named_secret_reaches_tasks_everywhere_and_nothing_else() {
    let mut cluster = Cluster::of(2);
    let value = format!("precious-{}", unique());
    let file = cluster.dir.path().join("value");
    fs::write(&file, format!("{value}\n")).expect("writable");
    let stdin = || fs::File::open(&file).expect("it is there");
    let wanted = "name = \"reader\"\ncommand = [\"sh\", \"-c\", \"wc -c <$NODECTL_SECRET_FILE_TOKEN; sha256sum <$NODECTL_SECRET_FILE_TOKEN\"]
                  secrets = [\"TOKEN\"]\n";
    let job = write_job(
        cluster.dir.path(),
        "reader",
        &format!("{wanted}where = \"name == 'n1'\"\n"),
    );
    let refused = cluster.run(0, &["run", job.to_str().expect("UTF-8")]);
    assert!(
        !refused.status.success() && both(&refused).contains("no secret `TOKEN`"),
        "{}",
        both(&refused)
    );
    assert!(
        both(&refused).contains("nodectl secret put"),
        "{}",
        both(&refused)
    );
    let put = cluster
        .command(0)
        .args(["secret", "put", "TOKEN"])
        .stdin(stdin())
        .output()
        .expect("nodectl starts");
    assert!(
        put.status.success() && !both(&put).contains(&value),
        "{}",
        both(&put)
    );
    wait_until(SOON, "the other node knows it", || {
        cluster.ok(1, &["secret", "list", "--quiet"]) == "TOKEN\n"
    });
    let output = cluster.ok(0, &["run", job.to_str().expect("UTF-8")]);
    let told = [output, cluster.ok(0, &["logs", "last", "0"])].concat();
    assert!(
        told.contains(&value.len().to_string()) && !told.contains(&value),
        "{told}"
    );
    for question in [
        &["job", "last", "--json"][..],
        &["explain", "last"],
        &["secret", "list", "--json"],
        &["results", "last", "--json"],
    ] {
        assert!(!cluster.ok(1, question).contains(&value), "{question:?}");
    }
    // Nor is it on any disk, and a node that comes back knows it.
    cluster.kill9(1);
    cluster.restart(1);
    cluster.wait_members(2);
    assert_eq!(cluster.ok(1, &["secret", "list", "--quiet"]), "TOKEN\n");
    for node in 0..2 {
        let found = std::process::Command::new("grep")
            .args(["-rl", &value])
            .arg(cluster.data_dir(node))
            .output();
        assert!(found.expect("grep starts").stdout.is_empty());
    }
    cluster.ok(0, &["secret", "drop", "TOKEN"]);
    wait_until(SOON, "the other node has forgotten it", || {
        cluster.ok(1, &["secret", "list", "--quiet"]).is_empty()
    });
}

#[test]
fn job_code_can_neither_read_the_node_nor_ask_it() {
    if let Err(why) = nodectl::worker::supervisor::hides() {
        return eprintln!("SKIPPED: {why}");
    }
    let mut cluster = Cluster::empty(Discovery::Peers);
    cluster.add(&[("NODECTL_ISOLATION__HIDES_NODE", "true")]);
    cluster.wait_members(1);
    let (program, data_dir) = (
        env!("CARGO_BIN_EXE_nodectl"),
        cluster.data_dir(0).display().to_string(),
    );
    let script = format!(
        "'{program}' --data-dir '{data_dir}' leave 2>&1; cat '{data_dir}/identity' && echo was read; echo mine > own; cat own"
    );
    let text = format!("name = \"curious\"\ncommand = [\"sh\", \"-c\", \"\"\"{script}\"\"\"]\n");
    let job = write_job(cluster.dir.path(), "curious", &text);
    let output = cluster.run(0, &["run", job.to_str().expect("UTF-8")]);
    assert!(output.status.success(), "{}", both(&output));
    let told = cluster.ok(0, &["logs", "last", "0"]);
    assert!(
        told.contains("tasks may not use the API") && told.contains("mine"),
        "{told}"
    );
    assert!(!told.contains("was read"), "{told}");
    assert!(both(&cluster.run(0, &["doctor"])).contains("hidden from them"));
    let open = format!(
        "name = \"open\"\ncommand = [\"{program}\", \"--data-dir\", \"{data_dir}\", \"nodes\"]\n[isolation]\nhides_node = false\n"
    );
    let job = write_job(cluster.dir.path(), "open", &open);
    let output = cluster.run(0, &["run", job.to_str().expect("UTF-8")]);
    assert!(output.status.success(), "{}", both(&output));
}
