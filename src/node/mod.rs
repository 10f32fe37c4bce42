//! (node)
