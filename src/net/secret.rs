//! The cluster's secret and every key derived from it. The secret and the keys are wiped when
//! dropped and never printed.
//!
//! Secret -> Argon2id (RFC 9106; salt: protocol label and cluster name) -> root key -> HKDF-SHA256
//! (RFC 5869) -> one key a purpose. Argon2id is there because whoever hears a packet that only
//! members can make can try out secrets on it at home: each guess should cost 64 MiB and tens of
//! milliseconds. A secret that was made here has 120 random bits, which nobody guesses whatever a
//! guess costs: its root key is BLAKE3's (in its mode for keys, with the same salt).

use super::strength;
use argon2::{Algorithm, Argon2, Params, Version};
use rand::TryRng;
use ring::hkdf;
use std::fmt;
use zeroize::Zeroizing;

/// Memory of one derivation, in KiB.
const MEMORY_KIB: u32 = 64 << 10;
/// Passes over it. RFC 9106's second recommendation is 3; as many as fit into 0.12 s on a slow core
/// were measured.
const PASSES: u32 = 2;
/// Crockford's base 32: no I, L, O or U, so that a secret can be read out loud.
const ALPHABET: &[u8; 32] = b"0123456789ABCDEFGHJKMNPQRSTVWXYZ";
/// Groups of five characters: 120 bits, and a character that checks the others.
const GROUPS: usize = 5;
/// Of a generated secret, with the dashes between its groups.
const GENERATED_CHARS: usize = GROUPS * 6 - 1;

/// What nodes of one cluster share.
#[derive(Clone)]
pub struct Secret(Zeroizing<String>);

/// Why a string cannot be a secret, or no keys come of it.
#[derive(Debug, thiserror::Error)]
pub enum SecretError {
    #[error(
        "the secret is empty\nhint: give one with --secret-file, or let `nodectl join` make one"
    )]
    Empty,
    #[error(
        "the secret looks like one that nodectl made, but a character is wrong or missing\nhint: compare it with what `nodectl secret show` prints on a machine where it works; a secret of your own may have any other form"
    )]
    Mistyped,
    #[error("cannot derive keys from the secret: {0}\nhint: 64 MiB of free memory are needed")]
    Derive(String),
}

/// The keys of a cluster.
#[derive(Clone)]
pub struct Keys {
    pub(super) swarm: Zeroizing<[u8; 32]>,
    pub(super) beacon: Zeroizing<[u8; 32]>,
    /// What named secrets are sealed with.
    pub(super) named: Zeroizing<[u8; 32]>,
    /// What the secret is recognized by in this node's own files.
    pub(super) id: [u8; 32],
    /// What they come of.
    pub(super) secret: Zeroizing<String>,
    pub(super) cluster: String,
}

impl Secret {
    /// A secret as a user gave it; surrounding white space (a file's last newline) is no part of
    /// it.
    pub fn new(text: impl Into<String>) -> Result<Self, SecretError> {
        let text = Zeroizing::new(text.into());
        let trimmed = text.trim();
        if trimmed.is_empty() {
            return Err(SecretError::Empty);
        }
        if is_mistyped(trimmed.as_bytes()) {
            return Err(SecretError::Mistyped);
        }
        Ok(Self(Zeroizing::new(trimmed.to_string())))
    }

    /// One that the cluster has, whatever it looks like.
    pub fn of_cluster(text: &str) -> Self {
        Self(Zeroizing::new(text.trim().to_string()))
    }

    /// A strong secret that people can read out and type: 120 random bits and their check, as five
    /// groups of five characters.
    pub fn generate() -> Self {
        let mut values = Zeroizing::new([0u8; GROUPS * 5]);
        fill_random(values.as_mut());
        values.iter_mut().for_each(|value| *value &= 31);
        let (check, others) = values.split_last_mut().expect("it has 25");
        *check = check_value(others);
        let mut text = Zeroizing::new(String::with_capacity(GROUPS * 6));
        for (index, value) in values.iter().enumerate() {
            if index > 0 && index % 5 == 0 {
                text.push('-');
            }
            text.push(ALPHABET[usize::from(*value)] as char);
        }
        Self(text)
    }

    /// How many bits of guessing a secret is good for, as far as can be told of a text.
    pub fn strength(text: &str) -> u32 {
        let text = text.trim();
        if Self::is_generated(text) {
            (GROUPS as u32 * 5 - 1) * 5
        } else {
            strength::bits(text)
        }
    }

    /// Whether it is one that was made here, without a mistake.
    pub fn is_generated(text: &str) -> bool {
        let text = text.as_bytes();
        text.len() == GENERATED_CHARS && text.iter().enumerate().all(fits) && !is_mistyped(text)
    }

    /// Why a secret is easily guessed, if it is.
    pub fn weakness(text: &str) -> Option<String> {
        if strength::is_common(text) {
            return Some("it is one of the words that everybody tries first".into());
        }
        let (bits, enough) = (Self::strength(text), strength::ENOUGH_BITS);
        (bits < enough)
            .then(|| format!("some 2^{bits} guesses find it, and it should take 2^{enough}"))
    }

    /// The text, to be shown to the user who is to type it on the next machine.
    pub fn reveal(&self) -> &str {
        &self.0
    }

    /// Derives the cluster's keys, which takes 64 MiB and about a tenth of a second unless the
    /// secret was made here: on a blocking thread.
    pub async fn derive(self, cluster: String) -> Result<Keys, SecretError> {
        let derived = tokio::task::spawn_blocking(move || self.derive_blocking(&cluster)).await;
        derived.unwrap_or_else(|error| Err(SecretError::Derive(error.to_string())))
    }

    /// Derives the keys on this thread.
    pub fn derive_blocking(&self, cluster: &str) -> Result<Keys, SecretError> {
        let salt = blake3::derive_key(
            "nodectl protocol 1: argon2 salt of a cluster name",
            cluster.as_bytes(),
        );
        let root = self.root(&salt)?;
        let expand =
            |label: &[u8]| Zeroizing::new(expand(b"nodectl cluster keys", root.as_ref(), &[label]));
        Ok(Keys {
            swarm: expand(b"handshake of the swarm"),
            beacon: expand(b"discovery beacon"),
            named: expand(b"named secrets"),
            id: *expand(b"id of the secret"),
            secret: self.0.clone(),
            cluster: cluster.to_string(),
        })
    }

    /// What all keys are derived from.
    fn root(&self, salt: &[u8; 32]) -> Result<Zeroizing<[u8; 32]>, SecretError> {
        if Self::is_generated(&self.0) {
            let root = blake3::keyed_hash(salt, self.0.as_bytes());
            return Ok(Zeroizing::new(*root.as_bytes()));
        }
        self.stretched(salt)
    }

    /// The root key of a secret that somebody may guess.
    fn stretched(&self, salt: &[u8; 32]) -> Result<Zeroizing<[u8; 32]>, SecretError> {
        let fail = |error: argon2::Error| SecretError::Derive(error.to_string());
        let params = Params::new(MEMORY_KIB, PASSES, 1, Some(32)).map_err(fail)?;
        let mut root = Zeroizing::new([0u8; 32]);
        let argon = Argon2::new(Algorithm::Argon2id, Version::V0x13, params);
        argon
            .hash_password_into(self.0.as_bytes(), salt, root.as_mut())
            .map_err(fail)?;
        Ok(root)
    }
}

/// Whether a text is a generated secret but for a few characters, or for its end.
fn is_mistyped(text: &[u8]) -> bool {
    let wrong = text
        .iter()
        .enumerate()
        .filter(|entry| !fits(*entry))
        .count();
    if text.len() != GENERATED_CHARS {
        // The beginning of one, two groups and a dash at least.
        return (12..GENERATED_CHARS).contains(&text.len()) && wrong == 0;
    }
    let value = |byte: &u8| {
        ALPHABET
            .iter()
            .position(|known| known == byte)
            .map(|value| value as u8)
    };
    let letters = text
        .iter()
        .enumerate()
        .filter(|(index, _)| !is_dash(*index));
    let values: Zeroizing<Vec<u8>> =
        Zeroizing::new(letters.filter_map(|(_, byte)| value(byte)).collect());
    match values.split_last() {
        Some((check, others)) if wrong == 0 => *check != check_value(others),
        _ => wrong <= 2,
    }
}

/// Whether a generated secret can have that character in that place.
fn fits((index, byte): (usize, &u8)) -> bool {
    if is_dash(index) {
        *byte == b'-'
    } else {
        ALPHABET.contains(byte)
    }
}

fn is_dash(index: usize) -> bool {
    index % 6 == 5
}

/// Luhn's check for 32 values: finds every single wrong character, and most that changed places.
fn check_value(values: &[u8]) -> u8 {
    let doubled = |value: u8| (value * 2) / 32 + (value * 2) % 32;
    let terms = values.iter().rev().enumerate();
    let sum: u32 = terms
        .map(|(at, value)| u32::from(if at % 2 == 0 { doubled(*value) } else { *value }))
        .sum();
    ((32 - sum % 32) % 32) as u8
}

/// HKDF-SHA256: 32 bytes of key for one purpose.
pub(super) fn expand(salt: &[u8], key: &[u8], info: &[&[u8]]) -> [u8; 32] {
    let mut out = [0u8; 32];
    let prk = hkdf::Salt::new(hkdf::HKDF_SHA256, salt).extract(key);
    let okm = prk
        .expand(info, hkdf::HKDF_SHA256)
        .expect("32 bytes are within HKDF's 255 blocks");
    okm.fill(&mut out)
        .expect("the length asked for is the length given");
    out
}

/// Bytes nobody can guess, from the kernel.
pub(super) fn fill_random(bytes: &mut [u8]) {
    rand::rngs::SysRng
        .try_fill_bytes(bytes)
        .expect("the kernel gives random bytes once booted");
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
        let derive = |secret: &str, cluster: &str| {
            Secret::new(secret)
                .unwrap()
                .derive_blocking(cluster)
                .unwrap()
        };
        let keys = derive("correct horse", "lab");
        assert_eq!(keys.swarm, derive("correct horse\n", "lab").swarm);
        assert_ne!(keys.swarm, derive("correct horsf", "lab").swarm);
        assert_ne!(keys.swarm, derive("correct horse", "other").swarm);
        assert!(keys.swarm != keys.beacon && *keys.beacon != keys.id && *keys.swarm != keys.id);
        assert!(keys.named != keys.swarm && keys.named != keys.beacon && *keys.named != keys.id);
        let (made, other) = (Secret::generate(), Secret::generate());
        let keys = derive(made.reveal(), "lab");
        assert_eq!(
            keys.swarm,
            derive(&format!(" {}\n", made.reveal()), "lab").swarm
        );
        assert_ne!(keys.swarm, derive(other.reveal(), "lab").swarm);
        assert_ne!(keys.swarm, derive(made.reveal(), "other").swarm);
        assert!(keys.swarm != keys.beacon && *keys.beacon != keys.id && *keys.swarm != keys.id);
    }

    #[test]
    fn what_can_be_guessed_is_stretched_and_what_was_made_here_is_not() {
        let root = |text: &str| {
            let secret = Secret::new(text).unwrap();
            let stretched = secret.stretched(&[1; 32]).unwrap();
            (*secret.root(&[1; 32]).unwrap(), *stretched)
        };
        for own in [
            "correct horse",
            "granite lantern, orbit walnut",
            &"0".repeat(29),
        ] {
            let (root, stretched) = root(own);
            assert_eq!(root, stretched, "{own}");
        }
        let (root, stretched) = root(Secret::generate().reveal());
        assert_ne!(root, stretched);
    }

    #[test]
    fn generated_secrets_are_strong_and_differ() {
        let (one, two) = (Secret::generate(), Secret::generate());
        assert_ne!(one.reveal(), two.reveal());
        assert_eq!(one.reveal().len(), 29);
        assert_eq!(Secret::weakness(one.reveal()), None);
    }

    #[test]
    fn a_generated_secret_with_a_mistake_is_refused_and_others_are_not() {
        let secret = Secret::generate();
        let text = secret.reveal();
        assert!(Secret::new(text).is_ok() && Secret::new(format!(" {text}\n")).is_ok());
        for place in 0..text.len() {
            for wrong in [
                b'0',
                b'Z',
                b'7',
                b'x',
                b'-',
                b'!',
                text.as_bytes()[place] ^ 1,
                text.as_bytes()[place] ^ 0x20,
            ] {
                let mut bytes = text.as_bytes().to_vec();
                bytes[place] = wrong;
                let changed = String::from_utf8(bytes).unwrap();
                // White space at an end is no part of a secret.
                let same = changed.trim() == text;
                assert_eq!(
                    Secret::new(changed.clone()).is_ok(),
                    same,
                    "{changed} for {text}"
                );
            }
        }
        for length in 12..text.len() {
            assert!(
                matches!(Secret::new(&text[..length]), Err(SecretError::Mistyped)),
                "cut to {length}"
            );
        }
        let own = "ABCDE-FGHIL-no such form-0-12345";
        for text in [
            own,
            "correct horse",
            "1234567890123456789012345678",
            "a-b-c-d",
            "ABCDE",
            "ABCDE-FGHJK",
        ] {
            assert!(Secret::new(text).is_ok(), "{text}");
        }
    }

    #[test]
    fn weak_secrets_are_told() {
        for weak in ["short", "Password123!", "passwordpassword", "12345678901"] {
            assert!(Secret::weakness(weak).is_some(), "{weak}");
        }
        assert_eq!(
            Secret::weakness("violet tram under heavy rain and seven goats"),
            None
        );
        assert_eq!(Secret::strength(Secret::generate().reveal()), 120);
        assert!(matches!(Secret::new(" \n"), Err(SecretError::Empty)));
    }

    #[test]
    fn nothing_is_printed() {
        let secret = Secret::new("do not print me").unwrap();
        assert!(
            !format!("{secret:?} {:?}", secret.derive_blocking("x").unwrap()).contains("print")
        );
    }
}
