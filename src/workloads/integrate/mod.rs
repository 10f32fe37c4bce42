//! `kind = "integrate"`: stacks of detector frames to diffraction patterns.
//!
//! | file | owns |
//! |---|---|
//! | `decode/` | chunks of HDF5 datasets back to bytes |
//! | `frames/` | where the frames of a dataset lie; reading and decoding them |

pub mod decode;
pub mod frames;
