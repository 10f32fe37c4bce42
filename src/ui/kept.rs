//! Files of the page that only the node's user may read, written whole or not at all.

use super::guard;
use std::{
    fs::{self, OpenOptions},
    io::{self, Write},
    os::unix::fs::OpenOptionsExt,
    path::Path,
};

/// Replaces the file `path`, readable by its owner only.
pub fn write_privately(path: &Path, text: &str) -> io::Result<()> {
    let new = path.with_extension("new");
    let mut file = OpenOptions::new();
    let file = file.write(true).create(true).truncate(true).mode(0o600);
    file.open(&new)?.write_all(text.as_bytes())?;
    fs::rename(new, path)
}

/// The token in the file `path`, with which `/metrics` is read for as long as the file is there; a
/// new one of 256 random bits where there is none. It is 64 hexadecimal digits and stands alone, as
/// Prometheus' `credentials_file` wants it.
pub fn metrics_token(path: &Path) -> io::Result<String> {
    match fs::read_to_string(path) {
        Ok(text) if text.trim().len() == 64 => return Ok(text.trim().to_string()),
        Ok(_) => {
            let why = "it is not a token of 64 hexadecimal digits; remove it, and one is made";
            return Err(io::Error::new(io::ErrorKind::InvalidData, why));
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    let token = guard::draw().map_err(io::Error::other)?;
    write_privately(path, &format!("{token}\n"))?;
    Ok(token)
}
