//! Which shader multiplies matrices of some size fastest on a device: all that can are tried when
//! such a product is first recorded, and what won is remembered by device and driver, also from
//! process to process. Those of f32 give the same bits, whichever it is.

use super::{dispatch::CompiledShader, gemm::Gemm, shaders};
use std::{
    collections::BTreeMap,
    fmt,
    sync::{Mutex, PoisonError},
};

/// Products and sums of one trial, at most: on a GPU it takes a millisecond, on a software device
/// some.
const TRIAL: u64 = 1 << 30;
const SOFTWARE_TRIAL: u64 = 1 << 22;
/// The largest sizes that are told apart.
const LARGEST: [u32; 3] = [4096, 4096, 1024];
/// Of k, a trial has at least so many.
const LEAST_K: u32 = 128;

/// A shader that multiplies matrices, and the rows and columns that a workgroup computes.
#[derive(Clone, Debug)]
pub struct ProductShader {
    pub shader: CompiledShader,
    pub tile: u32,
}

/// One of the shaders.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProductWay {
    Tiles32,
    Tiles64,
    Tiles128,
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
}

/// What is known of the ways on one device.
pub struct Tuning {
    /// Bytes of workgroup memory that a shader may use.
    pub shared_bytes: u64,
    /// `gemm_cooperative`, on devices that can run it.
    pub cooperative: Option<CompiledShader>,
    /// Takes this way wherever it can, and tries none.
    pub only: Option<ProductWay>,
    known: Mutex<BTreeMap<ProductClass, ProductWay>>,
}

impl ProductWay {
    const ALL: [Self; 4] = [
        Self::Tiles32,
        Self::Tiles64,
        Self::Tiles128,
        Self::Cooperative,
    ];

    /// Rows and columns of what a workgroup computes; 0 for cooperative matrices.
    pub fn tile(self) -> u16 {
        match self {
            Self::Tiles32 => 32,
            Self::Tiles64 => 64,
            Self::Tiles128 => 128,
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
        write!(f, "product of {kind}, {m} x {k} by {k} x {n}")
    }
}

impl Tuning {
    pub fn new(shared_bytes: u64, cooperative: Option<CompiledShader>) -> Self {
        Self {
            shared_bytes,
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
        let can = |way: &ProductWay| match way {
            ProductWay::Cooperative => is_large && class.of_halves && self.cooperative.is_some(),
            ProductWay::Tiles128 => is_large,
            ProductWay::Tiles64 => m > 32 && n > 32,
            ProductWay::Tiles32 => true,
        };
        match self.only.filter(can) {
            Some(way) => vec![way],
            None => ProductWay::ALL.into_iter().rev().filter(can).collect(),
        }
    }

    pub fn shader(&self, way: ProductWay) -> ProductShader {
        let (shader, tile) = match (way, &self.cooperative) {
            (ProductWay::Cooperative, Some(shader)) => (shader.clone(), 128),
            (ProductWay::Tiles128 | ProductWay::Cooperative, _) => (shaders::gemm_large(), 128),
            (ProductWay::Tiles64, _) => (shaders::gemm_medium(), 64),
            (ProductWay::Tiles32, _) => (shaders::gemm_small(), 32),
        };
        ProductShader { shader, tile }
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
        };
        assert_eq!(class([64, 32, 16]).trial(true), [64, 32, 16]);
        assert_eq!(class([4096, 4096, 1024]).trial(false), [2048, 4096, 128]);
        assert_eq!(class([4096, 4096, 1024]).trial(true), [128, 256, 128]);
    }

    #[test]
    fn small_products_have_one_way() {
        let tuning = Tuning::new(48 << 10, None);
        let ways = |sizes, of_halves| tuning.ways(&ProductClass { sizes, of_halves });
        assert_eq!(ways([32, 4096, 64], false), [ProductWay::Tiles32]);
        let all = [
            ProductWay::Tiles128,
            ProductWay::Tiles64,
            ProductWay::Tiles32,
        ];
        assert_eq!(ways([128, 128, 64], true), all);
        assert_eq!(ways([64, 128, 64], true), all[1..]);
    }
}
