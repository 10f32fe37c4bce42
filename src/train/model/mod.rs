//! Models: what the job file says of them, and what they become on an engine.
//!
//! | file | owns |
//! |---|---|
//! | `spec` | layers and losses as plain data |
//! | `shapes` | the shape that each layer leaves, and what does not fit |
//! | `initial` | a model's arrays: names, shapes, first values |
//! | `network` | a model on an engine: its arrays, its programs |
//! | `recorder` | ops forward, and the tape of what goes backward; memory that is used again |
//! | `layers`, `convolution`, `normal`, `embedding` | what each layer records |
//! | `loss` | losses, their gradients, what is counted beside them |

mod convolution;
mod embedding;
mod initial;
mod layers;
mod loss;
mod network;
mod normal;
mod recorder;
pub mod shapes;
pub mod spec;
#[cfg(test)]
mod tests;

pub use initial::{InitialArray, arrays};
pub use network::{Batch, GradientExchange, NetworkError, NeuralNetwork, StepReport, StepSegment};
pub use shapes::{ShapeMismatch, output_shape};
pub use spec::{Layer, Loss, ModelSpec, WindowSpec};
