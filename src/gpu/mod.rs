//! (gpu)
