//! Commands that work on a node inside another command. Each holds a shared lock on a file of the
//! data directory for as long as it does; the other one ends its node when it gets the lock for
//! itself alone. The kernel drops the lock with its holder, however that ends.

use crate::exit::CliError;
use rustix::{
    fs::{FlockOperation, Mode, OFlags, flock, open},
    io::Errno,
};
use std::{os::fd::OwnedFd, path::Path, time::Duration};

const FILE: &str = "guests";
/// How often the lock is tried.
const PERIOD: Duration = Duration::from_millis(100);

/// Held while it lives.
pub struct Lease {
    _file: OwnedFd,
}

impl Lease {
    /// As one of several; none while somebody has it alone.
    pub fn shared(data_dir: &Path) -> Result<Option<Self>, CliError> {
        Self::take(data_dir, FlockOperation::NonBlockingLockShared)
    }

    /// Alone; none while others have it.
    pub fn alone(data_dir: &Path) -> Result<Option<Self>, CliError> {
        Self::take(data_dir, FlockOperation::NonBlockingLockExclusive)
    }

    /// Alone, when the others are done. `told` is called if there are some.
    pub async fn when_alone(data_dir: &Path, told: impl FnOnce()) -> Result<Self, CliError> {
        if let Some(lease) = Self::alone(data_dir)? {
            return Ok(lease);
        }
        told();
        loop {
            tokio::time::sleep(PERIOD).await;
            if let Some(lease) = Self::alone(data_dir)? {
                return Ok(lease);
            }
        }
    }

    fn take(data_dir: &Path, operation: FlockOperation) -> Result<Option<Self>, CliError> {
        let path = data_dir.join(FILE);
        let failed = |errno: Errno| CliError::file("locking", &path, errno.into());
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = open(&path, flags, Mode::RUSR | Mode::WUSR).map_err(failed)?;
        match flock(&file, operation) {
            Ok(()) => Ok(Some(Self { _file: file })),
            Err(Errno::WOULDBLOCK) => Ok(None),
            Err(errno) => Err(failed(errno)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn guests_share_and_the_host_waits_for_all() {
        let dir = tempfile::tempdir().unwrap();
        let (one, other) = (
            Lease::shared(dir.path()).unwrap(),
            Lease::shared(dir.path()).unwrap(),
        );
        assert!(one.is_some() && other.is_some() && Lease::alone(dir.path()).unwrap().is_none());
        drop(one);
        assert!(Lease::alone(dir.path()).unwrap().is_none());
        let mut waited = false;
        let waiting = Lease::when_alone(dir.path(), || {
            waited = true;
            drop(other);
        });
        let alone = waiting.await.unwrap();
        assert!(waited && Lease::shared(dir.path()).unwrap().is_none());
        drop(alone);
        assert!(Lease::shared(dir.path()).unwrap().is_some());
    }
}
