//! Opening a journal for appending, at start-up and after any failure: the torn tail is cut off, damage is set aside.

use super::{
    super::disk::{Disk, DiskFile, Mode},
    scan::{Rest, ScanError, scan},
};
use crate::{types::JobId, wire::journal::Record};
use std::{
    fs, io,
    io::Write,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    sync::Arc,
};

/// At most this many damaged pieces of one journal are kept; a disk that damages more is beyond a journal's help.
const MAX_SET_ASIDE: u32 = 1000;

/// A journal that is ready for appending.
pub struct Opened {
    pub file: Arc<dyn DiskFile>,
    /// Where the next frame goes; 0 if the header is still to be written.
    pub end: u64,
}

/// Scans the journal at `path`, gives its records to `each`, and makes the file end after the last intact one.
pub fn open(disk: &dyn Disk, path: &Path, job: JobId, each: &mut dyn FnMut(u64, Record)) -> Result<Opened, ScanError> {
    let file = disk.open(path, Mode::Write)?;
    let found = scan(&*file, job, each)?;
    cut(&*file, path, found.end, &found.rest)?;
    Ok(Opened { file, end: found.end })
}

/// The same for start-up, where the records count even if the file cannot be written or cut: an append will find that out
/// by itself. Gives where the journal ends, `None` if that is yet to be made so.
pub fn replay(
    disk: &dyn Disk,
    path: &Path,
    job: JobId,
    each: &mut dyn FnMut(u64, Record),
) -> Result<Option<u64>, ScanError> {
    let (file, unwritable) = match disk.open(path, Mode::Write) {
        Ok(file) => (file, None),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(error.into()),
        Err(error) => (disk.open(path, Mode::Read)?, Some(error)),
    };
    let found = scan(&*file, job, each)?;
    let cut = unwritable.map_or_else(|| cut(&*file, path, found.end, &found.rest), Err);
    if let Err(error) = &cut {
        tracing::error!(path = %path.display(), %error, "journal cannot be written; its records are used");
    }
    Ok(cut.is_ok().then_some(found.end))
}

fn cut(file: &dyn DiskFile, path: &Path, end: u64, rest: &Rest) -> io::Result<()> {
    match rest {
        Rest::Nothing => return Ok(()),
        Rest::Torn { bytes } => {
            tracing::warn!(path = %path.display(), offset = end, bytes, "cutting off an unfinished append");
        }
        Rest::Damaged { bytes } => {
            let aside = set_aside(file, path, end)?;
            tracing::error!(
                path = %path.display(), offset = end, bytes, kept = %aside.display(),
                "journal is damaged: records before the offset count, the rest is kept aside. hint: check the disk"
            );
        }
    }
    file.truncate(end)?;
    file.sync()
}

/// Copies everything from `from` on to `journal.damaged-<n>`, durably.
fn set_aside(file: &dyn DiskFile, path: &Path, from: u64) -> io::Result<PathBuf> {
    let (mut copy, aside) = new_aside(path)?;
    let mut buffer = vec![0; 256 << 10];
    let mut offset = from;
    loop {
        let count = file.read_at(&mut buffer, offset)?;
        if count == 0 {
            break;
        }
        copy.write_all(&buffer[..count])?;
        offset += count as u64;
    }
    copy.sync_all()?;
    Ok(aside)
}

fn new_aside(path: &Path) -> io::Result<(fs::File, PathBuf)> {
    for number in 1..=MAX_SET_ASIDE {
        let aside = path.with_file_name(format!("journal.damaged-{number}"));
        match fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&aside) {
            Ok(file) => return Ok((file, aside)),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
    }
    Err(io::Error::other(format!("{MAX_SET_ASIDE} damaged pieces are kept beside it already")))
}
