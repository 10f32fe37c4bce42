//! The job file: TOML to planned jobs. Owns reading it, `[[job]]` and `after`; what the keys of a
//! job mean is its kind's business. Every error shows file, line, column and the offending text.
//!
//! | file | owns |
//! |---|---|
//! | `fault` | a problem at a place in the text |
//! | `error` | the same with file, line and column, rendered for people |
//! | `fields` | typed reading of TOML tables |
//! | `order` | `after`: unknown names, cycles, a good order |

mod error;
mod fault;
mod fields;
mod order;
#[cfg(test)]
mod tests;

use super::{PlannedJob, integrate, kernel, map, train};
pub use error::{Diagnostic, JobFileError};
pub(super) use fault::Fault;
pub(super) use fields::{Fields, Item, natural_number, strings, to_i64, type_name};
use nodectl_types::limits;
use std::{
    io::Read,
    ops::Range,
    path::{Path, PathBuf},
};
use toml::{
    Spanned,
    de::{DeTable, DeValue},
};

/// The largest job file; parameters beyond that go into a CSV or JSONL file beside it.
const MAX_BYTES: u64 = 16 << 20;

/// Reads a job file and everything that it refers to. The jobs come in an order in which they can
/// be submitted.
pub fn load(path: &Path) -> Result<Vec<PlannedJob>, JobFileError> {
    parse(&read(path)?, path)
}

/// What the shader of a file with one kernel job binds.
pub fn interface(path: &Path) -> Result<kernel::Interface, JobFileError> {
    let text = read(path)?;
    let found = table(&text).and_then(|root| {
        let context = Context::new(&text, path);
        kernel::interface(&Fields::new(&context, root.get_ref(), "a job", 0..0))
    });
    found.map_err(|fault| fault.in_file(path, &text))
}

fn read(path: &Path) -> Result<String, JobFileError> {
    let unreadable = |source| JobFileError::Unreadable {
        path: path.to_path_buf(),
        source,
    };
    let mut bytes = Vec::new();
    let file = std::fs::File::open(path).map_err(unreadable)?;
    file.take(MAX_BYTES + 1)
        .read_to_end(&mut bytes)
        .map_err(unreadable)?;
    if bytes.len() as u64 > MAX_BYTES {
        return Err(JobFileError::TooLarge {
            path: path.to_path_buf(),
            limit_bytes: MAX_BYTES,
        });
    }
    String::from_utf8(bytes).map_err(|error| {
        let offset = error.utf8_error().valid_up_to();
        let text = String::from_utf8_lossy(error.as_bytes()).into_owned();
        Fault::new(
            offset..offset + 1,
            "the file is not UTF-8 text from here on",
        )
        .in_file(path, &text)
    })
}

/// Files that take the place of a job's own datasets: `run --follow` gives them as they appear.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Following {
    pub files: Vec<PathBuf>,
    /// The directory below which they are.
    pub root: PathBuf,
}

/// A job file whose jobs are to integrate these files.
pub fn load_following(path: &Path, following: &Following) -> Result<Vec<PlannedJob>, JobFileError> {
    let text = read(path)?;
    plan(&text, path, Some(following)).map_err(|fault| fault.in_file(path, &text))
}

/// The same for the text of a file at `path`; what it refers to is looked for beside that.
pub fn parse(text: &str, path: &Path) -> Result<Vec<PlannedJob>, JobFileError> {
    plan(text, path, None).map_err(|fault| fault.in_file(path, text))
}

fn plan(text: &str, path: &Path, following: Option<&Following>) -> Result<Vec<PlannedJob>, Fault> {
    let context = Context {
        following,
        ..Context::new(text, path)
    };
    if integrate::config::is_one(text) {
        let jobs = integrate::config::plan(&context)?;
        jobs.iter()
            .try_for_each(|placed| accepted(placed, |_| None))?;
        return order::order(jobs);
    }
    let root = table(text)?;
    let Some((key, jobs)) = root.get_ref().get_key_value("job") else {
        let fields = Fields::new(&context, root.get_ref(), "a job", 0..0);
        return order::order(plan_job(&fields)?);
    };
    if let Some((other, _)) = root
        .get_ref()
        .iter()
        .find(|(other, _)| other.get_ref() != "job")
    {
        let fault = Fault::new(
            other.span(),
            format!(
                "`{}` stands outside of the `[[job]]` tables",
                other.get_ref()
            ),
        );
        return Err(fault.hint(
            "in a file with `[[job]]`, every key belongs to one of them: move it below its header",
        ));
    }
    let DeValue::Array(jobs) = jobs.get_ref() else {
        return Err(Fault::new(key.span(), "`job` is a list of tables").hint("write `[[job]]`"));
    };
    let mut planned = Vec::with_capacity(jobs.len());
    for job in jobs.iter() {
        let DeValue::Table(table) = job.get_ref() else {
            return Err(Fault::new(job.span(), "a job is a table").hint("write `[[job]]`"));
        };
        planned.extend(plan_job(&Fields::new(
            &context,
            table,
            "a job",
            job.span(),
        ))?);
    }
    if planned.is_empty() {
        return Err(Fault::new(key.span(), "the file has no job").hint("write `[[job]]`"));
    }
    order::order(planned)
}

fn table(text: &str) -> Result<Spanned<DeTable<'_>>, Fault> {
    DeTable::parse(text).map_err(|error| {
        let span = error.span().unwrap_or(text.len()..text.len());
        Fault::new(span, format!("this is not valid TOML: {}", error.message()))
    })
}

/// What the parts of planning know of the file.
pub(super) struct Context<'t> {
    pub(super) text: &'t str,
    /// The directory of the job file, to which its paths are relative.
    pub(super) base: std::path::PathBuf,
    /// The file's name without its ending: the name of a job that gives none.
    pub(super) stem: String,
    /// Files in place of a job's own datasets.
    pub(super) following: Option<&'t Following>,
}

impl<'t> Context<'t> {
    fn new(text: &'t str, path: &Path) -> Self {
        let parent = path
            .parent()
            .filter(|parent| !parent.as_os_str().is_empty())
            .unwrap_or(Path::new("."));
        let stem = path
            .file_stem()
            .map(|stem| stem.to_string_lossy().into_owned())
            .unwrap_or_default();
        Self {
            text,
            base: parent.to_path_buf(),
            stem,
            following: None,
        }
    }
}

/// A job and where its name and its `after` stand.
pub(super) struct PlacedJob {
    pub(super) job: PlannedJob,
    pub(super) name_span: Range<usize>,
    pub(super) after_spans: Vec<Range<usize>>,
}

/// The kinds of jobs.
const KINDS: [&str; 4] = ["map", "kernel", "train", "integrate"];

/// The job of a table, last of those that it needs. Each is one that nodes accept.
fn plan_job(fields: &Fields<'_, '_>) -> Result<Vec<PlacedJob>, Fault> {
    let jobs = plan_kind(fields)?;
    for placed in &jobs {
        accepted(placed, |key| fields.get(key).map(Spanned::span))?;
    }
    Ok(jobs)
}

/// Fails where nodes would refuse a job, at the key that they would name.
fn accepted(placed: &PlacedJob, span: impl Fn(&str) -> Option<Range<usize>>) -> Result<(), Fault> {
    let job = &placed.job;
    let place = |field: &str| {
        let keys = match field {
            "timeout_ms" => ["timeout", "timeout"],
            "params" => ["params", "files"],
            field => [field, field],
        };
        keys.into_iter()
            .find_map(&span)
            .unwrap_or(placed.name_span.clone())
    };
    if job.min_nodes > limits::MAX_MIN_NODES {
        let message = format!(
            "it would wait for {} nodes; at most {} are possible",
            job.min_nodes,
            limits::MAX_MIN_NODES
        );
        return Err(Fault::new(place("min_nodes"), message));
    }
    job.work
        .check(&job.params)
        .map_err(|error| Fault::new(place(error.field), error.problem))
}

fn plan_kind(fields: &Fields<'_, '_>) -> Result<Vec<PlacedJob>, Fault> {
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
        "kernel" => kernel::plan(fields),
        "train" => train::plan_job(fields).map(|job| vec![job]),
        "integrate" => integrate::plan(fields),
        other => {
            let fault = Fault::new(kind.span, format!("there is no kind `{other}` of job"));
            Err(fault.suggest(other, &KINDS))
        }
    }
}
