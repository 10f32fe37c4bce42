//! How much guessing a secret withstands. Nobody can know that of a text; this is what somebody who
//! tries words, names, numbers and keyboard runs first would need, and never more than the text
//! has.

/// Guesses that a secret must withstand, as a power of two: everybody on the network can try them
/// at home.
pub const ENOUGH_BITS: u32 = 60;
/// A word of a list of some thousands, a name, a place: one of 2^13.
const WORD_BITS: f64 = 13.0;
/// A letter of what is no single word, but may be several.
const PROSE_BITS: f64 = 2.6;
const LETTER_BITS: f64 = 4.7;
const DIGIT_BITS: f64 = 3.3;
const SIGN_BITS: f64 = 2.0;
/// Of a part that came before.
const AGAIN_BITS: f64 = 1.0;
/// Longer runs of letters are taken for several words.
const LONGEST_WORD: usize = 10;
/// Secrets that everybody tries first.
const COMMON: [&str; 16] = [
    "password", "secret", "nodectl", "cluster", "changeme", "letmein", "admin", "root", "test",
    "default", "123456", "qwerty", "hunter2", "labor", "lab", "gpu",
];

#[derive(Clone, Copy, PartialEq, Eq)]
enum CharacterKind {
    Lower,
    Upper,
    Digit,
    Sign,
}

/// Whether it is one of those, but for digits and signs around it.
pub fn is_common(text: &str) -> bool {
    let lower = text.trim().to_lowercase();
    let stem = lower.trim_matches(|c: char| c.is_ascii_digit() || c.is_ascii_punctuation());
    COMMON.iter().any(|word| *word == lower || *word == stem)
}

/// The power of two.
pub fn bits(text: &str) -> u32 {
    let chars: Vec<char> = text.trim().chars().collect();
    let chars = &chars[..period(&chars)];
    let mut distinct = chars.to_vec();
    distinct.sort_unstable();
    distinct.dedup();
    let most = chars.len() as f64 * (distinct.len().max(1) as f64).log2();
    let mut seen: Vec<String> = Vec::new();
    let worth: f64 = parts(chars)
        .map(|part| {
            let lower: String = part.iter().flat_map(|c| c.to_lowercase()).collect();
            if kind(part[0]) != CharacterKind::Sign && part.len() > 1 && seen.contains(&lower) {
                return AGAIN_BITS;
            }
            let worth = worth(part);
            seen.push(lower);
            worth
        })
        .sum();
    worth.min(most) as u32
}

fn worth(part: &[char]) -> f64 {
    let steps = effective(part) as f64;
    match kind(part[0]) {
        CharacterKind::Digit => DIGIT_BITS * steps,
        CharacterKind::Sign => SIGN_BITS * steps,
        _ if part.len() <= LONGEST_WORD => (LETTER_BITS * steps).min(WORD_BITS),
        _ => PROSE_BITS * steps,
    }
}

/// Letters, digits or signs side by side; one capital may begin a word.
fn parts(chars: &[char]) -> impl Iterator<Item = &[char]> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let first = kind(*chars.get(at)?);
        let begin = at;
        at += 1;
        let next = chars.get(at).map(|c| kind(*c));
        let inner = if first == CharacterKind::Upper && next == Some(CharacterKind::Lower) {
            CharacterKind::Lower
        } else {
            first
        };
        while chars.get(at).is_some_and(|c| kind(*c) == inner) {
            at += 1;
        }
        Some(&chars[begin..at])
    })
}

fn kind(c: char) -> CharacterKind {
    match c {
        _ if c.is_numeric() => CharacterKind::Digit,
        _ if c.is_uppercase() => CharacterKind::Upper,
        _ if c.is_alphabetic() => CharacterKind::Lower,
        _ => CharacterKind::Sign,
    }
}

/// How many characters do not follow from the one before: `aaaa`, `abcd` and `4321` have one.
fn effective(part: &[char]) -> usize {
    1 + part
        .windows(2)
        .filter(|pair| u32::from(pair[0]).abs_diff(u32::from(pair[1])) > 1)
        .count()
}

/// The length of what a text repeats.
fn period(chars: &[char]) -> usize {
    let repeats = |length: &usize| {
        chars.len().is_multiple_of(*length) && chars[*length..] == chars[..chars.len() - length]
    };
    (1..chars.len()).find(repeats).unwrap_or(chars.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn words_numbers_and_runs_are_guessed_and_random_characters_are_not() {
        let weak = [
            "short",
            "Password123!",
            "gpu",
            "aaaaaaaaaaaaaaaa",
            "12345678901",
            "passwordpassword",
            "passwordpasswordpasswordpassword",
            "correct horse battery staple",
            "violet tram under rain",
            "abcdefghijklmnopqrstuvwxyz",
            "123456",
            "Institute of Physics 2024",
            "lab lab lab lab lab lab lab lab lab lab",
            "",
        ];
        for text in weak {
            assert!(
                bits(text) < ENOUGH_BITS,
                "{text} is taken for {} bits",
                bits(text)
            );
        }
        let strong = [
            "violet tram under heavy rain and seven goats",
            "x8Fk29qLm0TzPw4e",
            "m3kpd-9xw2c-hjt7q-4nbrz-y8gve",
            "8f14e45fceea167a5a36dedd4bea2543",
            "Übermut, Regenwurm, Zwieback, Laterne, Fagott",
        ];
        for text in strong {
            assert!(
                bits(text) >= ENOUGH_BITS,
                "{text} is taken for {} bits",
                bits(text)
            );
        }
    }

    #[test]
    fn what_everybody_tries_first_is_known_with_what_is_put_around_it() {
        assert!(is_common("Hunter2") && is_common("!!Cluster2024") && is_common("123456"));
        assert!(!is_common("clusterfudge") && !is_common(""));
    }

    proptest! {
        #[test]
        fn what_the_installer_makes_is_enough(groups in proptest::collection::vec("[a-hjkmnp-z0-9]{5}", 6)) {
            let text = groups.join("-");
            prop_assert!(bits(&text) >= ENOUGH_BITS, "{text} is taken for {} bits", bits(&text));
        }

        #[test]
        fn any_text_is_judged(text in ".*") {
            bits(&text);
        }
    }
}
