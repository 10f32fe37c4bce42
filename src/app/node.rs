//! A node inside this process: the seam between the command line and the wiring.

use super::settings::Settings;
use std::{path::PathBuf, process::ExitCode};
use zeroize::Zeroizing;

/// A node inside this process, without a network.
pub struct StartedNode {
    /// Where its local API answers.
    pub socket: PathBuf,
}

impl StartedNode {
    /// Stops it; returns when it is gone.
    pub async fn stop(self) {}
}

/// Starts a node that works alone. Returns when its API answers.
pub async fn start_solo(_settings: &Settings) -> anyhow::Result<StartedNode> {
    anyhow::bail!("this build has no node inside")
}

/// Runs a member of the cluster until it leaves: by the API, SIGTERM or SIGINT.
pub async fn run_node(_settings: Settings, _secret: Zeroizing<String>) -> anyhow::Result<()> {
    anyhow::bail!("this build has no node inside")
}

/// A new secret, strong and readable.
pub fn generate_secret() -> Zeroizing<String> {
    Zeroizing::new(format!("{:032x}", rand::random::<u128>()))
}

/// Why a secret is easy to guess, if it is.
pub fn secret_weakness(secret: &str) -> Option<String> {
    (secret.chars().count() < 12).then(|| "it has fewer than 12 characters".to_string())
}

/// The body of the hidden `nodectl supervise`.
pub fn supervise() -> ExitCode {
    ExitCode::FAILURE
}
