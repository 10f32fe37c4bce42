//! What people and programs see.

use super::{columns::Look, table::Table, *};
use crate::testing::{head, member, progress, record, spec};
use nodectl_types::{Failure, JobId, NodeLoad, Outcome, Phase, query::JobDetail};
use nodectl_wire::api::{Device, Job, JobLine, Node, StateName, TaskResult, TaskRow};
use std::sync::Arc;

/// As on a pipe.
const WIDE: Table = Table {
    look: Look {
        width: None,
        colour: false,
    },
};
/// As on the terminal that everybody has.
const NARROW: Table = Table {
    look: Look {
        width: Some(80),
        colour: false,
    },
};

fn nodes() -> Vec<Node> {
    let jobs = vec![(JobId(1), "knn".into(), 2), (JobId(2), "fit".into(), 1)];
    let load = NodeLoad {
        load_milli: 1500,
        running: 3,
        queued: 2,
        jobs,
        ..NodeLoad::default()
    };
    vec![
        Node::new(member(1, "alpha", true), Some(load)),
        Node::new(member(2, "beta", false), None),
    ]
}

fn jobs() -> Vec<JobLine> {
    let mut ended = head(0xcd, "control\u{7}character", 40_000);
    (ended.phase, ended.ended_ms, ended.done) = (Phase::Done, 100_000, 4);
    vec![
        JobLine::from(&head(0xab, "sweep", 30_000)),
        JobLine::from(&ended),
    ]
}

#[test]
fn tables_line_up() {
    insta::assert_snapshot!(WIDE.nodes(&nodes()), @r"
    NODE     ID        STATE  MODEL                CORES  MEMORY    GPUS           DRIVER  LOAD  RUNS              QUEUED  ADDRESS
    alpha *  01010101  alive  Alienware Aurora R6  8      16.0 GiB  1 NVIDIA H200  570.1   1.50  3 (knn 2, fit 1)  2       192.0.2.1:40000
    beta     02020202  away   Alienware Aurora R6  8      16.0 GiB  1 NVIDIA H200  570.1   ?     ?                 ?       192.0.2.2:40000
    ");
    insta::assert_snapshot!(WIDE.jobs(&jobs(), 120_000), @r"
    JOB               NAME               USER     STATE    TASKS  DONE  FAILED  SUBMITTED  TOOK
    00000000000000ab  sweep              unknown  running  4      1     0       1 min ago
    00000000000000cd  control character  unknown  done     4      4     0       1 min ago  1m 00s
    ");
    let mut stopping = jobs();
    stopping[1].stopped = 3;
    insta::assert_snapshot!(WIDE.jobs(&stopping, 120_000), @r"
    JOB               NAME               USER     STATE    TASKS  DONE  FAILED  STOPPED  SUBMITTED  TOOK
    00000000000000ab  sweep              unknown  running  4      1     0       0        1 min ago
    00000000000000cd  control character  unknown  done     4      4     0       3        1 min ago  1m 00s
    ");
    assert_eq!(WIDE.jobs(&[], 0), "no jobs\n");
}

#[test]
fn gpus_are_listed_with_what_is_known_of_them_and_why_they_are_not_used() {
    let mut devices: Vec<_> = nodes()
        .into_iter()
        .map(|node| Device {
            node: node.id,
            node_name: node.name,
            gpu: node.gpus[0].clone(),
        })
        .collect();
    devices[1].gpu.rates = None;
    let mut software = devices[1].clone();
    (software.gpu.used, software.gpu.why, software.gpu.name) =
        (false, "a CPU driver".into(), "llvmpipe".into());
    (software.gpu.memory_free, software.gpu.features) = (None, Vec::new());
    let mut resting = devices[0].clone();
    (resting.gpu.used, resting.gpu.rests) = (false, true);
    resting.gpu.why = "its driver gave it up, and it rests for 30 s: the GPU was lost".into();
    devices.extend([software.clone(), software, resting]);
    insta::assert_snapshot!(WIDE.devices(&devices), @r"
    NODE   GPU          VENDOR  KIND      USED  MEMORY   FREE     COPY         GEMM F32        GEMM F16         TILES     DRIVER  UUID                              FEATURES
    alpha  NVIDIA H200  NVIDIA  discrete  yes   139 GiB  138 GiB  4100.0 GB/s  31.500 TFLOP/s  420.000 TFLOP/s  128/coop  570.1   01010101010101010101010101010101  f16,subgroups
    beta   NVIDIA H200  NVIDIA  discrete  yes   139 GiB  138 GiB  ?            ?               ?                ?         570.1   02020202020202020202020202020202  f16,subgroups
    beta   llvmpipe     NVIDIA  discrete  no    139 GiB  ?        ?            ?               ?                ?         570.1   02020202020202020202020202020202  -
    beta   llvmpipe     NVIDIA  discrete  no    139 GiB  ?        ?            ?               ?                ?         570.1   02020202020202020202020202020202  -
    alpha  NVIDIA H200  NVIDIA  discrete  no    139 GiB  138 GiB  4100.0 GB/s  31.500 TFLOP/s  420.000 TFLOP/s  128/coop  570.1   01010101010101010101010101010101  f16,subgroups
    not used: llvmpipe: a CPU driver
    not used: NVIDIA H200: its driver gave it up, and it rests for 30 s: the GPU was lost
    not measured: `nodectl devices --measure` on beta does it
    ");
}

#[test]
fn tables_fit_eighty_columns() {
    insta::assert_snapshot!(NARROW.nodes(&nodes()), @r"
    NODE     STATE  CORES  MEMORY    GPUS           LOAD  RUNS              QUEUED
    alpha *  alive  8      16.0 GiB  1 NVIDIA H200  1.50  3 (knn 2, fit 1)  2
    beta     away   8      16.0 GiB  1 NVIDIA H200  ?     ?                 ?
    ");
    insta::assert_snapshot!(NARROW.jobs(&jobs(), 120_000), @r"
    JOB               NAME               USER     STATE    TASKS  DONE  SUBMITTED
    00000000000000ab  sweep              unknown  running  4      1     1 min ago
    00000000000000cd  control character  unknown  done     4      4     1 min ago
    ");
}

#[test]
fn a_job_is_described() {
    let detail = JobDetail {
        head: head(0xab, "sweep", 30_000),
        progress: progress(Phase::Running, 1, 1),
        spec: Arc::new(spec("sweep")),
    };
    let job = Job {
        coordinator_name: Some("beta".into()),
        ..Job::from(&detail)
    };
    insta::assert_snapshot!(WIDE.job(&job, 120_000), @r"
    job          00000000000000ab sweep
    state        running: 1/4 done, 1 failed, 2.5/s, ETA 1.6 s
    user         unknown
    age          1m 30s
    command      echo {x}
    needs        1 core
    coordinator  beta
    parameters   x

    NODE   RUNNING  QUEUED  DONE
    alpha  0        0       1
    ");
    // A node that had done two has died, or a coordinator.
    let mut later = job;
    later.progress.done = 3;
    let text = WIDE.job(&later, 120_000);
    let last = text.lines().last().expect("it is not empty");
    assert!(
        last.starts_with("2 more tasks done on nodes that are gone"),
        "{text}"
    );
}

#[test]
fn results_are_listed() {
    let spec = spec("sweep");
    let failed = record(1, Outcome::Failed(Failure::Exit(3)), b"");
    let results: Vec<_> = [record(0, Outcome::Done, b""), failed]
        .iter()
        .map(|record| TaskResult::new(record, Some(&spec), Some("alpha".into())))
        .collect();
    insta::assert_snapshot!(WIDE.results(&results, true), @r"
    TASK  STATUS  SECONDS  NODE   PARAMETERS  RESULT
    0     done    1.500    alpha  x=10
    1     failed  1.500    alpha  x=11        exit status 3
    ");
    insta::assert_snapshot!(NARROW.results(&results, true), @r"
    TASK  STATUS  SECONDS  NODE   PARAMETERS  RESULT
    0     done    1.500    alpha  x=10
    1     failed  1.500    alpha  x=11        exit status 3
    ");
    assert_eq!(quiet::Quiet.results(&results, true), "0\n1\n");
    assert_eq!(json::Json.results(&results, true).lines().count(), 2);
}

#[test]
fn tasks_are_listed() {
    let spec = spec("sweep");
    let row = |task, state, running_ms| TaskRow {
        task,
        name: None,
        state,
        failures: 0,
        node: None,
        running_ms,
    };
    let line = |row, node: Option<&str>| ListedTask {
        row,
        end: None,
        node: node.map(str::to_string),
    };
    let failed = record(1, Outcome::Failed(Failure::Exit(3)), b"");
    let mut result = TaskResult::new(&failed, Some(&spec), Some("beta".into()));
    result.stderr.tail = "Traceback\nModuleNotFoundError: No module named 'numpy'\n".into();
    let end = TaskEnd::of(&result);
    let now_ms = end.ended_ms + 180_000;
    let lines = [
        line(row(0, StateName::Running, Some(90_000)), Some("alpha")),
        ListedTask {
            end: Some(end),
            ..line(row(1, StateName::Failed, None), None)
        },
        line(row(2, StateName::Pending, None), None),
    ];
    insta::assert_snapshot!(WIDE.tasks(&lines, now_ms, true), @r"
    TASK  STATE    FAILURES  NODE   TOOK    ENDED      WHY
    0     running  0         alpha  1m 30s
    1     failed   0         beta   1.5 s   3 min ago  exit status 3: ModuleNotFoundError: No module named 'numpy'
    2     pending  0
    ");
    let named = |line: &ListedTask| ListedTask {
        row: TaskRow {
            name: Some(format!("half-{}", line.row.task)),
            ..line.row.clone()
        },
        ..line.clone()
    };
    let names: Vec<_> = lines.iter().map(named).collect();
    insta::assert_snapshot!(WIDE.tasks(&names, now_ms, true), @r"
    TASK  NAME    STATE    FAILURES  NODE   TOOK    ENDED      WHY
    0     half-0  running  0         alpha  1m 30s
    1     half-1  failed   0         beta   1.5 s   3 min ago  exit status 3: ModuleNotFoundError: No module named 'numpy'
    2     half-2  pending  0
    ");
    assert_eq!(quiet::Quiet.tasks(&lines, now_ms, true), "0\n1\n2\n");
    let json = json::Json.tasks(&lines, now_ms, true);
    let ended: serde_json::Value = serde_json::from_str(json.lines().nth(1).unwrap()).unwrap();
    assert_eq!(
        (&ended["task"], &ended["why"]),
        (&1.into(), &"exit status 3".into())
    );
    assert_eq!(WIDE.tasks(&[], now_ms, true), "no such tasks\n");
}

#[test]
fn json_is_what_the_api_says_and_quiet_is_ids() {
    let back: Vec<Node> = serde_json::from_str(&json::Json.nodes(&nodes())).unwrap();
    assert_eq!(back, nodes());
    let back: Vec<JobLine> = serde_json::from_str(&json::Json.jobs(&jobs(), 0)).unwrap();
    assert_eq!(back, jobs());
    assert_eq!(
        quiet::Quiet.jobs(&jobs(), 0),
        "00000000000000ab\n00000000000000cd\n"
    );
    assert!(quiet::Quiet.nodes(&nodes()).starts_with("0101010101"));
}

fn help_at_80_columns() -> String {
    let help = crate::grammar::command().term_width(80).render_help();
    help.to_string()
}

#[test]
fn the_help_names_every_command() {
    insta::assert_snapshot!(help_at_80_columns(), @r"
    Turns the machines of a lab into a GPU cluster

    Usage: nodectl [OPTIONS] [COMMAND]

    Jobs:
      demo         Runs jobs to look at: digits are learned, a fractal is drawn
      init         Writes a commented job file that runs as it is
      run          Runs the jobs of a job file, or a command; fetches results
      attach       Follows a submitted job as `run` does, and fetches its results
      add          Adds tasks to an open job
      close        Ends an open job once its tasks have ended: no more can be added
      jobs         The jobs, newest first
      job          All about one job; with `--tasks`, each of its tasks
      explain      Why a job or a task is not running, node by node
      cancel       Stops a job, or some of its tasks; results so far are kept
      retry        Runs the failed tasks of a job again
      remove       Forgets jobs that have ended, with their results, on all nodes

    Results:
      results      The results of a job so far
      report       Writes what a job did into one HTML file
      logs         What a task wrote to its stdout or stderr
      predict      Applies a trained model to data

    Cluster:
      join         Makes this machine a node; says what to type on the next one
      leave        Stops this node; its running tasks are given to others
      status       The cluster at a glance: nodes and open jobs
      top          The cluster and its jobs, live on this terminal
      ui           The cluster as a web page, for browsers on this machine
      nodes        The nodes, what they have and how busy they are
      devices      The GPUs of the cluster
      events       What happened to nodes and jobs, and who noticed
      metrics      This node's numbers for Prometheus
      up           Starts nodes elsewhere: on hosts by ssh, in SLURM or in HTCondor
      down         Stops what `up` started
      psd-run      Runs a command on the workers of a Poseidon cluster file
      doctor       Finds out what is wrong here and says what to do

    This machine, and who may join:
      drain        Gives a node no new work; what runs there goes on to its end
      pause        Stops this machine's tasks until `resume`; it takes no others
      resume       Ends a pause: this machine's tasks go on
      upgrade      Gives nodes another program, one by one, without losing a task
      audit        Who did what at this node
      secret       The cluster's secret, and named values for jobs, such as tokens
      invite       Makes a code with which one machine can join, without the secret
      admit        Admits a node that waits to join
      admission    Sets whether new nodes wait to be admitted
      ban          Refuses a node's key everywhere, until `unban`
      unban        Ends a ban: the node may join again
      forget       Declares a machine dead; trainings no longer wait for it

    More:
      config       The settings in effect
      schema       Prints a JSON schema of job files or settings, for editors
      bench        Measures what this machine can do
      completions  Prints a completion script for a shell
      man          Prints the manual page, or writes all pages into a directory
      help         Prints this page, or that of a command

    Options:
          --data-dir <DIR>  The node's directory: where it keeps its state, and by
                            which commands find it [default: ~/.local/share/nodectl,
                            or node.data_dir]
      -h, --help            Print help
      -V, --version         Print version

    First steps:
      nodectl init && nodectl run job.toml    a job here, no cluster needed
      nodectl join --detach                   this machine becomes a node
      nodectl nodes                           who is there

    Exit codes: 0 done, 1 a job failed or a command could not do what it was asked,
    2 wrong usage, settings or job file, 3 no node answers, 130 interrupted.
    ");
}

#[test]
fn flags_do_not_contradict_each_other() {
    crate::grammar::command().debug_assert();
}
