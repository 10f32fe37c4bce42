//! The token with which Prometheus reads the page's numbers.

use super::guard;
use nodectl_ports::atomic;
use std::{fs, io, path::Path};

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
    atomic::write(path, format!("{token}\n").as_bytes(), 0o600)?;
    Ok(token)
}
