//! Files that users name, and arrays in them: `.npy`, `.npz`, raw numbers, PNG, HDF5, safetensors
//! and IDX; row-major, little-endian in memory. What a file's header claims is checked against the
//! file before anything is allocated for it. Knows nothing of jobs. Start reading at `file`.
//!
//! | file | owns |
//! |---|---|
//! | `files` | files that users name, of which only plain ones are opened |
//! | `array` | arrays in memory, boxes of them |
//! | `convert` | numbers of one type as numbers of another |
//! | `file` | a place in a file, whatever its format |
//! | `npy` | numpy's format, its header and its blocks |
//! | `npz` | zip archives of it |
//! | `raw` | numbers without a header |
//! | `png` | images |
//! | `picture` | images as they are looked at, PNG or JPEG |
//! | `hdf5` | datasets |
//! | `links` | links of HDF5 files, and how far they may lead |
//! | `safetensors` | named arrays, as frameworks keep models |
//! | `idx` | the format of the MNIST files |

mod array;
mod convert;
mod file;
pub mod files;
pub mod hdf5;
mod idx;
pub mod links;
mod npy;
mod npz;
mod picture;
mod png;
mod raw;
pub mod safetensors;
#[cfg(test)]
mod tests;

pub use array::{Array, Info, copy_box, runs};
pub use convert::convert;
pub use file::{ArrayError, ArrayLocation, Format, write};
pub use npy::{decode as decode_npy, encode as encode_npy};
pub use picture::Picture;

/// Deflate makes of a byte at most so many: RFC 1951 codes 258 bytes in two bits. What claims more
/// lies.
const MAX_INFLATION: u64 = 1032;
