//! (template)
