//! (net)
