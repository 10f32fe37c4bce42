//! Data files of a master file of which some are not there: how many frames each would have, so
//! that those of the others keep their numbers.

use super::MAX_FRAMES;
use nodectl_formats::hdf5;
use std::path::Path;

/// Where Dectris' detectors say how many frames were asked for: those of a trigger, and triggers.
const DETECTOR: &str = "entry/instrument/detector/detectorSpecific";

/// How many frames were asked for, as a master file says.
pub(super) fn asked(master: &Path) -> Option<u64> {
    let number = |name: &str| {
        let name = format!("{DETECTOR}/{name}");
        let info = hdf5::inspect(master, &name).ok()?;
        if info.scalar.is_float() || info.bytes() != Some(info.scalar.bytes() as u64) {
            return None;
        }
        let array = hdf5::read(master, &name, None).ok()?;
        let mut bytes = [0; 8];
        bytes
            .get_mut(..array.bytes.len())?
            .copy_from_slice(&array.bytes);
        Some(u64::from_le_bytes(bytes))
    };
    number("nimages")?.checked_mul(number("ntrigger").unwrap_or(1))
}

/// The frames of each part, where None is one that is not there. Detectors fill a file before they
/// begin the next: all but the last have the same number of frames. `asked` is that of all. None
/// where nothing says how many the missing ones had.
pub(super) fn lengths(parts: &[Option<u64>], asked: Option<u64>) -> Option<Vec<u64>> {
    let (last, full) = parts.split_last()?;
    let present = parts
        .iter()
        .flatten()
        .fold(0, |sum: u64, frames| sum.saturating_add(*frames));
    let rest = asked.and_then(|asked| asked.checked_sub(present));
    let length = match full.iter().flatten().max() {
        Some(length) => *length,
        // Of a last part alone, the others share what is left.
        None => rest
            .map(|rest| rest / full.len().max(1) as u64)
            .filter(|_| last.is_some())?,
    };
    let missing = full.iter().filter(|part| part.is_none()).count() as u64;
    let left = rest.and_then(|rest| rest.checked_sub(length.checked_mul(missing)?));
    let of_last = left
        .filter(|left| (1..=length).contains(left))
        .unwrap_or(length);
    let mut lengths: Vec<u64> = full.iter().map(|part| part.unwrap_or(length)).collect();
    lengths.push(last.unwrap_or(of_last));
    (1..=MAX_FRAMES).contains(&length).then_some(lengths)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_parts_are_as_long_as_the_others() {
        let of = |parts: &[Option<u64>], asked| lengths(parts, asked);
        assert_eq!(of(&[Some(3), None], None), Some(vec![3, 3]));
        assert_eq!(of(&[Some(3), None], Some(5)), Some(vec![3, 2]));
        assert_eq!(of(&[None, Some(3), None], Some(8)), Some(vec![3, 3, 2]));
        assert_eq!(of(&[Some(3), None, Some(1)], None), Some(vec![3, 3, 1]));
        // What was asked for may be more than was taken.
        assert_eq!(of(&[Some(3), None], Some(1000)), Some(vec![3, 3]));
        assert_eq!(of(&[Some(3), None], Some(2)), Some(vec![3, 3]));
    }

    #[test]
    fn a_last_part_says_nothing_of_the_others() {
        assert_eq!(
            lengths(&[None, None, Some(2)], Some(8)),
            Some(vec![3, 3, 2])
        );
        assert_eq!(lengths(&[None, Some(2)], None), None);
        assert_eq!(lengths(&[None, Some(2)], Some(u64::MAX)), None);
        assert_eq!(lengths(&[None, None], Some(5)), None);
        assert_eq!(lengths(&[], Some(5)), None);
    }
}
