//! Sealed frames: `length | final bit` (4 bytes, authenticated), ciphertext, tag. The nonce is a
//! counter that both ends keep, so frames cannot be dropped, repeated or reordered; the final bit
//! tells an end from a cut. One key seals one direction of one transfer.

use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use std::io::{self, Read, Write};

/// Measured best among 64 KiB to 1 MiB.
pub const FRAME_BYTES: usize = 256 << 10;
pub(super) const HEADER_BYTES: usize = 4;
pub(super) const TAG_BYTES: usize = 16;
pub(super) const FINAL: u32 = 1 << 31;

/// Reads `bytes` of `source` and writes them as frames. The last one, which may be empty, says so.
pub fn send(
    source: &mut impl Read,
    bytes: u64,
    key: &[u8; 32],
    out: &mut impl Write,
) -> io::Result<()> {
    let mut cipher = FrameCipher::new(key);
    let mut frame = vec![0; HEADER_BYTES + FRAME_BYTES + TAG_BYTES];
    let mut left = bytes;
    loop {
        let length = left.min(FRAME_BYTES as u64) as usize;
        source.read_exact(&mut frame[HEADER_BYTES..HEADER_BYTES + length])?;
        left -= length as u64;
        let end = cipher.seal(&mut frame, length, left == 0)?;
        out.write_all(&frame[..end])?;
        if left == 0 {
            return out.flush();
        }
    }
}

/// Reads frames to the final one and gives their contents to `sink`. Exactly `bytes` must come;
/// what `sink` got before an error is authentic.
pub fn receive(
    source: &mut impl Read,
    bytes: u64,
    key: &[u8; 32],
    mut sink: impl FnMut(&[u8]) -> io::Result<()>,
) -> io::Result<()> {
    let mut cipher = FrameCipher::new(key);
    let mut frame = vec![0; FRAME_BYTES + TAG_BYTES];
    let mut left = bytes;
    loop {
        let mut header = [0; HEADER_BYTES];
        source.read_exact(&mut header)?;
        let length = (u32::from_le_bytes(header) & !FINAL) as usize;
        if length > FRAME_BYTES || length as u64 > left {
            return Err(bad("a frame larger than was announced"));
        }
        let body = &mut frame[..length + TAG_BYTES];
        source.read_exact(body)?;
        let plain = cipher.open(header, body)?;
        sink(plain)?;
        left -= length as u64;
        match (u32::from_le_bytes(header) & FINAL != 0, left) {
            (true, 0) => return Ok(()),
            (true, _) => return Err(bad("the end came before the announced size")),
            (false, 0) => return Err(bad("the announced size came before the end")),
            (false, _) => {}
        }
    }
}

pub(super) struct FrameCipher {
    key: LessSafeKey,
    counter: u64,
}

impl FrameCipher {
    pub fn new(key: &[u8; 32]) -> Self {
        let key = UnboundKey::new(&AES_256_GCM, key).expect("AES-256 keys have 32 bytes");
        Self {
            key: LessSafeKey::new(key),
            counter: 0,
        }
    }

    /// Seals `length` bytes after the header in place; returns where the frame ends.
    pub fn seal(&mut self, frame: &mut [u8], length: usize, last: bool) -> io::Result<usize> {
        let header = (length as u32 | if last { FINAL } else { 0 }).to_le_bytes();
        frame[..HEADER_BYTES].copy_from_slice(&header);
        let body = &mut frame[HEADER_BYTES..HEADER_BYTES + length];
        let nonce = self.nonce();
        let tag = self
            .key
            .seal_in_place_separate_tag(nonce, Aad::from(header), body);
        let tag = tag.map_err(|_| io::Error::other("a frame cannot be sealed"))?;
        let end = HEADER_BYTES + length + TAG_BYTES;
        frame[HEADER_BYTES + length..end].copy_from_slice(tag.as_ref());
        Ok(end)
    }

    /// `body` has the tag behind the contents.
    pub fn open<'a>(
        &mut self,
        header: [u8; HEADER_BYTES],
        body: &'a mut [u8],
    ) -> io::Result<&'a [u8]> {
        let (contents, tag) = body
            .split_last_chunk_mut()
            .ok_or_else(|| bad("a frame without a tag"))?;
        self.open_apart(header, contents, *tag)?;
        Ok(contents)
    }

    /// Opens contents whose tag lies elsewhere, in place.
    pub fn open_apart(
        &mut self,
        header: [u8; HEADER_BYTES],
        contents: &mut [u8],
        tag: [u8; TAG_BYTES],
    ) -> io::Result<()> {
        let nonce = self.nonce();
        let plain = self.key.open_in_place_separate_tag(
            nonce,
            Aad::from(header),
            tag.into(),
            contents,
            0..,
        );
        plain
            .map(drop)
            .map_err(|_| bad("a frame that was changed on its way"))
    }

    /// Never the same twice under one key: 2^64 frames are more than a transfer has.
    fn nonce(&mut self) -> Nonce {
        let mut nonce = [0; NONCE_LEN];
        nonce[4..].copy_from_slice(&self.counter.to_le_bytes());
        self.counter += 1;
        Nonce::assume_unique_for_key(nonce)
    }
}

pub(super) fn bad(problem: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, problem)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const KEY: [u8; 32] = [9; 32];

    fn sealed(plain: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        send(&mut &plain[..], plain.len() as u64, &KEY, &mut out).unwrap();
        out
    }

    fn opened(sealed: &[u8], bytes: usize) -> (Vec<u8>, io::Result<()>) {
        let mut out = Vec::new();
        let result = receive(&mut &sealed[..], bytes as u64, &KEY, |plain| {
            out.extend_from_slice(plain);
            Ok(())
        });
        (out, result)
    }

    #[test]
    fn every_length_around_a_frame_survives() {
        for length in [
            0,
            1,
            FRAME_BYTES - 1,
            FRAME_BYTES,
            FRAME_BYTES + 1,
            3 * FRAME_BYTES,
        ] {
            let plain: Vec<u8> = (0..length).map(|i| ((i * 31) >> 3) as u8).collect();
            let (out, result) = opened(&sealed(&plain), length);
            result.unwrap();
            assert!(out == plain, "{length}");
        }
    }

    #[test]
    fn a_cut_between_frames_is_noticed() {
        let plain = vec![5; 2 * FRAME_BYTES];
        let whole = sealed(&plain);
        let (out, result) = opened(&whole[..whole.len() / 2], plain.len());
        assert!(result.is_err());
        assert_eq!(out.len(), FRAME_BYTES, "what came before the cut is good");
    }

    #[test]
    fn swapped_frames_are_refused() {
        let whole = sealed(&vec![5; 3 * FRAME_BYTES]);
        let frame = HEADER_BYTES + FRAME_BYTES + TAG_BYTES;
        let swapped = [
            &whole[frame..2 * frame],
            &whole[..frame],
            &whole[2 * frame..],
        ]
        .concat();
        let (out, result) = opened(&swapped, 3 * FRAME_BYTES);
        assert!(
            result
                .unwrap_err()
                .to_string()
                .contains("changed on its way")
                && out.is_empty()
        );
    }

    #[test]
    fn a_lying_size_is_refused() {
        let whole = sealed(&[1, 2, 3]);
        assert!(opened(&whole, 2).1.is_err());
        assert!(opened(&whole, 4).1.is_err());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn a_changed_bit_is_noticed(plain in proptest::collection::vec(any::<u8>(), 0..500), at: prop::sample::Index, bit in 0u8..8) {
            let mut whole = sealed(&plain);
            let at = at.index(whole.len());
            whole[at] ^= 1 << bit;
            let (out, result) = opened(&whole, plain.len());
            prop_assert!(result.is_err() && out.is_empty());
        }

        #[test]
        fn any_bytes_are_read_without_harm(bytes in proptest::collection::vec(any::<u8>(), 0..300), size in 0usize..400) {
            prop_assert!(opened(&bytes, size).1.is_err());
        }
    }
}
