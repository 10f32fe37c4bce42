//! Whom a node has met, as the file `members` of its data directory: a line that says which version
//! it is, then postcard.

use super::beginnings::{decode_after, encode_after};
use nodectl_types::{
    limits,
    membership::{MemberRecord, MemberRecords},
    text::is_name,
};

const HEADER: &[u8] = b"nodectl members 1\n";
/// More than any such file has: of each node its id, its name and two numbers.
pub const MAX_BYTES: u64 =
    (limits::MAX_ELECTORS * (64 + limits::MAX_LABEL_BYTES) + HEADER.len() + 16) as u64;

pub fn encode(records: &MemberRecords) -> Vec<u8> {
    encode_after(HEADER, records)
}

/// Inverse of `encode`, or why not.
pub fn decode(bytes: &[u8]) -> Result<MemberRecords, String> {
    let records = decode_after(HEADER, bytes)?;
    if !are_sane(&records) {
        return Err("more is in it than any node remembers".into());
    }
    Ok(records)
}

/// Whether nodes remember such things.
pub(super) fn are_sane(records: &MemberRecords) -> bool {
    let has_sane_name = |record: &MemberRecord| {
        let name = &record.name;
        name.is_empty() || (name.len() <= limits::MAX_LABEL_BYTES && is_name(name))
    };
    records.len() <= limits::MAX_ELECTORS && records.values().all(has_sane_name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use nodectl_types::NodeId;

    fn records(count: usize, name: String) -> MemberRecords {
        let record = MemberRecord {
            name,
            incarnation: u64::MAX,
            left: true,
        };
        let id = |number: usize| {
            let mut id = [255; 32];
            id[..8].copy_from_slice(&number.to_be_bytes());
            NodeId(id)
        };
        (0..count).map(|at| (id(at), record.clone())).collect()
    }

    #[test]
    fn what_is_written_is_read_and_other_bytes_are_refused() {
        let some = records(3, "gpu01".into());
        let bytes = encode(&some);
        assert_eq!(decode(&bytes), Ok(some));
        assert!((0..bytes.len()).all(|length| decode(&bytes[..length]).is_err()));
        assert!(decode(&[bytes, vec![0]].concat()).is_err());
        assert!(decode(&encode(&records(1, "a\u{1b}".into()))).is_err());
        let most = records(limits::MAX_ELECTORS, "n".repeat(limits::MAX_LABEL_BYTES));
        assert!((encode(&most).len() as u64) < MAX_BYTES);
        assert!(decode(&encode(&most)).is_ok());
        let more = records(limits::MAX_ELECTORS + 1, String::new());
        assert!(decode(&encode(&more)).is_err());
    }
}
