//! What a node remembers of ended jobs, as the file `retention.json` of its data directory.

use nodectl_types::{JobId, Retention, limits};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The version in the file. Raised when its meaning changes; a file of another version is begun
/// anew.
const VERSION: u32 = 1;
/// More than any such file has: sixty bytes for each job.
pub const MAX_BYTES: u64 = 64 * (limits::MAX_REMOVED + limits::MAX_JOBS) as u64;

#[derive(Serialize, Deserialize)]
struct RetentionFile {
    version: u32,
    uptime_s: u64,
    ended: BTreeMap<String, u64>,
    removed: BTreeMap<String, u64>,
}

pub fn encode(retention: &Retention) -> Vec<u8> {
    let named = |jobs: &BTreeMap<JobId, u64>| {
        jobs.iter()
            .map(|(job, value)| (job.to_string(), *value))
            .collect()
    };
    let Retention {
        uptime_s,
        ended,
        removed,
    } = retention;
    let file = RetentionFile {
        version: VERSION,
        uptime_s: *uptime_s,
        ended: named(ended),
        removed: named(removed),
    };
    serde_json::to_vec(&file).expect("plain data always encodes")
}

/// Inverse of `encode`, or why not.
pub fn decode(bytes: &[u8]) -> Result<Retention, String> {
    let RetentionFile {
        version,
        uptime_s,
        ended,
        removed,
    } = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
    if version != VERSION {
        return Err(format!("it is of version {version}, and {VERSION} is read"));
    }
    let parsed = |jobs: BTreeMap<String, u64>, most: usize| {
        let jobs = jobs
            .into_iter()
            .take(most)
            .map(|(job, value)| Ok((job.parse::<JobId>()?, value)));
        jobs.collect::<Result<_, _>>()
            .map_err(|error: nodectl_types::ids::BadId| error.to_string())
    };
    // A job that ended later than the node has run would never grow old.
    let ended: BTreeMap<_, _> = parsed(ended, limits::MAX_JOBS)?;
    let ended = ended
        .into_iter()
        .map(|(job, since_s)| (job, u64::min(since_s, uptime_s)))
        .collect();
    Ok(Retention {
        uptime_s,
        ended,
        removed: parsed(removed, limits::MAX_REMOVED)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_and_other_bytes_are_refused() {
        let ended = [(JobId(1), 5), (JobId(u64::MAX), 7)].into();
        let retention = Retention {
            uptime_s: 9,
            ended,
            removed: [(JobId(2), 1_700_000_000_000)].into(),
        };
        let bytes = encode(&retention);
        assert_eq!(
            String::from_utf8_lossy(&bytes),
            r#"{"version":1,"uptime_s":9,"ended":{"0000000000000001":5,"ffffffffffffffff":7},"removed":{"0000000000000002":1700000000000}}"#
        );
        assert_eq!(decode(&bytes), Ok(retention));
        let later = br#"{"version":1,"uptime_s":3,"ended":{"0000000000000001":5},"removed":{}}"#;
        assert_eq!(decode(later).unwrap().ended, [(JobId(1), 3)].into());
        for bad in [
            &b"{}"[..],
            b"",
            br#"{"version":2,"uptime_s":9,"ended":{},"removed":{}}"#,
        ] {
            assert!(decode(bad).is_err());
        }
        assert!(decode(br#"{"version":1,"uptime_s":9,"ended":{"x":1},"removed":{}}"#).is_err());
    }
}
