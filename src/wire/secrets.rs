//! Named secrets as the file `secrets` of a data directory: a line that says which version it is,
//! then postcard. The values are sealed.

use nodectl_types::{KeptSecret, limits};

const HEADER: &[u8] = b"nodectl secrets 1\n";
/// More than any such file has.
pub const MAX_BYTES: u64 =
    (limits::MAX_SECRETS * (limits::MAX_SEALED_SECRET_BYTES + 128) + HEADER.len()) as u64;

pub fn encode(secrets: &[KeptSecret]) -> Vec<u8> {
    let body = postcard::to_stdvec(secrets).expect("plain data always encodes");
    [HEADER, &body].concat()
}

/// Inverse of `encode`, or why not.
pub fn decode(bytes: &[u8]) -> Result<Vec<KeptSecret>, String> {
    let body = bytes
        .strip_prefix(HEADER)
        .ok_or("it is of another version")?;
    let (secrets, rest): (Vec<KeptSecret>, _) =
        postcard::take_from_bytes(body).map_err(|error| error.to_string())?;
    if !rest.is_empty() {
        return Err("bytes are left over".into());
    }
    match secrets
        .iter()
        .find(|secret| !super::control::is_secret(secret))
    {
        Some(_) => Err("a name or a value is none of a secret's".into()),
        None => Ok(secrets),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_and_other_bytes_are_refused() {
        let secret = |name: &str, sealed| KeptSecret {
            name: name.into(),
            version: 3,
            changed_ms: 5,
            sealed,
        };
        let secrets = vec![secret("A", Some(vec![1, 2, 3])), secret("B", None)];
        let bytes = encode(&secrets);
        assert_eq!(decode(&bytes), Ok(secrets));
        assert!((0..bytes.len()).all(|length| decode(&bytes[..length]).is_err()));
        assert!(decode(&[bytes, vec![0]].concat()).is_err());
        assert!(decode(&encode(&[secret("not a name", None)])).is_err());
        let long = vec![0; limits::MAX_SEALED_SECRET_BYTES + 1];
        assert!(decode(&encode(&[secret("A", Some(long))])).is_err());
    }
}
