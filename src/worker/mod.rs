//! (worker)
