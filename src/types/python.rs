//! The Python environment that a job's tasks run in. A node makes it, once for all tasks and jobs
//! that want the same. It travels in the job's variables, as what parameter servers are told does.

use super::{
    manifest::safe_path,
    text::{is_unsafe, shown},
};
use serde::{Deserialize, Serialize};

/// The variable of a job that has a `PythonEnvironment`, as JSON. Tasks do not see it.
pub const VARIABLE: &str = "NODECTL_ENVIRONMENT";
/// How the error of a task begins whose environment could not be made.
pub const FAILED: &str = "environment failed";
/// The longest text of it, in bytes.
const MAX_BYTES: usize = 8 << 10;

/// Which Python, and what is installed for it. Paths are relative to the job's files.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PythonEnvironment {
    /// `3.12` or `3.12.1`; None for the `python3` of the node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// A list of packages as pip reads it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requirements: Option<String>,
    /// A `uv.lock`, with its `pyproject.toml` beside it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lock: Option<String>,
    /// A directory with a `pyproject.toml`, which is installed too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub project: Option<String>,
    /// An archive that conda-pack made: a whole environment with its Python.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conda: Option<String>,
    /// A directory of wheels, from which alone packages are taken.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wheels: Option<String>,
}

impl PythonEnvironment {
    /// The environment of a job with these variables, if it has one.
    pub fn of(variables: &[(String, String)]) -> Option<Result<Self, String>> {
        let (_, text) = variables.iter().find(|(name, _)| name == VARIABLE)?;
        Some(Self::parsed(text))
    }

    fn parsed(text: &str) -> Result<Self, String> {
        if text.len() > MAX_BYTES {
            return Err(format!(
                "it has {} bytes; at most {MAX_BYTES} are possible",
                text.len()
            ));
        }
        let json = text.replace("{{", "{").replace("}}", "}");
        let found: Self = serde_json::from_str(&json).map_err(|error| error.to_string())?;
        found.check().map(|()| found)
    }

    /// The variable, as a job has it: braces are placeholders there.
    pub fn variable(&self) -> (String, String) {
        let text = serde_json::to_string(self).expect("plain data always encodes");
        (VARIABLE.into(), text.replace('{', "{{").replace('}', "}}"))
    }

    /// Whether a node could make it. The error is a sentence.
    pub fn check(&self) -> Result<(), String> {
        let sources = self.sources();
        if let [(one, _), (other, _), ..] = sources[..] {
            return Err(format!("`{one}` and `{other}` exclude each other"));
        }
        if let Some(version) = &self.version
            && !is_version(version)
        {
            return Err(format!(
                "`{}` is no version of Python 3, such as 3.12",
                shown(version)
            ));
        }
        if self.conda.is_some() && (self.version.is_some() || self.wheels.is_some()) {
            return Err("an archive of conda has its own Python and packages: \
                        `version` and `wheels` go with the others"
                .into());
        }
        if self.wheels.is_some() && sources.is_empty() {
            return Err("`wheels` are where packages come from; \
                        which ones, `requirements`, `lock` or `project` say"
                .into());
        }
        if self.version.is_none() && sources.is_empty() {
            return Err(
                "it names no `version`, `requirements`, `lock`, `project` or `conda`".into(),
            );
        }
        let wheels = self.wheels.as_deref().map(|path| ("wheels", path));
        let bad = sources.into_iter().chain(wheels).find(|(key, path)| {
            let is_directory = matches!(*key, "project" | "wheels");
            let is_base = is_directory && *path == ".";
            path.contains(['{', '}']) || path.contains(is_unsafe) || !(is_base || safe_path(path))
        });
        match bad {
            None => Ok(()),
            Some((key, path)) => Err(format!(
                "`{}` cannot be the place of its `{key}`",
                shown(path)
            )),
        }
    }

    /// What says what is installed: the key, and its path.
    pub fn sources(&self) -> Vec<(&'static str, &str)> {
        let all = [
            ("requirements", &self.requirements),
            ("lock", &self.lock),
            ("project", &self.project),
            ("conda", &self.conda),
        ];
        all.into_iter()
            .filter_map(|(key, path)| Some((key, path.as_deref()?)))
            .collect()
    }
}

/// The other list that a line of one names: `-r FILE`, `-c FILE`.
pub fn named_list(line: &str) -> Option<&str> {
    let line = line.split(" #").next().unwrap_or_default().trim();
    let rest = ["--requirement", "--constraint", "-r", "-c"]
        .iter()
        .find_map(|option| line.strip_prefix(option))?;
    let name = rest.trim_start_matches(['=', ' ', '\t']);
    (!name.is_empty() && !name.contains("://")).then_some(name)
}

/// A name relative to a directory, without the `..` that can be taken away.
pub fn joined(directory: &str, name: &str) -> String {
    let mut parts: Vec<&str> = directory
        .split('/')
        .filter(|part| !part.is_empty())
        .collect();
    for part in name.split('/').filter(|part| !matches!(*part, "" | ".")) {
        if part == ".." && parts.last().is_some_and(|last| *last != "..") {
            parts.pop();
        } else {
            parts.push(part);
        }
    }
    parts.join("/")
}

/// `3.12` or `3.12.1`.
fn is_version(text: &str) -> bool {
    let parts: Vec<&str> = text.split('.').collect();
    let is_number = |part: &&str| {
        (1..=3).contains(&part.len()) && part.bytes().all(|byte| byte.is_ascii_digit())
    };
    (2..=3).contains(&parts.len()) && parts[0] == "3" && parts.iter().all(is_number)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(json: &str) -> Result<PythonEnvironment, String> {
        PythonEnvironment::of(&[(VARIABLE.into(), json.into())]).unwrap()
    }

    #[test]
    fn it_survives_the_variables_of_a_job() {
        let environment = PythonEnvironment {
            version: Some("3.12".into()),
            requirements: Some("sub/requirements.txt".into()),
            wheels: Some(".".into()),
            ..PythonEnvironment::default()
        };
        let (name, text) = environment.variable();
        assert!(text.starts_with("{{") && name == VARIABLE);
        assert_eq!(of(&text), Ok(environment));
        assert!(PythonEnvironment::of(&[]).is_none());
    }

    #[test]
    fn what_no_node_could_make_is_refused() {
        for (json, why) in [
            ("{}", "names no `version`"),
            (r#"{"version": "2.7"}"#, "no version of Python 3"),
            (r#"{"version": "3"}"#, "no version of Python 3"),
            (r#"{"version": "3.12; rm"}"#, "no version of Python 3"),
            (
                r#"{"requirements": "a", "conda": "b"}"#,
                "exclude each other",
            ),
            (r#"{"conda": "b", "version": "3.12"}"#, "its own Python"),
            (r#"{"wheels": "w", "version": "3.12"}"#, "which ones"),
            (r#"{"requirements": "../a"}"#, "cannot be the place"),
            (r#"{"requirements": "/etc/a"}"#, "cannot be the place"),
            (r#"{"requirements": "a\u001bb"}"#, "cannot be the place"),
            (r#"{"requirements": "."}"#, "cannot be the place"),
            (r#"{"requirement": "a"}"#, "unknown field"),
        ] {
            let error = of(json).unwrap_err();
            assert!(error.contains(why), "{json}: {error}");
        }
        assert!(of(&format!("{{\"requirements\": {:?}}}", "a".repeat(9000))).is_err());
        for json in [r#"{"project": "."}"#, r#"{"version": "3.13.0"}"#] {
            assert!(of(json).is_ok(), "{json}");
        }
    }

    #[test]
    fn a_line_names_another_list() {
        for (line, named) in [
            ("-r base.txt", Some("base.txt")),
            ("--requirement=sub/base.txt  # more", Some("sub/base.txt")),
            ("-c ../limits.txt", Some("../limits.txt")),
            ("-r https://host/base.txt", None),
            ("numpy==2.0", None),
            ("# -r base.txt", None),
        ] {
            assert_eq!(named_list(line), named, "{line}");
        }
        assert_eq!(joined("a/b", "../c.txt"), "a/c.txt");
        assert_eq!(joined("", "../c.txt"), "../c.txt");
        assert_eq!(joined(".", "pyproject.toml"), "./pyproject.toml");
    }
}
