//! The log of what users did at this node: lines of JSON in the data directory, appended only, for
//! the node's user alone (0600). It is bounded: a file that is full is put aside, and the oldest of
//! them goes.

use nodectl_ports::Audit;
use nodectl_wire::api::AuditLine;
use std::{
    collections::VecDeque,
    fs::{self, File, OpenOptions},
    io::{self, BufRead, BufReader, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
};

/// Of one file.
const FILE_BYTES: u64 = 4 << 20;
/// Besides the one that is written.
const OLD_FILES: u32 = 4;
/// A longer line was not written here.
const LINE_BYTES: usize = 16 << 10;

pub struct AuditLog {
    directory: PathBuf,
    file_bytes: u64,
    /// One line at a time, and none while files are moved.
    lock: Mutex<()>,
}

impl AuditLog {
    pub fn new(directory: &Path) -> Self {
        Self {
            directory: directory.to_path_buf(),
            file_bytes: FILE_BYTES,
            lock: Mutex::default(),
        }
    }

    fn path(&self, age: u32) -> PathBuf {
        let name = if age == 0 {
            "audit.jsonl".into()
        } else {
            format!("audit.{age}.jsonl")
        };
        self.directory.join(name)
    }

    fn append(&self, line: &AuditLine) -> io::Result<()> {
        let mut bytes = serde_json::to_vec(line).map_err(io::Error::other)?;
        bytes.push(b'\n');
        let mut file = self.open()?;
        if file.metadata()?.len() + bytes.len() as u64 > self.file_bytes {
            for age in (0..OLD_FILES).rev() {
                match fs::rename(self.path(age), self.path(age + 1)) {
                    Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                    _ => {}
                }
            }
            file = self.open()?;
        }
        // In one piece: a line is there, or is not.
        file.write_all(&bytes)?;
        file.sync_data()
    }

    fn open(&self) -> io::Result<File> {
        OpenOptions::new()
            .append(true)
            .create(true)
            .mode(0o600)
            .custom_flags(libc::O_NOFOLLOW)
            .open(self.path(0))
    }
}

impl Audit for AuditLog {
    fn note(&self, line: AuditLine) {
        let _one = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        if let Err(error) = self.append(&line) {
            tracing::warn!(
                user = line.user,
                what = line.what.word(),
                "could not be written to the audit log: {error}"
            );
        }
    }

    fn newest(&self, most: usize) -> io::Result<Vec<AuditLine>> {
        let _one = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        let mut newest = VecDeque::new();
        for age in (0..=OLD_FILES).rev() {
            let file = match File::open(self.path(age)) {
                Ok(file) => file,
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(error),
            };
            for line in BufReader::new(io::Read::take(file, self.file_bytes)).split(b'\n') {
                // What is torn, or of another version, is passed over.
                let line = line?;
                let parsed = Some(line).filter(|line| line.len() <= LINE_BYTES);
                let Some(line) = parsed.and_then(|line| serde_json::from_slice(&line).ok()) else {
                    continue;
                };
                newest.push_back(line);
                if newest.len() > most {
                    newest.pop_front();
                }
            }
        }
        Ok(newest.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nodectl_wire::api::AuditName;
    use std::os::unix::fs::PermissionsExt;

    fn line(number: u64) -> AuditLine {
        let (user, node, about) = (
            "alice".into(),
            "box-1".into(),
            Some(format!("job {number}")),
        );
        AuditLine {
            at_ms: number,
            user,
            uid: Some(1000),
            node,
            what: AuditName::Submit,
            about,
            refused: None,
        }
    }

    #[test]
    fn the_newest_lines_are_kept_in_bounded_files_for_one_user_alone() {
        let dir = tempfile::tempdir().unwrap();
        let log = AuditLog {
            file_bytes: 1_000,
            ..AuditLog::new(dir.path())
        };
        assert_eq!(log.newest(10).unwrap(), []);
        (0..200).for_each(|number| log.note(line(number)));
        assert_eq!(log.newest(3).unwrap(), [line(197), line(198), line(199)]);
        let kept = log.newest(1_000).unwrap();
        assert!((20..60).contains(&kept.len()), "{}", kept.len());
        assert!(
            kept.windows(2)
                .all(|pair| pair[0].at_ms + 1 == pair[1].at_ms)
        );
        let files: Vec<_> = fs::read_dir(dir.path()).unwrap().flatten().collect();
        assert_eq!(files.len(), 5);
        for file in files {
            let metadata = file.metadata().unwrap();
            assert!(metadata.len() <= 1_000 && metadata.permissions().mode() & 0o777 == 0o600);
        }
    }

    #[test]
    fn a_torn_line_costs_itself() {
        let dir = tempfile::tempdir().unwrap();
        let log = AuditLog::new(dir.path());
        log.note(line(1));
        OpenOptions::new()
            .append(true)
            .open(log.path(0))
            .unwrap()
            .write_all(b"{\"at_ms\":\n")
            .unwrap();
        log.note(line(2));
        assert_eq!(log.newest(9).unwrap(), [line(1), line(2)]);
    }
}
