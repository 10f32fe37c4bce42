//! What a node has said about the first voters of logs and open jobs, as the file `beginnings` of
//! its data directory: a line that says which version it is, then postcard.

use nodectl_types::{Beginning, Beginnings, NodeId, limits};
use serde::{Serialize, de::DeserializeOwned};

const HEADER: &[u8] = b"nodectl beginnings 1\n";
/// More than any such file has: of each job its number, two ballots and the voters.
pub const MAX_BYTES: u64 =
    (limits::MAX_BEGINNINGS * 64 * (3 + limits::JOB_REPLICAS) + HEADER.len() + 16) as u64;

pub fn encode(beginnings: &Beginnings) -> Vec<u8> {
    encode_after(HEADER, beginnings)
}

/// Inverse of `encode`, or why not.
pub fn decode(bytes: &[u8]) -> Result<Beginnings, String> {
    let beginnings: Beginnings = decode_after(HEADER, bytes)?;
    if beginnings.len() > limits::MAX_BEGINNINGS || !beginnings.values().all(is_sane) {
        return Err("more is in it than any node says".into());
    }
    Ok(beginnings)
}

/// A file of a node's own: which version it is, then plain data.
pub(super) fn encode_after<T: Serialize>(header: &[u8], value: &T) -> Vec<u8> {
    let body = postcard::to_stdvec(value).expect("plain data always encodes");
    [header, &body].concat()
}

/// Inverse of `encode_after`, or why not.
pub(super) fn decode_after<T: DeserializeOwned>(header: &[u8], bytes: &[u8]) -> Result<T, String> {
    let body = bytes
        .strip_prefix(header)
        .ok_or("it is of another version")?;
    let (value, rest) = postcard::take_from_bytes(body).map_err(|error| error.to_string())?;
    match rest {
        [] => Ok(value),
        _ => Err("bytes are left over".into()),
    }
}

/// Whether nodes say such things.
fn is_sane(known: &Beginning) -> bool {
    let accepted = known.accepted.as_ref();
    accepted.is_none_or(|(_, voters)| are_first_voters(voters))
}

/// Whether a job begins with such voters.
pub(super) fn are_first_voters(voters: &[NodeId]) -> bool {
    !voters.is_empty() && voters.len() <= limits::JOB_REPLICAS
}

#[cfg(test)]
mod tests {
    use super::*;
    use nodectl_types::{Ballot, JobId};

    #[test]
    fn what_is_written_is_read_and_other_bytes_are_refused() {
        let ballot = |round| Ballot {
            round,
            node: Some(NodeId([7; 32])),
            claim: u32::MAX,
        };
        let with = |voters: Vec<NodeId>| -> Beginnings {
            let known = Beginning {
                promised: ballot(u32::MAX),
                accepted: Some((ballot(2), voters)),
            };
            [(JobId(1), known), (JobId(2), Beginning::default())].into()
        };
        let told = with(vec![NodeId([1; 32]), NodeId([2; 32])]);
        let bytes = encode(&told);
        assert_eq!(decode(&bytes), Ok(told));
        assert!((0..bytes.len()).all(|length| decode(&bytes[..length]).is_err()));
        assert!(decode(&[bytes, vec![0]].concat()).is_err());
        assert!(decode(&encode(&with(Vec::new()))).is_err());
        assert!(decode(&encode(&with(vec![NodeId([1; 32]); 4]))).is_err());
        let most = (0..limits::MAX_BEGINNINGS as u64).map(|job| {
            let known = with(vec![NodeId([255; 32]); limits::JOB_REPLICAS]).remove(&JobId(1));
            (JobId(u64::MAX - job), known.expect("just put there"))
        });
        assert!((encode(&most.collect()).len() as u64) < MAX_BYTES);
    }
}
