//! Patterns of file names, before anything compiles them. What compiles a pattern calls itself once
//! for each brace within braces, so that a pattern from outside could end the process; and a
//! placeholder's value may be a pattern, too. Whoever compiles one checks it here first: where a
//! job is planned, where it is accepted, and where its placeholders are replaced.

/// The longest pattern, in bytes.
pub const MAX_BYTES: usize = 16 << 10;
/// Braces within each other.
pub const MAX_NESTING: usize = 16;
/// The most alternatives of one pattern: `{a,b}` has two.
pub const MAX_ALTERNATIVES: usize = 2_048;

/// Why a pattern is none.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadGlob {
    #[error("it has {0} bytes; a pattern has at most {MAX_BYTES}")]
    TooLong(usize),
    #[error("more than {MAX_NESTING} braces stand within each other")]
    TooDeep,
    #[error("it has more than {MAX_ALTERNATIVES} alternatives")]
    TooMany,
    #[error("a `{{` is never closed")]
    UnclosedBrace,
    #[error("a `}}` closes nothing")]
    UnopenedBrace,
    #[error("a `[` is never closed")]
    UnclosedClass,
    #[error("the range {0}-{1} has no characters")]
    EmptyRange(char, char),
    #[error("it ends in a `\\`, behind which a character is missing")]
    DanglingEscape,
}

/// Whether a pattern is one, and may be compiled.
pub fn check(pattern: &str) -> Result<(), BadGlob> {
    if pattern.len() > MAX_BYTES {
        return Err(BadGlob::TooLong(pattern.len()));
    }
    let (mut depth, mut alternatives) = (0usize, 0usize);
    let mut rest = pattern.chars();
    while let Some(c) = rest.next() {
        match c {
            '{' => {
                depth += 1;
                alternatives += 1;
            }
            '}' => depth = depth.checked_sub(1).ok_or(BadGlob::UnopenedBrace)?,
            ',' if depth > 0 => alternatives += 1,
            '[' => class(&mut rest)?,
            '\\' => {
                rest.next().ok_or(BadGlob::DanglingEscape)?;
            }
            _ => {}
        }
        if depth > MAX_NESTING {
            return Err(BadGlob::TooDeep);
        }
        if alternatives > MAX_ALTERNATIVES {
            return Err(BadGlob::TooMany);
        }
    }
    if depth > 0 {
        Err(BadGlob::UnclosedBrace)
    } else {
        Ok(())
    }
}

/// Whether a name is one of a pattern's: `*` stands for any characters, `?` for one, everything
/// else for itself. Nothing is compiled, and no pattern takes longer than its length times the
/// name's.
pub fn matches(pattern: &str, name: &str) -> bool {
    let (pattern, name): (Vec<char>, Vec<char>) =
        (pattern.chars().collect(), name.chars().collect());
    let (mut at, mut from) = (0, 0);
    // Behind the last `*`, and how far the name has come that it stands for.
    let mut star = None;
    while from < name.len() {
        match pattern.get(at) {
            Some('*') => {
                at += 1;
                star = Some((at, from));
            }
            Some(c) if *c == '?' || *c == name[from] => (at, from) = (at + 1, from + 1),
            _ => match &mut star {
                Some((behind, taken)) => {
                    *taken += 1;
                    (at, from) = (*behind, *taken);
                }
                None => return false,
            },
        }
    }
    pattern[at..].iter().all(|c| *c == '*')
}

/// The rest of `[…]`. A `]` or `-` that comes first is itself, as is a `-` that comes last.
fn class(rest: &mut std::str::Chars<'_>) -> Result<(), BadGlob> {
    let mut next = || rest.next().ok_or(BadGlob::UnclosedClass);
    let mut c = next()?;
    if matches!(c, '!' | '^') {
        c = next()?;
    }
    let (mut start, mut in_range) = (c, false);
    loop {
        c = next()?;
        match c {
            ']' => return Ok(()),
            '-' if !in_range => in_range = true,
            c if in_range && c < start => return Err(BadGlob::EmptyRange(start, c)),
            // What ends a range begins none: `a-c-e` is `a-e`.
            _ if in_range => in_range = false,
            c => start = c,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_are_bounded() {
        let nested = |depth: usize| format!("{}a{}", "{".repeat(depth), "}".repeat(depth));
        assert_eq!(check(&nested(MAX_NESTING)), Ok(()));
        assert_eq!(check(&nested(MAX_NESTING + 1)), Err(BadGlob::TooDeep));
        assert_eq!(check(&nested(40_000)), Err(BadGlob::TooLong(80_001)));
        assert_eq!(
            check(&format!("{{{}}}", ",".repeat(MAX_ALTERNATIVES - 1))),
            Ok(())
        );
        assert_eq!(
            check(&format!("{{{}}}", ",".repeat(MAX_ALTERNATIVES))),
            Err(BadGlob::TooMany)
        );
        assert_eq!(
            check(&"a".repeat(MAX_BYTES + 1)),
            Err(BadGlob::TooLong(MAX_BYTES + 1))
        );
    }

    #[test]
    fn a_name_is_matched_as_a_whole() {
        for (pattern, name) in [
            ("*", ""),
            ("a*", "abc"),
            ("*c", "abc"),
            ("a?c", "abc"),
            ("*b*b*", "abab"),
            ("", ""),
        ] {
            assert!(matches(pattern, name), "{pattern} {name}");
        }
        for (pattern, name) in [
            ("", "a"),
            ("a", "ab"),
            ("a*b", "abc"),
            ("?", ""),
            ("*ab", "aba"),
            ("A", "a"),
        ] {
            assert!(!matches(pattern, name), "{pattern} {name}");
        }
        assert!(!matches(&"*a".repeat(200), &"a".repeat(100)));
    }

    #[test]
    fn what_is_wrong_is_told() {
        for (pattern, problem) in [
            ("a{b", BadGlob::UnclosedBrace),
            ("a}b", BadGlob::UnopenedBrace),
            ("[ab", BadGlob::UnclosedClass),
            ("[]", BadGlob::UnclosedClass),
            ("[z-a]", BadGlob::EmptyRange('z', 'a')),
            ("a\\", BadGlob::DanglingEscape),
        ] {
            assert_eq!(check(pattern), Err(problem), "{pattern}");
        }
        for pattern in [
            "",
            "*.{h5,png}",
            "a/**/b?",
            "[]a]",
            "[!-]",
            "[a-]",
            "[^]-a]",
            "[a-c-b]",
            "\\{",
            "a,b",
        ] {
            assert_eq!(check(pattern), Ok(()), "{pattern}");
        }
    }
}
