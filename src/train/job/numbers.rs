//! Numbers and pairs of them, with their limits.

use nodectl_jobfile::{Fault, Fields, to_i64, type_name};
use toml::{Spanned, de::DeValue};

/// A finite number, from a whole number or a fraction.
pub fn number(value: &Spanned<DeValue<'_>>) -> Option<f64> {
    let number = match value.get_ref() {
        DeValue::Integer(number) => to_i64(number)? as f64,
        DeValue::Float(number) => number.as_str().replace('_', "").parse().ok()?,
        _ => return None,
    };
    Some(number).filter(|number: &f64| number.is_finite())
}

/// A number for which `fits` holds; `range` says in words which do.
pub fn limited(
    fields: &Fields<'_, '_>,
    key: &str,
    range: &str,
    fits: impl Fn(f64) -> bool,
) -> Result<Option<f32>, Fault> {
    let Some(value) = fields.get(key) else {
        return Ok(None);
    };
    match number(value) {
        Some(number) if fits(number) => Ok(Some(number as f32)),
        Some(number) => Err(Fault::new(
            value.span(),
            format!("`{key}` is {range}, not {number}"),
        )),
        None => {
            let found = type_name(value.get_ref());
            Err(Fault::new(
                value.span(),
                format!("`{key}` is {range}, not {found}"),
            ))
        }
    }
}

/// A whole number for rows and columns alike, or one for each.
pub fn pair(fields: &Fields<'_, '_>, key: &str, least: u32) -> Result<Option<[u32; 2]>, Fault> {
    /// More than any image has, and small enough for sums of such numbers.
    const MOST: i64 = 1 << 20;
    let Some(value) = fields.get(key) else {
        return Ok(None);
    };
    let wrong = |span| {
        Fault::new(
            span,
            format!(
                "`{key}` is a whole number from {least} to {MOST}, or two of them: rows and columns"
            ),
        )
    };
    let one = |value: &Spanned<DeValue<'_>>| {
        let number = value
            .get_ref()
            .as_integer()
            .and_then(to_i64)
            .filter(|number| *number <= MOST);
        let number = number
            .and_then(|number| u32::try_from(number).ok())
            .filter(|number| *number >= least);
        number.ok_or_else(|| wrong(value.span()))
    };
    match value.get_ref() {
        DeValue::Array(items) if items.len() == 2 => {
            let both: Result<Vec<u32>, Fault> = items.iter().map(one).collect();
            both.map(|both| Some([both[0], both[1]]))
        }
        _ => one(value).map(|number| Some([number; 2])),
    }
}
