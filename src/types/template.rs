//! `{placeholder}` expansion in commands, environment and output names: `{name}` is replaced, `{{`
//! and `}}` stand for braces. Of a value that is a path, `{name.stem}` and `{name.name}` are parts.
//! Pure text: which names exist is the caller's business.

use std::{borrow::Cow, ffi::OsStr, path::Path};

/// The names that every task has besides its parameters: its index in the job, the number of this
/// try (from 1), and the job's id.
pub const BUILTINS: [&str; 3] = ["task", "attempt", "job"];

type PathPart = fn(&Path) -> Option<&OsStr>;

/// What a placeholder may want of a path: its last part without the ending, and with it.
const PARTS: [(&str, PathPart); 2] = [(".stem", Path::file_stem), (".name", Path::file_name)];

/// A `{name}` in a template.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placeholder {
    pub name: String,
    /// Byte offset of its `{`.
    pub offset: usize,
}

/// A template that cannot be expanded. `offset` is in bytes from the start of the template.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TemplateError {
    #[error("`{{` at byte {offset} is never closed\nhint: a literal brace is written `{{{{`")]
    Unclosed { offset: usize },
    #[error("`}}` at byte {offset} closes nothing\nhint: a literal brace is written `}}}}`")]
    Unopened { offset: usize },
    #[error(
        "`{{{text}}}` at byte {offset} is not a placeholder: a name has letters, digits, `_`, `-` and `.`\n\
         hint: literal braces are written `{{{{` and `}}}}`"
    )]
    BadName { text: String, offset: usize },
    #[error("nothing is known under the name `{name}` (placeholder at byte {offset})")]
    Unknown { name: String, offset: usize },
    #[error(
        "with its parameters in their places it is too long (from the placeholder at byte {offset} on)"
    )]
    TooLong { offset: usize },
}

impl TemplateError {
    /// Where in the template, in bytes.
    pub fn offset(&self) -> usize {
        match self {
            Self::Unclosed { offset }
            | Self::Unopened { offset }
            | Self::BadName { offset, .. }
            | Self::Unknown { offset, .. }
            | Self::TooLong { offset } => *offset,
        }
    }
}

/// Replaces every placeholder by what `lookup` says. One pass: braces in replacements are left
/// alone.
pub fn expand(
    template: &str,
    lookup: &dyn Fn(&str) -> Option<String>,
) -> Result<String, TemplateError> {
    expand_within(template, lookup, &mut usize::MAX.clone())
}

/// Expands a template in at most `room` bytes, which become fewer by what there is of it.
pub fn expand_within(
    template: &str,
    lookup: &dyn Fn(&str) -> Option<String>,
    room: &mut usize,
) -> Result<String, TemplateError> {
    let mut out = String::with_capacity(template.len().min(*room));
    let mut last = 0;
    for piece in TemplatePieces::new(template) {
        let value = match piece? {
            TemplatePiece::Text(text) => Cow::Borrowed(text),
            TemplatePiece::Name { name, offset } => {
                last = offset;
                let value = lookup(name).ok_or_else(|| TemplateError::Unknown {
                    name: name.to_string(),
                    offset,
                })?;
                Cow::Owned(value)
            }
        };
        *room = room
            .checked_sub(value.len())
            .ok_or(TemplateError::TooLong { offset: last })?;
        out.push_str(&value);
    }
    Ok(out)
}

/// What a placeholder stands for, where `known` gives values by their names: one of them, or a part
/// of one.
pub fn value(placeholder: &str, known: &dyn Fn(&str) -> Option<String>) -> Option<String> {
    known(placeholder).or_else(|| {
        let (name, part) = part_of(placeholder)?;
        let value = known(name)?;
        let part = part(Path::new(&value))?;
        Some(part.to_string_lossy().into_owned())
    })
}

/// The name of the value that a placeholder is or has a part of.
pub fn source(placeholder: &str, is_known: impl Fn(&str) -> bool) -> Option<&str> {
    let part = part_of(placeholder).map(|(name, _)| name);
    std::iter::once(placeholder)
        .chain(part)
        .find(|name| is_known(name))
}

fn part_of(placeholder: &str) -> Option<(&str, PathPart)> {
    PARTS
        .iter()
        .find_map(|(ending, part)| Some((placeholder.strip_suffix(ending)?, *part)))
}

/// Every placeholder, in order, repeats included.
pub fn placeholders(template: &str) -> Result<Vec<Placeholder>, TemplateError> {
    let mut found = Vec::new();
    for piece in TemplatePieces::new(template) {
        if let TemplatePiece::Name { name, offset } = piece? {
            found.push(Placeholder {
                name: name.to_string(),
                offset,
            });
        }
    }
    Ok(found)
}

/// Whether a placeholder may have this name.
pub fn is_name(text: &str) -> bool {
    !text.is_empty()
        && text
            .chars()
            .all(|c| c.is_alphanumeric() || matches!(c, '_' | '-' | '.'))
}

enum TemplatePiece<'t> {
    Text(&'t str),
    Name { name: &'t str, offset: usize },
}

/// Cuts a template at its braces; ends after the first error.
struct TemplatePieces<'t> {
    template: &'t str,
    at: usize,
}

impl<'t> TemplatePieces<'t> {
    fn new(template: &'t str) -> Self {
        Self { template, at: 0 }
    }

    /// The piece at a brace. `rest` begins with it, at `offset`.
    fn brace(&mut self, rest: &'t str, offset: usize) -> Result<TemplatePiece<'t>, TemplateError> {
        if rest.starts_with("{{") || rest.starts_with("}}") {
            self.at = offset + 2;
            return Ok(TemplatePiece::Text(&rest[..1]));
        }
        if rest.starts_with('}') {
            return Err(TemplateError::Unopened { offset });
        }
        let end = rest.find('}').ok_or(TemplateError::Unclosed { offset })?;
        let name = &rest[1..end];
        if !is_name(name) {
            return Err(TemplateError::BadName {
                text: name.to_string(),
                offset,
            });
        }
        self.at = offset + end + 1;
        Ok(TemplatePiece::Name { name, offset })
    }
}

impl<'t> Iterator for TemplatePieces<'t> {
    type Item = Result<TemplatePiece<'t>, TemplateError>;

    fn next(&mut self) -> Option<Self::Item> {
        let offset = self.at;
        let rest = self
            .template
            .get(offset..)
            .filter(|rest| !rest.is_empty())?;
        let text = &rest[..rest.find(['{', '}']).unwrap_or(rest.len())];
        if !text.is_empty() {
            self.at = offset + text.len();
            return Some(Ok(TemplatePiece::Text(text)));
        }
        let piece = self.brace(rest, offset);
        if piece.is_err() {
            self.at = self.template.len();
        }
        Some(piece)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn expand_abc(template: &str) -> Result<String, TemplateError> {
        expand(template, &|name| match name {
            "a" => Some("1".into()),
            "b.c" => Some("{x}".into()),
            _ => None,
        })
    }

    #[test]
    fn names_are_replaced_once_and_doubled_braces_are_literal() {
        assert_eq!(expand_abc("").unwrap(), "");
        assert_eq!(expand_abc("--a={a} é{b.c}").unwrap(), "--a=1 é{x}");
        assert_eq!(expand_abc("{{a}} {{{a}}}").unwrap(), "{a} {1}");
    }

    #[test]
    fn errors_carry_their_place() {
        assert_eq!(
            expand_abc("é{a"),
            Err(TemplateError::Unclosed { offset: 2 })
        );
        assert_eq!(
            expand_abc("a}b"),
            Err(TemplateError::Unopened { offset: 1 })
        );
        assert_eq!(
            expand_abc("{}"),
            Err(TemplateError::BadName {
                text: String::new(),
                offset: 0
            })
        );
        assert_eq!(
            expand_abc("{print $1}"),
            Err(TemplateError::BadName {
                text: "print $1".into(),
                offset: 0
            })
        );
        assert_eq!(
            expand_abc("{a}{z}"),
            Err(TemplateError::Unknown {
                name: "z".into(),
                offset: 3
            })
        );
        let message = TemplateError::BadName {
            text: "print $1".into(),
            offset: 4,
        }
        .to_string();
        assert!(
            message.starts_with("`{print $1}` at byte 4 is not a placeholder"),
            "{message}"
        );
        assert!(
            message.ends_with("hint: literal braces are written `{{` and `}}`"),
            "{message}"
        );
    }

    #[test]
    fn what_is_expanded_is_bounded() {
        let value = "v".repeat(10_000);
        let mut room = 25_000;
        let mut within =
            |template: &str| expand_within(template, &|_| Some(value.clone()), &mut room);
        assert_eq!(within("{k}").unwrap().len(), 10_000);
        assert_eq!(within("x{k}{k}"), Err(TemplateError::TooLong { offset: 4 }));
        assert_eq!(
            within(&"{k}".repeat(100_000)),
            Err(TemplateError::TooLong { offset: 0 })
        );
    }

    #[test]
    fn parts_of_paths_are_had_by_name() {
        let known = |name: &str| match name {
            "file" => Some("raw/a.b.tif".to_string()),
            "n.stem" => Some("own".to_string()),
            _ => None,
        };
        let of = |name: &str| value(name, &known);
        assert_eq!(of("file").as_deref(), Some("raw/a.b.tif"));
        assert_eq!(of("file.stem").as_deref(), Some("a.b"));
        assert_eq!(of("file.name").as_deref(), Some("a.b.tif"));
        assert_eq!(of("n.stem").as_deref(), Some("own"));
        assert_eq!((of("n"), of("n.name"), of(".stem")), (None, None, None));
        let is_known = |name: &str| known(name).is_some();
        assert_eq!(source("file.stem", is_known), Some("file"));
        assert_eq!(source("n.stem", is_known), Some("n.stem"));
        assert_eq!(source("other.stem", is_known), None);
    }

    #[test]
    fn placeholders_lists_in_order() {
        let found = placeholders("x{a}{{b}}{c}").unwrap();
        let expected = [("a", 1), ("c", 9)].map(|(name, offset)| Placeholder {
            name: name.into(),
            offset,
        });
        assert_eq!(found, expected);
    }

    proptest! {
        #[test]
        fn never_panics(template in "[a{}é. ]{0,24}") {
            let _ = expand(&template, &|_| Some("v".into()));
            let _ = placeholders(&template);
        }

        #[test]
        fn escaped_text_comes_back(text in ".{0,40}") {
            let escaped = text.replace('{', "{{").replace('}', "}}");
            prop_assert_eq!(expand(&escaped, &|_| None), Ok(text));
        }
    }
}
