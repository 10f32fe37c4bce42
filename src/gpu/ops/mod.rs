//! Library operations: matrix products, reductions, sorting and the like on buffers of numbers, as
//! data (`Op`), done the same way by every `Engine`. Vulkan engines belong into worker processes,
//! see `gpu`.
//!
//! NaN propagates through every op, as in numpy; the exceptions say so.
//!
//! | file | owns |
//! |---|---|
//! | `buffer` | buffers and typed views |
//! | `op` | the list of ops; what a family provides |
//! | `access` | what an op reads and writes, and what must not overlap |
//! | `engine` | the trait of engines, programs, pending results |
//! | `cpu/` | the engine on the processor |
//! | `vulkan` | the engine on a GPU |
//! | `dispatch` | what ops become for a GPU |
//! | `shaders` | the shipped shaders, compiled |
//! | `compile` | WGSL to SPIR-V for shaders of our own |
//! | `activation` | functions at the end of a layer |
//! | `gemm` | matrix products |
//! | `tuning` | which shader multiplies matrices on a device |
//! | `elementwise`, `expression` | fused expressions over numbers |
//! | `reduce` | sum, mean, minimum, maximum, place of the maximum, over an axis |
//! | `softmax` | softmax, its gradient, cross-entropy |
//! | `convolution/` | convolutions and their gradients |
//! | `pool` | pooling and its gradient |
//! | `window` | windows that move over an image |
//! | `csr` | sparse matrix × dense vectors |
//! | `histogram` | counts in bins |
//! | `scan` | running sums |
//! | `random` | random numbers by counter |
//! | `sort` | stable sorting by keys |
//! | `optimize` | steps of optimizers |
//! | `lookup` | rows of a table by their numbers |
//! | `norm` | layer and batch normalization |
//! | `conformance/` | one suite for all engines |

mod access;
mod activation;
mod buffer;
mod compile;
#[cfg(test)]
mod conformance;
mod convolution;
mod cpu;
mod csr;
mod dispatch;
mod elementwise;
mod engine;
mod expression;
mod gemm;
mod histogram;
mod lookup;
mod norm;
mod op;
mod optimize;
mod pool;
mod random;
mod reduce;
mod scan;
mod shaders;
mod softmax;
mod sort;
mod tuning;
mod vulkan;
mod window;

pub use activation::Activation;
pub use buffer::{Buffer, BufferView, ElementKind};
pub use compile::{compile, shader_source};
pub use convolution::{Conv2d, Conv2dInputGradient, Conv2dShape, Conv2dWeightGradient};
pub use cpu::{Cpu, processor_name};
pub use csr::Csr;
pub use elementwise::Elementwise;
pub use engine::{Engine, EngineError, Pending, Program};
pub use expression::{Binary, Expression, Unary};
pub use gemm::{Gemm, Matrix};
pub use histogram::Histogram;
pub use lookup::{Lookup, LookupBackward};
pub use norm::{Groups, Norm, NormBackward};
pub use op::Op;
pub use optimize::Optimize;
pub use pool::{Pool2d, Pool2dBackward, Pool2dShape, Pooling};
pub use random::{Random, RandomDistribution};
pub use reduce::{Reduce, Reduction};
pub use scan::Scan;
pub use softmax::{Softmax, SoftmaxBackward, SoftmaxCrossEntropy};
pub use sort::Sort;
pub use vulkan::Vulkan;
pub use window::Window;
