//! Models against finite differences.
