//! Damaged copies of files, the same ones in each run: readers refuse them or read other numbers,
//! and never panic, hang or ask for more memory than the file can be worth.

use nodectl_formats::Array;
use std::time::{Duration, Instant};

const FLIPS: u64 = 2000;
/// How long all of them may take.
const LIMIT: Duration = Duration::from_secs(60);

/// The file with one to four other bytes, `FLIPS` times, most of them in its first `head` bytes.
pub(crate) fn damaged(file: &[u8], head: usize) -> impl Iterator<Item = Vec<u8>> {
    let mut state = 0x9E37_79B9_7F4A_7C15_u64;
    let mut next = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 11) as usize
    };
    let head = head.min(file.len());
    (0..FLIPS).map(move |_| {
        let mut bytes = file.to_vec();
        for _ in 0..=next() % 4 {
            let within = if next() % 8 == 0 { file.len() } else { head };
            bytes[next() % within] = next() as u8;
        }
        bytes
    })
}

/// Reads them all. `most`: the bytes that an image of such a file may have.
pub(super) fn check(
    file: &[u8],
    head: usize,
    most: usize,
    decode: fn(&[u8]) -> Result<Array, String>,
) {
    let begun = Instant::now();
    let mut refused = 0;
    for bytes in damaged(file, head) {
        match decode(&bytes) {
            Ok(array) => assert!(array.bytes.len() <= most, "{} bytes", array.bytes.len()),
            Err(why) => {
                assert!(!why.is_empty());
                refused += 1;
            }
        }
    }
    assert!(refused > 0 && begun.elapsed() < LIMIT, "{refused}");
}
