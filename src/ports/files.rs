//! What files are done to in the same way everywhere.

use std::{fs, io, path::Path};

/// Removes a file. One that is not there is as good as removed.
pub fn remove_if_there(path: &Path) -> io::Result<()> {
    if_there(fs::remove_file(path))
}

/// What came of an operation on a file that need not be there.
pub fn if_there(done: io::Result<()>) -> io::Result<()> {
    match done {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        done => done,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_gone_and_one_that_never_was_is_too() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        fs::write(&path, "x").unwrap();
        remove_if_there(&path).unwrap();
        assert!(!path.exists());
        remove_if_there(&path).unwrap();
        assert!(
            remove_if_there(dir.path()).is_err(),
            "a directory is no file"
        );
    }
}
