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
    Context, Fault, Fields, Following, JobFileError, PlacedJob, PlannedJob, read, table,
};
use std::path::Path;

/// A JSON schema (draft 7) of job files, for editors.
pub const JOB_SCHEMA: &str = include_str!("../../config/schema/job.json");

/// The kinds of jobs.
const KINDS: [&str; 4] = ["map", "kernel", "train", "integrate"];

/// Reads a job file and everything that it refers to. The jobs come in an order in which they can
/// be submitted.
pub fn load(path: &Path) -> Result<Vec<PlannedJob>, JobFileError> {
    parse(&read(path)?, path)
}

/// A job file whose jobs are to integrate these files.
pub fn load_following(path: &Path, following: &Following) -> Result<Vec<PlannedJob>, JobFileError> {
    let text = read(path)?;
    plan(&text, path, Some(following)).map_err(|fault| fault.in_file(path, &text))
}

/// The jobs of the text of a file at `path`; what it refers to is looked for beside that.
pub fn parse(text: &str, path: &Path) -> Result<Vec<PlannedJob>, JobFileError> {
    plan(text, path, None).map_err(|fault| fault.in_file(path, text))
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

fn plan(text: &str, path: &Path, following: Option<&Following>) -> Result<Vec<PlannedJob>, Fault> {
    let context = Context {
        following,
        ..Context::new(text, path)
    };
    nodectl_azint::config::jobs(&context)
        .unwrap_or_else(|| nodectl_jobfile::plan(&context, plan_table))
}

/// The jobs of a table, by its kind.
fn plan_table(fields: &Fields<'_, '_>) -> Result<Vec<PlacedJob>, Fault> {
    let Some(kind) = fields.string("kind")? else {
        return match fields.context.following {
            Some(_) => Err(Fault::new(
                fields.span.clone(),
                "`--follow` is for jobs of the kind `integrate`",
            )),
            None => map::plan(fields).map(|job| vec![job]),
        };
    };
    if fields.context.following.is_some() && kind.value != "integrate" {
        return Err(Fault::new(
            kind.span,
            "`--follow` is for jobs of the kind `integrate`",
        ));
    }
    match kind.value.as_str() {
        "map" => map::plan(fields).map(|job| vec![job]),
        "kernel" => nodectl_kernel::plan(fields),
        "train" => nodectl_train::plan(fields),
        "integrate" => nodectl_azint::plan(fields),
        other => {
            let fault = Fault::new(kind.span, format!("there is no kind of job `{other}`"));
            Err(fault.suggest(other, &KINDS))
        }
    }
}
