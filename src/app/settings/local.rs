//! The settings file of whatever directory one stands in. It is anybody's: an archive's, or that of
//! somebody else who may write there. So it is read only if nobody else could have written it, as
//! ssh does with its own, and it may not say which cluster this machine belongs to, where its data
//! are, that it works for others, that they may replace its program, or that their tasks may do
//! more than others' do.

use super::SettingsError;
use figment::value::{Dict, Value};
use std::{
    fs, io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

/// What only the user's own files, the environment and flags may say.
const RESERVED: &[(&str, &[&str])] = &[
    ("api", &["group", "socket", "admins"]),
    ("cluster", &["name", "secret_file", "weak_secret", "peers"]),
    ("isolation", &["setuid", "hides_node"]),
    (
        "node",
        &[
            "data_dir",
            "takes_work",
            "policy",
            "allow_root",
            "upgrade_by_members",
        ],
    ),
];

/// Why the file is not to be trusted, if it is not.
pub(super) fn distrust(path: &Path) -> io::Result<Option<String>> {
    // The file itself, not what a link of somebody's leads to.
    let directory = path
        .parent()
        .filter(|parent| !parent.as_os_str().is_empty())
        .unwrap_or(Path::new("."));
    let (file, directory) = (fs::symlink_metadata(path)?, fs::metadata(directory)?);
    let owners = [0, rustix::process::geteuid().as_raw()];
    // Where the sticky bit is set, as in /tmp, others cannot put their file in the place of ours.
    let is_shared = directory.mode() & 0o022 != 0 && directory.mode() & 0o1000 == 0;
    let why = match () {
        () if !owners.contains(&file.uid()) => "it belongs to another user".to_string(),
        () if !file.is_file() => "it is no file".to_string(),
        () if file.mode() & 0o022 != 0 => "others may write it".to_string(),
        () if !owners.contains(&directory.uid()) => {
            "its directory belongs to another user".to_string()
        }
        () if is_shared => "others may write to its directory".to_string(),
        () => return Ok(None),
    };
    Ok(Some(why))
}

/// Refuses what the file may not say.
pub(super) fn check(path: &Path, values: &Dict) -> Result<(), SettingsError> {
    for (section, keys) in RESERVED {
        let Some(Value::Dict(_, table)) = values.get(*section) else {
            continue;
        };
        if let Some(key) = keys.iter().find(|key| table.contains_key(**key)) {
            return Err(SettingsError::BadValue {
                key: format!("{section}.{key}"),
                place: path.display().to_string(),
                problem: "a file of the current directory may not say that, since it may come from anybody\n\
                          hint: ~/.config/nodectl/nodectl.toml, the environment and flags may"
                    .into(),
            });
        }
    }
    Ok(())
}

/// Whether it is one of the user's own files, seen from its own directory.
pub(super) fn is_one_of(path: &Path, files: &[PathBuf]) -> bool {
    let Ok(this) = path.canonicalize() else {
        return false;
    };
    files
        .iter()
        .any(|file| file.canonicalize().is_ok_and(|file| file == this))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::{Environment, Settings};
    use std::os::unix::fs::{PermissionsExt, symlink};

    /// Where people read of it, and that of a section that is named whole every key is reserved.
    #[test]
    fn what_it_may_not_say_is_documented() {
        let settings = Settings::built_in(&Environment::default());
        let settings = serde_json::to_value(settings).unwrap();
        for text in [
            include_str!("../../../config/nodectl.toml"),
            include_str!("../../../docs/guide/operating.md"),
        ] {
            let (_, rest) = text
                .split_once("The file of the current directory")
                .expect("it is spoken of");
            let paragraph = rest.split("\n\n").next().unwrap_or_default();
            for (section, keys) in RESERVED {
                let mut all = settings[*section].as_object().unwrap().keys();
                let is_whole = all.all(|key| keys.contains(&key.as_str()));
                let names_whole = paragraph.contains(&format!("[{section}]"));
                assert!(
                    is_whole || !names_whole,
                    "not all of [{section}] is reserved"
                );
                let is_named = |key: &&str| paragraph.contains(&format!("{section}.{key}"));
                let missing: Vec<_> = keys.iter().filter(|key| !is_named(key)).collect();
                assert!(names_whole || missing.is_empty(), "{section}: {missing:?}");
            }
        }
    }

    #[test]
    fn what_others_could_have_written_is_not_trusted() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("nodectl.toml");
        fs::write(&path, "").unwrap();
        let mode = |path: &Path, mode| {
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap()
        };
        mode(&path, 0o644);
        assert_eq!(distrust(&path).unwrap(), None);
        mode(&path, 0o664);
        assert!(distrust(&path).unwrap().unwrap().contains("may write it"));
        mode(&path, 0o600);
        mode(dir.path(), 0o777);
        assert!(distrust(&path).unwrap().unwrap().contains("directory"));
        mode(dir.path(), 0o1777);
        assert_eq!(distrust(&path).unwrap(), None);
        mode(dir.path(), 0o700);
        let link = dir.path().join("link.toml");
        symlink(&path, &link).unwrap();
        assert!(distrust(&link).unwrap().unwrap().contains("no file"));
        assert!(distrust(&dir.path().join("missing")).is_err());
    }
}
