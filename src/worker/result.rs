//! The value of a task: where it stands in what the task printed, and the JSON that is kept of it.

use super::streams;
use memchr::memmem;
use nodectl_types::limits::MAX_RESULT_BYTES;
use std::{fs::File, io, os::unix::fs::FileExt, path::Path};

/// What a line begins with that is a result.
pub const MARK: &str = "nodectl-result:";
/// Bytes of a log that are searched at a time, from its end on.
const WINDOW: u64 = 1 << 20;

/// What follows `mark` in the last line of the file `log` that begins with it, cut off a little
/// beyond [`MAX_RESULT_BYTES`].
pub fn marked_line(log: &Path, mark: &str) -> io::Result<Option<String>> {
    let Some((file, length)) = streams::open(log)? else {
        return Ok(None);
    };
    let Some(start) = last_mark(&file, length, (mark, WINDOW))? else {
        return Ok(None);
    };
    let mut line = vec![0; (length - start).min(MAX_RESULT_BYTES as u64 + 64) as usize];
    file.read_exact_at(&mut line, start)?;
    let end = memchr::memchr(b'\n', &line).unwrap_or(line.len());
    let text = String::from_utf8_lossy(&line[..end]);
    Ok(Some(text.trim().to_string()))
}

/// Where the JSON begins, of the last line that begins with the mark.
fn last_mark(file: &File, length: u64, (mark, window): (&str, u64)) -> io::Result<Option<u64>> {
    let mut bytes = Vec::new();
    let mut end = length;
    while end > 0 {
        let start = end.saturating_sub(window);
        // A mark that lies over the edge of two windows, and what is before it, belong to this one.
        let (from, to) = (
            start.saturating_sub(1),
            (end + mark.len() as u64).min(length),
        );
        bytes.resize((to - from) as usize, 0);
        file.read_exact_at(&mut bytes, from)?;
        let begins_line = |at: usize| from + at as u64 == 0 || at > 0 && bytes[at - 1] == b'\n';
        let mut marks = memmem::rfind_iter(&bytes, mark);
        if let Some(at) = marks.find(|at| begins_line(*at)) {
            return Ok(Some(from + (at + mark.len()) as u64));
        }
        end = start;
    }
    Ok(None)
}

/// `text` as JSON. Numbers that JSON does not have become strings, as in protobuf's JSON mapping
/// (<https://protobuf.dev/programming-guides/json/>): `NaN`, as Python's `json` writes it, and `nan`,
/// as it prints it, are `"NaN"`; `"Infinity"` and `"-Infinity"` likewise.
///
/// Errors say that the result in `place` is no JSON, or has too many bytes.
pub fn as_json(text: &str, place: &str) -> Result<String, String> {
    let json = with_quoted_numbers(text.trim());
    if json.len() > MAX_RESULT_BYTES {
        return Err(format!(
            "the result in {place} has more than {MAX_RESULT_BYTES} bytes"
        ));
    }
    match serde_json::from_str::<serde::de::IgnoredAny>(&json) {
        Ok(_) => Ok(json),
        Err(error) => Err(format!("the result in {place} is not JSON: {error}")),
    }
}

/// Quotes what stands outside of strings and names a number that JSON does not have.
fn with_quoted_numbers(text: &str) -> String {
    let mut json = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let is_word = |c: char| c.is_ascii_alphanumeric() || "+-._".contains(c);
        let length = match first {
            '"' => string_length(rest),
            c if is_word(c) => rest.find(|c| !is_word(c)).unwrap_or(rest.len()),
            c => c.len_utf8(),
        };
        let (token, after) = rest.split_at(length);
        match token {
            "NaN" | "nan" | "-NaN" | "-nan" => json.push_str("\"NaN\""),
            "Infinity" | "inf" => json.push_str("\"Infinity\""),
            "-Infinity" | "-inf" => json.push_str("\"-Infinity\""),
            token => json.push_str(token),
        }
        rest = after;
    }
    json
}

/// Bytes of the JSON string that `text` begins with, its quotes included.
fn string_length(text: &str) -> usize {
    let mut is_escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        match c {
            '"' if !is_escaped => return at + 1,
            c => is_escaped = c == '\\' && !is_escaped,
        }
    }
    text.len()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn log(text: &str) -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        file
    }

    #[test]
    fn the_last_marked_line_is_the_result_wherever_it_stands() {
        let found = |text: &str| marked_line(log(text).path(), MARK).unwrap();
        assert_eq!(found("nodectl-result: 1\nmore\n").as_deref(), Some("1"));
        assert_eq!(
            found("nodectl-result: 1\nnodectl-result: 2").as_deref(),
            Some("2")
        );
        assert_eq!(found("x nodectl-result: 1\n"), None);
        assert_eq!(found(""), None);
        let far = format!("nodectl-result: [3]\n{}", "line\n".repeat(600_000));
        assert_eq!(found(&far).as_deref(), Some("[3]"));
    }

    #[test]
    fn numbers_that_json_lacks_are_strings() {
        let kept = |text: &str| as_json(text, "stdout").unwrap();
        assert_eq!(kept("NaN"), "\"NaN\"");
        assert_eq!(kept("nan"), "\"NaN\"");
        assert_eq!(
            kept(r#"{"loss": [NaN, -Infinity, inf], "NaN": "nan \" -inf"}"#),
            r#"{"loss": ["NaN", "-Infinity", "Infinity"], "NaN": "nan \" -inf"}"#
        );
        assert_eq!(kept("-1.5e-3"), "-1.5e-3");
        assert!(as_json("nano", "stdout").is_err());
    }

    proptest! {
        #[test]
        fn json_is_kept_as_it_is(text in r#"[ -~]{0,20}"#) {
            let json = serde_json::to_string(&text).unwrap();
            prop_assert_eq!(as_json(&json, "stdout").unwrap(), json);
        }

        #[test]
        fn windows_of_any_size_find_the_same_line(
            lines in prop::collection::vec("(nodectl-result: [0-9]|[a-z:-]{0,20}| nodectl-result: 1)", 0..12),
            window in 1_u64..64,
        ) {
            let text = lines.join("\n");
            let file = log(&text);
            let wanted = lines.iter().rev().find_map(|line| line.strip_prefix(MARK));
            let file = File::open(file.path()).unwrap();
            let start = last_mark(&file, text.len() as u64, (MARK, window)).unwrap();
            let found = start.map(|at| text[at as usize..].lines().next().unwrap_or_default());
            prop_assert_eq!(found, wanted);
        }
    }
}
