//! A job without a job file: `run [OPTIONS] -- COMMAND…` writes the text that a job file would
//! have, so that both mean the same.

use crate::{args::CommandArgs, exit::CliError};
use nodectl_jobfile::PlannedJob;
use std::{
    io::{BufRead, stdin},
    path::Path,
};
use toml::{Table, Value};

/// What errors call the text that was made of the command line.
const PLACE: &str = "command-line";
/// The longest name that is made of a program's.
const NAME_BYTES: usize = 64;

impl CommandArgs {
    /// The job. Files are looked for in the current directory. Fails with `CliError::Usage` for
    /// settings that no job file could have.
    pub fn plan(&self) -> Result<Vec<PlannedJob>, CliError> {
        let lines = match self.each.as_deref() {
            Some("-") => Some(stdin().lock().lines().collect::<Result<Vec<_>, _>>()).transpose(),
            _ => Ok(None),
        };
        let lines = lines.map_err(|error| {
            CliError::Usage(format!(
                "--each -: the standard input cannot be read: {error}"
            ))
        })?;
        let text = self.job_file(lines).map_err(CliError::Usage)?;
        Ok(nodectl_workloads::parse(&text, Path::new(PLACE))?)
    }

    /// The text of the job file that says the same. `lines` are those of the standard input.
    fn job_file(&self, lines: Option<Vec<String>>) -> Result<String, String> {
        let mut job = Table::new();
        job.insert("name".into(), name_of(&self.command[0]).into());
        if !self.files.is_empty() {
            job.insert("data".into(), self.files.clone().into());
        }
        let stands_for = match (&self.each, lines) {
            (None, _) => None,
            (Some(_), Some(lines)) => {
                let row = |line: String| {
                    Value::Table([("line".into(), line.into())].into_iter().collect())
                };
                let rows = lines.into_iter().filter(|line| !line.is_empty()).map(row);
                let rows: Vec<Value> = rows.collect();
                if rows.is_empty() {
                    return Err("--each -: there is no line on the standard input".into());
                }
                job.insert("params".into(), rows.into());
                Some("{line}")
            }
            (Some(pattern), None) => {
                job.insert("files".into(), pattern.clone().into());
                Some("{file}")
            }
        };
        for (key, value) in [
            ("cpus", &self.cpus),
            ("gpus", &self.gpus),
            ("memory", &self.memory),
        ] {
            if let Some(text) = value {
                set(&mut job, &format!("resources.{key}"), value_of(text))?;
            }
        }
        for setting in &self.set {
            let (key, text) = setting
                .split_once('=')
                .ok_or_else(|| format!("--set {setting}: there is no `=`; write KEY=VALUE"))?;
            set(&mut job, key.trim(), value_of(text))?;
        }
        // Braces of a program's own, awk's, say, stay what they are where no task differs.
        let differs = stands_for.is_some() || job.contains_key("params");
        let argument = |text: &String| match stands_for {
            Some(placeholder) => text.replace("{}", placeholder),
            None if differs => text.clone(),
            None => text.replace('{', "{{").replace('}', "}}"),
        };
        let command: Vec<String> = self.command.iter().map(argument).collect();
        job.insert("command".into(), command.into());
        Ok(job.to_string())
    }
}

/// As a job may be called.
fn name_of(program: &str) -> String {
    let stem = Path::new(program).file_stem();
    let stem = stem.map(|stem| stem.to_string_lossy()).unwrap_or_default();
    let is_safe = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let name: String = stem
        .chars()
        .filter(|c| is_safe(*c))
        .take(NAME_BYTES)
        .collect();
    match name.trim_start_matches(['.', '-']) {
        "" => "command".into(),
        name => name.into(),
    }
}

/// A value as a job file has it, or the text itself where it is none: `2` is a number, `2 GiB` a
/// text.
fn value_of(text: &str) -> Value {
    let parsed = format!("value = {text}").parse::<Table>().ok();
    parsed
        .and_then(|mut table| table.remove("value").filter(|_| table.is_empty()))
        .unwrap_or_else(|| text.into())
}

/// Sets `a.b.c`.
fn set(table: &mut Table, key: &str, value: Value) -> Result<(), String> {
    let (first, rest) = key
        .split_once('.')
        .map_or((key, None), |(first, rest)| (first, Some(rest)));
    if first.is_empty() {
        return Err(format!("--set {key}={value}: the key is empty"));
    }
    let Some(rest) = rest else {
        table.insert(first.into(), value);
        return Ok(());
    };
    let below = table.entry(first).or_insert_with(|| Table::new().into());
    match below {
        Value::Table(below) => set(below, rest, value),
        other => Err(format!(
            "--set {key}: `{first}` is {other} already, and has no keys"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct RunLine {
        #[command(flatten)]
        args: CommandArgs,
    }

    fn args(line: &[&str]) -> CommandArgs {
        RunLine::parse_from(["run"].iter().chain(line)).args
    }

    fn job(line: &[&str]) -> PlannedJob {
        args(line).plan().expect("a job").remove(0)
    }

    fn file(text: &str) -> PlannedJob {
        nodectl_workloads::parse(text, Path::new(PLACE))
            .expect("a job")
            .remove(0)
    }

    #[test]
    fn a_command_is_the_job_that_a_job_file_would_be() {
        let line = job(&[
            "--cpus",
            "0.5",
            "--memory",
            "2 GiB",
            "--set",
            "retries=0",
            "--set",
            "env.A=b",
            "--set",
            "params.rate=[0.1, 0.2]",
            "--",
            "fit.sh",
            "--rate={rate}",
        ]);
        let text = "name = 'fit'\ncommand = ['fit.sh', '--rate={rate}']\nretries = 0\n\
            env = { A = 'b' }\nparams = { rate = [0.1, 0.2] }\nresources = { cpus = 0.5, memory = '2 GiB' }";
        assert_eq!(line.task_count(), 2);
        assert_eq!(format!("{line:?}"), format!("{:?}", file(text)));
    }

    #[test]
    fn braces_of_a_program_stay_what_they_are() {
        let line = job(&["--", "awk", "{print $1}"]);
        let text = "name = 'awk'\ncommand = ['awk', '{{print $1}}']";
        assert_eq!(format!("{line:?}"), format!("{:?}", file(text)));
    }

    #[test]
    fn each_line_of_the_input_is_a_task() {
        let lines = ["a b".to_string(), String::new(), "c".into()];
        let text = args(&["--each", "-", "--", "echo", "<{}>"]).job_file(Some(lines.to_vec()));
        let line = file(&text.expect("a job file"));
        assert_eq!(line.task_count(), 2);
        let text = "name = 'echo'\ncommand = ['echo', '<{line}>']\n\
            params = [{ line = 'a b' }, { line = 'c' }]";
        assert_eq!(format!("{line:?}"), format!("{:?}", file(text)));
        assert!(
            args(&["--each", "-", "--", "echo"])
                .job_file(Some(vec![]))
                .is_err()
        );
    }

    #[test]
    fn what_no_job_file_could_say_is_refused() {
        for (line, why) in [
            (&["--set", "retries", "--", "true"][..], "KEY=VALUE"),
            (&["--set", "=3", "--", "true"], "the key is empty"),
            (&["--set", "name.a=3", "--", "true"], "has no keys"),
            (
                &["--set", "retrys=3", "--", "true"],
                "did you mean `retries`",
            ),
            (&["--cpus", "many", "--", "true"], "many"),
        ] {
            let error = args(line).plan().expect_err("refused").to_string();
            assert!(error.contains(why), "{line:?}: {error}");
        }
        assert!(
            RunLine::try_parse_from(["run", "--cpus", "2"]).is_err(),
            "no command"
        );
    }
}
