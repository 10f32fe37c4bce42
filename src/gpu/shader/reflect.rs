//! What a shader's entry point binds and needs, in words of our own: callers know nothing of naga.

use crate::types::Scalar;
use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Language {
    Wgsl,
    SpirV,
}

/// One element of an array in a storage buffer: numbers of one type side by side, then padding up to the next element.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Element {
    pub scalar: Scalar,
    /// 1 for a scalar, 2 to 4 for a vector, more for matrices and structs of one scalar type.
    pub components: u32,
    /// Bytes from one element to the next: of a `vec3<f32>` 16, of which 12 are used.
    pub stride: u32,
}
