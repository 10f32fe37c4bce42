//! Where the secret comes from: `--secret`, `--secret-file` (or the setting), `NODECTL_SECRET`, the one that an earlier
//! `join` generated here, a prompt on a terminal, or a new one. It is never printed unless it was made here.

use super::exit::CliError;
use crate::app::{self, settings::Settings};
use std::{
    fs,
    io::{self, IsTerminal, Read, Write},
    os::unix::fs::{OpenOptionsExt, PermissionsExt},
    path::{Path, PathBuf},
};
use zeroize::Zeroizing;

/// More is no secret but a mistake in the file's name.
const MAX_BYTES: u64 = 4096;

/// The secret, and what may be said about it.
pub struct Secret {
    pub text: Zeroizing<String>,
    pub source: Source,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// `--secret`, `NODECTL_SECRET` or the prompt.
    Given,
    File(PathBuf),
    /// Made by this node, now or earlier, and kept in this file.
    Generated(PathBuf),
}

/// Finds the secret; generates one if there is none, and keeps it in the data directory for the next start.
pub fn resolve(
    flag: Option<Zeroizing<String>>,
    variable: Option<Zeroizing<String>>,
    settings: &Settings,
) -> Result<Secret, CliError> {
    let kept = settings.node.data_dir.join("secret");
    if let Some(text) = flag {
        return checked(text, Source::Given);
    }
    if let Some(path) = &settings.cluster.secret_file {
        // A node in the background gets it through a pipe: no file that could be named to anyone.
        let piped = path == Path::new("/dev/stdin");
        return checked(read(path)?, if piped { Source::Given } else { Source::File(path.clone()) });
    }
    if let Some(text) = variable {
        return checked(text, Source::Given);
    }
    if kept.exists() {
        return checked(read(&kept)?, Source::Generated(kept));
    }
    if let Some(text) = prompt()? {
        return checked(text, Source::Given);
    }
    let text = app::generate_secret();
    keep(&kept, &text)?;
    Ok(Secret { text, source: Source::Generated(kept) })
}

fn checked(text: Zeroizing<String>, source: Source) -> Result<Secret, CliError> {
    let trimmed = Zeroizing::new(text.trim().to_string());
    if trimmed.is_empty() {
        let hint = "hint: give a secret, or none at all to have one generated";
        return Err(CliError::Usage(format!("the secret is empty\n{hint}")));
    }
    if let Some(why) = app::secret_weakness(&trimmed) {
        eprintln!("warning: the secret is easy to guess: {why}");
        eprintln!("hint: `nodectl join` without a secret generates a strong one");
    }
    Ok(Secret { text: trimmed, source })
}

fn read(path: &Path) -> Result<Zeroizing<String>, CliError> {
    let failed = |source| CliError::file("reading the secret in", path, source);
    let file = fs::File::open(path).map_err(failed)?;
    let metadata = file.metadata().map_err(failed)?;
    if metadata.is_file() && metadata.permissions().mode() & 0o077 != 0 {
        eprintln!("warning: others may read {}; hint: chmod 600 {}", path.display(), path.display());
    }
    let mut text = Zeroizing::new(String::new());
    file.take(MAX_BYTES + 1).read_to_string(&mut text).map_err(failed)?;
    if text.len() as u64 > MAX_BYTES {
        let problem = format!("{} is larger than {MAX_BYTES} bytes: that is no secret", path.display());
        return Err(CliError::Usage(problem));
    }
    Ok(text)
}

/// Asks on a terminal. None without one, or if the user wants a new secret.
fn prompt() -> Result<Option<Zeroizing<String>>, CliError> {
    if !io::stdin().is_terminal() || !io::stderr().is_terminal() {
        return Ok(None);
    }
    let answer = rpassword::prompt_password("The cluster's secret (empty: make a new one): ");
    let text =
        answer.map_err(|source| CliError::File { doing: "reading the secret from the terminal".into(), source })?;
    Ok((!text.trim().is_empty()).then(|| Zeroizing::new(text)))
}

fn keep(path: &Path, text: &str) -> Result<(), CliError> {
    let failed = |source| CliError::file("keeping the new secret in", path, source);
    if let Some(directory) = path.parent() {
        fs::create_dir_all(directory).map_err(failed)?;
        fs::set_permissions(directory, fs::Permissions::from_mode(0o700)).map_err(failed)?;
    }
    let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path).map_err(failed)?;
    file.write_all(text.as_bytes()).and_then(|()| file.sync_all()).map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::app::settings::{Environment, Flags};

    fn settings(data_dir: &Path, secret_file: Option<&Path>) -> Settings {
        let text = |path: &Path| path.to_str().expect("a UTF-8 path").to_string();
        let flags = Flags::default()
            .set("node.name", Some("n"))
            .set("node.data_dir", Some(text(data_dir)))
            .set("cluster.secret_file", secret_file.map(text));
        Settings::load_from(&Environment::default(), &flags).unwrap().0
    }

    fn given(text: &str) -> Option<Zeroizing<String>> {
        Some(Zeroizing::new(text.to_string()))
    }

    #[test]
    fn the_nearest_source_wins_and_a_generated_secret_is_kept() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("s");
        fs::write(&file, "of the file, long enough\n").unwrap();
        let with_file = settings(directory.path(), Some(&file));
        let without = settings(directory.path(), None);
        let resolved = resolve(given("of the flag, long enough"), given("v"), &with_file).unwrap();
        assert_eq!((resolved.text.as_str(), resolved.source), ("of the flag, long enough", Source::Given));
        let resolved = resolve(None, given("of the variable"), &with_file).unwrap();
        assert_eq!((resolved.text.as_str(), resolved.source), ("of the file, long enough", Source::File(file)));
        assert_eq!(resolve(None, given("of the variable"), &without).unwrap().text.as_str(), "of the variable");
        if io::stdin().is_terminal() && io::stderr().is_terminal() {
            eprintln!("SKIPPED: a terminal is attached, so that a secret would be asked for");
            return;
        }
        let made = resolve(None, None, &without).unwrap();
        let kept = directory.path().join("secret");
        assert_eq!(made.source, Source::Generated(kept.clone()));
        assert_eq!(fs::metadata(&kept).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(resolve(None, None, &without).unwrap().text, made.text, "the next start has the same");
    }

    #[test]
    fn empty_missing_and_oversized_secrets_are_errors() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("s");
        let with_file = settings(directory.path(), Some(&file));
        let told = |result: Result<Secret, CliError>| result.err().expect("refused").to_string();
        assert!(told(resolve(None, None, &with_file)).contains("reading the secret in"));
        fs::write(&file, "x".repeat(5000)).unwrap();
        assert!(told(resolve(None, None, &with_file)).contains("larger than"));
        assert!(told(resolve(given("  "), None, &with_file)).contains("empty"));
    }
}
