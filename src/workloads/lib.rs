//! What users ask the cluster to compute: a job file becomes planned jobs, each table by its kind.
//! Owns which kinds there are, the smallest of them, `map`, and the templates of all; the others
//! have crates of their own.
//!
//! | file | owns |
//! |---|---|
//! | `map` | `kind = "map"`: a command over parameter sets |
//! | `templates` | the job files that `nodectl init` writes |

mod map;
pub mod templates;

pub use map::KEYS as MAP_KEYS;
#[cfg(test)]
mod tests;

use nodectl_jobfile::{
    Context, Fault, Fields, Following, JobFileError, PlacedJob, PlanTable, PlannedJob, read, table,
};
use nodectl_types::Builtin;
use std::{path::Path, process::ExitCode};

/// A JSON schema (draft 7) of job files, for editors.
pub const JOB_SCHEMA: &str = include_str!("../../config/schema/job.json");

/// The kinds of jobs, and what plans them. The first is what a job is that names none.
const KINDS: [(&str, PlanTable); 4] = [
    ("map", map::plan),
    ("kernel", nodectl_kernel::plan),
    ("train", nodectl_train::plan),
    ("integrate", nodectl_azint::plan),
];

/// The body of a built-in worker's process.
pub fn work_as(part: Builtin) -> ExitCode {
    match part {
        Builtin::Kernel => nodectl_kernel::run::main(),
        Builtin::Train => nodectl_train::run::main(),
        Builtin::Integrate => nodectl_azint::run::main(),
    }
}

/// Reads a job file and everything that it refers to. The jobs come in an order in which they can
/// be submitted.
pub fn load(path: &Path) -> Result<Vec<PlannedJob>, JobFileError> {
    parse(&read(path)?, path)
}

/// A job file whose jobs are to integrate these files.
pub fn load_following(path: &Path, following: &Following) -> Result<Vec<PlannedJob>, JobFileError> {
    let text = read(path)?;
    let context = Context {
        following: Some(following),
        ..Context::new(&text, path)
    };
    plan(&context).map_err(|fault| fault.in_file(path, &text))
}

/// The jobs of a file, as `load` and `load_following` read it, for a cluster in which no node has a
/// GPU: those that prefer one (`PlannedJob::prefers_gpus`) are planned for processors.
pub fn load_without_gpus(
    path: &Path,
    following: Option<&Following>,
) -> Result<Vec<PlannedJob>, JobFileError> {
    let text = read(path)?;
    let context = Context {
        following,
        without_gpus: true,
        ..Context::new(&text, path)
    };
    plan(&context).map_err(|fault| fault.in_file(path, &text))
}

/// The jobs of the text of a file at `path`; what it refers to is looked for beside that.
pub fn parse(text: &str, path: &Path) -> Result<Vec<PlannedJob>, JobFileError> {
    plan(&Context::new(text, path)).map_err(|fault| fault.in_file(path, text))
}

/// What the shader of a file with one kernel job binds.
pub fn interface(path: &Path) -> Result<nodectl_kernel::Interface, JobFileError> {
    let text = read(path)?;
    let found = table(&text).and_then(|root| {
        let context = Context::new(&text, path);
        nodectl_kernel::interface(&Fields::new(&context, root.get_ref(), "a job", 0..0))
    });
    found.map_err(|fault| fault.in_file(path, &text))
}

fn plan(context: &Context<'_>) -> Result<Vec<PlannedJob>, Fault> {
    nodectl_azint::config::jobs(context)
        .unwrap_or_else(|| nodectl_jobfile::plan(context, plan_table))
}

/// The jobs of a table, by its kind.
fn plan_table(fields: &Fields<'_, '_>) -> Result<Vec<PlacedJob>, Fault> {
    let named = fields.string("kind")?;
    let (name, span) = match &named {
        Some(kind) => (kind.value.as_str(), kind.span.clone()),
        None => (KINDS[0].0, fields.span.clone()),
    };
    if fields.context.following.is_some() && name != "integrate" {
        return Err(Fault::new(
            span,
            "`--follow` is for jobs of the kind `integrate`",
        ));
    }
    match KINDS.iter().find(|(kind, _)| *kind == name) {
        Some((_, plan)) => plan(fields),
        None => {
            let fault = Fault::new(span, format!("there is no kind of job `{name}`"));
            Err(fault.suggest(name, &KINDS.map(|(kind, _)| kind)))
        }
    }
}
