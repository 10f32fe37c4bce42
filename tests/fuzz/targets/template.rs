//! `{placeholder}` expansion. Expanding with every name known fails only where listing the names
//! does.
#![no_main]

use libfuzzer_sys::fuzz_target;
use nodectl::types::template::{expand, placeholders};

fuzz_target!(|text: &str| {
    let names = placeholders(text);
    let expanded = expand(text, &|name| Some(name.to_string()));
    assert_eq!(names.is_ok(), expanded.is_ok(), "{names:?} {expanded:?}");
    if let Ok(names) = names {
        assert!(
            names
                .iter()
                .all(|placeholder| text.get(placeholder.offset..).is_some()),
            "{names:?}"
        );
    }
});
