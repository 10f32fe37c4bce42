//! What a job must be to be accepted, whoever submits it: names that name something, patterns that
//! can be compiled, placeholders that something is known of, text that a program can be given.
//! Where jobs are planned, at the API and where a submission is taken, it is this that is asked. A
//! job that was accepted before is not: nodes run it as it is, or fail its tasks.

mod graph;
mod rows;

use super::{
    After, JobDraft, JobSpec, ParamSpace, PythonWorker, SearchAxis, Value, WorkSpec, WorkerRole,
    WorkerSpec, glob,
    isolation::is_image,
    limits,
    manifest::safe_path,
    python::PythonEnvironment,
    secret::is_secret_name,
    task_names,
    template::{self, TemplateError},
    text::{self, is_unsafe, shown},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::{self, Write},
};

/// Why a job is not accepted: which field of it, and what is wrong with that.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{field}`: {problem}")]
pub struct BadSpec {
    pub field: &'static str,
    pub problem: String,
}

type Checked = Result<(), BadSpec>;

fn bad(field: &'static str, problem: impl Into<String>) -> BadSpec {
    BadSpec {
        field,
        problem: problem.into(),
    }
}

fn check(holds: bool, field: &'static str, problem: impl FnOnce() -> String) -> Checked {
    if holds {
        Ok(())
    } else {
        Err(bad(field, problem()))
    }
}

pub use rows::row_bytes;

impl JobDraft {
    /// Whether it may be submitted.
    pub fn check(&self) -> Checked {
        check_job(&self.work, &self.params, self.repeat, self.min_nodes)?;
        rows::check_needs(&self.params, &self.needs)?;
        check_beside(&self.work, self.at_once)?;
        graph::check_graph(&self.work, &self.needs, self.task_count(), self.retries)
    }
}

impl JobSpec {
    /// Whether it may have been submitted.
    pub fn check(&self) -> Checked {
        check_job(&self.work, &self.params, self.repeat, self.min_nodes)?;
        rows::check_needs(&self.params, &self.needs)?;
        check_beside(&self.work, self.at_once)?;
        graph::check_graph(&self.work, &self.needs, self.task_count(), self.retries)
    }
}

fn check_job(work: &WorkSpec, params: &ParamSpace, repeat: u32, min_nodes: u32) -> Checked {
    let tasks = params.len().saturating_mul(u64::from(repeat));
    check(min_nodes <= limits::MAX_MIN_NODES, "min_nodes", || {
        format!(
            "it would wait for {min_nodes} nodes; at most {} are possible",
            limits::MAX_MIN_NODES
        )
    })?;
    check((1..=limits::MAX_TASKS).contains(&tasks), "params", || {
        format!(
            "the job has {tasks} tasks; 1 to {} are possible",
            limits::MAX_TASKS
        )
    })?;
    let is_sized = tasks == u64::from(limits::MAX_LOG_ENTRIES) && params.len() == 1;
    check(is_sized || !work.is_log(), "repeat", || {
        format!("a log has room for {} entries", limits::MAX_LOG_ENTRIES)
    })?;
    work.check(params)?;
    check_search(work, params, repeat)?;
    rows::check_open(work, params, repeat)?;
    let mut names = work.task_names.iter();
    names.try_for_each(|template| task_names::check(template, params, repeat))
}

/// Parameters that are drawn while the job runs.
fn check_search(work: &WorkSpec, params: &ParamSpace, repeat: u32) -> Checked {
    if matches!(params, ParamSpace::Open(_)) {
        return Ok(());
    }
    let ParamSpace::Search(space) = params else {
        return check(!work.adaptive, "params", || {
            "no parameters are drawn while the job runs".into()
        });
    };
    check(work.adaptive && space.is_sound(), "params", || {
        format!(
            "nothing can be drawn from them; of 1 to {} parameters, 1 to {} sets are drawn",
            limits::MAX_SEARCH_AXES,
            limits::MAX_TRIALS
        )
    })?;
    check(work.sweep.is_some(), "sweep", || {
        "parameters are drawn by what tasks report, and the job names no metric".into()
    })?;
    check(repeat == 1, "repeat", || {
        "each set of parameters that is drawn by results runs once".into()
    })?;
    check(work.task_names.is_none(), "task_names", || {
        "parameters are drawn while the job runs, too late to name tasks by".into()
    })
}

fn check_beside(work: &WorkSpec, at_once: Option<u32>) -> Checked {
    let is_beside = work.after.iter().any(|after| after.beside().is_some());
    check(at_once.is_some() || !is_beside, "after", || {
        "tasks of other jobs count against `at_once`, which is not given".into()
    })
}

impl WorkSpec {
    /// Whether it may be run over these parameter sets.
    pub fn check(&self, params: &ParamSpace) -> Checked {
        check_name(&self.name)?;
        check_params(params)?;
        graph::check_kinds(self, params)?;
        self.check_program()?;
        self.check_env()?;
        self.check_outputs()?;
        self.check_checkpoints()?;
        self.check_gang()?;
        check(self.timeout_ms != Some(0), "timeout_ms", || {
            "a timeout of 0 fails every task; for none, leave it out".into()
        })?;
        for name in self.resources.named_milli.keys() {
            check(
                template::is_name(name) && name.len() <= limits::MAX_NAME_BYTES,
                "resources",
                || {
                    format!(
                        "`{}` cannot be the name of a resource: letters, digits, `_`, `-` and `.` can",
                        shown(name)
                    )
                },
            )?;
        }
        let mut names = BTreeSet::new();
        for (name, _) in self.after.iter().filter_map(After::results) {
            check(
                safe_path(name) && !name.contains('/') && !name.contains(is_unsafe),
                "after",
                || format!("`{}` cannot name a directory of results", shown(name)),
            )?;
            check(names.insert(name), "after", || {
                format!("`{}` is named twice", shown(name))
            })?;
        }
        check(
            self.secrets.len() <= limits::MAX_JOB_SECRETS,
            "secrets",
            || {
                format!(
                    "{} names; at most {} are possible",
                    self.secrets.len(),
                    limits::MAX_JOB_SECRETS
                )
            },
        )?;
        self.check_image()?;
        self.check_python()?;
        let mut names = BTreeSet::new();
        for name in &self.secrets {
            check(is_secret_name(name), "secrets", || {
                format!("`{}` cannot name a secret", shown(name))
            })?;
            check(names.insert(name), "secrets", || {
                format!("`{name}` is named twice")
            })?;
        }
        check(
            self.sweep
                .as_ref()
                .is_none_or(|sweep| !sweep.metric.is_empty()),
            "sweep",
            || "it names no metric".into(),
        )?;
        // Those of kinds are looked at kind by kind.
        match self.kinds.is_empty() {
            true => self.check_placeholders(params),
            false => Ok(()),
        }
    }

    fn check_program(&self) -> Checked {
        check(self.has_program(), "command", || {
            "a job has a command or a worker, and not both".into()
        })?;
        if !self.kinds.is_empty() {
            return Ok(());
        }
        let Some(worker) = &self.worker else {
            check(!self.command[0].is_empty(), "command", || {
                "it names no program".into()
            })?;
            let has_nul = self.command.iter().any(|word| word.contains('\0'));
            return check(!has_nul, "command", || {
                "a program cannot be given text with a NUL character".into()
            });
        };
        let WorkerSpec::Python(PythonWorker { python, role }) = worker else {
            return Ok(());
        };
        check(
            !python.is_empty() && !python.contains(is_unsafe),
            "worker",
            || format!("`{}` names no Python interpreter", shown(python)),
        )?;
        let WorkerRole::Calls { class, .. } = role else {
            return Ok(());
        };
        let is_class = class
            .rsplit_once(':')
            .is_some_and(|(path, class)| safe_path(path) && !class.is_empty());
        check(is_class && !class.contains(is_unsafe), "worker", || {
            format!("`{}` is not `path/of/module.py:Class`", shown(class))
        })
    }

    fn check_env(&self) -> Checked {
        let mut names = BTreeSet::new();
        for (name, value) in &self.env {
            check(
                !name.is_empty() && !name.contains(['=', '\0']),
                "env",
                || {
                    format!(
                        "`{}` cannot be the name of an environment variable",
                        shown(name)
                    )
                },
            )?;
            check(names.insert(name), "env", || {
                format!("`{}` is set twice", shown(name))
            })?;
            check(!value.contains('\0'), "env", || {
                format!(
                    "`{}` has a NUL character, which no program can be given",
                    shown(name)
                )
            })?;
        }
        Ok(())
    }

    fn check_gang(&self) -> Checked {
        let Some(gang) = self.gang else {
            return Ok(());
        };
        check(gang.nodes > 0, "nodes", || {
            "a task runs on one node at least".into()
        })?;
        check(gang.nodes <= gang.most, "nodes", || {
            format!(
                "{} nodes at least are more than {} at most",
                gang.nodes, gang.most
            )
        })?;
        check(gang.per_node > 0, "per_node", || {
            "a task has one process on each of its nodes at least".into()
        })?;
        check(gang.ranks() <= limits::MAX_RANKS, "nodes", || {
            format!(
                "{} nodes with {} processes each are {} processes; at most {} are possible",
                gang.most,
                gang.per_node,
                gang.ranks(),
                limits::MAX_RANKS
            )
        })?;
        check(self.worker.is_none(), "nodes", || {
            "only tasks of a command can be several processes".into()
        })?;
        check(!self.isolation.offline, "nodes", || {
            "processes without a network cannot reach each other".into()
        })
    }

    fn check_image(&self) -> Checked {
        let Some(image) = &self.isolation.image else {
            return Ok(());
        };
        check(is_image(image), "image", || {
            format!("`{}` cannot name a container's image", shown(image))
        })?;
        check(self.worker.is_none(), "image", || {
            "only commands run in containers".into()
        })?;
        check(self.secrets.is_empty(), "image", || {
            "secrets are not handed into containers".into()
        })
    }

    /// A Python environment is made on a node, for programs that run there.
    fn check_python(&self) -> Checked {
        let Some(found) = PythonEnvironment::of(&self.env) else {
            return Ok(());
        };
        found.map_err(|problem| bad("python", problem))?;
        check(self.isolation.image.is_none(), "python", || {
            "a container has a Python of its own".into()
        })?;
        let is_builtin = matches!(self.worker, Some(WorkerSpec::Builtin(_)));
        check(!is_builtin, "python", || "its tasks run no Python".into())
    }

    fn check_outputs(&self) -> Checked {
        check(
            self.outputs.len() <= limits::MAX_OUTPUT_PATTERNS,
            "outputs",
            || {
                format!(
                    "{} patterns; at most {} are possible",
                    self.outputs.len(),
                    limits::MAX_OUTPUT_PATTERNS
                )
            },
        )?;
        self.outputs
            .iter()
            .try_for_each(|pattern| check_output(pattern))
    }

    fn check_checkpoints(&self) -> Checked {
        let Some(dir) = &self.checkpoint_dir else {
            return Ok(());
        };
        check(
            safe_path(dir) && !dir.contains(is_unsafe),
            "checkpoint_dir",
            || format!("`{}` names no directory below that of the task", shown(dir)),
        )?;
        check(
            self.worker.is_none() && self.kinds.is_empty(),
            "checkpoint_dir",
            || "only the tasks of a single `command` have checkpoints of their own".into(),
        )
    }

    /// Placeholders that something is known of, and what tasks become with their parameters in
    /// their places.
    pub(super) fn check_placeholders(&self, params: &ParamSpace) -> Checked {
        let names: BTreeSet<&str> = params
            .names()
            .into_iter()
            .chain(template::BUILTINS)
            .collect();
        let mut wanted: BTreeMap<String, u64> = BTreeMap::new();
        let mut bytes = 0u64;
        let fields = [("command", &self.command), ("outputs", &self.outputs)];
        let texts = fields
            .iter()
            .flat_map(|(field, texts)| texts.iter().map(|text| (*field, text)));
        for (field, text) in texts.chain(self.env.iter().map(|(_, value)| ("env", value))) {
            bytes += text.len() as u64;
            for found in
                template::placeholders(text).map_err(|error| not_expanded(field, text, &error))?
            {
                let source = template::source(&found.name, |name| names.contains(name));
                let source = source.ok_or_else(|| {
                    let name = shown(&found.name);
                    bad(field, format!("nothing is known under the name `{name}`"))
                })?;
                *wanted.entry(source.to_string()).or_default() += 1;
            }
        }
        let most = bytes.saturating_add(params.widest(&wanted));
        check(
            most <= limits::MAX_TASK_TEXT_BYTES as u64,
            "command",
            || {
                let limit = limits::MAX_TASK_TEXT_BYTES;
                format!(
                    "with its parameters in their places, a task's command, variables and outputs have {most} bytes; \
                     at most {limit} are possible, and a program reads more from files"
                )
            },
        )?;
        let has_nul = |name: &&String| {
            params.any(
                name,
                |value| matches!(value, Value::Text(text) if text.contains('\0')),
            )
        };
        match wanted.keys().find(has_nul) {
            None => Ok(()),
            Some(name) => {
                let problem = "has a value with a NUL character, which no program can be given";
                Err(bad("params", format!("`{}` {problem}", shown(name))))
            }
        }
    }
}

fn not_expanded(field: &'static str, text: &str, error: &TemplateError) -> BadSpec {
    bad(field, format!("in `{}`: {error}", shown(text)))
}

/// Names of jobs are directories of results, arguments of commands and lines of tables.
fn check_name(name: &str) -> Checked {
    check(!name.is_empty(), "name", || "the job has no name".into())?;
    check(name.len() <= limits::MAX_NAME_BYTES, "name", || {
        format!(
            "it has {} bytes; at most {} are possible",
            name.len(),
            limits::MAX_NAME_BYTES
        )
    })?;
    let is_sound = text::is_name(name) && !name.contains('/') && !name.starts_with(['-', '.']);
    check(is_sound, "name", || {
        let rule = "names have no `/` and no control characters, and do not begin with `-` or `.`";
        format!("`{}` cannot be a job's name: {rule}", shown(name))
    })
}

fn check_params(params: &ParamSpace) -> Checked {
    let mut known = BTreeSet::new();
    for name in params.names() {
        check(
            template::is_name(name) && name.len() <= limits::MAX_NAME_BYTES,
            "params",
            || {
                format!(
                    "`{}` cannot name a parameter: letters, digits, `_`, `-` and `.` can",
                    shown(name)
                )
            },
        )?;
        check(!template::BUILTINS.contains(&name), "params", || {
            format!("every task already has a `{name}`")
        })?;
        check(known.insert(name), "params", || {
            format!("two parameters have the name `{name}`")
        })?;
    }
    Ok(())
}

/// A pattern as a job has it: below the task's directory, with placeholders.
pub fn check_output(pattern: &str) -> Checked {
    let told = |problem: String| {
        bad(
            "outputs",
            format!("the output `{}` {problem}", shown(pattern)),
        )
    };
    let is_below = !pattern.is_empty()
        && !pattern.starts_with('/')
        && pattern.split('/').all(|part| part != "..");
    if !is_below || pattern.contains('\0') {
        let hint = "hint: tasks write what is to be kept below their working directory";
        return Err(told(format!(
            "lies outside of the task's directory\n{hint}"
        )));
    }
    // What stands for a parameter is checked again with its values in place.
    let usual = template::expand(pattern, &|_| Some("x".into()))
        .map_err(|error| not_expanded("outputs", pattern, &error))?;
    glob::check(&usual).map_err(|error| told(format!("is not a pattern: {error}")))
}

impl ParamSpace {
    /// The most bytes that one parameter set takes in placeholders that want each name so often.
    fn widest(&self, wanted: &BTreeMap<String, u64>) -> u64 {
        let times = |name: &str| wanted.get(name).copied().unwrap_or(0);
        // Numbers of 32 bits and a job's id.
        let builtins: u64 = template::BUILTINS
            .iter()
            .map(|name| times(name).saturating_mul(16))
            .sum();
        let of_params = match self {
            Self::Single => 0,
            Self::Grid(axes) => {
                let widest = |(name, values): &(String, Vec<Value>)| match times(name) {
                    0 => 0,
                    times => values
                        .iter()
                        .map(width)
                        .max()
                        .unwrap_or(0)
                        .saturating_mul(times),
                };
                axes.iter().map(widest).fold(0, u64::saturating_add)
            }
            Self::Rows { columns, cells } => {
                let times: Vec<(usize, u64)> = columns
                    .iter()
                    .map(|name| times(name))
                    .enumerate()
                    .filter(|(_, times)| *times > 0)
                    .collect();
                let row = |row: &[Value]| {
                    times.iter().fold(0u64, |sum, (at, times)| {
                        sum.saturating_add(row.get(*at).map_or(0, width).saturating_mul(*times))
                    })
                };
                if times.is_empty() {
                    0
                } else {
                    cells
                        .chunks(columns.len().max(1))
                        .map(row)
                        .max()
                        .unwrap_or(0)
                }
            }
            Self::Search(space) => {
                let widest = |(name, axis): &(String, SearchAxis)| match axis {
                    SearchAxis::Choice(values) => {
                        let widest = values.iter().map(width).max().unwrap_or(0);
                        widest.saturating_mul(times(name))
                    }
                    // Numbers of 64 bits.
                    SearchAxis::Whole { .. } | SearchAxis::Fraction { .. } => {
                        times(name).saturating_mul(32)
                    }
                };
                space.axes.iter().map(widest).fold(0, u64::saturating_add)
            }
            // Each part is looked at as the space of its kind, and rows as they are added.
            Self::Parts(_) | Self::Open(_) => 0,
        };
        builtins.saturating_add(of_params)
    }

    /// Whether some value of a parameter is like that.
    fn any(&self, name: &str, is_one: impl Fn(&Value) -> bool) -> bool {
        match self {
            Self::Single => false,
            Self::Grid(axes) => axes
                .iter()
                .any(|(axis, values)| axis == name && values.iter().any(&is_one)),
            Self::Rows { columns, cells } => columns
                .iter()
                .position(|column| column == name)
                .is_some_and(|at| cells.iter().skip(at).step_by(columns.len()).any(is_one)),
            Self::Parts(_) | Self::Open(_) => false,
            Self::Search(space) => space.axes.iter().any(|(axis, drawn)| {
                let SearchAxis::Choice(values) = drawn else {
                    return false;
                };
                axis == name && values.iter().any(&is_one)
            }),
        }
    }
}

/// The bytes of a value in a placeholder's place.
fn width(value: &Value) -> u64 {
    /// Counts what is written.
    struct ByteCount(u64);
    impl fmt::Write for ByteCount {
        fn write_str(&mut self, text: &str) -> fmt::Result {
            self.0 += text.len() as u64;
            Ok(())
        }
    }
    match value {
        Value::Text(text) | Value::Spelled(text) => text.len() as u64,
        // There may be millions of them.
        Value::Int(number) => {
            u64::from(*number < 0)
                + 1
                + u64::from(number.unsigned_abs().checked_ilog10().unwrap_or(0))
        }
        value => {
            let mut count = ByteCount(0);
            // Counting never fails.
            let _ = write!(count, "{value}");
            count.0
        }
    }
}

#[cfg(test)]
mod tests;
