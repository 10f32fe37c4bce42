//! Text from elsewhere on a terminal. A control character moves the cursor or rewrites what stands
//! there already, and a bidirectional override shows other letters than there are; either makes a
//! name look like something that it is not.
//!
//! What is laid out, as in tables, shows a space in its place (`one_line`, `lines`); what is
//! quoted, as in messages about it, is written out (`escaped`, `shown`), so that who wrote it finds
//! it.

use std::borrow::Cow;

/// The most characters of a name or a value that is quoted.
const MAX_CHARS: usize = 160;
/// The most characters of a message.
const MAX_MESSAGE_CHARS: usize = 4_000;

/// Characters that act on a terminal or on the text around them.
pub fn is_unsafe(c: char) -> bool {
    let is_separator = matches!(c, '\u{2028}' | '\u{2029}');
    let is_bidi = matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    c.is_control() || is_separator || is_bidi
}

/// A message, and the hint that it ends with, if it has one.
pub fn split_hint(message: &str) -> (&str, Option<&str>) {
    message
        .split_once("\nhint: ")
        .map_or((message, None), |(message, hint)| (message, Some(hint)))
}

/// May be a name: some text, without anything that acts on a terminal.
pub fn is_name(text: &str) -> bool {
    !text.is_empty() && !text.contains(is_unsafe)
}

/// One line that only shows: what would act on the terminal becomes a space.
pub fn one_line(text: &str) -> Cow<'_, str> {
    if text.contains(is_unsafe) {
        Cow::Owned(text.replace(is_unsafe, " "))
    } else {
        Cow::Borrowed(text)
    }
}

/// Text of several lines, as people are shown it: line breaks and tabs stay.
pub fn lines(text: &str) -> Cow<'_, str> {
    let is_bad = |c: char| is_unsafe(c) && c != '\n' && c != '\t';
    if text.contains(is_bad) {
        Cow::Owned(text.replace(is_bad, " "))
    } else {
        Cow::Borrowed(text)
    }
}

/// The beginning of a text that may be long, on one line: at most `chars` characters.
pub fn shortened(text: &str, chars: usize) -> Cow<'_, str> {
    match text.char_indices().nth(chars) {
        None => one_line(text),
        Some(_) => {
            let kept = text
                .char_indices()
                .nth(chars.saturating_sub(1))
                .map_or(0, |(index, _)| index);
            Cow::Owned(format!("{}…", one_line(&text[..kept])))
        }
    }
}

/// With what acts written out: `\n`, `\u{1b}`.
pub fn escaped(text: &str) -> Cow<'_, str> {
    if !text.contains(is_unsafe) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if is_unsafe(c) {
            out.extend(c.escape_default())
        } else {
            out.push(c)
        }
    }
    Cow::Owned(out)
}

/// A name or a value within a message: escaped, and of a long one both ends.
pub fn shown(text: &str) -> Cow<'_, str> {
    ends(text, MAX_CHARS)
}

/// A whole message. Its lines stay lines; what stands between backticks, which is others' text, is
/// one line and short.
pub fn message(text: &str) -> String {
    let parts = text.split('`').enumerate().map(|(index, part)| {
        if index % 2 == 1 {
            return shown(part);
        }
        if part.contains('\n') {
            return Cow::Owned(part.split('\n').map(escaped).collect::<Vec<_>>().join("\n"));
        }
        escaped(part)
    });
    let whole = parts.collect::<Vec<_>>().join("`");
    match whole.char_indices().nth(MAX_MESSAGE_CHARS) {
        None => whole,
        Some((end, _)) => format!("{} …", &whole[..end]),
    }
}

/// A document of XML, an SVG image for one, of which no character is one that XML lacks. Those that
/// act on a terminal go, too.
pub fn xml(document: &str) -> String {
    let lacks = |c: char| {
        (is_unsafe(c) && !matches!(c, '\n' | '\t' | '\r')) || matches!(c, '\u{fffe}' | '\u{ffff}')
    };
    document.replace(lacks, "\u{fffd}")
}

/// Escaped; of more than `most` characters the first and the last ones.
pub fn ends(text: &str, most: usize) -> Cow<'_, str> {
    let half = most / 2;
    // A look at so many characters, however many there are.
    let Some(head) = text
        .char_indices()
        .nth(most)
        .and_then(|_| text.char_indices().nth(half))
    else {
        return escaped(text);
    };
    let tail = text
        .char_indices()
        .rev()
        .nth(half - 1)
        .map_or(text.len(), |(at, _)| at);
    Cow::Owned(format!(
        "{}…{}",
        escaped(&text[..head.0]),
        escaped(&text[tail..])
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_acts_on_a_terminal_becomes_a_space() {
        assert_eq!(one_line("plain ü 日本"), "plain ü 日本");
        assert_eq!(
            one_line("a\u{1b}[2Jb\nc\u{9b}d\u{202e}e\u{2028}f"),
            "a [2Jb c d e f"
        );
        assert_eq!(lines("a\u{1b}[2J\n\tb\r"), "a [2J\n\tb ");
        assert!(is_name("a b") && !is_name("") && !is_name("a\u{7}") && !is_name("\u{2066}a"));
    }

    #[test]
    fn long_text_is_shortened() {
        assert_eq!(shortened("abc", 3), "abc");
        assert_eq!(shortened("äbcd", 3), "äb…");
        assert_eq!(shortened("a\u{1b}cd", 3), "a …");
    }

    #[test]
    fn what_acts_on_a_terminal_is_written_out_where_it_is_quoted() {
        assert_eq!(escaped("plain é 火"), "plain é 火");
        assert_eq!(
            escaped("\u{1b}[2J\r\n\u{9b}1m"),
            "\\u{1b}[2J\\r\\n\\u{9b}1m"
        );
        assert_eq!(escaped("a\u{202e}b\u{2066}"), "a\\u{202e}b\\u{2066}");
    }

    #[test]
    fn long_names_keep_their_ends() {
        assert_eq!(shown(&"a".repeat(MAX_CHARS)), "a".repeat(MAX_CHARS));
        let long = format!("first{}last", "é".repeat(100_000));
        let short = shown(&long);
        assert!(
            short.starts_with("first") && short.ends_with("last") && short.contains('…'),
            "{short}"
        );
        assert_eq!(short.chars().count(), MAX_CHARS + 1);
    }

    #[test]
    fn messages_keep_their_lines_but_not_those_of_others() {
        let told = message(&format!(
            "no key `a\nb\u{1b}[2J{}`\nhint: \tremove it",
            "c".repeat(9_999)
        ));
        assert!(
            told.starts_with("no key `a\\nb\\u{1b}[2Jcc")
                && told.ends_with("c`\nhint: \\tremove it"),
            "{told}"
        );
        assert!(told.chars().count() < 250, "{told}");
        assert!(message(&"`a` after ".repeat(9_999)).chars().count() < MAX_MESSAGE_CHARS + 3);
    }

    #[test]
    fn documents_of_xml_have_characters_of_xml() {
        assert_eq!(
            xml("<a>\n\u{1b}[2J\u{0}b\u{fffe}\u{202e}</a>"),
            "<a>\n\u{fffd}[2J\u{fffd}b\u{fffd}\u{fffd}</a>"
        );
    }

    proptest! {
        #[test]
        fn nothing_acts(text in "(?s).{0,400}") {
            prop_assert!(!shown(&text).contains(is_unsafe));
            prop_assert!(!message(&text).replace('\n', "").contains(is_unsafe));
        }
    }
}
