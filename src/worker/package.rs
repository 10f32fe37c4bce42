//! The Python package of this project, which the program carries: put where workers find it, so
//! that a node needs no `pip install`, and so that what they import speaks this node's version.

use super::directory::PYTHON_DIRECTORY;
use flate2::read::GzDecoder;
use std::{
    collections::BTreeSet,
    ffi::{OsStr, OsString},
    fs,
    io::{self, BufRead, BufReader, Read},
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
};

/// Made by `build.rs`.
const PACKED: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/package.gz"));
/// How the names of its directories begin; the rest is a hash of what is in them.
const PREFIX: &str = "package-";

/// Puts the package into the data directory, unless it is there as it must be; returns what Python
/// is to find it by. Packages of other versions are removed. Nothing may be running that uses them.
pub fn place(data_dir: &Path) -> io::Result<PathBuf> {
    let dir = data_dir.join(PYTHON_DIRECTORY);
    let name = format!("{PREFIX}{}", &blake3::hash(PACKED).to_hex()[..16]);
    let place = dir.join(&name);
    let files = unpack(PACKED)?;
    let is_whole = files
        .iter()
        .all(|(path, content)| fs::read(place.join(path)).is_ok_and(|found| found == *content));
    for entry in fs::read_dir(&dir)? {
        let entry = entry?;
        let found = entry.file_name();
        let is_package = found.to_string_lossy().starts_with(PREFIX);
        if is_package && (found != name.as_str() || !is_whole) {
            fs::remove_dir_all(entry.path())?;
        }
    }
    if !is_whole {
        // Renamed into place: there is never half of a package by its name.
        let new = dir.join(format!("{PREFIX}new"));
        let parents: BTreeSet<_> = files.iter().filter_map(|(path, _)| path.parent()).collect();
        for parent in parents {
            fs::DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(new.join(parent))?;
        }
        for (path, content) in &files {
            fs::write(new.join(path), content)?;
        }
        fs::rename(new, &place)?;
    }
    Ok(place)
}

/// Where Python looks for modules: the package before all that there was, so that another version
/// that somebody has installed does not shadow it.
pub fn before(package: &Path, path: Option<&OsStr>) -> OsString {
    let mut joined = package.as_os_str().to_os_string();
    if let Some(path) = path.filter(|path| !path.is_empty()) {
        joined.push(":");
        joined.push(path);
    }
    joined
}

fn unpack(packed: &[u8]) -> io::Result<Vec<(PathBuf, Vec<u8>)>> {
    let mut reader = BufReader::new(GzDecoder::new(packed));
    let mut files = Vec::new();
    loop {
        let mut head = [String::new(), String::new()];
        for line in &mut head {
            reader.read_line(line)?;
        }
        let [name, length] = head.each_ref().map(|line| line.trim_end());
        if name.is_empty() {
            return Ok(files);
        }
        let length = length.parse().map_err(io::Error::other)?;
        let mut content = vec![0; length];
        reader.read_exact(&mut content)?;
        files.push((name.into(), content));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn data_dir() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join(PYTHON_DIRECTORY)).unwrap();
        dir
    }

    #[test]
    fn the_package_is_that_of_the_sources() {
        let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/python");
        let files = unpack(PACKED).unwrap();
        for (path, content) in &files {
            assert_eq!(fs::read(sources.join(path)).unwrap(), *content, "{path:?}");
        }
        let has = |name: &str| files.iter().any(|(path, _)| path == Path::new(name));
        assert!(has("nodectl/params.py") && has("nodectl/py.typed"));
        assert!(has("ludwigcluster/client.py") && has("distributed_computing/api.py"));
    }

    #[test]
    fn a_damaged_package_is_put_right_and_an_old_one_goes() {
        let dir = data_dir();
        let place = place(dir.path()).unwrap();
        let params = place.join("nodectl/params.py");
        let whole = fs::read(&params).unwrap();
        let old = dir
            .path()
            .join(PYTHON_DIRECTORY)
            .join("package-0123456789abcdef");
        let half = dir
            .path()
            .join(PYTHON_DIRECTORY)
            .join("package-new/nodectl");
        let other = dir.path().join(PYTHON_DIRECTORY).join("other");
        for made in [&old, &half, &other] {
            fs::create_dir_all(made).unwrap();
        }
        fs::write(&params, "").unwrap();
        assert_eq!(super::place(dir.path()).unwrap(), place);
        assert_eq!(fs::read(&params).unwrap(), whole);
        assert!(!old.exists() && !half.exists() && other.exists());
        fs::write(place.join("nodectl/compiled"), "").unwrap();
        super::place(dir.path()).unwrap();
        assert!(place.join("nodectl/compiled").exists(), "it was whole");
    }

    #[test]
    fn the_package_comes_before_what_was_there() {
        let package = Path::new("/data/package");
        let of = |path: Option<&str>| before(package, path.map(OsStr::new));
        assert_eq!(of(None), "/data/package");
        assert_eq!(of(Some("")), "/data/package");
        assert_eq!(of(Some("/a:/b")), "/data/package:/a:/b");
    }
}
