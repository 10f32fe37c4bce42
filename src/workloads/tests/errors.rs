//! Job files that are wrong, and what is said of each, by what is wrong.

use super::error;

/// Keys of a job, and numbers and times in them.
const KEYS: [&str; 13] = [
    "comand = [\"echo\"]",
    "command = [\"echo\"",
    "name = \"a\"",
    "command = [\"x\"]\nwehre = \"cores > 1\"",
    "command = [\"x\"]\nkind = \"guess\"",
    "command = [\"x\"]\nretries = -1",
    "command = [\"x\"]\nretries = \"2\"",
    "command = [\"x\"]\nrepeat = 0",
    "command = [\"x\"]\ntimeout = \"90 sec onds\"",
    "command = [\"x\"]\ntimeout = 90",
    "command = [\"x\"]\noutput_limit = \"4 gigs\"",
    "command = [\"x\"]\npriority = 3000000000",
    "command = [\"x\"]\ntimeout = \"0s\"",
];
/// Keys of tasks that have tables of their own.
const TASKS: [&str; 6] = [
    "[[task]]\nname = \"a\"\ncommand = [\"x\"]\nnodes = 2",
    "[[task]]\nname = \"a\"\ncommand = [\"x\"]\nwhere = \"cores > 1\"",
    "[[task]]\nname = \"a\"\ncommand = [\"x\"]\nrepeat = 2",
    "[[task]]\nname = \"a\"\ncommand = [\"x\"]\nneds = \"b\"",
    "nodes = 2\n[[task]]\nname = \"a\"\ncommand = [\"x\"]",
    "needs = \"b\"\n[[task]]\nname = \"a\"\ncommand = [\"x\"]",
];
/// Programs, their arguments and environment.
const COMMANDS: [&str; 12] = [
    "command = \"python3 count.py\"",
    "command = []",
    "command = [\"echo\", 3]",
    "command = [\"python3\", \"count.py\", \"é {flie}\"]\nfiles = \"corpus/*.txt\"",
    "command = [\"awk\", \"{print $1}\"]",
    "command = [\"echo\", \"a}\"]",
    "command = [\"./none.sh\"]",
    "command = [\"run.sh\"]",
    "command = [\"./count.py\"]",
    "command = [\"x\", \"a\\u0000b\"]",
    "command = [\"x\"]\nenv = { A = [1] }",
    "command = [\"x\"]\nenv = { \"A=B\" = \"1\" }",
];
/// Files of the job and of its results.
const FILES: [&str; 11] = [
    "command = [\"x\"]\nname = \"../up\"",
    "command = [\"x\"]\nname = \"{file.stem}\"",
    "command = [\"x\"]\ninto = \"/tmp/x\"",
    "command = [\"x\"]\noutputs = \"../*.txt\"",
    "command = [\"x\"]\noutputs = \"a[\"",
    "command = [\"x\"]\nsource = \"../other\"",
    "command = [\"x\"]\ndata = \"/etc/passwd\"",
    "command = [\"x\"]\nsource = \"srcs\"",
    "command = [\"x\"]\nsource = \"src/*.pyc\"",
    "command = [\"x\"]\nfiles = \"corpus/*.csv\"",
    "command = [\"x\"]\nfiles = []",
];
/// Parameters, and the tables that they are read from.
const PARAMS: [&str; 25] = [
    "command = [\"x\"]\nfiles = \"corpus/*\"\nparams = { file = [1] }",
    "command = [\"x\"]\nfiles = \"corpus/*\"\nparams = \"good.csv\"",
    "command = [\"x\"]\nparams = { task = [1] }",
    "command = [\"x\"]\nparams = { \"a b\" = [1] }",
    "command = [\"x\"]\nparams = { k = 3 }",
    "command = [\"x\"]\nparams = { k = [] }",
    "command = [\"x\"]\nparams = {}",
    "command = [\"x\"]\nparams = { k = [[1]] }",
    "command = [\"x\"]\nparams = { k = [1], k = [2] }",
    "command = [\"x\"]\nzip = true\nparams = { k = [1], l = [1, 2] }",
    "command = [\"x\"]\nzip = true",
    "command = [\"x\"]\nparams = { k = { range = [0, 1, 0] } }",
    "command = [\"x\"]\nparams = { k = { range = [0, 1000000000] } }",
    "command = [\"x\"]\nrepeat = 4000\nparams = { k = { range = [0, 1000000] } }",
    "command = [\"x\"]\nparams = [{ k = 1 }, { l = 1 }]",
    "command = [\"x\"]\nparams = \"bad.csv\"",
    "command = [\"x\"]\nparams = \"twice.csv\"",
    "command = [\"x\"]\nparams = \"bad.jsonl\"",
    "command = [\"x\"]\nparams = \"none.csv\"",
    "command = [\"x\"]\nparams = 3",
    "command = [\"x\"]\nparams = \"run.sh\"",
    "command = [\"x\"]\nparams = \"empty.csv\"",
    "command = [\"x\"]\nparams = { k = { range = [0, 1], step = 2 } }",
    "command = [\"x\"]\nparams = { k = { range = [\"a\", 1] } }",
    "command = [\"x\"]\nparams = [1]",
];
/// Which nodes, and what of them.
const NODES: [&str; 7] = [
    "command = [\"x\"]\nwhere = \"gpu.memroy >= 8 GiB\"",
    "command = [\"x\"]\nwhere = \"cores > 1 and\"",
    "command = [\"x\"]\nwhere = \"name == \\\"x\"",
    "command = [\"x\"]\n[resources]\nmem = \"1 GiB\"",
    "command = [\"x\"]\n[resources]\ngpus = 1.5",
    "command = [\"x\"]\n[resources]\ncpus = -1",
    "command = [\"x\"]\n[resources]\nlicenses = 0.0001",
];
/// Several jobs in one file.
const JOBS: [&str; 8] = [
    "command = [\"x\"]\nafter = \"y\"",
    "name = \"x\"\n[[job]]\ncommand = [\"x\"]",
    "[[job]]\nname = \"fit\"\nafter = [\"plot\"]\ncommand = [\"x\"]\n[[job]]\nname = \"plot\"\nafter = \"fit\"\ncommand = [\"x\"]",
    "job = 3",
    "[[job]]\nname = \"a\"\ncommand = [\"x\"]\n[[job]]\nname = \"a\"\ncommand = [\"x\"]",
    "[[job]]\nname = \"src\"\ncommand = [\"x\"]\n[[job]]\nname = \"b\"\nafter = \"src\"\nsource = \"src\"\ncommand = [\"x\"]",
    "[[job]]\nname = \"fit\"\ncommand = [\"x\"]\n[[job]]\nname = \"b\"\nafter = \"fti\"\ncommand = [\"x\"]",
    "[[job]]\nname = \"fit\"\ncommand = [\"x\"]\n[[job]]\nname = \"b\"\nafter = [\"fit\", \"fit\"]\ncommand = [\"x\"]",
];

/// Job files that are wrong.
pub(super) fn wrong() -> Vec<&'static str> {
    [&KEYS[..], &COMMANDS, &FILES, &PARAMS, &NODES, &JOBS].concat()
}

/// What is said of each.
fn errors(job_files: &[&str]) -> String {
    let all: Vec<String> = job_files.iter().map(|text| error(text)).collect();
    all.join("\n\n")
}

#[test]
fn errors_of_keys_show_the_place_and_what_to_do() {
    insta::assert_snapshot!(errors(&KEYS));
}

#[test]
fn errors_of_tasks_show_the_place_and_what_to_do() {
    insta::assert_snapshot!(errors(&TASKS));
}

#[test]
fn errors_of_commands_show_the_place_and_what_to_do() {
    insta::assert_snapshot!(errors(&COMMANDS));
}

#[test]
fn errors_of_files_show_the_place_and_what_to_do() {
    insta::assert_snapshot!(errors(&FILES));
}

#[test]
fn errors_of_parameters_show_the_place_and_what_to_do() {
    insta::assert_snapshot!(errors(&PARAMS));
}

#[test]
fn errors_of_nodes_show_the_place_and_what_to_do() {
    insta::assert_snapshot!(errors(&NODES));
}

#[test]
fn errors_of_jobs_show_the_place_and_what_to_do() {
    insta::assert_snapshot!(errors(&JOBS));
}
