//! Which shader multiplies matrices of some size fastest on a device: all that can are tried when
//! such a product is first recorded, and what won is remembered by device and driver, also from
//! process to process. Those of f32 give the same bits, whichever it is.

use super::{super::device::DeviceLimits, dispatch::CompiledShader, gemm::Gemm, shaders};
use std::{
    collections::BTreeMap,
    fmt,
    sync::{Mutex, PoisonError},
};

/// Products and sums of one trial, at most: on a GPU it takes milliseconds, on a software device,
/// too.
const TRIAL: u64 = 1 << 33;
const SOFTWARE_TRIAL: u64 = 1 << 22;
/// The largest sizes that are told apart.
const LARGEST: [u32; 3] = [4096, 4096, 1024];
/// Of k, a trial has at least so many.
const LEAST_K: u32 = 128;

/// A shader that multiplies matrices, and the rows and columns that a workgroup computes.
#[derive(Clone, Debug)]
pub struct ProductShader {
    pub shader: CompiledShader,
    pub rows: u32,
    pub columns: u32,
}

/// One of the shaders.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProductWay {
    Tiles32,
    Tiles64,
    Tiles128,
    /// Tiles that are loaded four elements at a time.
    Vectors64,
    Vectors128,
    /// Cooperative matrices, for products of f16.
    Cooperative,
}

/// Products for which the same way is fastest: their sizes up to the next powers of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ProductClass {
    /// m, n and k.
    sizes: [u32; 3],
    /// Both inputs are f16.
    of_halves: bool,
    /// See `Gemm::is_of_vectors`.
    of_vectors: bool,
}

/// What is known of the ways on one device.
pub struct Tuning {
    /// Bytes of workgroup memory that a shader may use, and invocations of a workgroup.
    shared_bytes: u32,
    invocations: u32,
    /// `gemm_cooperative`, on devices that can run it.
    pub cooperative: Option<CompiledShader>,
    /// Takes this way wherever it can, and tries none.
    pub only: Option<ProductWay>,
    known: Mutex<BTreeMap<ProductClass, ProductWay>>,
}

impl ProductWay {
    const ALL: [Self; 6] = [
        Self::Tiles32,
        Self::Tiles64,
        Self::Tiles128,
        Self::Vectors64,
        Self::Vectors128,
        Self::Cooperative,
    ];

    /// Rows and columns of what a workgroup computes; 0 for cooperative matrices.
    pub fn tile(self) -> u16 {
        match self {
            Self::Tiles32 => 32,
            Self::Tiles64 | Self::Vectors64 => 64,
            Self::Tiles128 | Self::Vectors128 => 128,
            Self::Cooperative => 0,
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|way| way.to_string() == text)
    }
}

impl fmt::Display for ProductWay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tiles32 => "32 x 32",
            Self::Tiles64 => "64 x 64",
            Self::Tiles128 => "128 x 128",
            Self::Vectors64 => "64 x 64 by vectors",
            Self::Vectors128 => "128 x 128 by vectors",
            Self::Cooperative => "cooperative",
        })
    }
}

impl ProductClass {
    pub fn of(product: &Gemm) -> Self {
        let class = |size: u32, most: u32| size.clamp(16, most).next_power_of_two();
        let [m, n, k] = LARGEST;
        Self {
            sizes: [
                class(product.m, m),
                class(product.n, n),
                class(product.k, k),
            ],
            of_halves: product.is_of_halves(),
            of_vectors: product.is_of_vectors(),
        }
    }

    pub fn is_of_halves(&self) -> bool {
        self.of_halves
    }

    /// The sizes of a product to try the ways with.
    pub fn trial(&self, is_software: bool) -> [u32; 3] {
        let most = if is_software { SOFTWARE_TRIAL } else { TRIAL };
        let mut sizes = self.sizes;
        while sizes.iter().map(|size| u64::from(*size)).product::<u64>() > most {
            let [m, n, k] = sizes;
            if k > LEAST_K {
                sizes[2] = k / 2;
            } else if m >= n {
                sizes[0] = m / 2;
            } else {
                sizes[1] = n / 2;
            }
        }
        sizes
    }
}

/// What the class is remembered by.
impl fmt::Display for ProductClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ([m, n, k], kind) = (self.sizes, if self.of_halves { "f16" } else { "f32" });
        let vectors = if self.of_vectors { ", of vectors" } else { "" };
        write!(f, "product of {kind}, {m} x {k} by {k} x {n}{vectors}")
    }
}

impl Tuning {
    pub fn new(limits: &DeviceLimits, cooperative: Option<CompiledShader>) -> Self {
        Self {
            shared_bytes: limits.shared_bytes,
            invocations: limits.workgroup_invocations,
            cooperative,
            only: None,
            known: Mutex::default(),
        }
    }

    pub fn known(&self, class: &ProductClass) -> Option<ProductWay> {
        // A panic while it was held left the map whole.
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.get(class).copied()
    }

    pub fn know(&self, class: ProductClass, way: ProductWay) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.insert(class, way);
    }

    /// The ways that can multiply such matrices and may be the fastest, the most likely first.
    pub fn ways(&self, class: &ProductClass) -> Vec<ProductWay> {
        let [m, n, _] = class.sizes;
        // The large tiles need 16.5 and 26.5 KiB, more than Vulkan promises.
        let is_large = m > 64 && n > 64 && self.shared_bytes >= 32 << 10;
        let is_medium = m > 32 && n > 32;
        let of_float_vectors = class.of_vectors && !class.of_halves;
        let can = |way: &ProductWay| match way {
            ProductWay::Cooperative => {
                is_large && class.of_vectors && class.of_halves && self.cooperative.is_some()
            }
            ProductWay::Vectors128 => is_large && of_float_vectors && self.invocations >= 512,
            ProductWay::Vectors64 => is_medium && of_float_vectors && self.invocations >= 256,
            ProductWay::Tiles128 => is_large,
            ProductWay::Tiles64 => is_medium,
            ProductWay::Tiles32 => true,
        };
        match self.only.filter(can) {
            Some(way) => vec![way],
            None => ProductWay::ALL.into_iter().rev().filter(can).collect(),
        }
    }

    pub fn shader(&self, way: ProductWay) -> ProductShader {
        let (shader, rows, columns) = match (way, &self.cooperative) {
            (ProductWay::Cooperative, Some(shader)) => (shader.clone(), 128, 64),
            (ProductWay::Vectors128, _) => (shaders::gemm_vectors_128(), 128, 128),
            (ProductWay::Vectors64, _) => (shaders::gemm_vectors_64(), 64, 64),
            (ProductWay::Tiles128 | ProductWay::Cooperative, _) => {
                (shaders::gemm_large(), 128, 128)
            }
            (ProductWay::Tiles64, _) => (shaders::gemm_medium(), 64, 64),
            (ProductWay::Tiles32, _) => (shaders::gemm_small(), 32, 32),
        };
        ProductShader {
            shader,
            rows,
            columns,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ways_are_read_as_they_are_written() {
        for way in ProductWay::ALL {
            assert_eq!(ProductWay::parse(&way.to_string()), Some(way));
        }
        assert_eq!(ProductWay::parse("by hand"), None);
    }

    #[test]
    fn a_trial_is_short_and_as_wide_as_it_can_be() {
        let class = |sizes| ProductClass {
            sizes,
            of_halves: false,
            of_vectors: true,
        };
        assert_eq!(class([64, 32, 16]).trial(true), [64, 32, 16]);
        assert_eq!(class([4096, 4096, 1024]).trial(false), [4096, 4096, 512]);
        assert_eq!(class([4096, 4096, 1024]).trial(true), [128, 256, 128]);
    }

    #[test]
    fn ways_are_those_that_suit_the_product_and_the_device() {
        let limits = DeviceLimits {
            shared_bytes: 48 << 10,
            workgroup_invocations: 1024,
            ..DeviceLimits::default()
        };
        let tuning = Tuning::new(&limits, None);
        let ways = |sizes, of_halves, of_vectors| {
            tuning.ways(&ProductClass {
                sizes,
                of_halves,
                of_vectors,
            })
        };
        assert_eq!(ways([32, 4096, 64], false, true), [ProductWay::Tiles32]);
        let tiles = [
            ProductWay::Tiles128,
            ProductWay::Tiles64,
            ProductWay::Tiles32,
        ];
        let vectors = [ProductWay::Vectors128, ProductWay::Vectors64];
        assert_eq!(ways([128, 128, 64], true, true), tiles);
        assert_eq!(ways([128, 128, 64], false, false), tiles);
        assert_eq!(
            ways([128, 128, 64], false, true),
            [&vectors[..], &tiles].concat()
        );
        assert_eq!(
            ways([64, 128, 64], false, true),
            [&vectors[1..], &tiles[1..]].concat()
        );
    }
}
