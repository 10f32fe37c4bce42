//! "Did you mean": the valid word nearest to a mistyped one.

/// Longer words are no mistyped ones, and comparing them takes long.
const MAX_BYTES: usize = 256;

/// The candidate nearest to `text`, if it is near enough to be what was meant.
pub fn nearest<'c>(text: &str, candidates: impl IntoIterator<Item = &'c str>) -> Option<&'c str> {
    if text.len() > MAX_BYTES {
        return None;
    }
    let text = text.to_lowercase();
    let scored = candidates
        .into_iter()
        .filter(|candidate| candidate.len() <= MAX_BYTES)
        .map(|candidate| {
            let other = candidate.to_lowercase();
            // An affix (`param` for `params`, `mem` for `memory`) is as good as a typing error.
            let affix = text.len() >= 3 && (other.starts_with(&text) || text.starts_with(&other));
            let score = strsim::damerau_levenshtein(&text, &other);
            (if affix { score.min(1) } else { score }, candidate)
        });
    let (score, candidate) = scored.min_by_key(|(score, _)| *score)?;
    (score <= 1 + text.chars().count() / 4).then_some(candidate)
}

#[cfg(test)]
mod tests {
    use super::nearest;

    #[test]
    fn near_words_are_found_and_far_ones_are_not() {
        let keys = ["command", "params", "files", "priority", "memory"];
        assert_eq!(nearest("comand", keys), Some("command"));
        assert_eq!(nearest("Command", keys), Some("command"));
        assert_eq!(nearest("mem", keys), Some("memory"));
        assert_eq!(nearest("param", keys), Some("params"));
        assert_eq!(nearest("colour", keys), None);
        assert_eq!(nearest("", keys), None);
        assert_eq!(nearest("x", []), None);
    }
}
