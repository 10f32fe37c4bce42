//! Flags as the top layer of the settings.

use super::{
    args::{Cli, Command},
    exit::CliError,
    place::{self, absolute},
    secret::STDIN,
};
use figment::value::Value;
use nodectl_app::settings::{Flags, Origin, Settings};
use std::path::Path;

/// The effective settings of this command.
pub fn settings(cli: &Cli) -> Result<(Settings, Vec<Origin>), CliError> {
    let mut flags = Flags::default();
    let mut named = cli.data_dir.as_deref();
    if let Some(Command::Join(join)) = &cli.command {
        // A node that begins there leaves the machine's service where it is.
        let directory = named.take().map(absolute).transpose()?;
        flags = flags
            .set("node.data_dir", directory)
            .set("node.name", join.name.clone())
            .set("node.cores", join.cores)
            .set("node.memory", join.memory.map(|bytes| format!("{bytes} B")))
            .set("node.gpus", join.gpus.as_deref().map(list))
            .set(
                "node.walltime",
                join.walltime
                    .map(|walltime| format!("{}ms", walltime.as_millis())),
            )
            .set("node.allow_root", join.allow_root.then_some(true))
            .set("network.port", join.port)
            .set(
                "cluster.peers",
                (!join.peers.is_empty()).then(|| Value::from(join.peers.clone())),
            )
            .set(
                "cluster.secret_file",
                join.secret_file.as_deref().map(secret_file).transpose()?,
            );
        for (key, value) in &join.labels {
            flags = flags.set(&format!("node.labels.{key}"), Some(value.clone()));
        }
    }
    let (file, weak_secret) = match &cli.command {
        Some(Command::Join(join)) => (None, join.weak_secret),
        Some(Command::Up(up)) => (up.secret_file.as_deref(), up.weak_secret),
        _ => (None, false),
    };
    flags = flags.set("cluster.weak_secret", weak_secret.then_some(true));
    if let Some(file) = file {
        flags = flags.set("cluster.secret_file", Some(secret_file(file)?));
    }
    place::settings(flags, named)
}

/// Where a secret is read from.
fn secret_file(path: &Path) -> Result<String, CliError> {
    match path == Path::new(STDIN) {
        true => Ok(STDIN.into()),
        false => absolute(path),
    }
}

/// Words with commas between them.
fn list(text: &str) -> Vec<String> {
    text.split(',')
        .map(str::trim)
        .filter(|word| !word.is_empty())
        .map(str::to_string)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[test]
    fn flags_of_join_become_settings_with_their_origin() {
        let line = "nodectl --data-dir /d join --name n --peer h:1 --peer i:2 --port 4000 --label rack=b \
                    --cores 1.5 --memory 2GiB --secret-file /s --gpus 0,GPU-abcd --walltime 1:00:00 --allow-root";
        let (settings, origins) = settings(&Cli::parse_from(line.split_whitespace())).unwrap();
        assert_eq!(
            (settings.node.name.as_str(), settings.node.data_dir.to_str()),
            ("n", Some("/d"))
        );
        assert_eq!(settings.cluster.peers, ["h:1", "i:2"]);
        assert_eq!(settings.network.port, 4000);
        assert_eq!(settings.node.labels["rack"], "b");
        assert_eq!(
            (settings.node.cores, settings.node.memory.unwrap().0),
            (Some(1.5), 2 << 30)
        );
        assert_eq!(settings.node.gpus, ["0", "GPU-abcd"]);
        assert_eq!(
            settings.node.walltime.map(|walltime| walltime.0.as_secs()),
            Some(3600)
        );
        assert_eq!(
            settings.cluster.secret_file.as_deref(),
            Some(std::path::Path::new("/s"))
        );
        assert!(settings.node.allow_root);
        assert!(
            origins
                .iter()
                .any(|origin| origin.key == "node.name" && origin.source == "flag")
        );
    }
}
