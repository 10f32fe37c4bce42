//! `init`, `schema`, `config show`, `man`: what needs no node.

use super::{
    args::{InitArgs, SchemaOf},
    exit::{CliError, Exit, print, print_bytes},
    grammar::command,
    output,
};
use clap::Command;
use nodectl_app::settings::{Origin, SETTINGS_SCHEMA};
use nodectl_ports::say::tell;
use nodectl_workloads::templates::{self, Template};
use serde_json::json;
use std::{
    fs,
    io::{self, IsTerminal},
    path::Path,
};

/// Writes a template's files into the working directory. Nothing is written if one of them is there
/// already.
pub fn init(args: &InitArgs) -> Result<Exit, CliError> {
    let template = find(args.kind.as_deref())?;
    write_template(template, Path::new("."), args.force)?;
    let (job_file, _) = template.files[0];
    tell!("wrote {job_file}: {}", template.summary);
    tell!("run it: nodectl run {job_file}");
    Ok(Exit::Done)
}

/// The template of a kind, or what there is.
pub fn find(kind: Option<&str>) -> Result<&'static Template, CliError> {
    match kind {
        None => Ok(&templates::kinds()[0]),
        Some(kind) => templates::find(kind).ok_or_else(|| {
            let line =
                |template: &Template| format!("\n  {:<12} {}", template.kind, template.summary);
            let known: String = templates::kinds().iter().map(line).collect();
            CliError::Usage(format!(
                "there is no template `{kind}`\nhint: there are{known}"
            ))
        }),
    }
}

/// Writes the files of a template below a directory, over others only if `force` is set.
pub fn write_template(template: &Template, directory: &Path, force: bool) -> Result<(), CliError> {
    let taken = template
        .files
        .iter()
        .map(|(path, _)| directory.join(path))
        .find(|path| path.exists());
    if let Some(path) = taken.filter(|_| !force) {
        let hint = "hint: --force overwrites it";
        return Err(CliError::Usage(format!(
            "{} is there already\n{hint}",
            path.display()
        )));
    }
    for (path, bytes) in template.files {
        let path = directory.join(path);
        let parent = path.parent().unwrap_or(directory);
        let written = fs::create_dir_all(parent).and_then(|()| fs::write(&path, bytes));
        written.map_err(|source| CliError::file("writing", &path, source))?;
    }
    Ok(())
}

/// Every effective setting and where it comes from.
pub fn config_show(origins: &[Origin], json: bool) -> Result<Exit, CliError> {
    if json {
        let entry = |origin: &Origin| json!({"key": origin.key, "value": origin.value, "source": origin.source});
        print(&output::document(
            &origins.iter().map(entry).collect::<Vec<_>>(),
        ))?;
    } else {
        let row = |origin: &Origin| {
            let value = match (origin.key.as_str(), origin.value.as_str()) {
                ("node.cores" | "node.memory", "") | ("node.gpus", "[]") => "(all)".into(),
                (_, "") => "(not set)".into(),
                (_, value) => value.to_string(),
            };
            vec![origin.key.clone(), value, origin.source.clone()]
        };
        print(&output::columns(
            &["SETTING", "VALUE", "FROM"],
            origins.iter().map(row),
        ))?;
    }
    Ok(Exit::Done)
}

/// What editors want to know of a kind of file.
pub fn schema(of: SchemaOf) -> Result<Exit, CliError> {
    print(match of {
        SchemaOf::Job => nodectl_workloads::JOB_SCHEMA,
        SchemaOf::Config => SETTINGS_SCHEMA,
    })?;
    Ok(Exit::Done)
}

/// The page of `nodectl` on stdout, or every page as a file.
pub fn man(directory: Option<&Path>) -> Result<Exit, CliError> {
    let Some(directory) = directory else {
        print_bytes(&page(&command())?)?;
        if io::stdout().is_terminal() {
            tell!(
                "hint: `nodectl man | man -l -` shows it as a page; `nodectl man DIR` writes all pages"
            );
        }
        return Ok(Exit::Done);
    };
    fs::create_dir_all(directory).map_err(|source| CliError::file("making", directory, source))?;
    let mut top = command();
    top.build();
    let mut pages = vec![("nodectl".to_string(), top.clone())];
    while let Some((name, command)) = pages.pop() {
        let path = directory.join(format!("{name}.1"));
        fs::write(&path, page(&command)?)
            .map_err(|source| CliError::file("writing", &path, source))?;
        let shown = command
            .get_subcommands()
            .filter(|sub| sub.get_name() != "help" && !sub.is_hide_set());
        pages.extend(shown.map(|sub| (format!("{name}-{}", sub.get_name()), sub.clone())));
    }
    Ok(Exit::Done)
}

fn page(command: &Command) -> Result<Vec<u8>, CliError> {
    let mut page = Vec::new();
    let rendered = clap_mangen::Man::new(command.clone()).render(&mut page);
    rendered.map_err(|source: io::Error| CliError::File {
        doing: "rendering a manual page".into(),
        source,
    })?;
    Ok(page)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_template_is_written_once_and_again_only_by_force() {
        let directory = tempfile::tempdir().unwrap();
        let template = find(Some("quickstart")).unwrap();
        write_template(template, directory.path(), false).unwrap();
        for (path, bytes) in template.files {
            assert_eq!(&fs::read(directory.path().join(path)).unwrap(), bytes);
        }
        let error = write_template(template, directory.path(), false).unwrap_err();
        assert!(error.to_string().contains("--force") && error.exit() == Exit::Usage);
        write_template(template, directory.path(), true).unwrap();
        let error = find(Some("nothing")).err().expect("unknown");
        assert!(error.to_string().contains("quickstart"), "{error}");
    }

    #[test]
    fn every_command_has_a_page() {
        let directory = tempfile::tempdir().unwrap();
        man(Some(directory.path())).unwrap();
        for name in ["nodectl", "nodectl-join", "nodectl-config-show"] {
            let page = fs::read_to_string(directory.path().join(format!("{name}.1"))).unwrap();
            assert!(page.contains(".TH"), "{name}");
        }
        assert!(!directory.path().join("nodectl-solo.1").exists());
    }
}
