//! (predicate)
