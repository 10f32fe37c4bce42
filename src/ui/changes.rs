//! How a list of things with ids differs from the one before: of many jobs, few change at a time.

use serde_json::{Value, json};
use std::collections::BTreeMap;

/// `set` has what is new or differs, `gone` the ids of what is no more. Applied to `before`, where
/// what is known keeps its place and what is new goes to the end, they give `after`. None where
/// they cannot, or these are no such lists.
pub fn changes(before: &Value, after: &Value) -> Option<Value> {
    let (before, after) = (by_id(before)?, by_id(after)?);
    let places: BTreeMap<&str, &Value> = before.iter().copied().collect();
    let left: BTreeMap<&str, &Value> = after.iter().copied().collect();
    if places.len() != before.len() || left.len() != after.len() {
        return None;
    }
    let kept = before.iter().filter(|(id, _)| left.contains_key(id));
    let new = after.iter().filter(|(id, _)| !places.contains_key(id));
    let in_order = kept.chain(new).map(|(id, _)| id);
    if !in_order.eq(after.iter().map(|(id, _)| id)) {
        return None;
    }
    let differs = |(id, one): &&(&str, &Value)| places.get(id) != Some(one);
    let set: Vec<&Value> = after.iter().filter(differs).map(|(_, one)| *one).collect();
    let gone = before.iter().filter(|(id, _)| !left.contains_key(id));
    let gone: Vec<&str> = gone.map(|(id, _)| *id).collect();
    Some(json!({ "set": set, "gone": gone }))
}

fn by_id(list: &Value) -> Option<Vec<(&str, &Value)>> {
    let list = list.as_array()?;
    list.iter()
        .map(|one| Some((one["id"].as_str()?, one)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::changes;
    use serde_json::{Value, json};

    fn list(of: &[(&str, u32)]) -> Value {
        of.iter()
            .map(|(id, value)| json!({ "id": id, "value": value }))
            .collect()
    }

    #[test]
    fn what_stays_as_it_was_is_not_told_again() {
        let before = list(&[("a", 1), ("b", 1), ("c", 1)]);
        let after = list(&[("a", 1), ("c", 2), ("d", 1)]);
        let expected = json!({ "set": list(&[("c", 2), ("d", 1)]), "gone": ["b"] });
        assert_eq!(changes(&before, &after), Some(expected));
        let none = json!({ "set": [], "gone": [] });
        assert_eq!(changes(&before, &before), Some(none));
    }

    #[test]
    fn another_order_and_other_things_are_told_whole() {
        let before = list(&[("a", 1), ("b", 1)]);
        for after in [
            list(&[("b", 1), ("a", 1)]),
            list(&[("c", 1), ("a", 1), ("b", 1)]),
            list(&[("a", 1), ("a", 2)]),
            json!([{ "name": "a" }]),
            json!({ "id": "a" }),
        ] {
            assert_eq!(changes(&before, &after), None, "{after}");
        }
    }
}
