//! The cluster's secret and every key derived from it. The secret and the keys are wiped when dropped and never printed.
//!
//! Secret -> Argon2id (RFC 9106; salt: protocol label and cluster name) -> root key -> HKDF-SHA256 (RFC 5869) -> one key a
//! purpose. Argon2id is there because pnet has no MAC and a known first plaintext: a sniffed connection allows guessing
//! offline, and each guess should cost 64 MiB and tens of milliseconds.

use argon2::{Algorithm, Argon2, Params, Version};
use rand::TryRng;
use ring::hkdf;
use std::fmt;
use zeroize::Zeroizing;

/// Memory of one derivation, in KiB.
const MEMORY_KIB: u32 = 64 << 10;
/// Passes over it. RFC 9106's second recommendation is 3; as many as fit into 0.12 s on a slow core were measured.
const PASSES: u32 = 2;
/// Crockford's base 32: no I, L, O or U, so that a secret can be read out loud.
const ALPHABET: &[u8; 32] = b"0123456789ABCDEFGHJKMNPQRSTVWXYZ";
/// Groups of five characters: 125 bits.
const GROUPS: usize = 5;
/// Secrets that everybody tries first.
const COMMON: [&str; 16] = [
    "password", "secret", "nodectl", "cluster", "changeme", "letmein", "admin", "root", "test", "default", "123456",
    "qwerty", "hunter2", "labor", "lab", "gpu",
];

/// What nodes of one cluster share.
#[derive(Clone)]
pub struct Secret(Zeroizing<String>);

/// Why a string cannot be a secret, or no keys come of it.
#[derive(Debug, thiserror::Error)]
pub enum SecretError {
    #[error("the secret is empty\nhint: give one with --secret-file, or let `nodectl join` make one")]
    Empty,
    #[error("cannot derive keys from the secret: {0}\nhint: 64 MiB of free memory are needed")]
    Derive(String),
}

/// The keys of a cluster.
#[derive(Clone)]
pub struct Keys {
    pub(super) swarm_psk: Zeroizing<[u8; 32]>,
    pub(super) beacon: Zeroizing<[u8; 32]>,
    pub(super) bulk: Zeroizing<[u8; 32]>,
    tag: [u8; 32],
}

impl Keys {
    /// Names the cluster to the world; says nothing of the other keys.
    pub fn tag(&self) -> &[u8; 32] {
        &self.tag
    }
}

impl Secret {
    /// A secret as a user gave it; surrounding white space (a file's last newline) is no part of it.
    pub fn new(text: impl Into<String>) -> Result<Self, SecretError> {
        let text = Zeroizing::new(text.into());
        let trimmed = text.trim();
        if trimmed.is_empty() { Err(SecretError::Empty) } else { Ok(Self(Zeroizing::new(trimmed.to_string()))) }
    }

    /// A strong secret that people can read out and type: 125 random bits as five groups of five characters.
    pub fn generate() -> Self {
        let mut random = Zeroizing::new([0u8; GROUPS * 5]);
        fill_random(random.as_mut());
        let mut text = Zeroizing::new(String::with_capacity(GROUPS * 6));
        for (index, byte) in random.iter().enumerate() {
            if index > 0 && index % 5 == 0 {
                text.push('-');
            }
            text.push(ALPHABET[usize::from(byte & 31)] as char);
        }
        Self(text)
    }

    /// Why a secret is easily guessed, if it is.
    pub fn weakness(text: &str) -> Option<String> {
        let lower = Zeroizing::new(text.trim().to_lowercase());
        let stem = lower.trim_matches(|c: char| c.is_ascii_digit() || c.is_ascii_punctuation());
        let known = |word: &&str| **word == *lower || **word == *stem;
        if COMMON.iter().any(known) {
            return Some("it is one of the words that everybody tries first".into());
        }
        let count = text.trim().chars().count();
        if count < 12 {
            return Some(format!("it has {count} characters; give it 12 or more, or let `nodectl join` make one"));
        }
        let distinct = lower.chars().collect::<std::collections::BTreeSet<_>>().len();
        (distinct < 6).then(|| format!("it is made of only {distinct} different characters"))
    }

    /// The text, to be shown to the user who is to type it on the next machine.
    pub fn reveal(&self) -> &str {
        &self.0
    }

    /// Derives the cluster's keys, which takes 64 MiB and about a tenth of a second: on a blocking thread.
    pub async fn derive(self, cluster: String) -> Result<Keys, SecretError> {
        let derived = tokio::task::spawn_blocking(move || self.derive_blocking(&cluster)).await;
        derived.unwrap_or_else(|error| Err(SecretError::Derive(error.to_string())))
    }

    /// The same on this thread.
    pub fn derive_blocking(&self, cluster: &str) -> Result<Keys, SecretError> {
        let fail = |error: argon2::Error| SecretError::Derive(error.to_string());
        let salt = blake3::derive_key("nodectl protocol 1: argon2 salt of a cluster name", cluster.as_bytes());
        let params = Params::new(MEMORY_KIB, PASSES, 1, Some(32)).map_err(fail)?;
        let mut root = Zeroizing::new([0u8; 32]);
        let argon = Argon2::new(Algorithm::Argon2id, Version::V0x13, params);
        argon.hash_password_into(self.0.as_bytes(), &salt, root.as_mut()).map_err(fail)?;
        let expand = |label: &[u8]| Zeroizing::new(expand(b"nodectl cluster keys", root.as_ref(), &[label]));
        Ok(Keys {
            swarm_psk: expand(b"libp2p private network"),
            beacon: expand(b"discovery beacon"),
            bulk: expand(b"bulk streams"),
            tag: *expand(b"tag of the cluster"),
        })
    }
}

/// HKDF-SHA256: 32 bytes of key for one purpose.
pub(super) fn expand(salt: &[u8], key: &[u8], info: &[&[u8]]) -> [u8; 32] {
    let mut out = [0u8; 32];
    let prk = hkdf::Salt::new(hkdf::HKDF_SHA256, salt).extract(key);
    let okm = prk.expand(info, hkdf::HKDF_SHA256).expect("32 bytes are within HKDF's 255 blocks");
    okm.fill(&mut out).expect("the length asked for is the length given");
    out
}

/// Bytes nobody can guess, from the kernel.
pub(super) fn fill_random(bytes: &mut [u8]) {
    rand::rngs::SysRng.try_fill_bytes(bytes).expect("the kernel gives random bytes once booted");
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Keys(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_depend_on_secret_cluster_and_purpose() {
        let derive = |secret: &str, cluster: &str| Secret::new(secret).unwrap().derive_blocking(cluster).unwrap();
        let keys = derive("correct horse", "lab");
        assert_eq!(keys.swarm_psk, derive("correct horse\n", "lab").swarm_psk);
        assert_ne!(keys.swarm_psk, derive("correct horsf", "lab").swarm_psk);
        assert_ne!(keys.swarm_psk, derive("correct horse", "other").swarm_psk);
        assert!(keys.swarm_psk != keys.beacon && keys.beacon != keys.bulk);
    }

    #[test]
    fn generated_secrets_are_strong_and_differ() {
        let (one, two) = (Secret::generate(), Secret::generate());
        assert_ne!(one.reveal(), two.reveal());
        assert_eq!(one.reveal().len(), 29);
        assert_eq!(Secret::weakness(one.reveal()), None);
    }

    #[test]
    fn weak_secrets_are_told() {
        for weak in ["short", "Password123!", "gpu", "aaaaaaaaaaaaaaaa", "12345678901"] {
            assert!(Secret::weakness(weak).is_some(), "{weak}");
        }
        assert_eq!(Secret::weakness("violet tram under rain"), None);
        assert!(matches!(Secret::new(" \n"), Err(SecretError::Empty)));
    }

    #[test]
    fn nothing_is_printed() {
        let secret = Secret::new("do not print me").unwrap();
        assert!(!format!("{secret:?} {:?}", secret.derive_blocking("x").unwrap()).contains("print"));
    }
}
