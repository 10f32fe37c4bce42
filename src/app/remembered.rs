//! The files in which a node keeps what its next life should know, besides journals: what it
//! remembers of ended jobs, what it has said about who votes first on logs, what the machine's
//! owner said, and named secrets. Each is replaced whole.

use nodectl_node::EarlierLives;
use nodectl_ports::{
    BeginningsKeeper, MembersKeeper, OwnerKeeper, RetentionKeeper, Written, atomic,
};
use nodectl_types::{
    Beginnings, KeptSecret, OwnerWord, Retention, Roster, membership::MemberRecords,
};
use nodectl_wire::{beginnings, members, retention, secrets};
use std::{
    fs::File,
    io::{self, Read},
    path::{Path, PathBuf},
    time::Duration,
};
use tokio::sync::watch;

const RETENTION_FILE: &str = "retention.json";
const BEGINNINGS_FILE: &str = "beginnings";
const MEMBERS_FILE: &str = "members";
const OWNER_FILE: &str = "owner.json";
pub const SECRETS_FILE: &str = "secrets";
/// More than the owner's word ever has, with `limits::MAX_FORGOTTEN` nodes in it.
const OWNER_BYTES: u64 = 1 << 20;

/// What could not be written is tried again after this long.
const AGAIN: Duration = Duration::from_secs(2);

/// What the node's last life left. A file that is of no use costs jobs nothing but that they grow
/// old from now on; the owner has to say again what he said.
pub fn load(
    data_dir: &Path,
    secrets: Vec<KeptSecret>,
    roster: Option<Roster>,
    put_aside: bool,
) -> EarlierLives {
    EarlierLives {
        retention: read(
            &data_dir.join(RETENTION_FILE),
            retention::MAX_BYTES,
            retention::decode,
        ),
        beginnings: read(
            &data_dir.join(BEGINNINGS_FILE),
            beginnings::MAX_BYTES,
            beginnings::decode,
        ),
        members: read(
            &data_dir.join(MEMBERS_FILE),
            members::MAX_BYTES,
            members::decode,
        ),
        owner: read(&data_dir.join(OWNER_FILE), OWNER_BYTES, |bytes| {
            serde_json::from_slice(bytes).map_err(|error| error.to_string())
        }),
        secrets,
        roster: roster.unwrap_or_default(),
        put_aside,
    }
}

fn read<T: Default>(path: &Path, most: u64, decode: impl Fn(&[u8]) -> Result<T, String>) -> T {
    let read = || {
        let mut bytes = Vec::new();
        File::open(path)?
            .take(most)
            .read_to_end(&mut bytes)
            .map(|_| bytes)
    };
    match read().map_err(|error: io::Error| (error.kind(), error.to_string())) {
        Ok(bytes) => decode(&bytes).unwrap_or_else(|error| {
            tracing::warn!("{} is of no use and begun anew: {error}", path.display());
            T::default()
        }),
        Err((io::ErrorKind::NotFound, _)) => T::default(),
        Err((_, error)) => {
            tracing::warn!(
                "{} cannot be read and is begun anew: {error}",
                path.display()
            );
            T::default()
        }
    }
}

/// Writes what it is told, the newest only, beside the node's loop.
pub struct NotesWriter<T> {
    newest: watch::Sender<Numbered<T>>,
    progress: watch::Receiver<WriteProgress>,
}

/// What is to be written, and how much was told before it.
#[derive(Default)]
struct Numbered<T> {
    number: u64,
    value: T,
}

/// How far writing got, and why the last try failed, if it did.
#[derive(Clone, Default)]
struct WriteProgress {
    number: u64,
    error: Option<String>,
}

impl NotesWriter<Retention> {
    pub fn of_jobs(data_dir: &Path) -> Self {
        Self::start(
            data_dir.join(RETENTION_FILE),
            retention::encode,
            |path, error| {
                // Who had a job removed is told so.
                tracing::debug!("{} cannot be written: {error}", path.display());
            },
        )
    }
}

impl NotesWriter<Beginnings> {
    pub fn of_beginnings(data_dir: &Path) -> Self {
        Self::start(
            data_dir.join(BEGINNINGS_FILE),
            beginnings::encode,
            |path, error| {
                tracing::warn!(
                    "{} cannot be written, so that this node has no part in beginning logs: {error}",
                    path.display()
                );
            },
        )
    }
}

impl NotesWriter<MemberRecords> {
    pub fn of_members(data_dir: &Path) -> Self {
        Self::start(
            data_dir.join(MEMBERS_FILE),
            members::encode,
            |path, error| {
                tracing::warn!(
                    "{} cannot be written: the node's next life will not know whom this one has met: \
                 {error}",
                    path.display()
                );
            },
        )
    }
}

impl NotesWriter<OwnerWord> {
    pub fn of_owner(data_dir: &Path) -> Self {
        let encode =
            |word: &OwnerWord| serde_json::to_vec(word).expect("plain data always encodes");
        Self::start(data_dir.join(OWNER_FILE), encode, |path, error| {
            tracing::warn!(
                "{} cannot be written: the node's next life will not know it: {error}",
                path.display()
            );
        })
    }
}

impl NotesWriter<Vec<KeptSecret>> {
    pub fn of_secrets(data_dir: &Path) -> Self {
        let encode = |kept: &Vec<KeptSecret>| secrets::encode(kept);
        Self::start(data_dir.join(SECRETS_FILE), encode, |path, error| {
            tracing::warn!(
                "{} cannot be written, other nodes have what is in it: {error}",
                path.display()
            );
        })
    }
}

impl<T: Clone + Default + Send + Sync + 'static> NotesWriter<T> {
    /// What is told last counts: it ends, too, when something newer is on the disk.
    pub fn write(&self, value: T) -> Written {
        let mut told = 0;
        self.newest.send_modify(|newest| {
            newest.number += 1;
            newest.value = value;
            told = newest.number;
        });
        let mut progress = self.progress.clone();
        Box::pin(async move {
            let known = progress.wait_for(|progress| progress.number >= told).await;
            match known.map(|progress| progress.error.clone()) {
                Ok(None) => Ok(()),
                Ok(Some(error)) => Err(error),
                Err(_) => Err("the node is ending".into()),
            }
        })
    }

    /// Called inside the runtime that runs the node.
    fn start(path: PathBuf, encode: fn(&T) -> Vec<u8>, failed: fn(&Path, io::Error)) -> Self {
        let (newest, mut told) = watch::channel(Numbered::<T>::default());
        let (tell, progress) = watch::channel(WriteProgress::default());
        tokio::spawn(async move {
            let mut has_failed = false;
            while told_or_due(&mut told, has_failed).await {
                let (number, bytes) = {
                    let told = told.borrow_and_update();
                    (told.number, encode(&told.value))
                };
                let target = path.clone();
                let write = move || atomic::write(&target, &bytes, 0o600);
                let written = tokio::task::spawn_blocking(write).await;
                let error = written
                    .unwrap_or_else(|error| Err(io::Error::other(error)))
                    .err();
                let why = error.as_ref().map(io::Error::to_string);
                let had_failed = std::mem::replace(&mut has_failed, why.is_some());
                if let Some(error) = error.filter(|_| !had_failed) {
                    failed(&path, error);
                }
                tell.send_replace(WriteProgress { number, error: why });
            }
        });
        Self { newest, progress }
    }
}

/// Returns when something is to be written: it was told, or the last write failed some time ago.
/// False if nobody will tell anything more.
async fn told_or_due<T>(told: &mut watch::Receiver<Numbered<T>>, failed: bool) -> bool {
    if !failed {
        return told.changed().await.is_ok();
    }
    tokio::select! {
        changed = told.changed() => changed.is_ok(),
        () = tokio::time::sleep(AGAIN) => true,
    }
}

impl RetentionKeeper for NotesWriter<Retention> {
    fn keep(&self, retention: Retention) -> Written {
        self.write(retention)
    }
}

impl BeginningsKeeper for NotesWriter<Beginnings> {
    fn keep(&self, beginnings: Beginnings) -> Written {
        self.write(beginnings)
    }
}

impl MembersKeeper for NotesWriter<MemberRecords> {
    fn keep(&self, records: MemberRecords) -> Written {
        self.write(records)
    }
}

impl OwnerKeeper for NotesWriter<OwnerWord> {
    fn keep(&self, word: OwnerWord) -> Written {
        self.write(word)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secret(name: &str) -> KeptSecret {
        KeptSecret {
            name: name.into(),
            version: 1,
            changed_ms: 0,
            sealed: Some(vec![1, 2, 3]),
        }
    }

    #[tokio::test]
    async fn what_is_said_to_be_written_is_on_the_disk() {
        let directory = tempfile::tempdir().unwrap();
        let writer = NotesWriter::of_secrets(directory.path());
        for number in 0..20 {
            let told = vec![secret(&format!("S{number}"))];
            writer.write(told.clone()).await.unwrap();
            let bytes = std::fs::read(directory.path().join(SECRETS_FILE)).unwrap();
            assert_eq!(secrets::decode(&bytes).unwrap(), told);
        }
    }

    #[tokio::test]
    async fn what_cannot_be_written_is_said_and_written_when_it_can_be() {
        let directory = tempfile::tempdir().unwrap();
        let nowhere = directory.path().join("nowhere");
        let writer = NotesWriter::of_secrets(&nowhere);
        assert!(writer.write(vec![secret("A")]).await.is_err());
        std::fs::create_dir(&nowhere).unwrap();
        let mut progress = writer.progress.clone();
        let is_written = |progress: &WriteProgress| progress.error.is_none();
        progress.wait_for(is_written).await.unwrap();
        let bytes = std::fs::read(nowhere.join(SECRETS_FILE)).unwrap();
        assert_eq!(secrets::decode(&bytes).unwrap(), [secret("A")]);
    }
}
