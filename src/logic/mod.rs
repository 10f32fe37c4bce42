//! (logic)
