//! The command line: flags to plain data, questions to the node through its local API only, answers as tables, JSON or
//! ids. It decides nothing about the cluster and keeps no state but the files that `run` and `results` write.
//!
//! Data goes to stdout, progress and remarks to stderr. Exit codes: `exit`.
//!
//! | file | owns |
//! |---|---|
//! | `args` | the flags |
//! | `argv` | the secret out of the visible argument list and environment |
//! | `main` | from arguments to an exit code |
//! | `exit` | exit codes, errors as people see them |
//! | `flags` | flags as the top layer of the settings |
//! | `secret` | where the secret comes from |
//! | `join` | `join`, `leave`, `drain` |
//! | `solo` | nodes that live as long as a command, or as the program that started it |
//! | `run` | `run`, `attach`, `results`: submit, follow, collect |
//! | `up` | `up` and `down`: nodes elsewhere |
//! | `psd_run` | Poseidon's `psd_run` |
//! | `ask` | the listings and one-line commands |
//! | `forget` | the word that a machine is dead for good |
//! | `bench` | what this machine can do |
//! | `doctor` | what is wrong here, and what to do |
//! | `files` | `init`, `config show`, `completions`, `man` |
//! | `plot` | pictures of results |
//! | `output` | tables, JSON, ids |

mod args;
mod argv;
mod ask;
mod bench;
mod doctor;
mod exit;
mod files;
mod flags;
mod forget;
mod join;
mod main;
mod output;
mod plot;
mod predict;
mod psd_run;
mod run;
mod secret;
mod solo;
mod up;

pub use main::main;
