//! `kind = "train"`: a model, trained on data by gradient descent.
//!
//! | file | owns |
//! |---|---|
//! | `parameters` | how a training loop reaches its parameters |
//! | `local` | parameters in this process |
//! | `model/` | models: layers, losses, what they become on an engine |

pub mod local;
pub mod model;
pub mod parameters;

pub use parameters::{Parameters, ParametersError, State, Tensor};
