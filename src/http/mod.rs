//! (http)
