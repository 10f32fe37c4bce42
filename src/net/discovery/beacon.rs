//! The beacon's bytes. In clear only that a nodectl is here: a magic and a random number for this
//! run of the node. The rest is sealed with a key derived from the secret and that number. Old
//! packets may be replayed by anybody: they are address hints, and the connection that follows is
//! authenticated. Pure, and never panics on what it is given.

use crate::{config::Versions, secret::fill_random};
use nodectl_types::NodeId;
use ring::{
    aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey},
    hkdf,
};
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;

const MAGIC: &[u8; 8] = b"nodectl1";
const CLEAR_BYTES: usize = 16;
/// Fits into one Ethernet frame.
pub const MAX_BYTES: usize = 1200;
const MAX_ADDRS: usize = 16;
const MAX_NAME_BYTES: usize = 64;

/// What a node says about itself. Later versions may only append: what follows is ignored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Beacon {
    pub versions: Versions,
    pub node: NodeId,
    pub listen_port: u16,
    /// The beacon answers somebody else's, and is not to be answered.
    pub answer: bool,
    pub addrs: Vec<SocketAddr>,
    pub name: String,
    pub software: String,
    /// By the sender's clock, in milliseconds since 1970.
    pub sent_ms: u64,
}

/// A packet on the beacon's port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HeardPacket {
    /// Of our cluster.
    Ours(Beacon),
    /// A nodectl with another secret, or somebody who pretends to be one.
    Foreign,
    /// Our own packet, come back.
    Own,
    Noise,
}

/// Seals and opens beacons.
pub struct Cipher {
    /// The cluster's, from which each run's comes: half of HKDF, done once.
    root: hkdf::Prk,
    /// This run's.
    key: LessSafeKey,
    boot: [u8; 8],
}

impl Cipher {
    pub fn new(key: &[u8; 32]) -> Self {
        Self::of_run(key, draw())
    }

    /// Of a run that has other keys too.
    pub fn of_run(key: &[u8; 32], boot: [u8; 8]) -> Self {
        let root = hkdf::Salt::new(hkdf::HKDF_SHA256, b"nodectl beacon of a run").extract(key);
        Self {
            key: key_of(&root, boot),
            root,
            boot,
        }
    }

    pub fn seal(&self, beacon: &Beacon) -> Vec<u8> {
        let mut beacon = beacon.clone();
        beacon.addrs.truncate(MAX_ADDRS);
        beacon.name = cut(&beacon.name);
        beacon.software = cut(&beacon.software);
        let mut body = postcard::to_stdvec(&beacon).expect("plain data always encodes");
        // Random nonces of a key that only this run seals with: centuries before 96 bits are at
        // risk of repeating.
        let mut nonce = [0; NONCE_LEN];
        fill_random(&mut nonce);
        let clear = self.clear();
        self.key
            .seal_in_place_append_tag(
                Nonce::assume_unique_for_key(nonce),
                Aad::from(clear),
                &mut body,
            )
            .expect("a packet is far below AES-GCM's limit");
        [&clear[..], &nonce, &body].concat()
    }

    /// The packet's meaning, and the sender's random number if it is any nodectl's.
    pub fn open(&self, packet: &[u8]) -> (HeardPacket, u64) {
        let shortest = CLEAR_BYTES + NONCE_LEN + AES_256_GCM.tag_len();
        if packet.len() < shortest || packet.len() > MAX_BYTES || !looks_like_one(packet) {
            return (HeardPacket::Noise, 0);
        }
        let boot: [u8; 8] = packet[8..16].try_into().expect("eight bytes");
        let number = u64::from_le_bytes(boot);
        if boot == self.boot {
            return (HeardPacket::Own, number);
        }
        let (clear, rest) = packet.split_at(CLEAR_BYTES);
        let (nonce, body) = rest.split_at(NONCE_LEN);
        let nonce = Nonce::assume_unique_for_key(nonce.try_into().expect("split there"));
        let mut body = body.to_vec();
        let Ok(plain) = key_of(&self.root, boot).open_in_place(nonce, Aad::from(clear), &mut body)
        else {
            return (HeardPacket::Foreign, number);
        };
        match postcard::take_from_bytes::<Beacon>(plain) {
            Ok((beacon, _)) if beacon.addrs.len() <= MAX_ADDRS => {
                (HeardPacket::Ours(beacon), number)
            }
            _ => (HeardPacket::Noise, number),
        }
    }

    fn clear(&self) -> [u8; CLEAR_BYTES] {
        let mut clear = [0; CLEAR_BYTES];
        clear[..8].copy_from_slice(MAGIC);
        clear[8..].copy_from_slice(&self.boot);
        clear
    }
}

/// What strangers may know a run by.
pub fn draw() -> [u8; 8] {
    let mut boot = [0; 8];
    fill_random(&mut boot);
    boot
}

/// Whether a packet says that it is a beacon.
pub fn looks_like_one(packet: &[u8]) -> bool {
    packet.starts_with(MAGIC)
}

fn key_of(root: &hkdf::Prk, boot: [u8; 8]) -> LessSafeKey {
    let info: [&[u8]; 1] = [&boot];
    let key = root
        .expand(&info, &AES_256_GCM)
        .expect("32 bytes are within HKDF's 255 blocks");
    LessSafeKey::new(UnboundKey::from(key))
}

fn cut(text: &str) -> String {
    let end = (0..=text.len().min(MAX_NAME_BYTES))
        .rev()
        .find(|end| text.is_char_boundary(*end));
    text[..end.unwrap_or(0)].to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn beacon() -> Beacon {
        Beacon {
            versions: Versions {
                oldest: 1,
                newest: 2,
            },
            node: NodeId([7; 32]),
            listen_port: 4000,
            answer: false,
            addrs: vec!["[2001:db8::1]:4000".parse().unwrap(); MAX_ADDRS],
            name: "n".repeat(MAX_NAME_BYTES),
            software: "1.2.3".into(),
            sent_ms: 1_700_000_000_000,
        }
    }

    #[test]
    fn only_those_with_the_key_read_it() {
        let (one, two, other) = (
            Cipher::new(&[1; 32]),
            Cipher::new(&[1; 32]),
            Cipher::new(&[2; 32]),
        );
        let packet = one.seal(&beacon());
        assert!(packet.len() <= MAX_BYTES);
        assert_eq!(two.open(&packet).0, HeardPacket::Ours(beacon()));
        assert_eq!(other.open(&packet).0, HeardPacket::Foreign);
        assert_eq!(one.open(&packet).0, HeardPacket::Own);
        assert!(
            !packet.windows(8).any(|window| window == [7; 8]),
            "the id is in clear"
        );
    }

    #[test]
    fn each_run_seals_with_a_key_of_its_own() {
        let (one, two) = (
            Cipher::of_run(&[1; 32], [1; 8]),
            Cipher::of_run(&[1; 32], [2; 8]),
        );
        let nonce = || Nonce::assume_unique_for_key([0; NONCE_LEN]);
        let sealed = |cipher: &Cipher| {
            let mut text = b"the same".to_vec();
            cipher
                .key
                .seal_in_place_append_tag(nonce(), Aad::empty(), &mut text)
                .unwrap();
            text
        };
        assert_eq!(sealed(&one), sealed(&Cipher::of_run(&[1; 32], [1; 8])));
        assert_ne!(sealed(&one), sealed(&two));
        assert!(
            two.key
                .open_in_place(nonce(), Aad::empty(), &mut sealed(&one))
                .is_err()
        );
    }

    #[test]
    fn long_names_are_cut_between_characters() {
        let long = Beacon {
            name: "ä".repeat(100),
            ..beacon()
        };
        let packet = Cipher::new(&[1; 32]).seal(&long);
        let (HeardPacket::Ours(heard), _) = Cipher::new(&[1; 32]).open(&packet) else {
            panic!("not opened")
        };
        assert_eq!(heard.name, "ä".repeat(32));
    }

    proptest! {
        #[test]
        fn any_packet_is_read_without_harm(bytes in proptest::collection::vec(any::<u8>(), 0..1500), magic: bool) {
            let mut bytes = bytes;
            if magic && bytes.len() >= 8 {
                bytes[..8].copy_from_slice(MAGIC);
            }
            prop_assert!(!matches!(Cipher::new(&[1; 32]).open(&bytes).0, HeardPacket::Ours(_)));
        }

        #[test]
        fn a_changed_packet_is_foreign(at in 16usize..100, bit in 0u8..8) {
            let mut packet = Cipher::new(&[1; 32]).seal(&beacon());
            packet[at] ^= 1 << bit;
            prop_assert_eq!(Cipher::new(&[1; 32]).open(&packet).0, HeardPacket::Foreign);
        }
    }
}
