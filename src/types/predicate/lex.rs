//! Text to tokens. Knows quotes, numbers with units and operators; nothing of fields or structure.

use super::{ComparisonOp, OPS, PredicateError};
use crate::units::parse_bytes;

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Token {
    Open,
    Close,
    ListOpen,
    ListClose,
    Comma,
    Op(ComparisonOp),
    /// `and`, `or`, `not`, `in`.
    Keyword(&'static str),
    /// A field, or a value written without quotes.
    Word(String),
    /// A number or size, or a value in quotes: never a field.
    Value(String),
}

const KEYWORDS: [&str; 4] = ["and", "or", "not", "in"];

/// The tokens and the byte offsets at which they start.
pub(super) fn lex(text: &str) -> Result<Vec<(usize, Token)>, PredicateError> {
    let mut tokens = Vec::new();
    let mut at = 0;
    while let Some(first) = text[at..].chars().next() {
        if first.is_whitespace() {
            at += first.len_utf8();
            continue;
        }
        let (token, length) = token(text, at, first)?;
        tokens.push((at, token));
        at += length;
    }
    Ok(tokens)
}

/// Whether a value can be written without quotes.
pub(super) fn is_bare(text: &str) -> bool {
    match lex(text).as_deref() {
        Ok([(0, Token::Word(word) | Token::Value(word))]) => word == text,
        _ => false,
    }
}

/// The token at `at`, which begins with `first`, and its length in bytes.
fn token(text: &str, at: usize, first: char) -> Result<(Token, usize), PredicateError> {
    let rest = &text[at..];
    let single = match first {
        '(' => Some(Token::Open),
        ')' => Some(Token::Close),
        '[' => Some(Token::ListOpen),
        ']' => Some(Token::ListClose),
        ',' => Some(Token::Comma),
        _ => None,
    };
    if let Some(token) = single {
        return Ok((token, 1));
    }
    if let Some((sign, op)) = OPS.iter().find(|(sign, _)| rest.starts_with(sign)) {
        return Ok((Token::Op(*op), sign.len()));
    }
    match first {
        '\'' | '"' => quoted(rest, at, first),
        c if c.is_ascii_digit() => Ok(number(rest)),
        c if is_word_char(c) => Ok(word(rest)),
        _ => Err(stray(rest, at, first)),
    }
}

fn is_word_char(c: char) -> bool {
    c.is_alphanumeric() || matches!(c, '_' | '-' | '.')
}

fn word_end(rest: &str) -> usize {
    rest.find(|c| !is_word_char(c)).unwrap_or(rest.len())
}

fn word(rest: &str) -> (Token, usize) {
    let word = &rest[..word_end(rest)];
    let keyword = KEYWORDS
        .iter()
        .find(|keyword| keyword.eq_ignore_ascii_case(word));
    (
        keyword.map_or_else(
            || Token::Word(word.to_string()),
            |keyword| Token::Keyword(keyword),
        ),
        word.len(),
    )
}

/// `16`, `0.5`, `8 GiB`, `8GiB`; also `550.54.14` and `3b`-like names, which are values without
/// being numbers.
fn number(rest: &str) -> (Token, usize) {
    let end = word_end(rest);
    let blanks = rest[end..].len() - rest[end..].trim_start().len();
    let unit_start = end + blanks;
    let unit_end = unit_start + word_end(&rest[unit_start..]);
    let with_unit = &rest[..unit_end];
    let is_number = rest[..end].chars().all(|c| c.is_ascii_digit() || c == '.');
    let length = if is_number && unit_end > unit_start && parse_bytes(with_unit).is_ok() {
        unit_end
    } else {
        end
    };
    (Token::Value(rest[..length].to_string()), length)
}

fn quoted(rest: &str, at: usize, quote: char) -> Result<(Token, usize), PredicateError> {
    let mut value = String::new();
    let mut chars = rest.char_indices().skip(1);
    while let Some((index, c)) = chars.next() {
        if c == quote {
            return Ok((Token::Value(value), index + 1));
        }
        let escaped = if c == '\\' { chars.next() } else { None };
        value.push(escaped.map_or(c, |(_, next)| next));
    }
    Err(PredicateError {
        offset: at,
        message: format!("the quote {quote} is never closed"),
        hint: None,
    })
}

fn stray(rest: &str, at: usize, first: char) -> PredicateError {
    let instead = match first {
        '=' => Some("equality is written `==`"),
        '&' => Some("write `and`"),
        '|' => Some("write `or`"),
        '!' => Some("write `not`"),
        _ => None,
    };
    let sign = if rest.starts_with("&&") || rest.starts_with("||") {
        &rest[..2]
    } else {
        &rest[..first.len_utf8()]
    };
    let message = format!("`{sign}` means nothing here");
    PredicateError {
        offset: at,
        message,
        hint: instead.map(str::to_string),
    }
}
