//! Files that users name. Only plain ones are opened: a FIFO would be waited for, and a device
//! never ends.

use globset::{GlobBuilder, GlobMatcher};
use nodectl_types::glob;
use std::{
    fs::{File, OpenOptions},
    io::{self, Read},
    os::unix::fs::OpenOptionsExt,
    path::Path,
};

/// Opens a file for reading, if it is one.
pub fn open(path: &Path) -> io::Result<File> {
    // Without it, opening a FIFO waits for somebody who writes; to a file it means nothing.
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC)
        .open(path)?;
    if file.metadata()?.is_file() {
        Ok(file)
    } else {
        Err(io::Error::other("it is not a file"))
    }
}

/// The text of a file of at most `most` bytes. The error is a sentence without the file's name.
pub fn text(path: &Path, most: u64, what: &str) -> Result<String, String> {
    let file = open(path).map_err(|error| error.to_string())?;
    let length = file.metadata().map_err(|error| error.to_string())?.len();
    let mut bytes = Vec::new();
    file.take(most + 1)
        .read_to_end(&mut bytes)
        .map_err(|error| error.to_string())?;
    if bytes.len() as u64 > most {
        return Err(format!("{length} bytes are too many for {what}"));
    }
    String::from_utf8(bytes).map_err(|error| {
        format!(
            "it is not UTF-8 text from byte {} on",
            error.utf8_error().valid_up_to()
        )
    })
}

/// A pattern of files' paths, of which `/` is a part of its own. The error is a sentence.
pub fn matcher(pattern: &str) -> Result<GlobMatcher, String> {
    glob::check(pattern).map_err(|error| error.to_string())?;
    let built = GlobBuilder::new(pattern).literal_separator(true).build();
    Ok(built
        .map_err(|error| error.kind().to_string())?
        .compile_matcher())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::fs;

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        /// What is checked before a pattern is compiled is what compiling it would say.
        #[test]
        fn checked_patterns_are_those_that_compile(pattern in r"[ab{},\[\]!^*?/\\-]{0,16}") {
            let compiles = GlobBuilder::new(&pattern).literal_separator(true).build().is_ok();
            prop_assert_eq!(glob::check(&pattern).is_ok(), compiles, "{}", pattern);
        }
    }

    #[test]
    fn patterns_at_their_bounds_are_compiled() {
        let (open, close) = (
            "{a,".repeat(glob::MAX_NESTING),
            "}".repeat(glob::MAX_NESTING),
        );
        assert!(matcher(&format!("{open}b{close}")).unwrap().is_match("b"));
        let many = (1..glob::MAX_ALTERNATIVES)
            .map(|n| n.to_string())
            .collect::<Vec<_>>()
            .join(",");
        assert!(matcher(&format!("{{{many}}}")).unwrap().is_match("77"));
        assert!(matcher(&"{".repeat(100_000)).is_err());
    }

    #[test]
    fn only_plain_files_are_opened() {
        let dir = tempfile::tempdir().unwrap();
        let fifo = dir.path().join("fifo");
        rustix::fs::mknodat(
            rustix::fs::CWD,
            &fifo,
            rustix::fs::FileType::Fifo,
            0o600.into(),
            0,
        )
        .unwrap();
        for path in [&fifo, Path::new("/dev/zero"), dir.path()] {
            assert_eq!(
                open(path).unwrap_err().to_string(),
                "it is not a file",
                "{}",
                path.display()
            );
        }
        let file = dir.path().join("a.txt");
        fs::write(&file, "text").unwrap();
        assert_eq!(text(&file, 4, "a list").unwrap(), "text");
        assert_eq!(
            text(&file, 3, "a list").unwrap_err(),
            "4 bytes are too many for a list"
        );
    }
}
