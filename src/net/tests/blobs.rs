//! A blob store in a directory, for tests.

use nodectl_ports::{BlobWriter, Blobs};
use nodectl_types::BlobHash;
use std::{
    fs::{self, File},
    io::{self, Write},
    path::{Path, PathBuf},
};

pub struct BlobDirectory(pub PathBuf);

struct BlobSink {
    directory: PathBuf,
    file: tempfile::NamedTempFile,
    hasher: blake3::Hasher,
}

impl Blobs for BlobDirectory {
    fn open(&self, hash: BlobHash) -> io::Result<Option<File>> {
        match File::open(self.0.join(hash.to_string())) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            file => file.map(Some),
        }
    }

    fn remove(&self, hash: BlobHash) -> io::Result<u64> {
        fs::remove_file(self.0.join(hash.to_string())).map(|()| 0)
    }

    fn writer(&self) -> io::Result<Box<dyn BlobWriter>> {
        let file = tempfile::NamedTempFile::new_in(&self.0)?;
        Ok(Box::new(BlobSink {
            directory: self.0.clone(),
            file,
            hasher: blake3::Hasher::new(),
        }))
    }

    fn put_file(&self, path: &Path) -> io::Result<(BlobHash, u64)> {
        let bytes = fs::read(path)?;
        Ok((self.put_bytes(&bytes)?, bytes.len() as u64))
    }

    fn put_bytes(&self, bytes: &[u8]) -> io::Result<BlobHash> {
        let hash = BlobHash::of(bytes);
        File::create(self.0.join(hash.to_string()))?.write_all(bytes)?;
        Ok(hash)
    }
}

impl BlobWriter for BlobSink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.hasher.update(bytes);
        self.file.write_all(bytes)
    }

    fn finish(self: Box<Self>, expected: Option<BlobHash>) -> io::Result<BlobHash> {
        let hash = BlobHash(*self.hasher.finalize().as_bytes());
        if expected.is_some_and(|expected| expected != hash) {
            return Err(io::Error::other("the bytes hash to something else"));
        }
        self.file
            .persist(self.directory.join(hash.to_string()))
            .map_err(|error| error.error)?;
        Ok(hash)
    }
}
