//! Words for a POSIX shell (XCU 2.2.2: nothing is special between single quotes).

/// One word, quoted where it has to be.
pub fn quote(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=@%+,".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_string()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

/// Several words, side by side.
pub fn join<'w>(words: impl IntoIterator<Item = &'w str>) -> String {
    words.into_iter().map(quote).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn plain_words_stay_readable() {
        assert_eq!(
            join(["a-b", "", "it's", "$HOME"]),
            r"a-b '' 'it'\''s' '$HOME'"
        );
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, cases: 64, ..ProptestConfig::default() })]
        #[test]
        fn a_shell_reads_back_what_was_quoted(word in "[^\0]{0,20}") {
            let script = format!("printf %s {}", quote(&word));
            let output = std::process::Command::new("sh").args(["-c", &script]).output().expect("there is a shell");
            prop_assert_eq!(String::from_utf8_lossy(&output.stdout), word);
        }
    }
}
