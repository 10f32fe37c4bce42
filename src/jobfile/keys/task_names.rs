//! `task_names`: what the results of tasks are called.

use super::params::FILE;
use crate::{Fault, Fields};
use nodectl_types::{ParamSpace, task_names::check};

/// What a job with `files` has that says nothing of it, whichever gives every task a name of its
/// own.
const USUAL: [&str; 2] = ["{file.stem}", "{file.name}"];

/// The template of the names; None where tasks are called by their numbers.
pub fn plan(
    fields: &Fields<'_, '_>,
    params: &ParamSpace,
    repeat: u32,
) -> Result<Option<String>, Fault> {
    let Some(template) = fields.string("task_names")? else {
        let usual = USUAL
            .iter()
            .find(|template| check(template, params, repeat).is_ok());
        let has_files = params.names().contains(&FILE) && fields.get("files").is_some();
        return Ok(usual
            .filter(|_| has_files)
            .map(|template| (*template).to_string()));
    };
    match check(&template.value, params, repeat) {
        Ok(()) => Ok(Some(template.value)),
        Err(error) => Err(Fault::new(template.span, error.problem)),
    }
}
