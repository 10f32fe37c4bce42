//! Tasks that are several processes on several nodes, on clusters of real nodes: what they are
//! told, that they start and end together, and what becomes of them when one of them dies.

mod checkpoints;
#[path = "../common/mod.rs"]
mod common;

use common::{
    LATER, SOON,
    cluster::{Cluster, both},
    job::{stdout, write_job},
    python::python_env_with,
    wait_for, wait_until,
};
use std::{
    fs,
    io::{Read, Write},
    net::TcpStream,
    path::{Path, PathBuf},
    process::Command,
};

/// Every rank sends its number to rank 0, which sends the sum back: an all-reduce in plain Python,
/// with nothing but the variables.
const ALL_REDUCE: &str = r#"
import os, socket, sys, time
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
at = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
family = socket.AF_INET6 if ":" in at[0] else socket.AF_INET
if rank == 0:
    server = socket.socket(family)
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    server.bind(at)
    server.listen(world)
    server.settimeout(60)
    peers = [server.accept()[0] for _ in range(world - 1)]
    total = sum(int(peer.makefile().readline()) for peer in peers)
    for peer in peers:
        peer.sendall(f"{total}\n".encode())
else:
    end = time.monotonic() + 120
    while True:
        peer = socket.socket(family)
        try:
            peer.settimeout(60)
            peer.connect(at)
            # While nobody listens a socket may reach itself.
            if peer.getsockname() != peer.getpeername():
                break
            peer.close()
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.05)
    peer.sendall(f"{rank}\n".encode())
    total = int(peer.makefile().readline())
names = ["LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK"]
print("rank", rank, "of", world, "sum", total, *[os.environ[name] for name in names], flush=True)
# All nodes of this machine have one address: one host, with a slot for each process.
hosts = open(os.environ["NODECTL_HOSTFILE"]).read().splitlines()
assert hosts == [f"{at[0]} slots={world}"], hosts
assert os.environ["JAX_COORDINATOR_ADDRESS"].endswith(os.environ["MASTER_PORT"])
open(f"sum{rank}.txt", "w").write(str(total))
"#;

fn python_job(cluster: &Cluster, name: &str, script: &str, more: &str) -> PathBuf {
    let program = format!("{name}.py");
    fs::write(cluster.dir.path().join(&program), script).expect("writable");
    let text = format!(
        "name = \"{name}\"\ncommand = [\"python3\", \"{program}\"]\ndata = [\"{program}\"]\n{more}\n"
    );
    write_job(cluster.dir.path(), name, &text)
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Runs a job to its end and returns where its results are.
fn run(cluster: &Cluster, file: &Path, name: &str) -> PathBuf {
    let into = cluster.dir.path().join(format!("{name}-results"));
    let paths = [file, &into].map(|path| path.to_str().expect("UTF-8"));
    cluster.ok(0, &["run", paths[0], "--into", paths[1]]);
    into
}

#[test]
fn three_nodes_reduce_and_each_rank_knows_its_place() {
    let cluster = Cluster::of(3);
    let more = "nodes = 3\noutputs = [\"sum*.txt\"]";
    let into = run(
        &cluster,
        &python_job(&cluster, "reduce", ALL_REDUCE, more),
        "reduce",
    );
    assert_eq!(read(&into.join("0/stdout")), "rank 0 of 3 sum 3 0 1 0\n");
    assert_eq!(read(&into.join("0/sum0.txt")), "3");
    // What the other ranks wrote is there, too.
    assert_eq!(
        read(&into.join("0/ranks/2/stdout")),
        "rank 2 of 3 sum 3 0 1 2\n"
    );
    assert_eq!(read(&into.join("0/ranks/2/sum2.txt")), "3");
    let log = |rank: &str| cluster.run(1, &["logs", "reduce", "0", "--rank", rank]);
    let shown = log("1");
    assert_eq!(
        String::from_utf8_lossy(&shown.stdout),
        "rank 1 of 3 sum 3 0 1 1\n"
    );
    assert!(both(&log("3")).contains("no rank 3"), "{}", both(&log("3")));
    // Several on each node, and several such tasks one after the other.
    let more = "nodes = 2\nper_node = 2\nparams = { k = [1, 2, 3] }\nresources = { cpus = 0.1 }";
    let into = run(
        &cluster,
        &python_job(&cluster, "pairs", ALL_REDUCE, more),
        "pairs",
    );
    for task in 0..3 {
        let of = |path: &str| read(&into.join(format!("{task}/{path}")));
        assert_eq!(of("stdout"), "rank 0 of 4 sum 6 0 2 0\n");
        assert_eq!(of("ranks/3/stdout"), "rank 3 of 4 sum 6 1 2 1\n");
    }
}

/// Waits in all ranks until a file is there.
fn waiting_job(cluster: &Cluster, name: &str, more: &str) -> (PathBuf, PathBuf) {
    let (notes, go) = ["notes", "go"]
        .map(|word| cluster.dir.path().join(format!("{name}.{word}")))
        .into();
    let script = format!(
        "echo \"$RANK $$\" >> {}; echo \"I am $RANK of $WORLD_SIZE\"; while [ ! -e {} ]; do sleep 0.05; done",
        notes.display(),
        go.display()
    );
    let text = format!("name = \"{name}\"\ncommand = [\"sh\", \"-c\", '''{script}''']\n{more}\n");
    write_job(cluster.dir.path(), name, &text);
    (notes, go)
}

/// The ranks that were begun, in order, with their process ids.
fn begun(notes: &Path) -> Vec<(u32, u32)> {
    let text = fs::read_to_string(notes).unwrap_or_default();
    let line = |line: &str| {
        let (rank, pid) = line.split_once(' ')?;
        Some((rank.parse().ok()?, pid.parse().ok()?))
    };
    text.lines().filter_map(line).collect()
}

fn is_alive(pid: u32) -> bool {
    Path::new(&format!("/proc/{pid}")).exists()
}

fn job_file(cluster: &Cluster, name: &str) -> PathBuf {
    cluster.dir.path().join(format!("{name}.toml"))
}

#[test]
fn a_gang_whose_node_dies_is_started_again_whole_and_ends_well() {
    let mut cluster = Cluster::of(3);
    let (notes, go) = waiting_job(
        &cluster,
        "killed",
        "nodes = 2\nretries = 0\nresources = { cpus = 0.5 }",
    );
    let id = cluster.submit(0, &job_file(&cluster, "killed"));
    wait_until(LATER, "both ranks run", || begun(&notes).len() == 2);
    let detail = cluster.json(0, &["job", &id, "--json"]);
    assert_eq!(detail["phase"], "running", "{detail}");
    let explained = cluster.ok(0, &["explain", &id, "0"]);
    let runs_on = explained
        .lines()
        .find(|line| line.contains("task 0 runs on "));
    assert!(
        runs_on.is_some_and(|line| line.contains(", ")),
        "{explained}"
    );
    assert_eq!(explained.matches("; runs 1, ").count(), 2, "{explained}");
    let told = cluster.ok(0, &["job", &id]);
    let needs = "1 process on each of 2 nodes at once, each with 0.5 cores";
    assert!(told.contains(needs), "{told}");
    // What each of them writes is shown while it runs.
    for rank in ["0", "1"] {
        wait_until(SOON, "its log is shown", || {
            let log = cluster.run(0, &["logs", &id, "0", "--rank", rank]);
            both(&log).contains(&format!("I am {rank} of 2"))
        });
    }
    // A node with a rank of it, and not the one that is asked.
    let dead = (1..3)
        .find(|number| runs_one_of(&cluster, *number, &begun(&notes)))
        .expect("two of three nodes run it");
    cluster.kill9(dead);
    wait_until(LATER, "all ranks run again", || {
        let all = begun(&notes);
        all.len() == 4 && all[2..].iter().all(|(_, pid)| is_alive(*pid))
    });
    // Where the lead died, the others end when they hear of it, which the coordinator may do first.
    wait_until(SOON, "none of the first attempt is left", || {
        begun(&notes)[..2].iter().all(|(_, pid)| !is_alive(*pid))
    });
    fs::write(&go, "").expect("writable");
    assert_eq!(cluster.wait_end(0, &id), "done");
    assert_eq!(begun(&notes).len(), 4);
}

#[test]
fn an_elastic_gang_goes_on_with_fewer_nodes_and_with_more() {
    let mut cluster = Cluster::of(3);
    let more = "nodes = [2, 4]\nretries = 0\nresources = { cpus = 0.5 }";
    let (notes, go) = waiting_job(&cluster, "elastic", more);
    let id = cluster.submit(0, &job_file(&cluster, "elastic"));
    let run = |number: usize| {
        wait_until(LATER, "so many ranks run", || {
            let alive = begun(&notes).into_iter().filter(|(_, pid)| is_alive(*pid));
            let mut ranks: Vec<u32> = alive.map(|(rank, _)| rank).collect();
            ranks.sort_unstable();
            ranks == (0..number as u32).collect::<Vec<_>>()
        });
    };
    run(3);
    let dead = cluster.coordinator(1, &id).expect("a running job has one");
    let dead = if dead == 0 { 1 } else { dead };
    cluster.kill9(dead);
    run(2);
    // Two nodes come; the gang is as large as it may be.
    cluster.add(&[]);
    cluster.add(&[]);
    run(4);
    let log = cluster.run(0, &["logs", &id, "0", "--rank", "3"]);
    assert!(both(&log).contains("I am 3 of 4"), "{}", both(&log));
    fs::write(&go, "").expect("writable");
    assert_eq!(cluster.wait_end(0, &id), "done");
}

/// Tasks work in directories of their node's.
fn runs_one_of(cluster: &Cluster, number: usize, ranks: &[(u32, u32)]) -> bool {
    let is_its = |(_, pid): &(u32, u32)| {
        let directory = fs::read_link(format!("/proc/{pid}/cwd"));
        directory.is_ok_and(|path| path.starts_with(cluster.data_dir(number)))
    };
    ranks.iter().any(is_its)
}

#[test]
fn two_gangs_that_want_all_nodes_both_run_and_so_does_what_is_small() {
    let cluster = Cluster::of(3);
    let cores = "[resources]\ncpus = 1";
    let all = |name: &str| {
        let script = "import time; time.sleep(0.3)";
        let more = format!(
            "nodes = 3\nper_node = 1\nparams = {{ k = [1, 2, 3] }}\nwhere = \"cores > 0\"\n{cores}"
        );
        python_job(&cluster, name, script, &more)
    };
    let files = [all("left"), all("right")];
    let ids: Vec<_> = (0..2)
        .map(|node| cluster.submit(node, &files[node]))
        .collect();
    let small = "params = { k = { range = [0, 20] } }\nspeculate = false";
    let small = cluster.submit(
        2,
        &python_job(&cluster, "small", "import time; time.sleep(0.1)", small),
    );
    for id in ids.iter().chain([&small]) {
        assert_eq!(cluster.wait_end(0, id), "done");
    }
}

#[test]
fn a_rank_that_fails_ends_the_others_and_says_which_it_was() {
    let cluster = Cluster::of(2);
    let script = "import os, sys, time\nif os.environ['RANK'] == '1': sys.exit('no luck here')\ntime.sleep(600)";
    let file = python_job(&cluster, "failing", script, "nodes = 2\nretries = 1");
    let into = cluster.dir.path().join("failing-results");
    let paths = [&file, &into].map(|path| path.to_str().expect("UTF-8"));
    let output = cluster.run(0, &["run", paths[0], "--into", paths[1]]);
    let said = both(&output);
    assert!(!output.status.success(), "{said}");
    assert!(said.contains("rank 1 (on n"), "{said}");
    assert!(said.contains("exit status 1"), "{said}");
    assert!(said.contains("no luck here"), "{said}");
}

#[test]
fn a_cancelled_gang_leaves_nothing_and_one_too_large_says_what_it_lacks() {
    let cluster = Cluster::of(2);
    let (notes, _) = waiting_job(&cluster, "cancelled", "nodes = 2");
    let id = cluster.submit(0, &job_file(&cluster, "cancelled"));
    wait_until(LATER, "both ranks run", || begun(&notes).len() == 2);
    cluster.ok(1, &["cancel", &id]);
    wait_until(SOON, "no process of it is left", || {
        begun(&notes).iter().all(|(_, pid)| !is_alive(*pid))
    });
    assert_eq!(cluster.wait_end(0, &id), "cancelled");

    let (_, go) = waiting_job(&cluster, "large", "nodes = 3");
    let refused = cluster.run(
        0,
        &["run", job_file(&cluster, "large").to_str().expect("UTF-8")],
    );
    let said = both(&refused);
    assert!(!refused.status.success(), "{said}");
    assert!(said.contains("3 nodes at the same time"), "{said}");

    let (_, go_later) = waiting_job(&cluster, "later", "nodes = 3\nwait = true");
    let id = cluster.submit(0, &job_file(&cluster, "later"));
    let explained = wait_for(SOON, "it says what it waits for", || {
        let explained = cluster.ok(0, &["explain", &id]);
        explained.contains("at the same time").then_some(explained)
    });
    assert!(
        explained.contains("3 nodes at the same time; 2 that can"),
        "{explained}"
    );
    let mut cluster = cluster;
    cluster.add(&[]);
    for go in [go, go_later] {
        fs::write(go, "").expect("writable");
    }
    assert_eq!(cluster.wait_end(0, &id), "done");
    let results = cluster.results(0, &id);
    assert_eq!(stdout(&results[&0]), "I am 0 of 3\n");
}

/// The program of the book's page that has this in it.
fn of_the_book(has: &str) -> String {
    let page = read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/guide/gangs.md"));
    let mut programs = page.split("```python\n").skip(1);
    let program = programs.find_map(|rest| {
        let (program, _) = rest.split_once("```")?;
        program.contains(has).then(|| program.to_string())
    });
    program.unwrap_or_else(|| panic!("no program with {has} in docs/guide/gangs.md"))
}

#[test]
fn mpirun_runs_in_rank_0_while_the_others_keep_their_room() {
    // Others have options of their own.
    let version = Command::new("mpirun").arg("--version").output();
    if !version.is_ok_and(|said| String::from_utf8_lossy(&said.stdout).contains("Open MPI")) {
        println!("SKIPPED: no mpirun of OpenMPI");
        return;
    }
    let cluster = Cluster::of(1);
    let script = of_the_book("# mpi.py").replace("./solver", "hostname");
    let more = "nodes = 1\nper_node = 2\nresources = { cpus = 0.1 }\n\
                env = { OMPI_ALLOW_RUN_AS_ROOT = \"1\", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM = \"1\" }";
    let into = run(&cluster, &python_job(&cluster, "mpi", &script, more), "mpi");
    // One line of each process that mpirun started.
    let said = read(&into.join("0/stdout"));
    assert_eq!(said.lines().count(), 2, "{said}");
}

/// All ranks add up their numbers; with an argument, one of them gives up instead.
const MPI_PROGRAM: &str = r#"
#include <mpi.h>
#include <stdio.h>
int main(int count, char **words) {
    int rank, size, sum = 0;
    MPI_Init(&count, &words);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (count > 1 && rank == 1) {
        fprintf(stderr, "rank 1 gives up\n");
        fflush(stderr);
        MPI_Abort(MPI_COMM_WORLD, 7);
    }
    MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    printf("rank %d of %d sum %d\n", rank, size, sum);
    MPI_Finalize();
    return 0;
}
"#;

/// Two processes on each of two nodes that are that program, or a script around it. None where
/// there is no MPICH.
fn mpi_job(cluster: &Cluster, name: &str, command: &str) -> Option<PathBuf> {
    let dir = cluster.dir.path();
    fs::write(dir.join("adds.c"), MPI_PROGRAM).expect("writable");
    let mut compiler = Command::new("mpicc.mpich");
    let Ok(output) = compiler
        .args(["adds.c", "-o", "adds"])
        .current_dir(dir)
        .output()
    else {
        println!("SKIPPED: no mpicc.mpich");
        return None;
    };
    assert!(output.status.success(), "{}", both(&output));
    let text = format!(
        "name = \"{name}\"\ncommand = {command}\ndata = [\"adds\"]\nnodes = 2\nper_node = 2\n\
         resources = {{ cpus = 0.1 }}\n"
    );
    Some(write_job(dir, name, &text))
}

fn said_by_ranks(into: &Path) -> String {
    let files = [
        "stdout",
        "ranks/1/stdout",
        "ranks/2/stdout",
        "ranks/3/stdout",
    ];
    files.map(|file| read(&into.join("0").join(file))).concat()
}

const SUMS: &str = "rank 0 of 4 sum 6\nrank 1 of 4 sum 6\nrank 2 of 4 sum 6\nrank 3 of 4 sum 6\n";

#[test]
fn an_mpi_program_is_one_world_on_two_nodes_without_mpirun() {
    let cluster = Cluster::of(2);
    let Some(file) = mpi_job(&cluster, "adds", r#"["./adds"]"#) else {
        return;
    };
    assert_eq!(said_by_ranks(&run(&cluster, &file, "adds")), SUMS);
    // A script may be several such programs, one after the other.
    let twice = r#"["sh", "-c", "./adds > first && ./adds && test $(wc -l < first) = 1"]"#;
    let file = mpi_job(&cluster, "twice", twice).expect("MPICH, as above");
    assert_eq!(said_by_ranks(&run(&cluster, &file, "twice")), SUMS);
}

#[test]
fn a_rank_that_aborts_mpi_ends_all_of_them() {
    let cluster = Cluster::of(2);
    let Some(file) = mpi_job(&cluster, "aborts", r#"["./adds", "abort"]"#) else {
        return;
    };
    let log = fails_with_rank_1(&cluster, &file, "aborts");
    assert!(log.contains("called MPI_Abort(MPI_COMM_WORLD, 7)"), "{log}");
}

/// Joins the world of an MPI program as a library does. Rank 1 asks for the end of all, and goes on
/// like all others: to end them is up to whoever started them.
const GOES_ON: &str = r#"
import os, socket, sys, time
host, port = os.environ["PMI_PORT"].split(":")
pmi = socket.create_connection((host, int(port))).makefile("rw")
def say(line):
    pmi.write(line + "\n")
    pmi.flush()
say("cmd=initack pmiid=" + os.environ["PMI_ID"])
assert [pmi.readline() for _ in range(4)][0] == "cmd=initack rc=0\n"
if os.environ["RANK"] == "1":
    print("rank 1 gives up", file=sys.stderr, flush=True)
    say("cmd=abort exitcode=7")
time.sleep(600)
"#;

/// It fails as rank 1 did, and says so. Returns what that wrote.
fn fails_with_rank_1(cluster: &Cluster, file: &Path, name: &str) -> String {
    let output = cluster.run(0, &["run", file.to_str().expect("UTF-8")]);
    let said = both(&output);
    assert!(!output.status.success(), "{said}");
    assert!(said.contains("rank 1 (on n"), "{said}");
    assert!(said.contains("exit status 7"), "{said}");
    let log = both(&cluster.run(0, &["logs", "--stderr", name, "0"]));
    assert!(log.contains("rank 1 gives up"), "{log}");
    log
}

#[test]
fn a_rank_that_goes_on_after_it_has_aborted_is_ended_with_all_others() {
    let cluster = Cluster::of(2);
    // Of one that runs where the server is, and of one that does not.
    for (name, place) in [
        ("beside", "per_node = 2"),
        ("apart", "nodes = 2\nper_node = 1"),
    ] {
        let more = format!("{place}\nretries = 0\nresources = {{ cpus = 0.1 }}");
        fails_with_rank_1(&cluster, &python_job(&cluster, name, GOES_ON, &more), name);
    }
}

/// In Intel's library `MPI_Abort` returns.
#[test]
fn a_rank_of_intels_mpi_that_aborts_ends_all_of_them() {
    let root = Path::new(env!("CARGO_TARGET_TMPDIR")).join("../intel-mpi");
    if !root.exists() {
        println!("SKIPPED: no target/intel-mpi, which tests/run makes with a package index");
        return;
    }
    let root = root.canonicalize().expect("it is there");
    let cluster = Cluster::of(2);
    let dir = cluster.dir.path();
    fs::write(dir.join("adds.c"), MPI_PROGRAM).expect("writable");
    let mut compiler = Command::new("cc");
    compiler.args(["adds.c", "-o", "adds", "-Wl,--allow-shlib-undefined"]);
    compiler.arg("-I").arg(root.join("devel/include"));
    compiler.arg(root.join("rt/lib/libmpi.so.12"));
    let output = compiler.current_dir(dir).output().expect("a compiler");
    assert!(output.status.success(), "{}", both(&output));
    let job = |name: &str, command: &str| {
        let text = format!(
            "name = \"{name}\"\ncommand = {command}\ndata = [\"adds\"]\nnodes = 2\nper_node = 2\n\
             retries = 0\nresources = {{ cpus = 0.1 }}\n\
             env = {{ I_MPI_ROOT = \"{0}\", FI_PROVIDER = \"tcp\", \
             LD_LIBRARY_PATH = \"{0}/lib:{0}/lib/libfabric\", \
             FI_PROVIDER_PATH = \"{0}/lib/libfabric/prov\" }}\n",
            root.join("rt").display()
        );
        write_job(dir, name, &text)
    };
    let into = run(&cluster, &job("adds", r#"["./adds"]"#), "adds");
    assert_eq!(said_by_ranks(&into), SUMS);
    fails_with_rank_1(&cluster, &job("aborts", r#"["./adds", "abort"]"#), "aborts");
}

#[test]
fn nobody_else_gets_into_the_world_of_an_mpi_program() {
    let cluster = Cluster::of(2);
    let note = cluster.dir.path().join("note");
    let script = format!(
        "echo \"$PMI_PORT $PMI_ID \" > {0}.$RANK.new && mv {0}.$RANK.new {0}.$RANK\n\
         while [ ! -e {0}.go ]; do sleep 0.05; done\nexec ./adds",
        note.display()
    );
    let command = format!("[\"sh\", \"-c\", '''{script}''']");
    let Some(file) = mpi_job(&cluster, "shut", &command) else {
        return;
    };
    let id = cluster.submit(1, &file);
    let notes = wait_for(LATER, "all ranks run", || {
        let read = |rank| fs::read_to_string(note.with_extension(rank)).ok();
        Some(["0", "1", "2", "3"].map(read)).filter(|notes| notes.iter().all(Option::is_some))
    });
    let words = notes.map(|note| {
        let note = note.expect("all are there");
        let (port, id) = note.trim().split_once(' ').expect("two words");
        (port.to_string(), id.parse::<u32>().expect("a number"))
    });
    let (port, _) = &words[0];
    let stranger = |id: u32| {
        let mut stranger = TcpStream::connect(port).expect("it listens");
        let hello = format!("cmd=initack pmiid={id}\n");
        stranger.write_all(hello.as_bytes()).expect("it listens");
        let mut said = String::new();
        let _ = stranger.read_to_string(&mut said);
        said
    };
    for strange in [0, 1, 4711, words[3].1 ^ 1] {
        assert_eq!(stranger(strange), "");
    }
    let _silent = TcpStream::connect(port).expect("it listens");
    fs::write(note.with_extension("go"), "").expect("writable");
    assert_eq!(cluster.wait_end(0, &id), "done");
    assert_eq!(stdout(&cluster.results(0, &id)[&0]), "rank 0 of 4 sum 6\n");
    wait_until(SOON, "nobody listens any more", || {
        TcpStream::connect(port).is_err()
    });
}

/// The line of a job file that gives programs this module, and more variables. None where there is
/// no such module.
fn env_with(module: &str, more: &str) -> Option<String> {
    let env = python_env_with(module)?.into_iter();
    let env: String = env
        .map(|(name, value)| format!("{name} = \"{value}\", "))
        .collect();
    Some(format!("env = {{ {env}{more} }}"))
}

/// Runs a program of a library's in two processes on two nodes; returns what each printed. None
/// where there is no such library.
fn two_processes(library: &str, script: &str, more: &str) -> Option<[String; 2]> {
    let env = env_with(library, more)?;
    let cluster = Cluster::of(2);
    let more = format!("nodes = 2\n{env}");
    let name = format!("train-{library}");
    let into = run(&cluster, &python_job(&cluster, &name, script, &more), &name);
    Some(["stdout", "ranks/1/stdout"].map(|file| read(&into.join("0").join(file))))
}

#[test]
fn processes_of_jax_find_each_other() {
    let script = of_the_book("jax.distributed.initialize")
        + "print(jax.process_index(), jax.process_count(), len(jax.devices()))\n";
    let more = "JAX_PLATFORMS = \"cpu\"";
    for (rank, said) in two_processes("jax", &script, more)
        .iter()
        .flatten()
        .enumerate()
    {
        let line = format!("{rank} 2 2");
        assert!(said.lines().any(|said| said == line), "{said}");
    }
}

#[test]
fn processes_of_pytorch_fit_a_line_together() {
    let script = read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("config/jobs/ddp/train.py"));
    let more = "OMP_NUM_THREADS = \"1\"";
    for (rank, said) in two_processes("torch", &script, more)
        .iter()
        .flatten()
        .enumerate()
    {
        assert!(
            said.contains(&format!("rank {rank} of 2: loss 0.0000")),
            "{said}"
        );
    }
}
