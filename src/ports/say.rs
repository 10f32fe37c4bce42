//! Words for people on stderr. A reader that has gone, or a full disk behind it, is no reason to
//! fail, as `eprintln!` would; and what is said may quote names and values from anywhere, so
//! nothing in it may act on the terminal.

use nodectl_types::text;
use std::{
    fmt,
    io::{self, Write},
};

/// Of one line; the rest is left out.
const MAX_LINE_CHARS: usize = 4096;

/// Says a line, or several; as `eprintln!` does, but never panics.
#[macro_export]
macro_rules! tell {
    ($($arg:tt)*) => { $crate::say::line(format_args!($($arg)*)) };
}
pub use tell;

/// What `tell!` does.
pub fn line(words: fmt::Arguments<'_>) {
    write(&bounded(&format!("{words}\n")));
}

/// A mark of our own in front of the words, which may have colours.
pub fn marked(mark: &str, words: fmt::Arguments<'_>) {
    write(&format!("{mark} {}", bounded(&format!("{words}\n"))));
}

/// Words without a line break at the end, such as a question.
pub fn open(words: fmt::Arguments<'_>) {
    write(&bounded(&words.to_string()));
}

/// Words of a worker on its stdout, which is its task's log.
pub fn out(text: &str) {
    let mut stdout = io::stdout().lock();
    let _ = stdout
        .write_all(text.as_bytes())
        .and_then(|()| stdout.flush());
}

/// A value of a megabyte in an error is of no use to anybody.
fn bounded(words: &str) -> String {
    text::lines(words)
        .split_inclusive('\n')
        .map(|line| match line.char_indices().nth(MAX_LINE_CHARS) {
            None => line.to_string(),
            Some((end, _)) => format!(
                "{}…{}",
                &line[..end],
                if line.ends_with('\n') { "\n" } else { "" }
            ),
        })
        .collect()
}

fn write(text: &str) {
    let mut stderr = io::stderr().lock();
    let _ = stderr
        .write_all(text.as_bytes())
        .and_then(|()| stderr.flush());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_is_harmless_and_bounded() {
        assert_eq!(bounded("a\u{1b}[1m\nb\u{202e}\n"), "a [1m\nb \n");
        let long = bounded(&format!("{}\nnext", "x".repeat(100_000)));
        assert!(long.len() < 5000 && long.ends_with("…\nnext"), "{long}");
    }
}
