//! Which node a command speaks to, and the settings that hold there.

use super::exit::CliError;
use nodectl_app::settings::{Flags, Origin, Settings};
use nodectl_http::socket_path;
use std::path::{Path, PathBuf};

/// The effective settings below some flags. Whoever names a directory means the node that is there.
pub fn settings(flags: Flags, named: Option<&Path>) -> Result<(Settings, Vec<Origin>), CliError> {
    let flags = flags.set("node.data_dir", named.map(absolute).transpose()?);
    let (mut settings, origins) = Settings::load(&flags)?;
    if named.is_some() {
        settings.api.socket = socket_path(&settings.node.data_dir);
    }
    Ok((settings, origins))
}

/// Where the node answers that a command speaks to: that of its own user, or of the directory that
/// was named; else the machine's service.
pub fn socket(settings: &Settings) -> PathBuf {
    let own = socket_path(&settings.node.data_dir);
    let service = &settings.api.socket;
    if !own.exists() && service.exists() {
        service.clone()
    } else {
        own
    }
}

/// A node in the background has another working directory in mind than the one it was started from.
pub fn absolute(path: &Path) -> Result<String, CliError> {
    let path =
        std::path::absolute(path).map_err(|source| CliError::file("resolving", path, source))?;
    let text = path.into_os_string().into_string();
    text.map_err(|path| CliError::Usage(format!("the path {} is not UTF-8", path.display())))
}
