//! `worker`, `python` and `init`: a Python class in place of a command.

use nodectl_jobfile::{Fault, Fields, Item, Upload, keys::command, to_i64, type_name};
use nodectl_types::{PythonWorker, WorkerRole, WorkerSpec, defaults, manifest::safe_path};
use serde_json::{Map, Value as Json};
use toml::{
    Spanned,
    de::{DeTable, DeValue},
};

/// What a job file says of its worker.
pub(super) struct WorkerKeys {
    /// The module's path, with the place in the job file where it stands.
    pub(super) module: Item<String>,
    class: String,
    pub(super) python: Item<String>,
    init: Json,
}

/// None for a job with a command.
pub(super) fn plan(fields: &Fields<'_, '_>) -> Result<Option<WorkerKeys>, Fault> {
    let Some(worker) = fields.string("worker")? else {
        // A table is the environment that commands run in, too.
        let is_of_worker = |key: &str| {
            key == "init" || !matches!(fields.get(key), Some(value) if value.get_ref().is_table())
        };
        let stray = ["python", "init"]
            .into_iter()
            .filter(|key| is_of_worker(key))
            .find_map(|key| Some((key, fields.get(key)?)));
        return match stray {
            None => Ok(None),
            Some((key, value)) => {
                let fault = Fault::new(
                    value.span(),
                    format!("`{key}` says how a `worker` starts, and the job has none"),
                );
                Err(fault.hint("e.g. worker = \"my_module.py:MyWorker\""))
            }
        };
    };
    if let Some(command) = fields.get("command") {
        let fault = Fault::new(
            command.span(),
            "a job has a `command` or a `worker`, not both",
        );
        return Err(fault.hint("the worker's class can start programs itself: subprocess.run([…])"));
    }
    let (module, class) = module_and_class(fields, &worker)?;
    let python = match fields.get("python") {
        Some(value) if value.get_ref().is_table() => None,
        _ => fields.string("python")?,
    };
    let python = python.unwrap_or(Item {
        value: defaults::PYTHON.into(),
        span: worker.span,
    });
    if python.value.is_empty() || python.value.contains('\0') {
        return Err(Fault::new(python.span, "`python` names no interpreter")
            .hint("e.g. python = \"python3.12\""));
    }
    Ok(Some(WorkerKeys {
        module,
        class,
        python,
        init: init(fields)?,
    }))
}

impl WorkerKeys {
    /// Checks that what it needs travels with the job.
    pub(super) fn check(&self, uploads: &[Upload]) -> Result<(), Fault> {
        let module = &self.module;
        if !uploads.iter().any(|upload| upload.path == module.value) {
            let fault = Fault::new(
                module.span.clone(),
                format!("`{}` is not beside the job file", module.value),
            );
            return Err(fault.hint(
                "the module travels with the job: name a file below the job file's directory",
            ));
        }
        let python = &self.python.value;
        if python.contains('/') && !python.starts_with(['/', '~']) {
            command::check_program(&self.python, uploads)?;
        }
        Ok(())
    }

    pub(super) fn into_spec(self) -> WorkerSpec {
        let class = format!("{}:{}", self.module.value, self.class);
        let role = WorkerRole::Calls {
            class,
            init: self.init.to_string(),
        };
        WorkerSpec::Python(PythonWorker {
            python: self.python.value,
            role,
        })
    }
}

/// The parts of `path/of/module.py:Class`, the path tidied.
fn module_and_class(
    fields: &Fields<'_, '_>,
    worker: &Item<String>,
) -> Result<(Item<String>, String), Fault> {
    let hint = "write the file and the class: worker = \"my_module.py:MyWorker\"";
    let Some((path, class)) = worker.value.rsplit_once(':') else {
        return Err(Fault::new(
            worker.span.clone(),
            format!("`{}` names no class", worker.value),
        )
        .hint(hint));
    };
    let is_name = |name: &str| {
        name.chars().all(|c| c.is_alphanumeric() || c == '_')
            && name.starts_with(|c: char| c.is_alphabetic() || c == '_')
    };
    if !is_name(class) {
        let span = worker.within(fields.context, path.len() + 1, class.len().max(1));
        return Err(Fault::new(span, format!("`{class}` is not the name of a class")).hint(hint));
    }
    let span = worker.within(fields.context, 0, path.len().max(1));
    let tidy = path.trim_start_matches("./");
    if !tidy.ends_with(".py") || !safe_path(tidy) {
        return Err(Fault::new(
            span,
            format!("`{path}` is not a Python file below the job file's directory"),
        )
        .hint(hint));
    }
    Ok((
        Item {
            value: tidy.to_string(),
            span,
        },
        class.to_string(),
    ))
}

/// `{ args = […], kwargs = {…} }`, or a table of keyword arguments.
fn init(fields: &Fields<'_, '_>) -> Result<Json, Fault> {
    let Some(table) = fields.table("init", "[init]")? else {
        return Ok(arguments(Vec::new(), Map::new()));
    };
    let of_both = |key: &str| key == "args" || key == "kwargs";
    if table.table.is_empty() || !table.table.keys().all(|key| of_both(key.get_ref())) {
        if let Some(args) = table
            .get("args")
            .filter(|args| matches!(args.get_ref(), DeValue::Array(_)))
        {
            let fault = Fault::new(args.span(), "`args` is beside keyword arguments");
            return Err(fault.hint("write init = { args = […], kwargs = { … } }"));
        }
        return Ok(arguments(Vec::new(), object(table.table)?));
    }
    let args = match table.get("args").map(Spanned::get_ref) {
        None => Vec::new(),
        Some(DeValue::Array(items)) => items.iter().map(json).collect::<Result<_, _>>()?,
        Some(other) => return Err(mistyped(&table, "args", "a list", other)),
    };
    let kwargs = match table.get("kwargs").map(Spanned::get_ref) {
        None => Map::new(),
        Some(DeValue::Table(items)) => object(items)?,
        Some(other) => return Err(mistyped(&table, "kwargs", "a table", other)),
    };
    Ok(arguments(args, kwargs))
}

fn arguments(args: Vec<Json>, kwargs: Map<String, Json>) -> Json {
    Json::Object(
        [
            ("args".into(), args.into()),
            ("kwargs".into(), kwargs.into()),
        ]
        .into_iter()
        .collect(),
    )
}

fn mistyped(table: &Fields<'_, '_>, key: &str, expected: &str, found: &DeValue<'_>) -> Fault {
    let span = table.get(key).map_or(table.span.clone(), Spanned::span);
    Fault::new(
        span,
        format!("`{key}` is {expected}, not {}", type_name(found)),
    )
}

fn object(table: &DeTable<'_>) -> Result<Map<String, Json>, Fault> {
    table
        .iter()
        .map(|(key, value)| Ok((key.get_ref().to_string(), json(value)?)))
        .collect()
}

fn json(value: &Spanned<DeValue<'_>>) -> Result<Json, Fault> {
    let unfit =
        |what: &str| Fault::new(value.span(), format!("{what} cannot be passed to a worker"));
    Ok(match value.get_ref() {
        DeValue::String(text) => text.to_string().into(),
        DeValue::Boolean(truth) => (*truth).into(),
        DeValue::Integer(number) => to_i64(number)
            .ok_or_else(|| unfit("a number of more than 64 bits"))?
            .into(),
        DeValue::Float(number) => {
            let number: Option<f64> = number.as_str().replace('_', "").parse().ok();
            let finite = number.and_then(serde_json::Number::from_f64);
            finite
                .ok_or_else(|| {
                    unfit("a number that is not finite")
                        .hint("write it as text: float(\"nan\") reads it")
                })?
                .into()
        }
        DeValue::Array(items) => items
            .iter()
            .map(json)
            .collect::<Result<Vec<_>, _>>()?
            .into(),
        DeValue::Table(items) => object(items)?.into(),
        DeValue::Datetime(_) => return Err(unfit("a date").hint("put it in quotes")),
    })
}
