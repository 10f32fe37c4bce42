//! How a training loop reaches its parameters. Owns the trait and what it speaks of; `local` keeps
//! them in this process, `served` reaches those that several workers share. Where the optimizer's
//! state lives is the implementation's business.
//!
//! A step of the loop, for a model whose tensors are 0, 1, …, n - 1 from its input to its output:
//!
//! 1. `pull(0..n)`, in this order, each no later than the forward pass of its layer needs it;
//! 2. the forward pass, then the backward pass; as the backward pass of a layer is submitted,
//!    `push` of its tensors, in the order n - 1, …, 0;
//! 3. `clock(samples)`.
//!
//! What an engine was given before a call of `push` takes effect before what that call gives it, so
//! an implementation may read the gradient with `Engine::download` and wait for it when it likes.
//! It must not touch `gradient` after `clock` returns, nor `values` between `pull` and the next
//! `clock`.

use nodectl_gpu::ops::{BufferView, Engine, EngineError};
use std::sync::Arc;

/// A named array of parameters of a model.
#[derive(Clone, Debug)]
pub struct Tensor {
    /// As in the model's file: `3.weight` is that of layer 3 of the job file, from 0; `4.1.weight`
    /// lies in a block.
    pub name: String,
    pub shape: Vec<u32>,
    /// Row-major f32 in the engine's memory. Before `register` the initial values.
    pub values: BufferView,
    /// As many f32: the gradient of the mean loss over the step's samples.
    pub gradient: BufferView,
}

impl Tensor {
    /// Numbers in it.
    pub fn len(&self) -> u64 {
        self.values.len
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The parameters of one model, as one worker sees them.
pub trait Parameters: Send {
    /// Once, before the first step: the tensors from the model's input to its output. Where values
    /// are known already, another worker's or those of a run that is resumed, they replace the
    /// initial ones.
    fn register(
        &mut self,
        engine: Arc<dyn Engine>,
        tensors: Vec<Tensor>,
    ) -> Result<(), ParametersError>;

    /// Whether gradients should be pushed while the backward pass goes on. If not, the loop submits
    /// the whole pass at once and pushes all of them after it, which costs a GPU less.
    fn wants_early_pushes(&self) -> bool;

    /// The gradient of a tensor has been computed, or will be by what the engine was given already.
    /// Once a step.
    fn push(&mut self, tensor: usize) -> Result<(), ParametersError>;

    /// In place of `push`, for a gradient Σ uᵢvᵢᵀ over samples: u of all of them, then v of all.
    fn push_factors(
        &mut self,
        tensor: usize,
        _factors: &[BufferView; 2],
    ) -> Result<(), ParametersError> {
        Err(ParametersError::Invalid(format!(
            "tensor {tensor}: gradients are taken whole"
        )))
    }

    /// The end of a step over `samples` samples of this worker: its gradients count in proportion.
    /// Steps count from 1. Returns the number of this one.
    fn clock(&mut self, samples: u32) -> Result<u64, ParametersError>;

    /// Makes a tensor's values those that the next step may use; waits for others as far as
    /// consistency asks for.
    fn pull(&mut self, tensor: usize) -> Result<(), ParametersError>;

    /// The learning rate of the next step, for people.
    fn rate(&self) -> f32;
}

/// Why parameters cannot be reached or changed.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ParametersError {
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// Who takes part has changed: what was done in this clock is void, and it begins anew.
    #[error("the clock starts again from 0, with other workers")]
    Again,
    /// Another worker has brought the training to its end.
    #[error("the training has ended")]
    Over,
    /// Not by this worker: it may try again from a checkpoint, or must end. The text says why.
    #[error("{0}")]
    Lost(String),
    /// What was given does not fit.
    #[error("{0}")]
    Invalid(String),
}
