//! What a node keeps of who belongs to its cluster, for the next start: `<data_dir>/membership`,
//! readable by its user alone, since the newest secret is in it once that was changed.

use super::{identity::write_private, secret::Secret};
use nodectl_types::Roster;
use serde::{Deserialize, Serialize};
use std::{fs, io, path::Path};
use zeroize::{Zeroize, Zeroizing};

const FILE: &str = "membership";
const MAGIC: [u8; 8] = *b"nodectm2";
/// A full roster has a third of that.
const MAX_FILE_BYTES: u64 = 4 << 20;
/// Secrets before the newest that are recognized.
pub const MAX_BEFORE: usize = 32;
/// Old secrets whose named secrets can still be opened: more changes than may come before these are
/// sealed anew.
pub const MAX_SEALING: usize = 4;

#[derive(Serialize, Deserialize)]
pub struct KeptKeys {
    /// Of the newest secret: what it is recognized by.
    pub id: [u8; 32],
    /// Of those before, the last one last.
    pub before: Vec<[u8; 32]>,
    /// Keys of the last one.
    pub old: Option<OldKeys>,
    /// What named secrets were sealed with before, the last one last.
    pub sealing: Vec<KeptSealingKey>,
    pub roster: Roster,
}

/// What is still needed of a secret that was replaced.
#[derive(Clone, Serialize, Deserialize)]
pub struct OldKeys {
    pub swarm: [u8; 32],
    pub beacon: [u8; 32],
}

/// What named secrets were sealed with.
#[derive(Clone, Serialize, Deserialize)]
pub struct KeptSealingKey(pub [u8; 32]);

impl Drop for KeptSealingKey {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

impl Drop for OldKeys {
    fn drop(&mut self) {
        self.swarm.zeroize();
        self.beacon.zeroize();
    }
}

/// `None` if nothing was decided yet.
pub fn read(data_dir: &Path) -> io::Result<Option<KeptKeys>> {
    let path = data_dir.join(FILE);
    let length = match fs::metadata(&path) {
        Ok(metadata) => metadata.len(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let damaged = || io::Error::new(io::ErrorKind::InvalidData, "it is damaged");
    if length > MAX_FILE_BYTES {
        return Err(damaged());
    }
    let bytes = Zeroizing::new(fs::read(&path)?);
    let (body, hash) = bytes
        .strip_prefix(&MAGIC)
        .and_then(<[u8]>::split_last_chunk::<32>)
        .ok_or_else(damaged)?;
    if blake3::hash(body) != *hash {
        return Err(damaged());
    }
    postcard::from_bytes(body).map(Some).map_err(|_| damaged())
}

pub fn write(data_dir: &Path, kept: &KeptKeys) -> io::Result<()> {
    let body = Zeroizing::new(postcard::to_stdvec(kept).expect("plain data always encodes"));
    let bytes = Zeroizing::new([&MAGIC, body.as_slice(), blake3::hash(&body).as_bytes()].concat());
    write_private(&data_dir.join(FILE), &bytes)
}

/// Puts aside what belongs to another secret.
pub fn put_aside(data_dir: &Path) -> io::Result<()> {
    fs::rename(
        data_dir.join(FILE),
        data_dir.join(FILE).with_extension("other"),
    )
}

/// The newest secret, if it was changed while this data directory's node was a member.
pub fn changed_secret(data_dir: &Path) -> io::Result<Option<Zeroizing<String>>> {
    let rotation = read(data_dir)?.and_then(|kept| kept.roster.rotation);
    Ok(rotation.map(|rotation| Zeroizing::new(rotation.secret.0.trim().to_string())))
}

/// The secret that has replaced this one, as far as this data directory knows. Takes as long as
/// deriving keys where there was a change.
pub fn replacement(
    data_dir: &Path,
    cluster: &str,
    secret: &str,
) -> io::Result<Option<Zeroizing<String>>> {
    let Some(kept) = read(data_dir)? else {
        return Ok(None);
    };
    let Some(rotation) = &kept.roster.rotation else {
        return Ok(None);
    };
    let newest = rotation.secret.0.trim();
    if newest == secret.trim() || kept.before.is_empty() {
        return Ok(None);
    }
    let keys = Secret::of_cluster(secret)
        .derive_blocking(cluster)
        .map_err(io::Error::other)?;
    Ok(kept
        .before
        .contains(&keys.id)
        .then(|| Zeroizing::new(newest.to_string())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use nodectl_types::roster::{Rotation, SecretText};
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_secret_that_was_replaced_leads_to_the_newest_and_the_file_is_private() {
        let directory = tempfile::tempdir().unwrap();
        assert!(read(directory.path()).unwrap().is_none());
        let id = |text: &str| {
            Secret::new(text)
                .unwrap()
                .derive_blocking("lab")
                .unwrap()
                .id
        };
        let rotation = Rotation {
            number: 2,
            secret: SecretText("the third".into()),
            listed: [].into(),
            changed: [].into(),
            finished: true,
            at_ms: 0,
        };
        let kept = KeptKeys {
            id: id("the third"),
            before: vec![id("the first"), id("the second")],
            old: Some(OldKeys {
                swarm: [1; 32],
                beacon: [2; 32],
            }),
            sealing: vec![KeptSealingKey([3; 32])],
            roster: Roster {
                rotation: Some(rotation),
                ..Roster::default()
            },
        };
        write(directory.path(), &kept).unwrap();
        let path = directory.path().join(FILE);
        assert_eq!(
            fs::metadata(&path).unwrap().permissions().mode() & 0o777,
            0o600
        );
        let newest = |text: &str| {
            replacement(directory.path(), "lab", text)
                .unwrap()
                .map(|text| text.to_string())
        };
        for (text, expected) in [
            ("the first", Some("the third")),
            ("the second\n", Some("the third")),
            ("the third", None),
            ("other", None),
        ] {
            assert_eq!(newest(text).as_deref(), expected, "{text}");
        }
        assert_eq!(
            changed_secret(directory.path()).unwrap().unwrap().as_str(),
            "the third"
        );
        let mut bytes = fs::read(&path).unwrap();
        bytes[20] ^= 1;
        fs::write(&path, bytes).unwrap();
        assert!(read(directory.path()).is_err());
    }
}
