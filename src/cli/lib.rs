//! The command line: flags to plain data, questions to the node through its local API only, answers
//! as tables, JSON or ids. It decides nothing about the cluster and keeps no state but the files
//! that `run` and `results` write.
//!
//! Data goes to stdout, progress and remarks to stderr. Exit codes: `exit`.
//!
//! | file | owns |
//! |---|---|
//! | `addresses` | addresses that other machines may reach |
//! | `args` | the flags |
//! | `grammar` | the whole command line: flags, help, examples |
//! | `argv` | the secret out of the visible argument list and environment |
//! | `entry` | from arguments to an exit code |
//! | `examples` | examples at the end of the help of commands |
//! | `exit` | exit codes, errors as people see them |
//! | `help` | the first page of help: commands in groups |
//! | `mistyped` | what to type in place of what clap does not understand |
//! | `flags` | flags as the top layer of the settings |
//! | `place` | which node a command speaks to |
//! | `secret` | where the secret comes from |
//! | `join` | `join` |
//! | `leave` | `leave` |
//! | `restart` | a node that comes back with another program |
//! | `upgrade` | another program for nodes |
//! | `owner` | what the person says who sits at a machine: `drain`, `pause`, `resume`, `audit` |
//! | `signals` | the signals that end a command |
//! | `shown` | what tasks wrote, on a terminal |
//! | `solo` | nodes that live as long as a command, or as the program that started it |
//! | `run` | `run`, `attach`, `results`: submit, follow, collect |
//! | `up` | `up` and `down`: nodes elsewhere |
//! | `psd_run` | Poseidon's `psd_run` |
//! | `ask` | the listings and one-line commands |
//! | `listing` | listings that are watched, and which jobs are listed |
//! | `remove` | ended jobs are forgotten |
//! | `rows` | tasks that are added to open jobs |
//! | `forget` | the word that a machine is dead for good |
//! | `membership` | bans, admissions, invitations, the change of the secret |
//! | `events` | what happened in the cluster |
//! | `metrics` | the node's numbers for Prometheus |
//! | `bench` | what this machine can do |
//! | `doctor` | what is wrong here, and what to do |
//! | `security` | what holds here of what is promised |
//! | `files` | `init`, `schema`, `config show`, `man` |
//! | `complete` | what a shell proposes when Tab is pressed |
//! | `candidates` | names among that, of which the node knows |
//! | `confirm` | a question at the terminal before what cannot be taken back |
//! | `welcome` | `nodectl` alone |
//! | `demo` | jobs to look at |
//! | `plot` | pictures of results |
//! | `report` | what a job did, as a page |
//! | `ui` | the cluster as a web page |
//! | `selection` | which results are shown, in which order |
//! | `output` | tables, JSON, ids |

mod addresses;
mod args;
mod argv;
mod ask;
mod bench;
mod candidates;
mod complete;
mod confirm;
mod demo;
mod doctor;
mod entry;
mod events;
mod examples;
mod exit;
mod files;
mod flags;
mod forget;
mod grammar;
mod help;
mod join;
mod leave;
mod listing;
mod membership;
mod metrics;
mod mistyped;
mod output;
mod owner;
mod place;
mod plot;
mod predict;
mod psd_run;
mod remove;
mod report;
mod restart;
mod rows;
mod run;
mod secret;
mod secrets;
mod security;
mod selection;
mod shown;
mod signals;
mod solo;
#[cfg(test)]
#[path = "../http/testing.rs"]
mod testing;
mod top;
mod ui;
mod up;
mod upgrade;
mod welcome;

pub use entry::main;
pub use grammar::command;
