//! Named secrets: sealed and opened with a key of the cluster's, kept in the file `secrets` of the
//! data directory.

use super::remembered::{NotesWriter, SECRETS_FILE};
use anyhow::Context;
use nodectl_ports::{Vault, Written};
use nodectl_types::{KeptSecret, secret::MAX_NAME_BYTES};
use nodectl_wire::secrets;
use rand::{TryRng, rngs::SysRng};
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use std::{
    collections::BTreeMap,
    fs::File,
    io::{self, Read},
    path::Path,
    sync::{Mutex, MutexGuard, PoisonError},
};
use zeroize::Zeroizing;

/// Gives what is sealed with now, then what was sealed with before.
pub type SealingKeys = Box<dyn Fn() -> Vec<Zeroizing<[u8; 32]>> + Send + Sync>;

/// Of one node. Made inside the runtime that runs it.
pub struct Strongbox {
    /// None: it works alone, without a cluster's secret.
    keys: Option<SealingKeys>,
    kept: Mutex<BTreeMap<String, KeptSecret>>,
    keeper: NotesWriter<Vec<KeptSecret>>,
}

impl Strongbox {
    /// With what the node's last life kept, as far as it can be read, and as it is sealed now. The
    /// cluster's secret may have changed just before that life ended.
    pub fn open(
        data_dir: &Path,
        keys: Option<SealingKeys>,
    ) -> anyhow::Result<(Self, Vec<KeptSecret>)> {
        let loaded = load(data_dir)?;
        let this = Self {
            keys,
            kept: Mutex::default(),
            keeper: NotesWriter::of_secrets(data_dir),
        };
        let secrets = this.renew(loaded.clone());
        if secrets.len() == loaded.len() && secrets != loaded {
            drop(this.keeper.write(secrets.clone()));
        }
        let is_lost = |secret: &&KeptSecret| secrets.iter().all(|known| known.name != secret.name);
        let lost: Vec<_> = loaded
            .iter()
            .filter(is_lost)
            .map(|secret| secret.name.as_str())
            .collect();
        if !lost.is_empty() {
            let hint = "hint: put them again if `nodectl secret list` does not show them once other nodes are there";
            tracing::warn!(
                "sealed with a secret that is not the cluster's, and of no use: {}\n{hint}",
                lost.join(", ")
            );
        }
        this.remember(&secrets);
        Ok((this, secrets))
    }

    fn remember(&self, secrets: &[KeptSecret]) {
        *self.kept() = secrets
            .iter()
            .map(|secret| (secret.name.clone(), secret.clone()))
            .collect();
    }

    fn kept(&self) -> MutexGuard<'_, BTreeMap<String, KeptSecret>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// At least one.
    fn keys(&self) -> Result<Vec<SealingKey>, String> {
        let keys = self.keys.as_ref().map(|keys| keys()).unwrap_or_default();
        if keys.is_empty() {
            return Err(
                "this node works alone and has no secrets; `nodectl join` makes one that has"
                    .into(),
            );
        }
        keys.iter().map(SealingKey::new).collect()
    }
}

impl Vault for Strongbox {
    fn seal(&self, name: &str, value: &[u8]) -> Result<Vec<u8>, String> {
        let mut nonce = [0; NONCE_LEN];
        SysRng
            .try_fill_bytes(&mut nonce)
            .map_err(|error| error.to_string())?;
        self.keys()?[0].seal(nonce, name, value)
    }

    fn open(&self, name: &str) -> Result<Zeroizing<Vec<u8>>, String> {
        let keys = self.keys()?;
        let sealed = self
            .kept()
            .get(name)
            .and_then(|secret| secret.sealed.clone());
        let sealed =
            sealed.ok_or("it is not known (any more); `nodectl secret list` shows which are")?;
        let opened = keys.iter().find_map(|key| key.open(name, &sealed));
        opened
            .ok_or_else(|| "it was sealed with another secret of the cluster; put it again".into())
    }

    fn renew(&self, secrets: Vec<KeptSecret>) -> Vec<KeptSecret> {
        match self.keys() {
            Ok(keys) => secrets
                .into_iter()
                .filter_map(|secret| renewed(&keys, secret))
                .collect(),
            Err(_) => secrets,
        }
    }

    fn keep(&self, secrets: Vec<KeptSecret>) -> Written {
        self.remember(&secrets);
        self.keeper.write(secrets)
    }
}

/// What the node's last life kept. An error is better than to begin anew: it would be told to the
/// others as if nothing were known.
fn load(data_dir: &Path) -> anyhow::Result<Vec<KeptSecret>> {
    let path = data_dir.join(SECRETS_FILE);
    let mut bytes = Vec::new();
    match File::open(&path)
        .and_then(|file| file.take(secrets::MAX_BYTES + 1).read_to_end(&mut bytes))
    {
        Ok(_) => secrets::decode(&bytes).map_err(|why| {
            anyhow::anyhow!(
                "{}: {why}\nhint: remove it; other nodes have them too",
                path.display()
            )
        }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error).with_context(|| format!("reading {}", path.display())),
    }
}

/// As it is sealed with the first of these keys; None if none of them opens it.
fn renewed(keys: &[SealingKey], secret: KeptSecret) -> Option<KeptSecret> {
    let Some(sealed) = &secret.sealed else {
        return Some(secret);
    };
    let (newest, before) = keys.split_first()?;
    if newest.open(&secret.name, sealed).is_some() {
        return Some(secret);
    }
    let value = before
        .iter()
        .find_map(|key| key.open(&secret.name, sealed))?;
    let nonce = newest.nonce_of(&secret.name, secret.version, &value);
    let sealed = Some(newest.seal(nonce, &secret.name, &value).ok()?);
    Some(KeptSecret { sealed, ..secret })
}

struct SealingKey {
    key: LessSafeKey,
    /// Of nonces that every node finds for itself.
    nonces: Zeroizing<[u8; 32]>,
}

impl SealingKey {
    fn new(key: &Zeroizing<[u8; 32]>) -> Result<Self, String> {
        let nonces = blake3::derive_key(
            "nodectl named secrets: nonces of what is sealed anew",
            key.as_ref(),
        );
        let key = UnboundKey::new(&AES_256_GCM, key.as_ref()).map_err(|error| error.to_string())?;
        Ok(Self {
            key: LessSafeKey::new(key),
            nonces: Zeroizing::new(nonces),
        })
    }

    /// Another one for each name, version and value, so that no nonce is used for two values; the
    /// same one on every node.
    fn nonce_of(&self, name: &str, version: u64, value: &[u8]) -> [u8; NONCE_LEN] {
        let mut hash = blake3::Hasher::new_keyed(&self.nonces);
        hash.update(&(name.len() as u64).to_le_bytes())
            .update(name.as_bytes());
        hash.update(&version.to_le_bytes()).update(value);
        let mut nonce = [0; NONCE_LEN];
        hash.finalize_xof().fill(&mut nonce);
        nonce
    }

    fn seal(&self, nonce: [u8; NONCE_LEN], name: &str, value: &[u8]) -> Result<Vec<u8>, String> {
        let mut text = Zeroizing::new(value.to_vec());
        let tag = self.key.seal_in_place_separate_tag(
            Nonce::assume_unique_for_key(nonce),
            bound_to(name),
            &mut text,
        );
        let tag = tag.map_err(|_| "it could not be sealed")?;
        Ok([&nonce, text.as_slice(), tag.as_ref()].concat())
    }

    fn open(&self, name: &str, sealed: &[u8]) -> Option<Zeroizing<Vec<u8>>> {
        let (nonce, text) = sealed.split_first_chunk::<NONCE_LEN>()?;
        let mut text = Zeroizing::new(text.to_vec());
        let opened = self.key.open_in_place(
            Nonce::assume_unique_for_key(*nonce),
            bound_to(name),
            &mut text,
        );
        let length = opened.ok()?.len();
        text.truncate(length);
        Some(text)
    }
}

/// One secret's value cannot be shown as another's.
fn bound_to(name: &str) -> Aad<Vec<u8>> {
    debug_assert!(name.len() <= MAX_NAME_BYTES);
    Aad::from([b"nodectl named secret: ", name.as_bytes()].concat())
}

#[cfg(test)]
mod tests {
    use super::*;
    use nodectl_ports::atomic;

    /// With these keys, the newest first; with none it works alone.
    fn vault(keys: &[u8], secrets: &[KeptSecret]) -> Strongbox {
        let keys: Vec<_> = keys
            .iter()
            .map(|byte| Zeroizing::new([*byte; 32]))
            .collect();
        let keys = (!keys.is_empty()).then(|| -> SealingKeys { Box::new(move || keys.clone()) });
        let (vault, _) = Strongbox::open(Path::new("nowhere"), keys).unwrap();
        vault.remember(secrets);
        vault
    }

    fn kept(name: &str, sealed: Vec<u8>) -> KeptSecret {
        KeptSecret {
            name: name.into(),
            version: 1,
            changed_ms: 0,
            sealed: Some(sealed),
        }
    }

    #[tokio::test]
    async fn only_the_clusters_key_opens_a_secret_and_only_under_its_name() {
        let ours = vault(&[1], &[]);
        let sealed = ours.seal("TOKEN", b"precious").unwrap();
        assert!(!sealed.windows(8).any(|part| part == b"precious"));
        assert_ne!(
            sealed,
            ours.seal("TOKEN", b"precious").unwrap(),
            "a fresh nonce each"
        );
        let with = |keys: &[u8], name: &str, sealed: &[u8]| {
            vault(keys, &[kept(name, sealed.to_vec())]).open(name)
        };
        assert_eq!(
            with(&[1], "TOKEN", &sealed).unwrap().as_slice(),
            b"precious"
        );
        assert!(
            with(&[2], "TOKEN", &sealed)
                .unwrap_err()
                .contains("another secret")
        );
        assert!(with(&[1], "OTHER", &sealed).is_err());
        assert!(
            with(&[], "TOKEN", &sealed)
                .unwrap_err()
                .contains("works alone")
        );
        for at in 0..sealed.len() {
            let mut damaged = sealed.clone();
            damaged[at] ^= 1;
            assert!(with(&[1], "TOKEN", &damaged).is_err(), "byte {at}");
        }
        assert!(with(&[1], "TOKEN", b"short").is_err());
        assert!(ours.open("TOKEN").unwrap_err().contains("not known"));
    }

    #[tokio::test]
    async fn every_node_seals_the_same_anew_whichever_changes_it_went_through() {
        let first = kept(
            "TOKEN",
            vault(&[1], &[]).seal("TOKEN", b"precious").unwrap(),
        );
        let renew =
            |keys: &[u8], secret: &KeptSecret| vault(keys, &[]).renew(vec![secret.clone()]).pop();
        let second = renew(&[2, 1], &first).unwrap();
        assert_eq!(
            (second.version, renew(&[2, 1], &first)),
            (1, Some(second.clone()))
        );
        let third = renew(&[3, 2, 1], &second).unwrap();
        assert_eq!(
            renew(&[3, 1], &first),
            Some(third.clone()),
            "one missed the second secret"
        );
        assert_eq!(
            renew(&[3], &third),
            Some(third.clone()),
            "what is sealed with the newest key stays"
        );
        let open = |keys: &[u8], secret: &KeptSecret| {
            vault(keys, std::slice::from_ref(secret))
                .open("TOKEN")
                .unwrap()
        };
        assert_eq!(open(&[3], &third).as_slice(), b"precious");
        assert_eq!(
            open(&[2, 1], &first).as_slice(),
            b"precious",
            "not renewed yet"
        );
        assert_eq!(renew(&[2], &first), None, "nobody could read it");
        let nonce = |sealed: &KeptSecret| sealed.sealed.as_ref().unwrap()[..NONCE_LEN].to_vec();
        let later = KeptSecret {
            version: 2,
            ..first.clone()
        };
        assert_ne!(nonce(&renew(&[2, 1], &later).unwrap()), nonce(&second));
        let dropped = KeptSecret {
            sealed: None,
            ..first.clone()
        };
        assert_eq!(
            renew(&[3], &dropped),
            Some(dropped),
            "that it was dropped needs no key"
        );
        assert_eq!(
            renew(&[], &first),
            Some(first),
            "who works alone cannot tell"
        );
    }

    #[tokio::test]
    async fn a_node_seals_anew_what_its_last_life_kept() {
        let dir = tempfile::tempdir().unwrap();
        let old = [kept("A", vault(&[1], &[]).seal("A", b"precious").unwrap())];
        let lost = kept("B", vault(&[9], &[]).seal("B", b"nobody's").unwrap());
        let open = || {
            let keys: SealingKeys =
                Box::new(|| vec![Zeroizing::new([2; 32]), Zeroizing::new([1; 32])]);
            Strongbox::open(dir.path(), Some(keys)).unwrap()
        };
        atomic::write(
            &dir.path().join(SECRETS_FILE),
            &secrets::encode(&old),
            0o600,
        )
        .unwrap();
        let (vault, known) = open();
        assert_eq!(known, vault.renew(old.to_vec()));
        assert_eq!(vault.open("A").unwrap().as_slice(), b"precious");
        while load(dir.path()).unwrap() != known {
            tokio::task::yield_now().await;
        }
        let with_lost = [old.to_vec(), vec![lost]].concat();
        atomic::write(
            &dir.path().join(SECRETS_FILE),
            &secrets::encode(&with_lost),
            0o600,
        )
        .unwrap();
        let (vault, known) = open();
        assert_eq!(known, vault.renew(old.to_vec()));
        assert!(vault.open("B").is_err());
    }

    #[test]
    fn a_file_of_secrets_that_is_of_no_use_is_told() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(load(dir.path()).unwrap(), []);
        let secrets = [kept("A", vec![1])];
        std::fs::write(dir.path().join(SECRETS_FILE), secrets::encode(&secrets)).unwrap();
        assert_eq!(load(dir.path()).unwrap(), secrets);
        std::fs::write(dir.path().join(SECRETS_FILE), b"nonsense").unwrap();
        assert!(load(dir.path()).unwrap_err().to_string().contains("hint:"));
    }
}
