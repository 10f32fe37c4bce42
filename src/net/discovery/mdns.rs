//! A sealed beacon inside multicast DNS (RFC 6762, RFC 6763): an announcement of the service
//! `_nodectl._udp` whose text is the beacon. Many networks and firewalls let mDNS through and no
//! other multicast. It tells a stranger what the beacon tells: a random number for this run. Pure,
//! and never panics on what it is given.

/// Where mDNS is spoken.
pub const PORT: u16 = 5353;
/// The largest packet looked at; a whole beacon takes less.
pub const MAX_BYTES: usize = 1472;

const HEADER_BYTES: usize = 12;
/// A response, and not one that somebody repeats.
const AUTHORITATIVE_RESPONSE: [u8; 2] = [0x84, 0x00];
const RESPONSE_BIT: u8 = 0x80;
const SERVICE: [&str; 3] = ["_nodectl", "_udp", "local"];
const PTR: u16 = 12;
const TXT: u16 = 16;
const INTERNET: u16 = 1;
/// Nobody gains by keeping it: the next one comes in a few seconds.
const SECONDS_TO_LIVE: u32 = 10;
/// The longest string in a text.
const STRING_BYTES: usize = 255;
/// Records looked at in one packet.
const MAX_RECORDS: usize = 16;

/// The beacon as an announcement by somebody named `number`.
pub fn wrap(beacon: &[u8], number: u64) -> Vec<u8> {
    let instance = format!("{number:016x}");
    let service = name(&SERVICE);
    let own = [&name(&[&instance])[..1 + instance.len()], &service].concat();
    let text: Vec<u8> = beacon
        .chunks(STRING_BYTES)
        .flat_map(|chunk| [&[chunk.len() as u8], chunk].concat())
        .collect();
    let mut packet = Vec::with_capacity(MAX_BYTES);
    packet.extend_from_slice(&[0, 0]);
    packet.extend_from_slice(&AUTHORITATIVE_RESPONSE);
    // No questions, two answers, nothing else.
    packet.extend_from_slice(&[0, 0, 0, 2, 0, 0, 0, 0]);
    record(&mut packet, &service, PTR, &own);
    record(&mut packet, &own, TXT, &text);
    packet
}

/// What could be a beacon in a packet on mDNS's port, most of which are of others.
pub fn unwrap(packet: &[u8]) -> Option<Vec<u8>> {
    let header = packet
        .first_chunk::<HEADER_BYTES>()
        .filter(|_| packet.len() <= MAX_BYTES)?;
    let count = |at: usize| usize::from(u16::from_be_bytes([header[at], header[at + 1]]));
    if header[2] & RESPONSE_BIT == 0 || count(4) != 0 {
        return None;
    }
    let mut rest = &packet[HEADER_BYTES..];
    for _ in 0..(count(6) + count(8) + count(10)).min(MAX_RECORDS) {
        rest = behind_name(rest)?;
        let (head, behind) = rest.split_first_chunk::<10>()?;
        let (data, behind) =
            behind.split_at_checked(usize::from(u16::from_be_bytes([head[8], head[9]])))?;
        rest = behind;
        if u16::from_be_bytes([head[0], head[1]]) == TXT
            && let Some(text) = joined(data)
            && super::beacon::looks_like_one(&text)
        {
            return Some(text);
        }
    }
    None
}

fn name(labels: &[&str]) -> Vec<u8> {
    let mut bytes: Vec<u8> = labels
        .iter()
        .flat_map(|label| [&[label.len() as u8], label.as_bytes()].concat())
        .collect();
    bytes.push(0);
    bytes
}

fn record(packet: &mut Vec<u8>, name: &[u8], kind: u16, data: &[u8]) {
    packet.extend_from_slice(name);
    packet.extend_from_slice(&kind.to_be_bytes());
    packet.extend_from_slice(&INTERNET.to_be_bytes());
    packet.extend_from_slice(&SECONDS_TO_LIVE.to_be_bytes());
    packet.extend_from_slice(&(data.len() as u16).to_be_bytes());
    packet.extend_from_slice(data);
}

/// What follows a name: labels up to an empty one, or up to a pointer to others.
fn behind_name(mut bytes: &[u8]) -> Option<&[u8]> {
    loop {
        let (length, rest) = bytes.split_first()?;
        match length >> 6 {
            0 if *length == 0 => return Some(rest),
            0 => bytes = rest.get(usize::from(*length)..)?,
            3 => return rest.get(1..),
            _ => return None,
        }
    }
}

/// The strings of a text, one behind the other.
fn joined(mut data: &[u8]) -> Option<Vec<u8>> {
    let mut text = Vec::with_capacity(data.len());
    while let Some((length, rest)) = data.split_first() {
        let (string, behind) = rest.split_at_checked(usize::from(*length))?;
        text.extend_from_slice(string);
        data = behind;
    }
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::discovery::beacon;
    use proptest::prelude::*;

    fn sealed(bytes: usize) -> Vec<u8> {
        [&b"nodectl1"[..], &vec![7; bytes]].concat()
    }

    #[test]
    fn the_largest_beacon_fits_into_one_packet() {
        for bytes in [0, 247, 248, 600, beacon::MAX_BYTES - 8] {
            let packet = wrap(&sealed(bytes), 5);
            assert!(packet.len() <= MAX_BYTES, "{}", packet.len());
            assert_eq!(unwrap(&packet), Some(sealed(bytes)));
        }
    }

    #[test]
    fn a_stranger_reads_a_random_number_and_no_more() {
        let packet = wrap(&sealed(3), 0xabc);
        let expected = b"\0\0\x84\0\0\0\0\x02\0\0\0\0\x08_nodectl\x04_udp\x05local\0\0\x0c\0\x01\0\0\0\x0a\0\x26\
            \x100000000000000abc\x08_nodectl\x04_udp\x05local\0\x100000000000000abc\x08_nodectl\x04_udp\x05local\0\
            \0\x10\0\x01\0\0\0\x0a\0\x0c\x0bnodectl1\x07\x07\x07";
        assert_eq!(packet, expected);
    }

    #[test]
    fn repeaters_may_add_records_and_shorten_names() {
        let whole = wrap(&sealed(9), 5);
        let own_name = HEADER_BYTES + 21 + 10;
        let text = &whole[own_name + 38 + 38..];
        let mut packet = whole[..HEADER_BYTES].to_vec();
        // A question's worth of somebody's address first, then the text under a pointer.
        packet.extend_from_slice(b"\x03lab\x05local\0\0\x01\0\x01\0\0\0\x0a\0\x04\x0a\0\0\x01");
        packet.extend_from_slice(&[0xc0, HEADER_BYTES as u8]);
        packet.extend_from_slice(text);
        assert_eq!(unwrap(&packet), Some(sealed(9)));
    }

    proptest! {
        #[test]
        fn any_packet_is_read_without_harm(bytes in proptest::collection::vec(any::<u8>(), 0..1600)) {
            let _ = unwrap(&bytes);
        }

        #[test]
        fn a_damaged_announcement_is_read_without_harm(at in 0usize..400, byte: u8, cut in 0usize..400) {
            let mut packet = wrap(&sealed(300), 5);
            let length = packet.len();
            packet[at % length] = byte;
            let _ = unwrap(&packet);
            let _ = unwrap(&packet[..cut % length]);
        }
    }
}
