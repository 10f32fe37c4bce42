//! `kind = "integrate"`: stacks of detector frames to diffraction patterns.
//!
//! | file | owns |
//! |---|---|
//! | `engine/` | geometry, sparse matrices and the integration of frames that are in memory |

pub mod engine;
