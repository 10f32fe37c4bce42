//! What a planned job needs of the nodes that are to run it. Reads the job's own scripts; asks
//! nobody.

use nodectl_jobfile::{PlannedJob, UploadSource};
use nodectl_types::{WorkerRole, WorkerSpec, isolation::is_apptainers, python::PythonEnvironment};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    io::{BufRead, BufReader, Read},
    path::Path,
};

/// Scripts that are longer are read no further.
const MAX_SCRIPT_BYTES: u64 = 1 << 20;
/// What a job may need; one that seems to need more is not looked into further.
const MOST: usize = 200;
const SHELLS: [&str; 4] = ["sh", "bash", "dash", "zsh"];

/// Something that a node has or lacks.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Requirement {
    /// In PATH, or at an absolute path.
    Program(String),
    /// What an environment is made with: a Python of this minor version, or uv, which fetches one.
    Python(String),
    /// A Python interpreter and a module or an installed package.
    Module {
        python: String,
        module: String,
    },
    Package {
        python: String,
        package: String,
    },
}

/// A need, and whether the job cannot do without.
pub type Requirements = BTreeMap<Requirement, bool>;

/// What the job's tasks need. Of a command inside a container, it is what runs the container.
pub fn of(job: &PlannedJob) -> Requirements {
    let mut needs = Requirements::new();
    let work = &job.draft.work;
    if let Some(image) = &work.isolation.image {
        let runner = if is_apptainers(image) {
            "apptainer"
        } else {
            "podman"
        };
        needs.insert(Requirement::Program(runner.into()), true);
        return needs;
    }
    if let Some(Ok(environment)) = PythonEnvironment::of(&work.env) {
        if environment.conda.is_none() {
            let version = environment.version.unwrap_or("3".into());
            let minor: Vec<&str> = version.splitn(3, '.').take(2).collect();
            needs.insert(Requirement::Python(minor.join(".")), true);
        }
        return needs;
    }
    match &work.worker {
        Some(WorkerSpec::Python(worker)) => {
            if let WorkerRole::Calls { class, .. } = &worker.role {
                let module = class
                    .rsplit_once(':')
                    .map_or(class.as_str(), |(path, _)| path);
                python(&worker.python, module, job, &mut needs);
            }
        }
        // A part of this program, or nothing.
        Some(WorkerSpec::Builtin(_) | WorkerSpec::Log) => {}
        None => {
            let of_kinds = work.kinds.iter().map(|kind| &kind.command);
            for words in std::iter::once(&work.command).chain(of_kinds) {
                command(words, job, &mut needs);
            }
        }
    }
    needs
}

fn command(words: &[String], job: &PlannedJob, needs: &mut Requirements) {
    let Some(program) = words.first().filter(|program| !program.contains('{')) else {
        return;
    };
    let name = program.rsplit('/').next().unwrap_or(program);
    let travels = program.contains('/') && !program.starts_with('/');
    match upload(job, program).filter(|_| travels) {
        Some(source) => interpreter(source, program, job, needs),
        None if is_python(name) => {
            let script = words[1..].iter().find(|word| !word.starts_with('-'));
            python(program, script.map_or("", String::as_str), job, needs);
        }
        None => {
            needs.insert(Requirement::Program(program.clone()), true);
            if let [_, flag, script, ..] = words
                && SHELLS.contains(&name)
                && flag == "-c"
            {
                script_programs(script, needs);
            }
        }
    }
}

/// What the first line of a script that travels names.
fn interpreter(source: &UploadSource, path: &str, job: &PlannedJob, needs: &mut Requirements) {
    let text = text_of(source);
    let Some(line) = text.lines().next().and_then(|line| line.strip_prefix("#!")) else {
        return;
    };
    let mut words = line.split_whitespace();
    let first = words.next().unwrap_or_default();
    let program = match first.rsplit('/').next() {
        Some("env") => words.find(|word| !word.starts_with('-')).unwrap_or(first),
        _ => first,
    };
    if is_python(program.rsplit('/').next().unwrap_or(program)) {
        python(program, path, job, needs);
    } else if !program.is_empty() {
        needs.insert(Requirement::Program(program.into()), true);
    }
}

fn is_python(name: &str) -> bool {
    name.strip_prefix("python")
        .is_some_and(|version| version.chars().all(|c| c.is_ascii_digit() || c == '.'))
}

/// Names that stand where commands do in a shell's script. A shell's language is not understood
/// here, so that these are guesses: nothing that a job cannot do without.
fn script_programs(script: &str, needs: &mut Requirements) {
    let script = script.replace("{{", "{").replace("}}", "}");
    for part in script.split(['\n', ';', '|', '&', '(', '`']) {
        let is_name = |word: &&str| {
            word.starts_with(|c: char| c.is_ascii_lowercase())
                && word
                    .chars()
                    .all(|c| c.is_ascii_alphanumeric() || "._-".contains(c))
        };
        let first = part.split_whitespace().next();
        if let Some(word) = first.filter(is_name)
            && needs.len() < MOST
        {
            needs
                .entry(Requirement::Program(word.into()))
                .or_insert(false);
        }
    }
}

/// An interpreter, what a script imports with the scripts beside it, and what `requirements.txt`
/// lists.
fn python(interpreter: &str, script: &str, job: &PlannedJob, needs: &mut Requirements) {
    needs.insert(Requirement::Program(interpreter.into()), true);
    let mut ahead = vec![script.trim_start_matches("./").to_string()];
    let mut seen = BTreeSet::new();
    while let Some(path) = ahead.pop() {
        let Some(source) = upload(job, &path) else {
            continue;
        };
        if !seen.insert(path.clone()) {
            continue;
        }
        for (module, is_sure) in imports(&text_of(source)) {
            let local = beside(job, &path, &module);
            if local.is_empty() && needs.len() < MOST {
                let python = interpreter.to_string();
                let sure = needs
                    .entry(Requirement::Module { python, module })
                    .or_insert(is_sure);
                *sure |= is_sure;
            }
            ahead.extend(local);
        }
    }
    let requirements = upload(job, "requirements.txt").map(text_of);
    for package in requirements.iter().flat_map(|text| packages(text)) {
        let python = interpreter.to_string();
        needs.insert(Requirement::Package { python, package }, true);
    }
}

/// The files that travel and are a module's.
fn beside(job: &PlannedJob, importer: &str, module: &str) -> Vec<String> {
    let directory = importer
        .rsplit_once('/')
        .map_or("", |(directory, _)| directory);
    let places = [
        format!("{directory}/{module}.py"),
        format!("{directory}/{module}/__init__.py"),
        format!("{module}.py"),
        format!("{module}/__init__.py"),
    ];
    let places = places.map(|place| place.trim_start_matches('/').to_string());
    let found: Vec<String> = places
        .into_iter()
        .filter(|place| upload(job, place).is_some())
        .collect();
    if !found.is_empty() {
        return found;
    }
    // A package without an `__init__.py`.
    let folders = [format!("{directory}/{module}/"), format!("{module}/")];
    let is_in = |path: &str| {
        folders
            .iter()
            .any(|folder| path.starts_with(folder.trim_start_matches('/')))
    };
    let in_folder = job.uploads.iter().map(|upload| &upload.path);
    in_folder
        .filter(|path| path.ends_with(".py") && is_in(path))
        .cloned()
        .collect()
}

fn upload<'j>(job: &'j PlannedJob, path: &str) -> Option<&'j UploadSource> {
    let path = path.trim_start_matches("./");
    let found = job.uploads.iter().find(|upload| upload.path == path);
    found.map(|upload| &upload.source)
}

fn text_of(source: &UploadSource) -> String {
    let mut bytes = Vec::new();
    match source {
        UploadSource::File(path) => bytes = read(path),
        UploadSource::Bytes(own) => bytes.extend_from_slice(own),
        UploadSource::Stored(..) => {}
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

fn read(path: &Path) -> Vec<u8> {
    let mut bytes = Vec::new();
    if let Ok(file) = fs::File::open(path) {
        let mut reader = BufReader::new(file.take(MAX_SCRIPT_BYTES));
        // What can be read of it will do.
        while reader
            .read_until(b'\n', &mut bytes)
            .is_ok_and(|count| count > 0)
        {}
    }
    bytes
}

/// The modules, by the first part of their names, that Python code imports; and whether it does so
/// at once, rather than in a function or an attempt.
fn imports(code: &str) -> BTreeMap<String, bool> {
    let mut found = BTreeMap::new();
    let mut quotes: Option<&str> = None;
    for line in code.lines() {
        let (was_quoted, is_sure) = (quotes.is_some(), !line.starts_with([' ', '\t']));
        for mark in ["\"\"\"", "'''"] {
            if line.matches(mark).count() % 2 == 1 && quotes.is_none_or(|open| open == mark) {
                quotes = if quotes.is_some() { None } else { Some(mark) };
            }
        }
        if was_quoted {
            continue;
        }
        let line = line.split('#').next().unwrap_or_default().trim();
        let names: Vec<&str> = if let Some(rest) = line.strip_prefix("import ") {
            rest.split(',').collect()
        } else if let Some((name, _)) = line
            .strip_prefix("from ")
            .and_then(|rest| rest.split_once(" import"))
        {
            vec![name]
        } else {
            continue;
        };
        for name in names {
            let first = name.split_whitespace().next().unwrap_or_default();
            let module = first.split('.').next().unwrap_or_default();
            let is_name = |c: char| c.is_alphanumeric() || c == '_';
            if !module.is_empty() && module.chars().all(is_name) {
                *found.entry(module.to_string()).or_insert(false) |= is_sure;
            }
        }
    }
    found
}

/// The packages that a list of requirements names.
fn packages(text: &str) -> Vec<String> {
    let name = |line: &str| {
        let line = line.split(['#', ';']).next().unwrap_or_default().trim();
        let is_part = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
        let end = line.find(|c| !is_part(c)).unwrap_or(line.len());
        let name = &line[..end];
        name.starts_with(|c: char| c.is_ascii_alphanumeric())
            .then(|| name.to_string())
    };
    text.lines().filter_map(name).take(MOST).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(files: &[(&str, &str)], text: &str) -> Vec<String> {
        let directory = tempfile::tempdir().unwrap();
        for (path, content) in files {
            let path = directory.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, content).unwrap();
            let executable = std::os::unix::fs::PermissionsExt::from_mode(0o755);
            fs::set_permissions(&path, executable).unwrap();
        }
        let jobs = nodectl_workloads::parse(text, &directory.path().join("job.toml"));
        let needs = of(&jobs.unwrap_or_else(|error| panic!("{error}"))[0]);
        let word = |(need, sure): (Requirement, bool)| {
            let mark = if sure { "" } else { "?" };
            match need {
                Requirement::Program(name) => format!("{mark}{name}"),
                Requirement::Python(version) => format!("{mark}Python {version}"),
                Requirement::Module { python, module } => format!("{mark}{python}:{module}"),
                Requirement::Package { python, package } => format!("{mark}{python}/{package}"),
            }
        };
        needs.into_iter().map(word).collect()
    }

    #[test]
    fn a_command_needs_its_program_and_what_its_script_seems_to_run() {
        assert_eq!(job(&[], "command = ['gawk', '{{print}}']"), ["gawk"]);
        let script = "command = ['sh', '-c', 'for f in *; do sort $f | uniq -c; done; X=1 gawk']";
        let needs = job(&[], script);
        for seen in ["sh", "?uniq", "?for", "?do"] {
            assert!(needs.contains(&seen.to_string()), "{seen}: {needs:?}");
        }
        let files = [("run.pl", "#!/usr/bin/env -S perl -w\n")];
        assert_eq!(job(&files, "command = ['./run.pl']"), ["perl"]);
        assert!(job(&[], "command = ['{p}']\nparams = { p = ['a', 'b'] }").is_empty());
    }

    #[test]
    fn python_needs_what_it_imports_but_not_what_travels() {
        let code = "import os, numpy as np\nfrom scipy.stats import norm  # import nothing\nimport own\n\
            '''\nimport words\n'''\ndef f():\n    import h5py\nfrom . import near\nfrom lib.deep import x\n";
        let files = [
            ("fit.py", code),
            ("own.py", "import pandas\n"),
            ("lib/deep.py", "import torch\n"),
            (
                "requirements.txt",
                "# these\nPyYAML>=6\n-r more.txt\ntqdm ; extra\n",
            ),
        ];
        let text = "command = ['python3.12', 'fit.py']\nsource = '.'";
        let expected = [
            "python3.12",
            "?python3.12:h5py",
            "python3.12:numpy",
            "python3.12:os",
            "python3.12:pandas",
            "python3.12:scipy",
            "python3.12:torch",
            "python3.12/PyYAML",
            "python3.12/tqdm",
        ];
        assert_eq!(job(&files, text), expected);
        let worker = "worker = 'own.py:Own'\npython = 'python3.11'";
        assert_eq!(job(&files, worker), ["python3.11", "python3.11:pandas"]);
    }

    #[test]
    fn an_environment_needs_its_python_and_no_module() {
        let files = [("fit.py", "import numpy\n")];
        let text = "command = ['python', 'fit.py']\npython = { version = '3.12.1' }";
        assert_eq!(job(&files, text), ["Python 3.12"]);
    }

    #[test]
    fn a_container_needs_what_runs_it() {
        let text = "command = ['gawk']\n[isolation]\nimage = 'docker.io/library/python:3.12'";
        assert_eq!(job(&[], text), ["podman"]);
    }
}
