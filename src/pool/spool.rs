//! Frames that many workers get: in memory while they are few, else in a file without a name, which
//! goes with the last that reads it.

use std::{
    fs::File,
    io,
    ops::Range,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};
use tokio::io::{AsyncWrite, AsyncWriteExt};

/// As much is kept in memory.
pub const MEMORY_BYTES: u64 = 1 << 20;
/// Copied at once.
const COPY_BYTES: u64 = 256 << 10;

pub struct Spool {
    directory: PathBuf,
    content: Mutex<SpoolContent>,
}

#[derive(Default)]
struct SpoolContent {
    memory: Vec<u8>,
    /// What is not in memory.
    file: Option<Arc<File>>,
    bytes: u64,
}

impl Spool {
    pub fn new(directory: &Path) -> Arc<Self> {
        Arc::new(Self {
            directory: directory.to_path_buf(),
            content: Mutex::default(),
        })
    }

    /// Bytes so far.
    pub fn bytes(&self) -> u64 {
        self.lock().bytes
    }

    /// Appends whole frames. Fails as the disk does.
    pub async fn append(&self, frames: &[u8]) -> io::Result<()> {
        let (file, offset) = {
            let mut content = self.lock();
            let offset = content.bytes;
            content.bytes += frames.len() as u64;
            if content.file.is_none() && content.bytes <= MEMORY_BYTES {
                content.memory.extend_from_slice(frames);
                return Ok(());
            }
            if content.file.is_none() {
                content.file = Some(Arc::new(unnamed(&self.directory)?));
            }
            let file = content.file.clone().expect("just made");
            (file, offset - content.memory.len() as u64)
        };
        let frames = frames.to_vec();
        run(move || file.write_all_at(&frames, offset)).await
    }

    /// Writes a part of it, which has been appended.
    pub async fn copy_to(
        &self,
        mut range: Range<u64>,
        sink: &mut (impl AsyncWrite + Unpin),
    ) -> io::Result<()> {
        while !range.is_empty() {
            let length = COPY_BYTES.min(range.end - range.start) as usize;
            let bytes = self.read(range.start, length).await?;
            sink.write_all(&bytes).await?;
            range.start += bytes.len() as u64;
        }
        Ok(())
    }

    /// Up to `length` bytes.
    async fn read(&self, start: u64, length: usize) -> io::Result<Vec<u8>> {
        let (file, offset) = {
            let content = self.lock();
            let in_memory = content.memory.len() as u64;
            if start < in_memory {
                let start = start as usize;
                return Ok(
                    content.memory[start..content.memory.len().min(start + length)].to_vec(),
                );
            }
            (
                content
                    .file
                    .clone()
                    .expect("what is not in memory is in the file"),
                start - in_memory,
            )
        };
        run(move || {
            let mut bytes = vec![0; length];
            file.read_exact_at(&mut bytes, offset)?;
            Ok(bytes)
        })
        .await
    }

    fn lock(&self) -> MutexGuard<'_, SpoolContent> {
        self.content.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn run<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    tokio::task::spawn_blocking(work)
        .await
        .map_err(io::Error::other)?
}

/// A file that is gone when it is closed.
fn unnamed(directory: &Path) -> io::Result<File> {
    let path = directory.join(format!("pool-{:016x}", rand::random::<u64>()));
    let file = File::options()
        .read(true)
        .write(true)
        .create_new(true)
        .open(&path)?;
    std::fs::remove_file(&path)?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_is_appended_is_copied_from_memory_and_file() {
        let directory = tempfile::tempdir().unwrap();
        let spool = Spool::new(directory.path());
        let mut all = Vec::new();
        for length in [10, 700_000, 500_000, 1_000_000, 3] {
            let part: Vec<u8> = (0..length).map(|i| ((i * 31) >> 4) as u8).collect();
            spool.append(&part).await.unwrap();
            all.extend_from_slice(&part);
        }
        assert_eq!(spool.bytes(), all.len() as u64);
        for range in [0..all.len() as u64, 5..700_020, 700_010..1_500_000, 9..9] {
            let mut copy = Vec::new();
            spool.copy_to(range.clone(), &mut copy).await.unwrap();
            assert!(
                copy == all[range.start as usize..range.end as usize],
                "{range:?}"
            );
        }
        assert_eq!(
            std::fs::read_dir(directory.path()).unwrap().count(),
            0,
            "the file has a name"
        );
    }
}
