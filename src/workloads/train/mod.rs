//! `kind = "train"`: a model, trained on data by gradient descent.
//!
//! | file | owns |
//! |---|---|
//! | `parameters` | how a training loop reaches its parameters |

pub mod parameters;

pub use parameters::{Parameters, ParametersError, State, Tensor};
