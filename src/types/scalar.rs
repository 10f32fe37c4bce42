//! The number types of array elements, in files, in shaders and on the wire: one vocabulary for all
//! of them.

use serde::{Deserialize, Serialize};
use std::fmt;

/// The type of one number. Little-endian wherever bytes of it are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Scalar {
    /// One byte, 0 or 1.
    Bool,
    U8,
    I8,
    U16,
    I16,
    /// IEEE 754 binary16.
    F16,
    U32,
    I32,
    F32,
    U64,
    I64,
    F64,
}

impl Scalar {
    pub const ALL: [Self; 12] = [
        Self::Bool,
        Self::U8,
        Self::I8,
        Self::U16,
        Self::I16,
        Self::F16,
        Self::U32,
        Self::I32,
        Self::F32,
        Self::U64,
        Self::I64,
        Self::F64,
    ];

    pub fn bytes(self) -> usize {
        match self {
            Self::Bool | Self::U8 | Self::I8 => 1,
            Self::U16 | Self::I16 | Self::F16 => 2,
            Self::U32 | Self::I32 | Self::F32 => 4,
            Self::U64 | Self::I64 | Self::F64 => 8,
        }
    }

    /// The name in job files and messages, e.g. `f32`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Bool => "bool",
            Self::U8 => "u8",
            Self::I8 => "i8",
            Self::U16 => "u16",
            Self::I16 => "i16",
            Self::F16 => "f16",
            Self::U32 => "u32",
            Self::I32 => "i32",
            Self::F32 => "f32",
            Self::U64 => "u64",
            Self::I64 => "i64",
            Self::F64 => "f64",
        }
    }

    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|scalar| scalar.name() == name)
    }

    pub fn is_float(self) -> bool {
        matches!(self, Self::F16 | Self::F32 | Self::F64)
    }

    /// Whether every value of `self` is a value of `to`.
    pub fn widens_to(self, to: Self) -> bool {
        // Bits of magnitude that are held exactly, and whether negative numbers are.
        let exact = |scalar: Self| match scalar {
            Self::Bool => (1, false),
            Self::U8 => (8, false),
            Self::I8 => (7, true),
            Self::U16 => (16, false),
            Self::I16 => (15, true),
            Self::F16 => (11, true),
            Self::U32 => (32, false),
            Self::I32 => (31, true),
            Self::F32 => (24, true),
            Self::U64 => (64, false),
            Self::I64 => (63, true),
            Self::F64 => (53, true),
        };
        if self == to {
            return true;
        }
        if self.is_float() {
            return to.is_float() && to.bytes() > self.bytes();
        }
        let ((bits, signed), (room, signs)) = (exact(self), exact(to));
        to != Self::Bool && bits <= room && (signs || !signed)
    }
}

impl fmt::Display for Scalar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_come_back() {
        assert!(
            Scalar::ALL
                .into_iter()
                .all(|scalar| Scalar::from_name(scalar.name()) == Some(scalar))
        );
        assert_eq!(Scalar::from_name("float"), None);
    }

    #[test]
    fn widening_loses_nothing() {
        use Scalar::*;
        for (from, to) in [
            (U8, F16),
            (U8, I16),
            (I16, F32),
            (F16, F32),
            (Bool, U32),
            (U32, F64),
            (I8, I32),
        ] {
            assert!(from.widens_to(to) && !to.widens_to(from), "{from} {to}");
        }
        for (from, to) in [
            (U32, F32),
            (I32, U32),
            (U32, I32),
            (F32, I64),
            (I64, F64),
            (U16, F16),
            (U8, Bool),
        ] {
            assert!(!from.widens_to(to), "{from} {to}");
        }
    }
}
