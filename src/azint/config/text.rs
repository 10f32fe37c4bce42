//! The text of an integrator configuration: sections and `key = value`, and values as numbers.

use super::keys::{INTEGRATION, MOVED, SECTIONS, key};
use nodectl_jobfile::Fault;
use std::ops::Range;

/// A value and its bytes in the text.
#[derive(Clone, Debug)]
pub(super) struct ConfigEntry {
    pub(super) section: &'static str,
    pub(super) key: &'static str,
    /// Empty where the file gives the key without a value.
    pub(super) value: String,
    pub(super) span: Range<usize>,
}

/// Every key that the file gives, in its order.
pub(super) struct ConfigFile(pub(super) Vec<ConfigEntry>);

impl ConfigFile {
    /// The entry of a key that has a value.
    pub(super) fn get(&self, section: &str, key: &str) -> Option<&ConfigEntry> {
        self.given(section, key)
            .filter(|entry| !entry.value.is_empty())
    }

    /// A key's value with its place: that of the file, or integrator's default at no place.
    pub(super) fn or_default(&self, section: &'static str, name: &'static str) -> ConfigEntry {
        let default = || ConfigEntry {
            section,
            key: name,
            value: key(section, name).map_or("", |key| key.default).to_string(),
            span: 0..0,
        };
        self.given(section, name).cloned().unwrap_or_else(default)
    }

    fn given(&self, section: &str, key: &str) -> Option<&ConfigEntry> {
        self.0
            .iter()
            .find(|entry| (entry.section, entry.key) == (section, key))
    }
}

pub(super) fn parse(text: &str) -> Result<ConfigFile, Fault> {
    let mut entries: Vec<ConfigEntry> = Vec::new();
    let mut section: Option<&'static str> = None;
    let mut start = 0;
    for line in text.split_inclusive('\n') {
        let place = start..start + line.trim_end().len();
        start += line.len();
        let bare = line.trim();
        if bare.is_empty() || bare.starts_with(['#', ';']) {
            continue;
        }
        if let Some(name) = bare
            .strip_prefix('[')
            .and_then(|rest| rest.strip_suffix(']'))
        {
            section = Some(section_of(name, &place)?);
            continue;
        }
        let Some(section) = section else {
            return Err(Fault::new(place, "this stands before the first section")
                .hint("begin with [dataset]"));
        };
        // As in Python's files, what is indented goes on with the line before.
        if line.starts_with([' ', '\t'])
            && !bare.contains('=')
            && let Some(last) = entries.last_mut()
        {
            last.value += &format!("\n{}", uncommented(bare));
            last.span.end = place.end;
            continue;
        }
        let entry = entry(section, bare, place)?;
        let is_known =
            |known: &ConfigEntry| (known.section, known.key) == (entry.section, entry.key);
        if entries.iter().any(is_known) {
            return Err(Fault::new(
                entry.span,
                format!("`{}` is given twice", entry.key),
            ));
        }
        entries.push(entry);
    }
    Ok(ConfigFile(entries))
}

fn section_of(name: &str, place: &Range<usize>) -> Result<&'static str, Fault> {
    let known = SECTIONS.iter().find(|(known, _)| *known == name.trim());
    known.map(|(known, _)| *known).ok_or_else(|| {
        let names: Vec<&str> = SECTIONS.iter().map(|(name, _)| *name).collect();
        Fault::new(place.clone(), format!("there is no section `[{name}]`")).suggest(name, &names)
    })
}

/// What a line of a section gives.
fn entry(section: &'static str, line: &str, place: Range<usize>) -> Result<ConfigEntry, Fault> {
    let Some((name, value)) = line.split_once(['=', ':']) else {
        return Err(Fault::new(
            place,
            "this is neither a section nor `key = value`",
        ));
    };
    let name = name.trim();
    let section = if MOVED.contains(&name) {
        INTEGRATION
    } else {
        section
    };
    let Some(known) = key(section, name) else {
        let keys = SECTIONS.iter().find(|(known, _)| *known == section);
        let names: Vec<&str> = keys
            .map(|(_, keys)| keys.iter().map(|key| key.name).collect())
            .unwrap_or_default();
        return Err(
            Fault::new(place, format!("[{section}] has no key `{name}`")).suggest(name, &names),
        );
    };
    Ok(ConfigEntry {
        section,
        key: known.name,
        value: uncommented(value),
        span: place,
    })
}

/// Without a comment behind it, and quotes around it.
fn uncommented(value: &str) -> String {
    let bare = value
        .split(" #")
        .next()
        .unwrap_or_default()
        .split(" ;")
        .next()
        .unwrap_or_default()
        .trim();
    let unquoted = ['"', '\'']
        .iter()
        .find_map(|quote| bare.strip_prefix(*quote)?.strip_suffix(*quote));
    unquoted.unwrap_or(bare).to_string()
}

impl ConfigEntry {
    /// A fault at the entry's place.
    pub(super) fn fault(&self, why: impl Into<String>) -> Fault {
        Fault::new(self.span.clone(), why)
    }

    pub(super) fn is_true(&self) -> Result<bool, Fault> {
        match self.value.to_lowercase().as_str() {
            "1" | "true" | "yes" | "on" | "y" => Ok(true),
            "0" | "false" | "no" | "off" | "n" | "" => Ok(false),
            other => Err(self.fault(format!("`{}` is 1 or 0, not `{other}`", self.key))),
        }
    }

    pub(super) fn whole(&self) -> Result<u32, Fault> {
        let number = self.value.parse().ok().filter(|number| *number > 0);
        let wrong = || {
            self.fault(format!(
                "`{}` is a whole number from 1 on, not `{}`",
                self.key, self.value
            ))
        };
        number.ok_or_else(wrong)
    }

    pub(super) fn numbers(&self) -> Result<Vec<f64>, Fault> {
        let bare = self.value.trim_matches(['(', ')', '[', ']']);
        let parsed: Option<Vec<f64>> = bare
            .split([',', ' '])
            .filter(|word| !word.is_empty())
            .map(|word| word.parse().ok())
            .collect();
        parsed
            .filter(|numbers| !numbers.is_empty())
            .ok_or_else(|| self.fault(format!("`{}` is numbers, not `{}`", self.key, self.value)))
    }

    pub(super) fn one_number(&self) -> Result<f64, Fault> {
        match self.numbers()?[..] {
            [number] => Ok(number),
            _ => Err(self.fault(format!("`{}` is one number", self.key))),
        }
    }

    pub(super) fn two_numbers(&self) -> Result<[f64; 2], Fault> {
        match self.numbers()?[..] {
            [from, to] => Ok([from, to]),
            _ => Err(self.fault(format!("`{}` is two numbers, from and to", self.key))),
        }
    }

    /// SLURM's times in milliseconds: minutes, `h:m:s`, or with days before a hyphen.
    pub(super) fn time_ms(&self) -> Result<u64, Fault> {
        let wrong = || {
            self.fault(format!(
                "`time` is days-hours:minutes:seconds, not `{}`",
                self.value
            ))
        };
        let (days, rest) = self.value.split_once('-').unwrap_or(("0", &self.value));
        let parts: Option<Vec<u64>> = rest
            .split(':')
            .map(|part| part.trim().parse().ok())
            .collect();
        let days: u64 = days.trim().parse().map_err(|_| wrong())?;
        let seconds = match parts.ok_or_else(wrong)?[..] {
            [minutes] => minutes.checked_mul(60),
            [minutes, seconds] => minutes
                .checked_mul(60)
                .and_then(|sum| sum.checked_add(seconds)),
            [hours, minutes, seconds] => hours.checked_mul(3600).and_then(|sum| {
                sum.checked_add(minutes.checked_mul(60)?)?
                    .checked_add(seconds)
            }),
            _ => None,
        };
        let total = days
            .checked_mul(86_400)
            .zip(seconds)
            .and_then(|(days, seconds)| days.checked_add(seconds)?.checked_mul(1000));
        total.filter(|total| *total > 0).ok_or_else(wrong)
    }
}
