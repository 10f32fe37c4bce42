//! Values of a kernel's job file: numbers, or `"{parameter}"` in their place.

use super::plan::Quantity;
use nodectl_jobfile::{
    Fault, Fields, Item,
    keys::command::{PlaceholderNames, check_placeholders},
    to_i64, type_name,
};
use nodectl_types::{ParamSpace, Value, template};
use std::cell::Cell;
use toml::{Spanned, de::DeValue};

/// Reads values that may name parameters, and remembers whether any did.
pub(super) struct ValueReader<'p> {
    names: PlaceholderNames<'p>,
    names_params: Cell<bool>,
}

impl<'p> ValueReader<'p> {
    pub(super) fn new(params: &'p ParamSpace) -> Self {
        Self {
            names: PlaceholderNames::new(params),
            names_params: Cell::new(false),
        }
    }

    /// Whether parameter sets differ in what was read.
    pub(super) fn depend_on_params(&self) -> bool {
        self.names_params.get()
    }

    /// A number, a truth value or a parameter.
    pub(super) fn quantity(
        &self,
        key: &str,
        value: &Spanned<DeValue<'_>>,
    ) -> Result<Quantity, Fault> {
        let wrong = |what: &str| {
            let fault = Fault::new(value.span(), format!("`{key}` is a number, not {what}"));
            fault.hint("a parameter stands in for a number as \"{name}\"")
        };
        let number = match value.get_ref() {
            DeValue::Integer(number) => to_i64(number)
                .map(Value::Int)
                .ok_or_else(|| wrong("one beyond 64 bits"))?,
            DeValue::Float(number) => {
                let number = number.as_str().replace('_', "").parse();
                Value::Float(number.map_err(|_| wrong("that"))?)
            }
            DeValue::Boolean(truth) => Value::Bool(*truth),
            DeValue::String(text) => return self.parameter(text, value, wrong),
            other => return Err(wrong(type_name(other))),
        };
        Ok(Quantity::Value(number))
    }

    fn parameter(
        &self,
        text: &str,
        value: &Spanned<DeValue<'_>>,
        wrong: impl FnOnce(&str) -> Fault,
    ) -> Result<Quantity, Fault> {
        let name = text
            .strip_prefix('{')
            .and_then(|text| text.strip_suffix('}'))
            .filter(|name| template::is_name(name));
        let Some(name) = name else {
            return Err(wrong("text"));
        };
        if !self.names.has(name) {
            let fault = Fault::new(value.span(), format!("the job has no parameter `{name}`"));
            return Err(fault.suggest(name, &self.names.names));
        }
        self.names_params.set(true);
        Ok(Quantity::Param(name.to_string()))
    }

    /// One or a list of them, lists in lists one after the other.
    pub(super) fn quantities(
        &self,
        key: &str,
        value: &Spanned<DeValue<'_>>,
    ) -> Result<Vec<Quantity>, Fault> {
        match value.get_ref() {
            DeValue::Array(items) => {
                let lists: Result<Vec<_>, _> = items
                    .iter()
                    .map(|item| self.quantities(key, item))
                    .collect();
                lists.map(|lists| lists.into_iter().flatten().collect())
            }
            _ => Ok(vec![self.quantity(key, value)?]),
        }
    }

    /// Checks the placeholders of a name of a file.
    pub(super) fn template(
        &self,
        fields: &Fields<'_, '_>,
        text: &Item<String>,
    ) -> Result<(), Fault> {
        check_placeholders(fields, text, &self.names)?;
        if template::placeholders(&text.value).is_ok_and(|found| !found.is_empty()) {
            self.names_params.set(true);
        }
        Ok(())
    }
}

/// `FILE:MEMBER` of the formats that have members.
pub(super) fn file_and_member(text: &str) -> (&str, Option<&str>) {
    match text.split_once(':') {
        Some((file, member)) if !member.is_empty() => (file, Some(member)),
        _ => (text, None),
    }
}
