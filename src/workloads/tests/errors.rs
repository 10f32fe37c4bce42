//! Job files that are wrong, and what is said of each.

use super::error;

/// Job files that are wrong, and what is said of them.
pub(super) const WRONG: [&str; 75] = [
    "comand = [\"echo\"]",
    "command = [\"echo\"",
    "name = \"a\"",
    "command = \"python3 count.py\"",
    "command = []",
    "command = [\"echo\", 3]",
    "command = [\"python3\", \"count.py\", \"é {flie}\"]\nfiles = \"corpus/*.txt\"",
    "command = [\"awk\", \"{print $1}\"]",
    "command = [\"echo\", \"a}\"]",
    "command = [\"./none.sh\"]",
    "command = [\"run.sh\"]",
    "command = [\"./count.py\"]",
    "command = [\"x\"]\nkind = \"guess\"",
    "command = [\"x\"]\nretries = -1",
    "command = [\"x\"]\nretries = \"2\"",
    "command = [\"x\"]\nrepeat = 0",
    "command = [\"x\"]\ntimeout = \"90 sec onds\"",
    "command = [\"x\"]\ntimeout = 90",
    "command = [\"x\"]\noutput_limit = \"4 gigs\"",
    "command = [\"x\"]\npriority = 3000000000",
    "command = [\"x\"]\nwhere = \"gpu.memroy >= 8 GiB\"",
    "command = [\"x\"]\nwhere = \"cores > 1 and\"",
    "command = [\"x\"]\nname = \"../up\"",
    "command = [\"x\"]\ninto = \"/tmp/x\"",
    "command = [\"x\"]\noutputs = \"../*.txt\"",
    "command = [\"x\"]\noutputs = \"a[\"",
    "command = [\"x\"]\nsource = \"../other\"",
    "command = [\"x\"]\ndata = \"/etc/passwd\"",
    "command = [\"x\"]\nsource = \"srcs\"",
    "command = [\"x\"]\nsource = \"src/*.pyc\"",
    "command = [\"x\"]\nfiles = \"corpus/*.csv\"",
    "command = [\"x\"]\nfiles = []",
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
    "command = [\"x\"]\n[resources]\nmem = \"1 GiB\"",
    "command = [\"x\"]\n[resources]\ngpus = 1.5",
    "command = [\"x\"]\nafter = \"y\"",
    "name = \"x\"\n[[job]]\ncommand = [\"x\"]",
    "[[job]]\nname = \"fit\"\nafter = [\"plot\"]\ncommand = [\"x\"]\n[[job]]\nname = \"plot\"\nafter = \"fit\"\ncommand = [\"x\"]",
    "command = [\"x\"]\nwehre = \"cores > 1\"",
    "command = [\"x\", \"a\\u0000b\"]",
    "command = [\"x\"]\nwhere = \"name == \\\"x\"",
    "command = [\"x\"]\nenv = { A = [1] }",
    "command = [\"x\"]\nenv = { \"A=B\" = \"1\" }",
    "command = [\"x\"]\nparams = 3",
    "command = [\"x\"]\nparams = \"run.sh\"",
    "command = [\"x\"]\nparams = \"empty.csv\"",
    "command = [\"x\"]\nparams = { k = { range = [0, 1], step = 2 } }",
    "command = [\"x\"]\nparams = { k = { range = [\"a\", 1] } }",
    "command = [\"x\"]\nparams = [1]",
    "command = [\"x\"]\n[resources]\ncpus = -1",
    "command = [\"x\"]\n[resources]\nlicenses = 0.0001",
    "job = 3",
    "[[job]]\nname = \"a\"\ncommand = [\"x\"]\n[[job]]\nname = \"a\"\ncommand = [\"x\"]",
    "[[job]]\nname = \"src\"\ncommand = [\"x\"]\n[[job]]\nname = \"b\"\nafter = \"src\"\nsource = \"src\"\ncommand = [\"x\"]",
    "[[job]]\nname = \"fit\"\ncommand = [\"x\"]\n[[job]]\nname = \"b\"\nafter = \"fti\"\ncommand = [\"x\"]",
    "command = [\"x\"]\ntimeout = \"0s\"",
    "[[job]]\nname = \"fit\"\ncommand = [\"x\"]\n[[job]]\nname = \"b\"\nafter = [\"fit\", \"fit\"]\ncommand = [\"x\"]",
];

#[test]
fn errors_show_the_place_and_what_to_do() {
    let all: Vec<String> = WRONG.iter().map(|text| error(text)).collect();
    insta::assert_snapshot!(all.join("\n\n"), @r#"
a job has no key `comand`
 --> job.toml:1:1
  |
1 | comand = ["echo"]
  | ^^^^^^
hint: did you mean `command`?

this is not valid TOML: unclosed array, expected `]`
 --> job.toml:1:18
  |
1 | command = ["echo"
  |                  ^

the job has no `command` and no `worker`
 --> job.toml:1:1
  |
1 | name = "a"
  | ^
hint: e.g. command = ["python3", "count.py", "{file}"], or worker = "count.py:Counter"

`command` is a list: the program and its arguments
 --> job.toml:1:11
  |
1 | command = "python3 count.py"
  |           ^^^^^^^^^^^^^^^^^^
hint: write ["python3", "count.py"]; for a shell, ["sh", "-c", "…"]

`command` names no program
 --> job.toml:1:11
  |
1 | command = []
  |           ^^

`command` is a list of strings; this is a whole number
 --> job.toml:1:20
  |
1 | command = ["echo", 3]
  |                    ^
hint: put it in quotes

the job has no parameter `flie`
 --> job.toml:1:38
  |
1 | command = ["python3", "count.py", "é {flie}"]
  |                                      ^^^^^^
hint: did you mean `file`?

`{print $1}` is not a placeholder
 --> job.toml:1:20
  |
1 | command = ["awk", "{print $1}"]
  |                    ^^^^^^^^^^
hint: a literal brace is written twice: `{{` and `}}`

this `}` closes nothing
 --> job.toml:1:22
  |
1 | command = ["echo", "a}"]
  |                      ^
hint: a literal brace is written twice: `{{` and `}}`

the program `./none.sh` is not beside the job file
 --> job.toml:1:12
  |
1 | command = ["./none.sh"]
  |            ^^^^^^^^^^^
hint: add it to `source`, or name a program that every node has, e.g. `python3`

`run.sh` would be looked for on the nodes' PATH
 --> job.toml:1:12
  |
1 | command = ["run.sh"]
  |            ^^^^^^^^
hint: to run the file beside the job file, write `./run.sh`

`./count.py` is not executable
 --> job.toml:1:12
  |
1 | command = ["./count.py"]
  |            ^^^^^^^^^^^^
hint: `chmod +x count.py`, or write ["python3", "count.py"]

there is no kind `guess` of job
 --> job.toml:2:8
  |
2 | kind = "guess"
  |        ^^^^^^^
hint: there are `map`, `kernel`, `train`, `integrate`

`retries` is a whole number from 0 to 4294967295, not -1
 --> job.toml:2:11
  |
2 | retries = -1
  |           ^^

`retries` is a whole number, not a string
 --> job.toml:2:11
  |
2 | retries = "2"
  |           ^^^

`repeat` is a whole number from 1 to 4294967295, not 0
 --> job.toml:2:10
  |
2 | repeat = 0
  |          ^

`timeout`: `90 sec onds` is not a duration such as `90s`, `2h 30m` or `500ms`
 --> job.toml:2:11
  |
2 | timeout = "90 sec onds"
  |           ^^^^^^^^^^^^^

`timeout` is a duration such as "90s", not a whole number
 --> job.toml:2:11
  |
2 | timeout = 90
  |           ^^

`output_limit`: `4 gigs` is not a size such as `8 GiB`, `500 MB` or `1024`
 --> job.toml:2:16
  |
2 | output_limit = "4 gigs"
  |                ^^^^^^^^

`priority` is a whole number from -2147483648 to 2147483647, not 3000000000
 --> job.toml:2:12
  |
2 | priority = 3000000000
  |            ^^^^^^^^^^

`where`: a node has no field `gpu.memroy`
 --> job.toml:2:10
  |
2 | where = "gpu.memroy >= 8 GiB"
  |          ^^^^^^^^^^
hint: did you mean `gpu.memory`?

`where`: expected a field such as `memory`, it ends here
 --> job.toml:2:23
  |
2 | where = "cores > 1 and"
  |                       ^

`../up` cannot be a job's name
 --> job.toml:2:8
  |
2 | name = "../up"
  |        ^^^^^^^
hint: set `name`, which names directories of results: letters, digits, `_`, `-` and `.`, at most 64 of them

`into` names a directory below the current one, not `/tmp/x`
 --> job.toml:2:8
  |
2 | into = "/tmp/x"
  |        ^^^^^^^^
hint: results go below the directory where `nodectl run` is called

the output `../*.txt` lies outside of the task's directory
 --> job.toml:2:11
  |
2 | outputs = "../*.txt"
  |           ^^^^^^^^^^
hint: tasks write what is to be kept below their working directory

the output `a[` is no pattern: a `[` is never closed
 --> job.toml:2:11
  |
2 | outputs = "a["
  |           ^^^^

`../other` leaves the directory of the job file
 --> job.toml:2:10
  |
2 | source = "../other"
  |          ^^^^^^^^^^
hint: only files below it travel with the job: move the job file up, or copy them

`/etc/passwd` leaves the directory of the job file
 --> job.toml:2:8
  |
2 | data = "/etc/passwd"
  |        ^^^^^^^^^^^^^
hint: only files below it travel with the job: move the job file up, or copy them

`srcs` does not exist
 --> job.toml:2:10
  |
2 | source = "srcs"
  |          ^^^^^^
hint: it was looked for in `DIR`, where the job file is

no file matches `src/*.pyc` in `DIR`
 --> job.toml:2:10
  |
2 | source = "src/*.pyc"
  |          ^^^^^^^^^^^
hint: hidden and git-ignored files are left out of `source`; `data` takes them

no file matches `corpus/*.csv` in `DIR`
 --> job.toml:2:9
  |
2 | files = "corpus/*.csv"
  |         ^^^^^^^^^^^^^^

`files` names no file: there would be no task
 --> job.toml:2:9
  |
2 | files = []
  |         ^^

`files` already has a `file`
 --> job.toml:3:10
  |
3 | params = { file = [1] }
  |          ^^^^^^^^^^^^^^
hint: rename the parameter

`files` goes with a grid of `params`, not with rows of them
 --> job.toml:3:10
  |
3 | params = "good.csv"
  |          ^^^^^^^^^^
hint: name the files in a column of `params` and upload them with `data`

every task already has a `task`
 --> job.toml:2:10
  |
2 | params = { task = [1] }
  |          ^^^^^^^^^^^^^^
hint: rename the parameter

`a b` cannot name a parameter: letters, digits, `_`, `-` and `.` can
 --> job.toml:2:10
  |
2 | params = { "a b" = [1] }
  |          ^^^^^^^^^^^^^^^

the parameter `k` has a list of values, not a whole number
 --> job.toml:2:16
  |
2 | params = { k = 3 }
  |                ^
hint: write k = […] or k = { range = [start, stop, step] }

the parameter `k` has no values: there would be no task
 --> job.toml:2:16
  |
2 | params = { k = [] }
  |                ^^

`params` is empty
 --> job.toml:2:10
  |
2 | params = {}
  |          ^^
hint: leave it out for a job of one task

a value of `k` is a number, a truth value or text, not a list
 --> job.toml:2:17
  |
2 | params = { k = [[1]] }
  |                 ^^^
hint: put it in quotes

this is not valid TOML: duplicate key
 --> job.toml:2:21
  |
2 | params = { k = [1], k = [2] }
  |                     ^

`zip` needs lists of one length: `k` has 1 values, `l` 2
 --> job.toml:3:10
  |
3 | params = { k = [1], l = [1, 2] }
  |          ^^^^^^^^^^^^^^^^^^^^^^^

`zip` pairs the lists of a `params` table, and there is none
 --> job.toml:2:7
  |
2 | zip = true
  |       ^^^^

the range of `k` has a step of 0
 --> job.toml:2:16
  |
2 | params = { k = { range = [0, 1, 0] } }
  |                ^^^^^^^^^^^^^^^^^^^^^

the range of `k` has 1000000000 values; at most 10000000 are possible
 --> job.toml:2:16
  |
2 | params = { k = { range = [0, 1000000000] } }
  |                ^^^^^^^^^^^^^^^^^^^^^^^^^^^

the job would have 4000000000 tasks; at most 50000000 are possible
 --> job.toml:2:10
  |
2 | repeat = 4000
  |          ^^^^
hint: let each task do more: fewer parameter sets, each of them a range

the first parameter set has no `l`
 --> job.toml:2:24
  |
2 | params = [{ k = 1 }, { l = 1 }]
  |                        ^

`bad.csv`: line 3 has 1 cells, the header 2
 --> job.toml:2:10
  |
2 | params = "bad.csv"
  |          ^^^^^^^^^

`twice.csv`: line 1: two columns have the name `k`
 --> job.toml:2:10
  |
2 | params = "twice.csv"
  |          ^^^^^^^^^^^

`bad.jsonl`: line 2: `k` is not a number, a truth value or text: `[1]`
 --> job.toml:2:10
  |
2 | params = "bad.jsonl"
  |          ^^^^^^^^^^^

cannot read `none.csv`: No such file or directory (os error 2)
 --> job.toml:2:10
  |
2 | params = "none.csv"
  |          ^^^^^^^^^^

[resources] has no key `mem`
 --> job.toml:3:1
  |
3 | mem = "1 GiB"
  | ^^^
hint: did you mean `memory`?

a task has a share of one GPU (such as 0.25) or whole GPUs
 --> job.toml:3:8
  |
3 | gpus = 1.5
  |        ^^^

this file has no job `y` to wait for
 --> job.toml:2:9
  |
2 | after = "y"
  |         ^^^

`name` stands outside of the `[[job]]` tables
 --> job.toml:1:1
  |
1 | name = "x"
  | ^^^^
hint: in a file with `[[job]]`, every key belongs to one of them: move it below its header

these jobs wait for each other: `fit` after `plot` after `fit`
 --> job.toml:7:9
  |
7 | after = "fit"
  |         ^^^^^

a job has no key `wehre`
 --> job.toml:2:1
  |
2 | wehre = "cores > 1"
  | ^^^^^
hint: did you mean `where`?

a program cannot be given text with a NUL character
 --> job.toml:1:17
  |
1 | command = ["x", "a\u0000b"]
  |                 ^^^^^^^^^^

`where`: the quote " is never closed
 --> job.toml:2:9
  |
2 | where = "name == \"x"
  |         ^^^^^^^^^^^^^

the variable `A` is text, not a list
 --> job.toml:2:13
  |
2 | env = { A = [1] }
  |             ^^^
hint: put it in quotes

`A=B` cannot name an environment variable
 --> job.toml:2:9
  |
2 | env = { "A=B" = "1" }
  |         ^^^^^

`params` cannot be a whole number
 --> job.toml:2:10
  |
2 | params = 3
  |          ^
hint: a table of lists (a grid), a list of tables, or the name of a .csv or .jsonl file

`run.sh` has no known ending
 --> job.toml:2:10
  |
2 | params = "run.sh"
  |          ^^^^^^^^
hint: parameters are read from .csv, .tsv and .jsonl files

`empty.csv` has no parameter set: there would be no task
 --> job.toml:2:10
  |
2 | params = "empty.csv"
  |          ^^^^^^^^^^^

`k` is neither a list nor a range
 --> job.toml:2:16
  |
2 | params = { k = { range = [0, 1], step = 2 } }
  |                ^^^^^^^^^^^^^^^^^^^^^^^^^^^^
hint: write { range = [start, stop] } or { range = [start, stop, step] }; stop is left out

the range of `k` has bounds that are no numbers
 --> job.toml:2:16
  |
2 | params = { k = { range = ["a", 1] } }
  |                ^^^^^^^^^^^^^^^^^^^^
hint: write { range = [start, stop] } or { range = [start, stop, step] }; stop is left out

a list of `params` has tables, not a whole number
 --> job.toml:2:11
  |
2 | params = [1]
  |           ^
hint: e.g. params = [{ k = 1 }, { k = 2 }]; for a grid, params = { k = [1, 2] }

`cpus` is a number of at least 0, not -1
 --> job.toml:3:8
  |
3 | cpus = -1
  |        ^^

`licenses` is counted in thousandths; 0.0001 is less than one
 --> job.toml:3:12
  |
3 | licenses = 0.0001
  |            ^^^^^^

`job` is a list of tables
 --> job.toml:1:1
  |
1 | job = 3
  | ^^^
hint: write `[[job]]`

two jobs have the name `a`
 --> job.toml:5:8
  |
5 | name = "a"
  |        ^^^
hint: in a file with several jobs, give each a `name` of its own

the results of `src` and the uploaded `src/deep/more.py` would share a name
 --> job.toml:6:9
  |
6 | after = "src"
  |         ^^^^^
hint: rename the job or the files

this file has no job `fti` to wait for
 --> job.toml:6:9
  |
6 | after = "fti"
  |         ^^^^^
hint: did you mean `fit`?

a timeout of less than a millisecond fails every task
 --> job.toml:2:11
  |
2 | timeout = "0s"
  |           ^^^^
hint: for no timeout, leave it out

`fit` is named twice
 --> job.toml:6:17
  |
6 | after = ["fit", "fit"]
  |                 ^^^^^
"#);
}
