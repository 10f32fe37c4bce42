//! Named secrets: values that jobs name and their tasks find in memory. Nodes keep them sealed
//! under a key of the cluster's, and tell each other of them as of all else that they share.

use serde::{Deserialize, Serialize};

/// The longest name.
pub const MAX_NAME_BYTES: usize = 64;

/// A secret as nodes keep it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptSecret {
    pub name: String,
    /// The higher one counts.
    pub version: u64,
    /// Wall clock of whoever put it, for people: milliseconds since 1970.
    pub changed_ms: u64,
    /// None: it was dropped, and is not to come back from a node that was away.
    pub sealed: Option<Vec<u8>>,
}

impl KeptSecret {
    /// A total order: of two that were put at the same time on two sides of a partition, the same
    /// one counts everywhere.
    pub fn precedence(&self) -> (u64, Option<&[u8]>, u64) {
        (self.version, self.sealed.as_deref(), self.changed_ms)
    }
}

/// Whether it can name a secret, and so end the name of a variable: a letter, then letters, digits
/// and single `_`.
pub fn is_secret_name(name: &str) -> bool {
    name.len() <= MAX_NAME_BYTES
        && name.starts_with(|c: char| c.is_ascii_alphabetic())
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
        && !name.contains("__")
}

/// The variable that tells a task the file in which it finds the secret.
pub fn variable(name: &str) -> String {
    format!("NODECTL_SECRET_FILE_{name}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_such_as_variables_have() {
        for name in ["TOKEN", "s3_key", "a", "A1_b2"] {
            assert!(is_secret_name(name), "{name}");
        }
        // Two underscores would make a setting of the variable.
        for name in [
            "",
            "1a",
            "_a",
            "a-b",
            "a b",
            "a__b",
            "ä",
            "a=b",
            &"a".repeat(65),
        ] {
            assert!(!is_secret_name(name), "{name}");
        }
    }
}
