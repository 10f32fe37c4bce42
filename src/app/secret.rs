//! Secrets of a cluster, as the command line makes, redeems and judges them.

use super::{node::net_config, settings::Settings};
use nodectl_net as net;
use nodectl_net::{Identity, Secret};
use nodectl_store as store;
use std::io;
use zeroize::Zeroizing;

/// A new secret, strong and readable.
pub fn generate_secret() -> Zeroizing<String> {
    Zeroizing::new(Secret::generate().reveal().to_string())
}

/// The secret that has replaced this one, as far as the data directory knows.
pub fn replaced_secret(settings: &Settings, secret: &str) -> io::Result<Option<Zeroizing<String>>> {
    net::replacement(&settings.node.data_dir, &settings.cluster.name, secret)
}

/// The newest secret, if it was changed while this node was a member.
pub fn changed_secret(settings: &Settings) -> io::Result<Option<Zeroizing<String>>> {
    net::changed_secret(&settings.node.data_dir)
}

/// Exchanges an invitation for the secret, as the node that this data directory is.
pub async fn redeem(settings: &Settings, code: &str) -> anyhow::Result<Zeroizing<String>> {
    let store = store::open(&settings.node.data_dir)?;
    let identity = Identity::load_or_create(store.dir())?;
    Ok(net::redeem(
        &net_config(settings, &store),
        &identity,
        code,
        &settings.cluster.name,
    )
    .await?)
}

/// The power of two of guesses that a secret withstands.
pub fn secret_strength(secret: &str) -> u32 {
    Secret::strength(secret)
}

/// Why a text cannot be a secret: it is empty, or one that was made here with a mistake in it. The
/// message has a hint.
pub fn secret_mistake(text: &str) -> Option<String> {
    Secret::new(text).err().map(|error| error.to_string())
}

/// Why a secret is easy to guess, if it is.
pub fn secret_weakness(secret: &str) -> Option<String> {
    Secret::weakness(secret)
}
