//! One suite for every engine: random shapes with odd sizes, none, one, NaN and infinities, against
//! references in f64. Each tolerance is stated with its reason. Views begin in the middle of
//! buffers, and what lies around them must stay as it was.
//!
//! | file | ops |
//! |---|---|
//! | `products` | gemm, csr |
//! | `pointwise` | element-wise expressions, random numbers |
//! | `rows` | reductions, softmax |
//! | `arrays` | scan, histogram, sort |
//! | `images` | convolutions, pooling |
//! | `training` | optimizers, normalization |
//! | `lookups` | rows by their numbers |
//! | `refusals` | what `record` refuses; programs |

mod arrays;
mod images;
mod lookups;
mod pointwise;
mod products;
mod refusals;
mod rows;
mod training;

use super::{
    super::device::{Device, DeviceError, DeviceOptions},
    Buffer, BufferView, Cpu, ElementKind, Engine, Op, Vulkan,
};
use half::f16;
use rand::{RngExt, SeedableRng, rngs::StdRng};
use std::{sync::LazyLock, time::Duration};

/// Half a unit in the last place of numbers from 1 to 2: the most that one rounding moves a result,
/// relative to it.
const EPSILON: f64 = 5.960_464_477_539_063e-8;
const LIMIT: Duration = Duration::from_secs(60);
/// What lies around views.
const GUARD: u8 = 0xa5;
/// Not a multiple of any alignment that devices ask for.
const ODD_MARGIN: usize = 12;
const EVEN_MARGIN: usize = 16;

/// An engine under test, and buffers for it.
struct Rig {
    engine: Box<dyn Engine>,
    /// Bytes of a buffer before its view.
    margin: usize,
}

impl Rig {
    fn cpu() -> Option<Self> {
        Some(Self::of(Cpu::new(3).expect("there are threads")))
    }

    /// With the validation layers, where they are installed: what they say becomes an error.
    fn vulkan() -> Option<Self> {
        let device = Self::device()?;
        Some(Self::of(Vulkan::new(device).expect("there is memory")))
    }

    fn of(engine: impl Engine + 'static) -> Self {
        Self {
            engine: Box::new(engine),
            margin: ODD_MARGIN,
        }
    }

    /// Views begin at multiples of what shaders read at once.
    fn aligned(self) -> Self {
        Self {
            margin: EVEN_MARGIN,
            ..self
        }
    }

    /// The device, if there is one.
    fn device() -> Option<Device> {
        // One for all: a software device runs each program on all cores.
        static DEVICE: LazyLock<Result<Device, DeviceError>> = LazyLock::new(|| {
            Device::any(&DeviceOptions {
                validation: true,
                software: true,
                learned: None,
            })
        });
        match &*DEVICE {
            Ok(device) => Some(device.clone()),
            Err(error) => {
                eprintln!("SKIPPED: no Vulkan device: {error}");
                None
            }
        }
    }

    /// A view of the bytes in the middle of a buffer.
    fn bytes(&self, kind: ElementKind, bytes: &[u8]) -> BufferView {
        let margin = self.margin;
        let mut all = vec![GUARD; margin];
        all.extend(bytes);
        all.resize(all.len().next_multiple_of(4) + margin, GUARD);
        let buffer = self
            .engine
            .buffer(all.len() as u64)
            .expect("there is memory");
        let view = buffer.view(
            kind,
            margin as u64 / kind.bytes(),
            bytes.len() as u64 / kind.bytes(),
        );
        self.engine
            .upload(&buffer, 0, all.into())
            .wait(LIMIT)
            .expect("it fits");
        view
    }

    fn f32(&self, values: &[f32]) -> BufferView {
        self.bytes(ElementKind::F32, bytemuck::cast_slice(values))
    }

    fn u32(&self, values: &[u32]) -> BufferView {
        self.bytes(ElementKind::U32, bytemuck::cast_slice(values))
    }

    fn f16(&self, values: &[f32]) -> BufferView {
        let halves: Vec<f16> = values.iter().map(|value| f16::from_f32(*value)).collect();
        self.bytes(ElementKind::F16, bytemuck::cast_slice(&halves))
    }

    /// Memory for results, full of what is not a result.
    fn output(&self, kind: ElementKind, len: usize) -> BufferView {
        self.bytes(kind, &vec![0x7f; len * kind.bytes() as usize])
    }

    fn write_f32(&self, to: &BufferView, values: &[f32]) {
        let bytes = bytemuck::cast_slice::<f32, u8>(values).to_vec();
        self.engine
            .upload(&to.buffer, to.range().start, bytes.into())
            .wait(LIMIT)
            .expect("it fits");
    }

    fn run(&self, ops: impl IntoIterator<Item = Op>) {
        let ops: Vec<Op> = ops.into_iter().collect();
        let program = self
            .engine
            .record(&ops)
            .unwrap_or_else(|error| panic!("{error}\n{ops:?}"));
        self.engine
            .run(&program)
            .wait(LIMIT)
            .unwrap_or_else(|error| panic!("{error}\n{ops:?}"));
    }

    /// The view's bytes; what lies around it must be as it was.
    fn read(&self, view: &BufferView) -> Vec<u8> {
        let all = self.download(&view.buffer);
        let range = view.range();
        let (range, end) = (range.start as usize..range.end as usize, all.len());
        let around = all[..range.start]
            .iter()
            .chain(&all[range.end.next_multiple_of(4).min(end)..]);
        assert!(
            around.copied().all(|byte| byte == GUARD),
            "memory around a view was written"
        );
        all[range].to_vec()
    }

    fn download(&self, buffer: &Buffer) -> Vec<u8> {
        self.engine
            .download(buffer, 0..buffer.bytes())
            .wait(LIMIT)
            .expect("it is there")
    }

    fn read_f32(&self, view: &BufferView) -> Vec<f32> {
        bytemuck::pod_collect_to_vec(&self.read(view))
    }

    fn read_u32(&self, view: &BufferView) -> Vec<u32> {
        bytemuck::pod_collect_to_vec(&self.read(view))
    }
}

/// Calls each case for each engine, as a test of its own.
macro_rules! conformance {
    ($($file:ident: $($case:ident),*;)*) => {
        conformance! { engine cpu; $($($file::$case)*)* }
        conformance! { engine vulkan; $($($file::$case)*)* }
    };
    (engine $engine:ident; $($file:ident::$case:ident)*) => {
        mod $engine {
            $(
                #[test]
                fn $case() {
                    super::Rig::$engine().iter().for_each(super::$file::$case);
                }
            )*
        }
    };
}

conformance! {
    products: gemm_of_random_shapes, gemm_in_part_of_larger_matrices, gemm_of_f16, gemm_epilogues, gemm_specials,
        gemm_batches, csr_of_random_shapes, csr_broken;
    pointwise: every_function_on_many_values, long_expressions, inputs_are_repeated, in_place, random_bits, random_normal;
    rows: reductions_of_random_shapes, reductions_of_specials, long_reductions, softmax_of_random_shapes,
        softmax_of_specials, cross_entropy;
    arrays: scans, histograms, sorts;
    images: convolutions_of_random_shapes, convolutions_of_specials, convolution_epilogues, pools_of_random_shapes,
        convolution_refusals, pool_refusals;
    lookups: lookups;
    training: optimizers, norms;
    refusals: views, products, pointwise, rows, arrays, overlaps, foreign_buffers, programs_are_replayed;
}

fn rng(seed: u64) -> StdRng {
    StdRng::seed_from_u64(seed)
}

/// From -1 to 1.
fn numbers(rng: &mut StdRng, len: usize) -> Vec<f32> {
    (0..len).map(|_| rng.random_range(-1.0..1.0)).collect()
}

/// Mostly small and odd, sometimes 0 or 1.
fn size(rng: &mut StdRng, most: u32) -> u32 {
    match rng.random_range(0..8) {
        0 => rng.random_range(0..2),
        1..4 => rng.random_range(1..=most.min(20)),
        _ => rng.random_range(1..=most),
    }
}

/// Each is the exact one, as far as the tolerance for its place goes. NaN is NaN; infinities are
/// themselves, and so is what overflows.
#[track_caller]
fn assert_close(what: &str, ours: &[f32], exact: &[f64], tolerance: impl Fn(usize) -> f64) {
    assert_eq!(ours.len(), exact.len(), "{what}");
    for (index, (ours, exact)) in ours.iter().zip(exact).enumerate() {
        let within = (f64::from(*ours) - exact).abs() <= tolerance(index);
        let same = ours.is_nan() && exact.is_nan() || *ours == *exact as f32;
        assert!(
            within || same,
            "{what}: at {index}: {ours} is not {exact} within {:e}",
            tolerance(index)
        );
    }
}
