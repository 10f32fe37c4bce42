//! The jobs of a file: one table, or those of `[[job]]`.

use super::{Context, Fault, Fields, JobFileError, PlacedJob, PlannedJob, order::order};
use std::{fs::File, io::Read, ops::Range, path::Path};
use toml::{
    Spanned,
    de::{DeTable, DeValue},
};

/// The largest job file; parameters beyond that go into a CSV or JSONL file beside it.
pub const MAX_FILE_BYTES: u64 = 16 << 20;

/// What the table of a job becomes: that job, last of those that it needs.
pub type PlanTable = fn(&Fields<'_, '_>) -> Result<Vec<PlacedJob>, Fault>;

/// The text of a job file.
pub fn read(path: &Path) -> Result<String, JobFileError> {
    let unreadable = |source| JobFileError::Unreadable {
        path: path.to_path_buf(),
        source,
    };
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(unreadable)?;
    file.take(MAX_FILE_BYTES + 1)
        .read_to_end(&mut bytes)
        .map_err(unreadable)?;
    if bytes.len() as u64 > MAX_FILE_BYTES {
        return Err(JobFileError::TooLarge {
            path: path.to_path_buf(),
            limit_bytes: MAX_FILE_BYTES,
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

/// The jobs of a text, of one kind; what it refers to is looked for beside `path`.
pub fn parse(
    text: &str,
    path: &Path,
    plan_table: PlanTable,
) -> Result<Vec<PlannedJob>, JobFileError> {
    plan(&Context::new(text, path), plan_table).map_err(|fault| fault.in_file(path, text))
}

/// The jobs of a file, in an order in which they can be submitted. Each is one that nodes accept.
pub fn plan(context: &Context<'_>, plan_table: PlanTable) -> Result<Vec<PlannedJob>, Fault> {
    let root = table(context.text)?;
    let Some((key, jobs)) = root.get_ref().get_key_value("job") else {
        let fields = Fields::new(context, root.get_ref(), "a job", 0..0);
        return order(plan_job(&fields, plan_table)?);
    };
    if let Some((other, _)) = root
        .get_ref()
        .iter()
        .find(|(other, _)| other.get_ref() != "job")
    {
        let fault = Fault::new(
            other.span(),
            format!("`{}` is outside of the `[[job]]` tables", other.get_ref()),
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
        let fields = Fields::new(context, table, "a job", job.span());
        planned.extend(plan_job(&fields, plan_table)?);
    }
    if planned.is_empty() {
        return Err(Fault::new(key.span(), "the file has no job").hint("write `[[job]]`"));
    }
    order(planned)
}

/// The table of a whole file.
pub fn table(text: &str) -> Result<Spanned<DeTable<'_>>, Fault> {
    DeTable::parse(text).map_err(|error| {
        let span = error.span().unwrap_or(text.len()..text.len());
        Fault::new(span, format!("this is not valid TOML: {}", error.message()))
    })
}

/// The jobs that something else than tables came to, in an order in which they can be submitted.
/// Fails where nodes would refuse one.
pub fn in_order(jobs: Vec<PlacedJob>) -> Result<Vec<PlannedJob>, Fault> {
    jobs.iter()
        .try_for_each(|placed| accepted(placed, |_| None))?;
    order(jobs)
}

fn plan_job(fields: &Fields<'_, '_>, plan_table: PlanTable) -> Result<Vec<PlacedJob>, Fault> {
    let jobs = plan_table(fields)?;
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
    job.draft
        .check()
        .map_err(|error| Fault::new(place(error.field), error.problem))
}
