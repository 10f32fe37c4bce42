//! What to type in place of what clap does not understand: words of other programs, a job file
//! without `run`, a pattern that the shell has replaced.

use clap::error::{ContextKind, ContextValue, Error, ErrorKind};
use std::{ffi::OsString, io::Write};

/// Words that other programs have, and what does the same here.
const WORDS: &[(&[&str], &str)] = &[
    (
        &["submit", "sbatch", "srun", "qsub", "exec", "parallel"],
        "`nodectl run JOB.toml` runs a job file, `nodectl run -- COMMAND` a command",
    ),
    (
        &["ls", "list", "ps", "queue", "squeue", "qstat", "history"],
        "`nodectl jobs` lists the jobs, `nodectl nodes` the nodes",
    ),
    (
        &["kill", "scancel", "qdel", "abort"],
        "`nodectl cancel JOB` stops a job",
    ),
    (
        &["rm", "del", "delete", "purge", "clean"],
        "`nodectl remove JOB` forgets a job that has ended",
    ),
    (
        &["stop", "shutdown", "quit", "exit", "disconnect"],
        "`nodectl leave` stops this node, `nodectl cancel JOB` a job",
    ),
    (
        &[
            "start", "connect", "serve", "daemon", "node", "head", "worker", "agent",
        ],
        "`nodectl join` makes this machine a node",
    ),
    (
        &["info", "show", "describe", "inspect", "state", "sinfo"],
        "`nodectl status` shows the cluster, `nodectl job JOB` a job",
    ),
    (
        &["log", "output", "tail", "cat"],
        "`nodectl logs JOB TASK` shows what a task wrote",
    ),
    (
        &["wait", "watch", "follow"],
        "`nodectl attach JOB` follows a job, `--watch` any listing",
    ),
    (
        &["get", "fetch", "download", "pull"],
        "`nodectl results JOB --into DIR` fetches the results of a job",
    ),
    (&["gpu", "gpus"], "`nodectl devices` lists the GPUs"),
    (
        &["new", "create", "template"],
        "`nodectl init` writes a job file that runs as it is",
    ),
    (
        &["web", "dashboard"],
        "`nodectl ui` shows the cluster as a web page",
    ),
    (&["version"], "`nodectl --version` prints the version"),
];

/// Says why the arguments cannot be understood, on stderr; or prints the help that was asked for.
pub fn tell(mut error: Error, args: &[OsString]) {
    if !error.use_stderr() {
        let _ = error.print();
        return;
    }
    let hint = hint(&error, args);
    if hint.is_some() {
        error.remove(ContextKind::SuggestedSubcommand);
    }
    // As the program's own errors call it.
    let mut text = error
        .render()
        .ansi()
        .to_string()
        .replacen("tip:", "hint:", 1);
    if let Some(hint) = hint {
        text += &format!("hint: {hint}\n");
    }
    // A reader that has gone is no error worth a word.
    let _ = anstream::stderr().write_all(text.as_bytes());
}

/// What to type instead, where that can be said better than clap does.
fn hint(error: &Error, args: &[OsString]) -> Option<String> {
    let of = |kind| match error.get(kind) {
        Some(ContextValue::String(word)) => Some(word.clone()),
        Some(ContextValue::Strings(words)) => Some(words.join(" ")),
        _ => None,
    };
    match error.kind() {
        ErrorKind::InvalidSubcommand => instead_of(&of(ContextKind::InvalidSubcommand)?),
        ErrorKind::MissingRequiredArgument => missing(&of(ContextKind::InvalidArg)?),
        ErrorKind::ArgumentConflict if args.iter().any(|arg| arg == "--each") => Some(
            "a pattern needs quotes, or the shell puts the files in its place: --each 'logs/*.txt'"
                .into(),
        ),
        _ => None,
    }
}

/// What the arguments are that were not given.
fn missing(names: &str) -> Option<String> {
    let what = match names {
        jobs if jobs.contains("<JOB>") => {
            "JOB is an id, the beginning of one, a name, or `last`; `nodectl jobs` lists them"
        }
        files if files.contains("<JOB_FILE>") => {
            "`nodectl init` writes a job file that runs as it is; `nodectl run -- COMMAND` needs none"
        }
        _ => return None,
    };
    Some(what.into())
}

/// What to type instead of the command `word`.
fn instead_of(word: &str) -> Option<String> {
    let is_file = [".toml", ".conf"].iter().any(|end| word.ends_with(end));
    if is_file {
        return Some(format!("`nodectl run {word}` runs a job file"));
    }
    let lower = word.to_lowercase();
    let known = WORDS
        .iter()
        .find(|(words, _)| words.contains(&lower.as_str()));
    known.map(|(_, hint)| (*hint).to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::grammar::command;

    fn hint_for(line: &str) -> Option<String> {
        let args: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        hint(&command().try_get_matches_from(&args).unwrap_err(), &args)
    }

    #[test]
    fn words_of_other_programs_lead_to_the_command_that_does_it() {
        for (line, part) in [
            ("nodectl submit a.toml", "`nodectl run JOB.toml`"),
            ("nodectl job.toml", "`nodectl run job.toml`"),
            ("nodectl LIST", "`nodectl jobs`"),
            ("nodectl stop", "`nodectl leave`"),
            ("nodectl logs", "`last`"),
            ("nodectl run", "`nodectl init`"),
            ("nodectl run --each a.txt b.txt -- wc {}", "'logs/*.txt'"),
        ] {
            let said = hint_for(line);
            assert!(
                said.as_ref().is_some_and(|said| said.contains(part)),
                "{line}: {said:?}"
            );
        }
        assert_eq!(hint_for("nodectl jobz"), None, "clap knows a similar one");
        assert_eq!(hint_for("nodectl jobs --nonsense"), None);
    }

    #[test]
    fn no_word_is_a_command_already() {
        let all = command();
        for word in WORDS.iter().flat_map(|(words, _)| *words) {
            assert!(all.find_subcommand(word).is_none(), "{word} is a command");
        }
    }
}
