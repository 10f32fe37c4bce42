//! Training, whole.
