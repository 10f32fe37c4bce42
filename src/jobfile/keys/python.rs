//! `python = { … }`: the Python environment that a job's tasks run in, and which files travel for
//! it.

use super::{
    command::TaskCommand,
    uploads::{self, tidy},
};
use crate::{Fault, Fields, Item, Upload, type_name};
use nodectl_formats::files;
use nodectl_types::python::{PythonEnvironment, VARIABLE, joined, named_list};
use std::{collections::BTreeMap, path::PathBuf, rc::Rc};
use toml::de::DeValue;

pub const KEYS: [&str; 6] = [
    "version",
    "requirements",
    "lock",
    "project",
    "conda",
    "wheels",
];
/// Lists that name each other, one in the other.
const MAX_LISTS: usize = 100;
const MAX_LIST_BYTES: u64 = 4 << 20;

/// Tells the tasks' nodes of the environment, if the job has one, and adds the files that it is
/// made of to those that travel.
pub fn plan(
    fields: &Fields<'_, '_>,
    command: &mut TaskCommand,
    uploads: Vec<Upload>,
) -> Result<Vec<Upload>, Fault> {
    let Some(value) = fields.get("python") else {
        return Ok(uploads);
    };
    match value.get_ref() {
        DeValue::Table(_) => {}
        // The interpreter of a worker.
        DeValue::String(_) if fields.get("worker").is_some() => return Ok(uploads),
        other => {
            let message = format!(
                "`python` is an interpreter of a `worker`, or a table, not {}",
                type_name(other)
            );
            let fault = Fault::new(value.span(), message);
            return Err(fault.hint(
                "e.g. python = { version = \"3.12\", requirements = \"requirements.txt\" }",
            ));
        }
    }
    let Some(table) = fields.table("python", "`python`")? else {
        return Ok(uploads);
    };
    table.check_keys(&KEYS)?;
    let of = |key| -> Result<Option<Item<String>>, Fault> {
        let found = table.string(key)?;
        Ok(found.map(|item| Item {
            value: tidied(&item.value),
            ..item
        }))
    };
    let (requirements, lock, project) = (of("requirements")?, of("lock")?, of("project")?);
    let (conda, wheels) = (of("conda")?, of("wheels")?);
    let text = |item: &Option<Item<String>>| item.as_ref().map(|item| item.value.clone());
    let environment = PythonEnvironment {
        version: table.string("version")?.map(|item| item.value),
        requirements: text(&requirements),
        lock: text(&lock),
        project: text(&project),
        conda: text(&conda),
        wheels: text(&wheels),
    };
    environment
        .check()
        .map_err(|problem| Fault::new(value.span(), format!("`python`: {problem}")))?;
    if command.env.iter().any(|(name, _)| name == VARIABLE) {
        let message = format!("`{VARIABLE}` is what `python` sets");
        return Err(Fault::new(value.span(), message));
    }
    command.env.push(environment.variable());
    let mut found: BTreeMap<String, Upload> = uploads
        .into_iter()
        .map(|upload| (upload.path.clone(), upload))
        .collect();
    let mut add = |more: Vec<Upload>| {
        found.extend(more.into_iter().map(|upload| (upload.path.clone(), upload)));
    };
    if let Some(item) = &requirements {
        add(lists(fields, item)?);
    }
    if let Some(item) = &lock {
        add(locked(fields, item)?);
    }
    if let Some(item) = &project {
        add(project_files(fields, item)?);
    }
    if let Some(item) = &conda {
        add(vec![uploads::file(fields.context, item)?]);
    }
    if let Some(item) = &wheels {
        add(wheel_files(fields, item)?);
    }
    Ok(found.into_values().collect())
}

/// The base is `.`, not nothing.
fn tidied(path: &str) -> String {
    match tidy(path) {
        "" => ".".into(),
        path => path.into(),
    }
}

/// A list of packages that the job file names, or a line of another list.
struct NamedList {
    item: Item<String>,
    /// The other list, with its text, in which the place of `item` is.
    of: Option<Rc<(PathBuf, String)>>,
}

impl NamedList {
    /// The fault, in the file that names this list.
    fn shown(&self, fault: Fault) -> Fault {
        match self.of.as_deref() {
            None => fault,
            Some((path, text)) => fault.elsewhere(path, text),
        }
    }

    /// The lists that this one names, whose text this is.
    fn names(&self, path: PathBuf, text: String) -> Vec<Self> {
        let (beside, _) = self.item.value.rsplit_once('/').unwrap_or_default();
        let list = Rc::new((path, text));
        let text = list.1.as_str();
        let named = text.lines().filter_map(named_list).map(|name| {
            let begin = name.as_ptr().addr() - text.as_ptr().addr();
            let item = Item {
                value: joined(beside, name),
                span: begin..begin + name.len(),
            };
            let of = Some(list.clone());
            Self { item, of }
        });
        named.collect()
    }
}

/// A list of packages, and those that it names.
fn lists(fields: &Fields<'_, '_>, first: &Item<String>) -> Result<Vec<Upload>, Fault> {
    let mut found: BTreeMap<String, Upload> = BTreeMap::new();
    let mut left = vec![NamedList {
        item: first.clone(),
        of: None,
    }];
    while let Some(list) = left.pop() {
        let item = &list.item;
        if found.contains_key(&item.value) {
            continue;
        }
        if found.len() == MAX_LISTS {
            let message = format!("more than {MAX_LISTS} lists name each other");
            return Err(Fault::new(first.span.clone(), message));
        }
        let upload = uploads::file(fields.context, item).map_err(|fault| list.shown(fault))?;
        let path = fields.context.base.join(&item.value);
        let text = files::text(&path, MAX_LIST_BYTES, "a list of packages").map_err(|why| {
            let message = format!("cannot read `{}`: {why}", item.value);
            list.shown(Fault::new(item.span.clone(), message))
        })?;
        left.extend(list.names(path, text));
        found.insert(upload.path.clone(), upload);
    }
    Ok(found.into_values().collect())
}

/// A lock of uv, and the project that it belongs to.
fn locked(fields: &Fields<'_, '_>, lock: &Item<String>) -> Result<Vec<Upload>, Fault> {
    if !(lock.value == "uv.lock" || lock.value.ends_with("/uv.lock")) {
        let fault = Fault::new(
            lock.span.clone(),
            format!("`{}` is not a `uv.lock`", lock.value),
        );
        return Err(fault.hint("`uv lock` makes one; lists of packages are `requirements`"));
    }
    let project = Item {
        value: format!("{}pyproject.toml", lock.value.trim_end_matches("uv.lock")),
        span: lock.span.clone(),
    };
    Ok(vec![
        uploads::file(fields.context, lock)?,
        uploads::file(fields.context, &project)?,
    ])
}

fn project_files(fields: &Fields<'_, '_>, project: &Item<String>) -> Result<Vec<Upload>, Fault> {
    let found = uploads::sources(fields.context, project)?;
    let wanted = joined(&project.value, "pyproject.toml");
    let wanted = wanted.trim_start_matches("./");
    if found.iter().any(|upload| upload.path == wanted) {
        return Ok(found);
    }
    let message = format!("`{}` has no `pyproject.toml`", project.value);
    Err(Fault::new(project.span.clone(), message)
        .hint("`project` is a directory with one; lists of packages are `requirements`"))
}

fn wheel_files(fields: &Fields<'_, '_>, wheels: &Item<String>) -> Result<Vec<Upload>, Fault> {
    let mut found = uploads::folder(fields.context, wheels)?;
    let beside = |path: &str| match path.rsplit_once('/') {
        Some((directory, _)) => directory == wheels.value,
        None => wheels.value == ".",
    };
    found.retain(|upload| upload.path.ends_with(".whl") && beside(&upload.path));
    if found.is_empty() {
        let message = format!("there are no wheels in `{}`", wheels.value);
        let hint = "`pip download -r requirements.txt -d DIRECTORY` fetches them";
        return Err(Fault::new(wheels.span.clone(), message).hint(hint));
    }
    Ok(found)
}
