//! The program of a job with its arguments, environment and outputs; checks every placeholder in
//! them.

use crate::{Fault, Fields, Item, Upload, strings, type_name};
use nodectl_types::{
    ParamSpace,
    check::check_output,
    template::{self, TemplateError},
};
use std::collections::BTreeSet;
use toml::de::DeValue;

pub struct TaskCommand {
    /// The program and its arguments; empty only beside a worker.
    pub words: Vec<Item<String>>,
    pub env: Vec<(String, String)>,
    pub outputs: Vec<String>,
}

pub fn plan(
    fields: &Fields<'_, '_>,
    params: &ParamSpace,
    has_worker: bool,
) -> Result<TaskCommand, Fault> {
    let words = if has_worker {
        Vec::new()
    } else {
        words(fields)?
    };
    let env = env(fields)?;
    let outputs = fields.one_or_more("outputs")?;
    let mut known = PlaceholderNames::new(params);
    known.add(&template::BUILTINS);
    for item in words
        .iter()
        .chain(env.iter().map(|(_, value)| value))
        .chain(&outputs)
    {
        check_placeholders(fields, item, &known)?;
    }
    for output in &outputs {
        check_output(&output.value)
            .map_err(|error| Fault::new(output.span.clone(), error.problem))?;
    }
    Ok(TaskCommand {
        words,
        env: env
            .into_iter()
            .map(|(name, value)| (name, value.value))
            .collect(),
        outputs: outputs.into_iter().map(|output| output.value).collect(),
    })
}

/// The variables alone.
pub fn env_of(
    fields: &Fields<'_, '_>,
    params: &ParamSpace,
) -> Result<Vec<(String, String)>, Fault> {
    let env = env(fields)?;
    let mut known = PlaceholderNames::new(params);
    known.add(&template::BUILTINS);
    for (_, value) in &env {
        check_placeholders(fields, value, &known)?;
    }
    Ok(env
        .into_iter()
        .map(|(name, value)| (name, value.value))
        .collect())
}

/// A program with a `/` in its name that is not absolute must travel with the job.
pub fn check_program(program: &Item<String>, uploads: &[Upload]) -> Result<(), Fault> {
    let name = &program.value;
    if name.starts_with('/') || name.contains('{') {
        return Ok(());
    }
    let relative = name.trim_start_matches("./");
    let upload = uploads.iter().find(|upload| upload.path == relative);
    match upload {
        None if !name.contains('/') => Ok(()),
        None => {
            let fault = Fault::new(
                program.span.clone(),
                format!("the program `{name}` is not beside the job file"),
            );
            Err(fault
                .hint("add it to `source`, or name a program that every node has, e.g. `python3`"))
        }
        Some(_) if !name.contains('/') => {
            let fault = Fault::new(
                program.span.clone(),
                format!("`{name}` would be looked for on the nodes' PATH"),
            );
            Err(fault.hint(format!(
                "to run the file beside the job file, write `./{name}`"
            )))
        }
        Some(upload) if !upload.executable => {
            let fault = Fault::new(program.span.clone(), format!("`{name}` is not executable"));
            let interpreter = if relative.ends_with(".py") {
                "python3"
            } else {
                "sh"
            };
            Err(fault.hint(format!(
                "`chmod +x {relative}`, or write [\"{interpreter}\", \"{relative}\"]"
            )))
        }
        Some(_) => Ok(()),
    }
}

fn words(fields: &Fields<'_, '_>) -> Result<Vec<Item<String>>, Fault> {
    let Some(command) = fields.get("command") else {
        let fault = Fault::new(
            fields.span.clone(),
            "the job has no `command` and no `worker`",
        );
        return Err(
            fault.hint("e.g. command = [\"python3\", \"count.py\", \"{file}\"], or worker = \"count.py:Counter\"")
        );
    };
    if let DeValue::String(line) = command.get_ref() {
        let quoted: Vec<String> = line
            .split_whitespace()
            .map(|word| format!("{word:?}"))
            .collect();
        let fault = Fault::new(
            command.span(),
            "`command` is a list: the program and its arguments",
        );
        return Err(fault.hint(format!(
            "write [{}]; for a shell, [\"sh\", \"-c\", \"…\"]",
            quoted.join(", ")
        )));
    }
    let words = strings("command", command)?;
    if words.first().is_none_or(|program| program.value.is_empty()) {
        return Err(Fault::new(command.span(), "`command` names no program"));
    }
    no_nul(&words)?;
    Ok(words)
}

fn env(fields: &Fields<'_, '_>) -> Result<Vec<(String, Item<String>)>, Fault> {
    let Some(table) = fields.table("env", "[env]")? else {
        return Ok(Vec::new());
    };
    let mut env = Vec::new();
    for (key, value) in table.table {
        let name = key.get_ref();
        if name.is_empty() || name.contains(['=', '\0']) {
            return Err(Fault::new(
                key.span(),
                format!("`{name}` cannot be the name of an environment variable"),
            ));
        }
        let text = match value.get_ref() {
            DeValue::String(text) => text.to_string(),
            DeValue::Integer(number) => number.to_string(),
            DeValue::Boolean(truth) => truth.to_string(),
            DeValue::Float(number) => number.as_str().to_string(),
            other => {
                let message = format!("the variable `{name}` is text, not {}", type_name(other));
                return Err(Fault::new(value.span(), message).hint("put it in quotes"));
            }
        };
        env.push((
            name.to_string(),
            Item {
                value: text,
                span: value.span(),
            },
        ));
    }
    no_nul(env.iter().map(|(_, value)| value))?;
    Ok(env)
}

fn no_nul<'i>(items: impl IntoIterator<Item = &'i Item<String>>) -> Result<(), Fault> {
    match items.into_iter().find(|item| item.value.contains('\0')) {
        None => Ok(()),
        Some(item) => Err(Fault::new(
            item.span.clone(),
            "a program cannot be given text with a NUL character",
        )),
    }
}

/// The names that placeholders may have. There may be as many of either, so they are found and not
/// searched.
pub struct PlaceholderNames<'n> {
    pub names: Vec<&'n str>,
    set: BTreeSet<&'n str>,
}

impl<'n> PlaceholderNames<'n> {
    pub fn new(params: &'n ParamSpace) -> Self {
        let names = params.names();
        Self {
            set: names.iter().copied().collect(),
            names,
        }
    }

    fn add(&mut self, names: &[&'n str]) {
        self.names.extend(names);
        self.set.extend(names);
    }

    pub fn has(&self, name: &str) -> bool {
        template::source(name, |name| self.set.contains(name)).is_some()
    }
}

/// Fails on a placeholder that is none of `known`.
pub fn check_placeholders(
    fields: &Fields<'_, '_>,
    item: &Item<String>,
    known: &PlaceholderNames<'_>,
) -> Result<(), Fault> {
    let found = template::placeholders(&item.value).map_err(|error| {
        let length = match &error {
            TemplateError::BadName { text, .. } => text.len() + 2,
            _ => 1,
        };
        let span = item.within(fields.context, error.offset(), length);
        let message = match &error {
            TemplateError::BadName { text, .. } => format!("`{{{text}}}` is not a placeholder"),
            TemplateError::Unopened { .. } => "this `}` closes nothing".to_string(),
            _ => "this `{` is never closed".to_string(),
        };
        Fault::new(span, message).hint("a literal brace is written twice: `{{` and `}}`")
    })?;
    for placeholder in found {
        let name = &placeholder.name;
        if !known.has(name) {
            let span = item.within(fields.context, placeholder.offset, name.len() + 2);
            return Err(
                Fault::new(span, format!("the job has no parameter `{name}`"))
                    .suggest(name, &known.names),
            );
        }
    }
    Ok(())
}
