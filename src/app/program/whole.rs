//! Whether a program's file is whole: as long as its own headers say and, where `packaging/build`
//! has written behind its end what hash it has, with that hash.

use data_encoding::HEXLOWER;
use ring::digest::{SHA256, digest};

/// Behind the end of a program: this, its SHA-256 in hexadecimal digits, the end of the line.
const MARK: &[u8] = b"\nnodectl-sha256:";
/// Of sections: one that takes no place in the file (elf(5)).
const NO_BITS: u64 = 8;

/// What is wrong with the bytes of a program for 64 bits, little-endian (elf(5)); the rest of a
/// sentence. None where nothing shows: a byte that is another one shows by the hash alone.
pub fn damage(program: &[u8]) -> Option<String> {
    let Some(end) = end(program) else {
        return Some("it is damaged: it ends before all that its headers name".into());
    };
    let said = program[end..].strip_prefix(MARK)?;
    let is = HEXLOWER.encode(digest(&SHA256, &program[..end]).as_ref());
    (said != [is.as_bytes(), b"\n"].concat())
        .then(|| "it is damaged: it has not the SHA-256 that it had when it was made".into())
}

/// Where the last of all that the headers name ends; None where that is beyond the file's end.
fn end(program: &[u8]) -> Option<usize> {
    let number = |at: usize, bytes: usize| -> Option<u64> {
        let field = program.get(at..at.checked_add(bytes)?)?;
        Some(
            field
                .iter()
                .rev()
                .fold(0, |all, byte| all << 8 | u64::from(*byte)),
        )
    };
    let table = |place: usize, sizes: usize| -> Option<(usize, usize, usize)> {
        let start = usize::try_from(number(place, 8)?).ok()?;
        let [size, count] = [number(sizes, 2)? as usize, number(sizes + 2, 2)? as usize];
        Some((start, size, count))
    };
    let mut end = 64;
    let mut reach = |start: u64, bytes: u64| -> Option<()> {
        let to = usize::try_from(start.checked_add(bytes)?).ok()?;
        end = end.max(to);
        (to <= program.len()).then_some(())
    };
    let (segments, size, count) = table(32, 54)?;
    reach(segments as u64, (size * count) as u64)?;
    for at in (0..count).map(|segment| segments + segment * size) {
        reach(number(at + 8, 8)?, number(at + 32, 8)?)?;
    }
    let (sections, size, count) = table(40, 58)?;
    reach(sections as u64, (size * count) as u64)?;
    for at in (0..count).map(|section| sections + section * size) {
        if number(at + 4, 4)? != NO_BITS {
            reach(number(at + 24, 8)?, number(at + 32, 8)?)?;
        }
    }
    Some(end)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// This test's own program, with the line behind it that `packaging/build` writes.
    fn marked() -> Vec<u8> {
        let mut program = std::fs::read("/proc/self/exe").unwrap();
        program.truncate(end(&program).unwrap());
        let is = HEXLOWER.encode(digest(&SHA256, &program).as_ref());
        [&program, MARK, is.as_bytes(), b"\n"].concat()
    }

    #[test]
    fn a_program_that_is_cut_anywhere_is_damaged() {
        let whole = std::fs::read("/proc/self/exe").unwrap();
        assert_eq!(damage(&whole), None);
        for bytes in [20, 63, 64, 4096, whole.len() / 2, end(&whole).unwrap() - 1] {
            assert!(damage(&whole[..bytes]).is_some(), "{bytes} bytes");
        }
    }

    #[test]
    fn one_other_bit_shows_where_the_program_says_its_hash() {
        let mut program = marked();
        assert_eq!(damage(&program), None);
        let length = program.len();
        for at in [length / 3, length - 2] {
            program[at] ^= 4;
            let why = damage(&program).unwrap();
            assert!(why.contains("SHA-256"), "{why}");
            program[at] ^= 4;
        }
        // A part of the line is not the line.
        assert!(damage(&program[..length - 2]).is_some());
    }

    #[test]
    fn headers_that_name_places_beyond_all_numbers_are_damage() {
        let mut program = marked();
        // Where a table is, and how large one of its entries.
        for (place, size) in [(32, 54), (40, 58)] {
            let before = program.clone();
            program[place..place + 8].fill(0xff);
            assert!(damage(&program).is_some(), "table at {place}");
            program[size..size + 2].fill(0);
            assert!(damage(&program).is_some(), "empty table at {place}");
            program = before;
        }
    }
}
