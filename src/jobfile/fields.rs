//! Typed reading of a TOML table: each reader returns the value with its place, or a fault that
//! says what was expected.

use super::{Context, Fault};
use nodectl_types::units::{parse_bytes, parse_duration};
use std::{ops::Range, time::Duration};
use toml::{
    Spanned,
    de::{DeInteger, DeTable, DeValue},
};

/// A value and the bytes of the job file where it stands.
#[derive(Clone, Debug)]
pub struct Item<T> {
    pub value: T,
    /// Where the job file has it, in bytes.
    pub span: Range<usize>,
}

impl Item<String> {
    /// Where `length` bytes at `offset` of the string stand in the job file; all of it where
    /// escapes hide that.
    pub fn within(&self, context: &Context<'_>, offset: usize, length: usize) -> Range<usize> {
        let quoted = context.text.get(self.span.clone()).unwrap_or_default();
        let inner = quoted.get(1..quoted.len().saturating_sub(1));
        if inner != Some(self.value.as_str()) {
            return self.span.clone();
        }
        let start = self.span.start + 1 + offset;
        start..start + length
    }
}

/// A table whose keys are being read.
pub struct Fields<'c, 't> {
    pub context: &'c Context<'t>,
    pub table: &'c DeTable<'t>,
    /// What the table describes, e.g. `a job`.
    what: &'static str,
    pub span: Range<usize>,
}

type FoundValue<T> = Result<Option<Item<T>>, Fault>;

impl<'c, 't> Fields<'c, 't> {
    pub fn new(
        context: &'c Context<'t>,
        table: &'c DeTable<'t>,
        what: &'static str,
        span: Range<usize>,
    ) -> Self {
        Self {
            context,
            table,
            what,
            span,
        }
    }

    /// Fails on the first key that is none of `known`.
    pub fn check_keys(&self, known: &[&str]) -> Result<(), Fault> {
        let unknown = self
            .table
            .keys()
            .filter(|key| !known.contains(&key.get_ref().as_ref()));
        match unknown.min_by_key(|key| key.span().start) {
            None => Ok(()),
            Some(key) => {
                let name = key.get_ref();
                Err(
                    Fault::new(key.span(), format!("{} has no key `{name}`", self.what))
                        .suggest(name, known),
                )
            }
        }
    }

    pub fn get(&self, key: &str) -> Option<&'c Spanned<DeValue<'t>>> {
        self.table.get(key)
    }

    pub fn string(&self, key: &str) -> FoundValue<String> {
        self.read(key, |value| value.as_str().map(str::to_string), "a string")
    }

    pub fn bool(&self, key: &str) -> FoundValue<bool> {
        self.read(key, DeValue::as_bool, "`true` or `false`")
    }

    /// A whole number from `min` on.
    pub fn u32(&self, key: &str, min: u32) -> FoundValue<u32> {
        let Some(number) = self.integer(key)? else {
            return Ok(None);
        };
        match u32::try_from(number.value) {
            Ok(value) if value >= min => Ok(Some(Item {
                value,
                span: number.span,
            })),
            _ => {
                let message = format!(
                    "`{key}` is a whole number from {min} to {}, not {}",
                    u32::MAX,
                    number.value
                );
                Err(Fault::new(number.span, message))
            }
        }
    }

    pub fn integer(&self, key: &str) -> FoundValue<i64> {
        self.read(
            key,
            |value| value.as_integer().and_then(to_i64),
            "a whole number",
        )
    }

    pub fn duration(&self, key: &str) -> FoundValue<Duration> {
        let Some(text) = self.read(
            key,
            |value| value.as_str().map(str::to_string),
            "a duration such as \"90s\"",
        )?
        else {
            return Ok(None);
        };
        match parse_duration(&text.value) {
            Ok(value) => Ok(Some(Item {
                value,
                span: text.span,
            })),
            Err(error) => Err(Fault::new(text.span, format!("`{key}`: {error}"))),
        }
    }

    /// A size: text with a unit, or a number of bytes.
    pub fn bytes(&self, key: &str) -> FoundValue<u64> {
        let text = |value: &DeValue<'_>| match value {
            DeValue::String(text) => Some(text.to_string()),
            DeValue::Integer(number) => to_i64(number).map(|number| number.to_string()),
            _ => None,
        };
        let Some(text) = self.read(key, text, "a size such as \"8 GiB\"")? else {
            return Ok(None);
        };
        match parse_bytes(&text.value) {
            Ok(value) => Ok(Some(Item {
                value,
                span: text.span,
            })),
            Err(error) => Err(Fault::new(text.span, format!("`{key}`: {error}"))),
        }
    }

    /// One string or a list of them.
    pub fn one_or_more(&self, key: &str) -> Result<Vec<Item<String>>, Fault> {
        match self.get(key) {
            None => Ok(Vec::new()),
            Some(value) => match value.get_ref() {
                DeValue::String(text) => Ok(vec![Item {
                    value: text.to_string(),
                    span: value.span(),
                }]),
                _ => strings(key, value),
            },
        }
    }

    pub fn table(&self, key: &str, what: &'static str) -> Result<Option<Fields<'c, 't>>, Fault> {
        match self.get(key) {
            None => Ok(None),
            Some(value) => match value.get_ref() {
                DeValue::Table(table) => {
                    Ok(Some(Fields::new(self.context, table, what, value.span())))
                }
                other => Err(mistyped(key, value.span(), other, "a table")),
            },
        }
    }

    fn read<T>(
        &self,
        key: &str,
        read: impl FnOnce(&DeValue<'t>) -> Option<T>,
        expected: &str,
    ) -> FoundValue<T> {
        let Some(found) = self.get(key) else {
            return Ok(None);
        };
        match read(found.get_ref()) {
            Some(value) => Ok(Some(Item {
                value,
                span: found.span(),
            })),
            None => Err(mistyped(key, found.span(), found.get_ref(), expected)),
        }
    }
}

/// The strings of a list.
pub fn strings(key: &str, list: &Spanned<DeValue<'_>>) -> Result<Vec<Item<String>>, Fault> {
    let DeValue::Array(items) = list.get_ref() else {
        return Err(mistyped(
            key,
            list.span(),
            list.get_ref(),
            "a list of strings",
        ));
    };
    let string = |item: &Spanned<DeValue<'_>>| match item.get_ref() {
        DeValue::String(text) => Ok(Item {
            value: text.to_string(),
            span: item.span(),
        }),
        other => {
            let fault = Fault::new(
                item.span(),
                format!("`{key}` is a list of strings; this is {}", type_name(other)),
            );
            Err(fault.hint("put it in quotes"))
        }
    };
    items.iter().map(string).collect()
}

fn mistyped(key: &str, span: Range<usize>, found: &DeValue<'_>, expected: &str) -> Fault {
    Fault::new(
        span,
        format!("`{key}` is {expected}, not {}", type_name(found)),
    )
}

/// The type of a value with its article.
pub fn type_name(value: &DeValue<'_>) -> &'static str {
    match value {
        DeValue::String(_) => "a string",
        DeValue::Integer(_) => "a whole number",
        DeValue::Float(_) => "a fraction",
        DeValue::Boolean(_) => "a truth value",
        DeValue::Datetime(_) => "a date",
        DeValue::Array(_) => "a list",
        DeValue::Table(_) => "a table",
    }
}

pub fn to_i64(number: &DeInteger<'_>) -> Option<i64> {
    i64::from_str_radix(number.as_str(), number.radix()).ok()
}

/// A number that is not negative, from a whole number or a fraction.
pub fn natural_number(value: &DeValue<'_>) -> Option<f64> {
    let number: f64 = match value {
        DeValue::Integer(number) => to_i64(number)? as f64,
        DeValue::Float(number) => number.as_str().parse().ok()?,
        _ => return None,
    };
    (number.is_finite() && number >= 0.0).then_some(number)
}
