//! How many files this process may have open. The node takes as many as it may have; its tasks get
//! what they would have had without it, since programs that use `select` break above 1,024.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::sync::OnceLock;

/// The limit as it was, and stands for tasks.
static BEFORE: OnceLock<Option<u64>> = OnceLock::new();

/// Raises the soft limit to the hard one.
pub fn raise() {
    let limit = getrlimit(Resource::Nofile);
    if BEFORE.set(limit.current).is_err() || limit.current == limit.maximum {
        return;
    }
    match setrlimit(
        Resource::Nofile,
        Rlimit {
            current: limit.maximum,
            maximum: limit.maximum,
        },
    ) {
        Ok(()) => tracing::debug!(
            "up to {} open files instead of {}",
            told(limit.maximum),
            told(limit.current)
        ),
        Err(error) => tracing::warn!(
            "this node may have no more than {} open files: {error}\nhint: raise the limit (ulimit -n) before starting it",
            told(limit.current)
        ),
    }
}

/// How the limit for tasks is told to the supervisor: in its arguments.
pub fn for_tasks() -> String {
    told(
        BEFORE
            .get()
            .copied()
            .unwrap_or_else(|| getrlimit(Resource::Nofile).current),
    )
}

/// Puts the limit back in this process and what it starts.
pub fn put_back(told: &str) -> Result<(), String> {
    let current = match told {
        "unlimited" => None,
        number => Some(
            number
                .parse()
                .map_err(|_| format!("`{number}` is no number of open files"))?,
        ),
    };
    let limit = Rlimit {
        current,
        ..getrlimit(Resource::Nofile)
    };
    setrlimit(Resource::Nofile, limit)
        .map_err(|error| format!("no limit of {told} open files: {error}"))
}

fn told(limit: Option<u64>) -> String {
    limit.map_or_else(|| "unlimited".into(), |limit| limit.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_told_can_be_put_back() {
        let limit = getrlimit(Resource::Nofile);
        put_back(&told(limit.current)).unwrap();
        assert_eq!(getrlimit(Resource::Nofile).current, limit.current);
        assert!(put_back("many").unwrap_err().contains("`many`"));
    }
}
