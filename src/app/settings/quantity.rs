//! Sizes and durations as settings hold them: text with a unit, both ways.

use nodectl_types::units::{parse_bytes, parse_duration};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};
use std::{fmt, time::Duration};

/// A number of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size(pub u64);

/// A span of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Period(pub Duration);

impl Period {
    pub const fn minutes(minutes: u64) -> Self {
        Self(Duration::from_secs(minutes * 60))
    }

    pub const fn days(days: u64) -> Self {
        Self(Duration::from_secs(days * 86_400))
    }
}

/// Exact: the largest unit that leaves no remainder.
impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)];
        let exact = units
            .iter()
            .find(|(_, shift)| self.0 > 0 && self.0.trailing_zeros() >= *shift);
        match exact {
            Some((unit, shift)) => write!(f, "{} {unit}", self.0 >> shift),
            None => write!(f, "{} B", self.0),
        }
    }
}

impl fmt::Display for Period {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        humantime::format_duration(self.0).fmt(f)
    }
}

impl Serialize for Size {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl Serialize for Period {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "a size such as \"8 GiB\"")]
enum SizeForm {
    Bytes(u64),
    Text(String),
}

impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match SizeForm::deserialize(deserializer)? {
            SizeForm::Bytes(bytes) => Ok(Self(bytes)),
            SizeForm::Text(text) => parse_bytes(&text).map(Self).map_err(Error::custom),
        }
    }
}

impl<'de> Deserialize<'de> for Period {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        parse_duration(&text).map(Self).map_err(Error::custom)
    }
}
