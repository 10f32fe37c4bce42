//! Where the secret comes from: `--secret`, `--secret-file` (or the setting), `NODECTL_SECRET`, the
//! one that an earlier `join` made or was given here, a prompt on a terminal, or a new one. It is
//! never printed unless it was made here.

use super::exit::CliError;
use nodectl_app as app;
use nodectl_app::settings::Settings;
use nodectl_ports::say::tell;
use std::{
    ffi::OsString,
    fs,
    io::{self, IsTerminal, Read, Write},
    os::{
        fd::AsFd,
        unix::{
            ffi::OsStringExt,
            fs::{OpenOptionsExt, PermissionsExt},
        },
    },
    path::{Path, PathBuf},
};
use zeroize::Zeroizing;

/// The file of a secret that comes through standard input.
pub const STDIN: &str = "-";
/// Where a process's open files are.
pub const OWN_DESCRIPTORS: &str = "/proc/self/fd";
/// More is no secret but a mistake in the file's name.
const MAX_BYTES: u64 = 4096;

/// The secret, and what may be said about it.
pub struct ChosenSecret {
    pub text: Zeroizing<String>,
    pub source: SecretSource,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SecretSource {
    /// `--secret` or the prompt: nobody can be sure to have it at hand at the next start.
    Typed,
    /// `NODECTL_SECRET`, or another process of this program's.
    Given,
    File(PathBuf),
    /// Made now, and kept in this file.
    Generated(PathBuf),
    /// The cluster's since it was changed, which the node remembers.
    Changed,
    /// Made or brought here earlier, and kept in this file.
    Kept(PathBuf),
}

/// Finds the secret; generates one if there is none, and keeps it in the data directory for the
/// next start.
pub fn resolve(
    flag: Option<Zeroizing<String>>,
    variable: Option<Zeroizing<String>>,
    settings: &Settings,
) -> Result<ChosenSecret, CliError> {
    if let Some(secret) = known(flag, variable, settings)? {
        return Ok(secret);
    }
    let elsewhere = Elsewhere::find(settings)?;
    let question = match elsewhere {
        Some(_) => "The cluster's secret: ",
        None => "The cluster's secret (empty: make a new one): ",
    };
    if let Some(text) = prompt(question)? {
        return newest(settings, checked(settings, text, SecretSource::Typed)?);
    }
    if let Some(elsewhere) = elsewhere {
        return Err(elsewhere.missing(settings));
    }
    let (text, path) = (app::generate_secret(), kept(settings));
    keep(&path, &text)?;
    Ok(ChosenSecret {
        text,
        source: SecretSource::Generated(path),
    })
}

/// Where the secret was of the cluster that a data directory's node was a member of, if it was not
/// kept there: whoever leaves it out the next time has forgotten it, and wants no new cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Elsewhere {
    File(PathBuf),
    /// In `NODECTL_SECRET`.
    Variable,
}

impl Elsewhere {
    fn path(settings: &Settings) -> PathBuf {
        settings.node.data_dir.join("secret-elsewhere")
    }

    fn find(settings: &Settings) -> Result<Option<Self>, CliError> {
        let path = Self::path(settings);
        match fs::read(&path) {
            Ok(name) if name.is_empty() => Ok(Some(Self::Variable)),
            Ok(name) => Ok(Some(Self::File(OsString::from_vec(name).into()))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(source) => Err(CliError::file("reading", &path, source)),
        }
    }

    fn note(source: &SecretSource, settings: &Settings) -> Result<(), CliError> {
        let name = match source {
            SecretSource::File(path) => {
                let whole = std::path::absolute(path);
                whole.unwrap_or_else(|_| path.clone()).into_os_string()
            }
            // The node in the background is given it by the command that was named the file.
            SecretSource::Given if !Self::path(settings).exists() => OsString::new(),
            SecretSource::Given
            | SecretSource::Typed
            | SecretSource::Generated(_)
            | SecretSource::Changed
            | SecretSource::Kept(_) => return Ok(()),
        };
        let path = Self::path(settings);
        fs::write(&path, name.into_vec()).map_err(|source| CliError::file("writing", &path, source))
    }

    fn missing(&self, settings: &Settings) -> CliError {
        let (place, again) = match self {
            Self::File(path) => (
                format!("in {}", path.display()),
                format!("--secret-file {}", path.display()),
            ),
            Self::Variable => (
                "in the environment (NODECTL_SECRET)".into(),
                "set it again".into(),
            ),
        };
        CliError::Usage(format!(
            "the node of {} is a member of a cluster whose secret was {place}, and no secret was given\n\
             hint: {again}; for a new cluster, name another --data-dir, or remove {}",
            settings.node.data_dir.display(),
            Self::path(settings).display()
        ))
    }
}

/// The secret of this machine, to be judged, shown or replaced: one that is easy to guess, too.
pub fn of_this_machine(
    variable: Option<Zeroizing<String>>,
    settings: &Settings,
) -> Result<Option<ChosenSecret>, CliError> {
    let mut tolerant = settings.clone();
    tolerant.cluster.weak_secret = true;
    known(None, variable, &tolerant)
}

/// Finds the secret where it can be had without asking anybody; None where one would have to be
/// made.
fn known(
    flag: Option<Zeroizing<String>>,
    variable: Option<Zeroizing<String>>,
    settings: &Settings,
) -> Result<Option<ChosenSecret>, CliError> {
    let secret = if let Some(text) = flag {
        checked(settings, text, SecretSource::Typed)?
    } else if let Some(path) = &settings.cluster.secret_file {
        // A node in the background, or one that comes back, gets it through a pipe: no file that
        // could be named to anyone.
        let piped = [STDIN, "/dev/stdin"]
            .map(Path::new)
            .contains(&path.as_path())
            || path.starts_with(OWN_DESCRIPTORS);
        checked(
            settings,
            read(path)?,
            if piped {
                SecretSource::Given
            } else {
                SecretSource::File(path.clone())
            },
        )?
    } else if let Some(text) = variable {
        checked(settings, text, SecretSource::Given)?
    } else if kept(settings).exists() {
        let path = kept(settings);
        checked(settings, read(&path)?, SecretSource::Kept(path))?
    } else {
        let failed =
            |source| CliError::file("looking for the secret in", &settings.node.data_dir, source);
        let changed = app::changed_secret(settings).map_err(failed)?;
        return Ok(changed.map(|text| ChosenSecret {
            text,
            source: SecretSource::Changed,
        }));
    };
    newest(settings, secret).map(Some)
}

/// A new secret of the user's own.
pub fn of_file(path: &Path, settings: &Settings) -> Result<Zeroizing<String>, CliError> {
    let text = checked(settings, read(path)?, SecretSource::File(path.into()))?.text;
    Ok(text)
}

/// Exchanges an invitation for the secret, and keeps that.
pub async fn redeem(code: &str, settings: &Settings) -> Result<ChosenSecret, CliError> {
    let path = kept(settings);
    if path.exists() {
        let hint = "hint: `nodectl join` without --invite uses it; remove that file if it is of another cluster";
        return Err(CliError::Usage(format!(
            "a secret is kept in {} already\n{hint}",
            path.display()
        )));
    }
    let code = match code {
        "" => prompt("The invitation's code: ")?.ok_or_else(|| {
            CliError::Usage(
                "no code of an invitation, and no terminal to ask at\nhint: --invite CODE".into(),
            )
        })?,
        code => Zeroizing::new(code.to_string()),
    };
    let text = app::redeem(settings, &code).await.map_err(CliError::Node)?;
    keep(&path, &text)?;
    Ok(ChosenSecret {
        text,
        source: SecretSource::Kept(path),
    })
}

/// Notes where the secret is that a node has joined with, if it has to be given again.
pub fn note_place(secret: &ChosenSecret, settings: &Settings) -> Result<(), CliError> {
    Elsewhere::note(&secret.source, settings)
}

/// Keeps a secret that was typed, so that the next `join` needs none. One that is kept already and
/// differs is set aside, in the file that this returns: it may be the only copy of another
/// cluster's.
pub fn remember(secret: &ChosenSecret, settings: &Settings) -> Result<Option<PathBuf>, CliError> {
    if secret.source != SecretSource::Typed {
        return Ok(None);
    }
    let path = kept(settings);
    let mut aside = None;
    if path.exists() {
        if read(&path)?.trim() == secret.text.trim() {
            return Ok(None);
        }
        let before = path.with_extension("before");
        fs::rename(&path, &before)
            .map_err(|source| CliError::file("setting aside", &path, source))?;
        aside = Some(before);
    }
    keep(&path, &secret.text)?;
    Ok(aside)
}

/// Made here, typed here, or brought by an invitation.
fn kept(settings: &Settings) -> PathBuf {
    settings.node.data_dir.join("secret")
}

/// What the cluster has in its place, if that was changed while this data directory's node was a
/// member.
fn newest(settings: &Settings, secret: ChosenSecret) -> Result<ChosenSecret, CliError> {
    let failed = |source| {
        CliError::file(
            "looking for a newer secret in",
            &settings.node.data_dir,
            source,
        )
    };
    let Some(text) = app::replaced_secret(settings, &secret.text).map_err(failed)? else {
        return Ok(secret);
    };
    match &secret.source {
        SecretSource::Kept(path) | SecretSource::Generated(path) => {
            fs::remove_file(path).map_err(|source| CliError::file("replacing", path, source))?;
            keep(path, &text)?;
        }
        SecretSource::File(path) => {
            tell!(
                "the secret in {} was changed: the new one is used; `nodectl secret show` prints it",
                path.display()
            );
        }
        SecretSource::Typed | SecretSource::Given | SecretSource::Changed => {
            tell!("that secret was changed: the new one is used; `nodectl secret show` prints it")
        }
    }
    Ok(ChosenSecret { text, ..secret })
}

fn checked(
    settings: &Settings,
    text: Zeroizing<String>,
    source: SecretSource,
) -> Result<ChosenSecret, CliError> {
    let trimmed = Zeroizing::new(text.trim().to_string());
    if trimmed.is_empty() {
        let hint = "hint: give a secret, or none at all to have one generated";
        return Err(CliError::Usage(format!("the secret is empty\n{hint}")));
    }
    if let Some(mistake) = app::secret_mistake(&trimmed) {
        return Err(CliError::Usage(mistake));
    }
    if is_command(&trimmed) {
        return Err(CliError::Usage(
            "this is a command, not a secret\n\
             hint: type the command at the shell; here, paste only the secret, such as the five groups that `nodectl join` made"
                .into(),
        ));
    }
    if let Some(why) = app::secret_weakness(&trimmed) {
        if !settings.cluster.weak_secret {
            return Err(CliError::Usage(format!(
                "the secret is easy to guess: {why}\nhint: anybody on the network can find it by trying; `nodectl join` \
                 without a secret makes a strong one; --weak-secret (cluster.weak_secret) uses this one"
            )));
        }
        tell!("warning: the secret is easy to guess: {why}");
        tell!("hint: `nodectl join` without a secret generates a strong one");
    }
    Ok(ChosenSecret {
        text: trimmed,
        source,
    })
}

/// Whether it looks like a line for a shell that was pasted at the wrong place: what the node on
/// another machine said is to be typed, for example.
fn is_command(text: &str) -> bool {
    let mut words = text
        .split_whitespace()
        .skip_while(|word| ["$", "#", "sudo"].contains(word));
    let first = words.next().unwrap_or_default();
    let is_ours = first.rsplit('/').next() == Some("nodectl");
    words.next().is_some() && (is_ours || text.contains(" --"))
}

/// Whether systemd has put the file there for this service alone: others find nothing at that path,
/// and the rights of its group are a mask.
pub fn is_credential(path: &Path) -> bool {
    std::env::var_os("CREDENTIALS_DIRECTORY").is_some_and(|directory| path.starts_with(directory))
}

fn read(path: &Path) -> Result<Zeroizing<String>, CliError> {
    let failed = |source| CliError::file("reading the secret in", path, source);
    let file = match path == Path::new(STDIN) {
        true => io::stdin().as_fd().try_clone_to_owned().map(fs::File::from),
        false => fs::File::open(path),
    };
    let file = file.map_err(failed)?;
    let metadata = file.metadata().map_err(failed)?;
    let is_open = metadata.is_file() && metadata.permissions().mode() & 0o077 != 0;
    if is_open && !is_credential(path) {
        tell!(
            "warning: others may read {}; hint: chmod 600 {}",
            path.display(),
            path.display()
        );
    }
    let mut text = Zeroizing::new(String::new());
    let read = file.take(MAX_BYTES + 1).read_to_string(&mut text);
    read.map_err(|error| match error.kind() {
        io::ErrorKind::InvalidData => CliError::Usage(format!(
            "{} holds other bytes than text (UTF-8): that is no secret\nhint: `nodectl join` without a secret makes one",
            path.display()
        )),
        _ => failed(error),
    })?;
    if text.len() as u64 > MAX_BYTES {
        let problem = format!(
            "{} is larger than {MAX_BYTES} bytes: that is no secret",
            path.display()
        );
        return Err(CliError::Usage(problem));
    }
    Ok(text)
}

/// Asks on a terminal. None without one, or if the user wants a new secret.
fn prompt(question: &str) -> Result<Option<Zeroizing<String>>, CliError> {
    if !io::stdin().is_terminal() || !io::stderr().is_terminal() {
        return Ok(None);
    }
    let answer = rpassword::prompt_password(question);
    let text = answer.map_err(|source| CliError::File {
        doing: "reading the secret from the terminal".into(),
        source,
    })?;
    Ok((!text.trim().is_empty()).then(|| Zeroizing::new(text)))
}

fn keep(path: &Path, text: &str) -> Result<(), CliError> {
    let failed = |source| CliError::file("keeping the new secret in", path, source);
    if let Some(directory) = path.parent() {
        // One that is there stays as it is: it may be anybody's.
        app::make_private_dir(directory).map_err(failed)?;
    }
    let mut file = fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)
        .map_err(failed)?;
    file.write_all(text.as_bytes())
        .and_then(|()| file.sync_all())
        .map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use nodectl_app::settings::{Environment, Flags};

    fn settings(data_dir: &Path, secret_file: Option<&Path>) -> Settings {
        let text = |path: &Path| path.to_str().expect("a UTF-8 path").to_string();
        let flags = Flags::default()
            .set("node.name", Some("n"))
            .set("node.data_dir", Some(text(data_dir)))
            .set("cluster.weak_secret", Some(true))
            .set("cluster.secret_file", secret_file.map(text));
        Settings::load_from(&Environment::default(), &flags)
            .unwrap()
            .0
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
        assert_eq!(
            (resolved.text.as_str(), resolved.source),
            ("of the flag, long enough", SecretSource::Typed)
        );
        let resolved = resolve(None, given("of the variable"), &with_file).unwrap();
        assert_eq!(
            (resolved.text.as_str(), resolved.source),
            ("of the file, long enough", SecretSource::File(file))
        );
        assert_eq!(
            resolve(None, given("of the variable"), &without)
                .unwrap()
                .text
                .as_str(),
            "of the variable"
        );
        if io::stdin().is_terminal() && io::stderr().is_terminal() {
            eprintln!("SKIPPED: a terminal is attached, so that a secret would be asked for");
            return;
        }
        let made = resolve(None, None, &without).unwrap();
        let kept = directory.path().join("secret");
        assert_eq!(made.source, SecretSource::Generated(kept.clone()));
        assert_eq!(
            fs::metadata(&kept).unwrap().permissions().mode() & 0o777,
            0o600
        );
        assert_eq!(
            resolve(None, None, &without).unwrap().text,
            made.text,
            "the next start has the same"
        );
    }

    #[test]
    fn who_forgets_a_secret_that_was_elsewhere_gets_no_new_cluster() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("s");
        fs::write(&file, "of the file, long enough\n").unwrap();
        let with_file = settings(directory.path(), Some(&file));
        let without = settings(directory.path(), None);
        let resolved = resolve(None, None, &with_file).unwrap();
        note_place(&resolved, &with_file).unwrap();
        // The node in the background knows less than the command that started it.
        let given = resolve(None, given("of the variable"), &without).unwrap();
        note_place(&given, &without).unwrap();
        let elsewhere = Elsewhere::find(&without).unwrap();
        assert_eq!(elsewhere, Some(Elsewhere::File(file.clone())));
        if !(io::stdin().is_terminal() && io::stderr().is_terminal()) {
            let refused = resolve(None, None, &without).err().expect("none was given");
            let again = format!("--secret-file {}", file.display());
            assert!(refused.to_string().contains(&again), "{refused}");
        }
        fs::remove_file(Elsewhere::path(&without)).unwrap();
        note_place(&given, &without).unwrap();
        assert_eq!(
            Elsewhere::find(&without).unwrap(),
            Some(Elsewhere::Variable)
        );
        fs::remove_file(Elsewhere::path(&without)).unwrap();
        assert_eq!(Elsewhere::find(&without).unwrap(), None);
    }

    #[test]
    fn what_was_typed_is_remembered_and_what_was_kept_before_is_set_aside() {
        let directory = tempfile::tempdir().unwrap();
        let settings = settings(directory.path(), None);
        let kept = || fs::read_to_string(directory.path().join("secret")).ok();
        let resolved = resolve(None, given("of the variable"), &settings).unwrap();
        assert_eq!(remember(&resolved, &settings).unwrap(), None);
        assert_eq!(kept(), None, "a variable is set again at the next start");
        for typed in ["the first cluster's", "the first cluster's", "the second's"] {
            let resolved = resolve(given(typed), None, &settings).unwrap();
            let aside = remember(&resolved, &settings).unwrap();
            assert_eq!(kept().as_deref(), Some(typed));
            let again = resolve(None, None, &settings).unwrap();
            assert_eq!(again.text.as_str(), typed);
            let before = directory.path().join("secret.before");
            assert_eq!(aside, (typed == "the second's").then_some(before));
        }
        let before = fs::read_to_string(directory.path().join("secret.before")).unwrap();
        assert_eq!(before, "the first cluster's");
    }

    #[test]
    fn a_secret_that_is_easy_to_guess_is_used_only_where_that_is_wanted() {
        let directory = tempfile::tempdir().unwrap();
        let mut settings = settings(directory.path(), None);
        assert!(resolve(given("123456"), None, &settings).is_ok());
        settings.cluster.weak_secret = false;
        let refused = resolve(given("123456"), None, &settings)
            .err()
            .expect("refused");
        assert!(
            refused.exit() == super::super::exit::Exit::Usage
                && !refused.to_string().contains("123456")
        );
        assert!(refused.to_string().contains("--weak-secret"), "{refused}");
        assert!(resolve(given("m3kpd-9xw2c-hjt7q-4nbrz-y8gve"), None, &settings).is_ok());
    }

    #[test]
    fn a_character_that_is_wrong_is_told_before_anything_starts() {
        let directory = tempfile::tempdir().unwrap();
        let settings = settings(directory.path(), None);
        let made = app::generate_secret();
        let wrong = if made.starts_with('2') { '3' } else { '2' };
        let mistyped = format!("{wrong}{}", &made[1..]);
        let refused = resolve(given(&mistyped), None, &settings).err();
        let refused = refused.expect("refused").to_string();
        assert!(
            refused.contains("a character is wrong or missing"),
            "{refused}"
        );
        assert!(resolve(given(&made), None, &settings).is_ok());
    }

    #[test]
    fn a_command_is_no_secret() {
        let directory = tempfile::tempdir().unwrap();
        let settings = settings(directory.path(), None);
        for command in [
            "nodectl join",
            "sudo ./nodectl join --detach",
            "$ /usr/local/bin/nodectl join --secret m3kpd-9xw2c-hjt7q-4nbrz-y8gve",
            "python3 -m nodectl.start --password 1234567890123456",
        ] {
            let refused = resolve(given(command), None, &settings).err();
            let refused = refused.unwrap_or_else(|| panic!("{command} is taken"));
            assert!(
                refused.to_string().contains("this is a command"),
                "{refused}"
            );
            assert!(!refused.to_string().contains("m3kpd"), "{refused}");
        }
        for secret in ["granite lantern, orbit walnut", "nodectl", "a--b c-d"] {
            assert!(resolve(given(secret), None, &settings).is_ok(), "{secret}");
        }
    }

    #[test]
    fn a_directory_that_is_there_keeps_its_mode() {
        let directory = tempfile::tempdir().unwrap();
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
        keep(&directory.path().join("secret"), "text").unwrap();
        keep(&directory.path().join("new/secret"), "text").unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(directory.path()), 0o755);
        assert_eq!(mode(&directory.path().join("new")), 0o700);
    }

    #[test]
    fn empty_missing_and_oversized_secrets_are_errors() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("s");
        let with_file = settings(directory.path(), Some(&file));
        let told =
            |result: Result<ChosenSecret, CliError>| result.err().expect("refused").to_string();
        assert!(told(resolve(None, None, &with_file)).contains("reading the secret in"));
        fs::write(&file, "x".repeat(5000)).unwrap();
        assert!(told(resolve(None, None, &with_file)).contains("larger than"));
        assert!(told(resolve(given("  "), None, &with_file)).contains("empty"));
        fs::write(&file, b"\xff\xfe").unwrap();
        assert!(told(resolve(None, None, &with_file)).contains("other bytes than text"));
    }
}
