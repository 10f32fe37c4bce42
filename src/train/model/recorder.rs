//! Recording of a model: ops forward, and a tape of what they become backward. What an op leaves
//! lives until nothing on the tape needs it; then its memory serves others. Ops run in the order of
//! their recording, so that is safe.

use super::{initial::InitialArray, network::NetworkError, spec::Layer};
use nodectl_gpu::ops::{Buffer, BufferView, ElementKind, Engine, Expression, Op};
use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet},
    rc::Rc,
};

/// Memory of ops that nobody uses at the moment.
#[derive(Default)]
pub struct ScratchPool {
    free: Vec<Buffer>,
}

/// Memory that goes back to its pool with its last user.
pub struct HeldMemory {
    pub view: BufferView,
    pool: Option<Rc<RefCell<ScratchPool>>>,
}

impl Drop for HeldMemory {
    fn drop(&mut self) {
        if let Some(pool) = &self.pool {
            pool.borrow_mut().free.push(self.view.buffer.clone());
        }
    }
}

/// What flows between layers: a batch of samples, or its gradient.
#[derive(Clone)]
pub struct LayerValue {
    pub held: Rc<HeldMemory>,
    /// Of one sample.
    pub shape: Vec<u32>,
    /// Whether anything before it learns.
    pub needs_gradient: bool,
}

impl LayerValue {
    pub fn view(&self) -> &BufferView {
        &self.held.view
    }

    /// Memory that outlives the recording.
    pub fn outside(view: BufferView, shape: Vec<u32>) -> Self {
        Self {
            held: Rc::new(HeldMemory { view, pool: None }),
            shape,
            needs_gradient: false,
        }
    }
}

/// Goes from the gradient by a layer's output to that by its input, if that is needed.
pub type Backward =
    Box<dyn FnOnce(&mut Recorder<'_>, LayerValue) -> Result<Option<LayerValue>, NetworkError>>;

/// An array of the model on the engine.
#[derive(Clone, Debug)]
pub struct Variable {
    pub array: InitialArray,
    pub values: BufferView,
    /// None of what is not trained.
    pub gradient: Option<BufferView>,
    /// The number of the tensor among those that are trained.
    pub tensor: Option<usize>,
}

/// What was recorded.
pub struct Recording {
    pub ops: Vec<Op>,
    /// As `Recorder` has them, in order.
    pub needs: Vec<(usize, usize)>,
    pub ready: Vec<GradientReady>,
}

/// The gradient of a tensor is there after so many ops.
#[derive(Clone, Debug)]
pub struct GradientReady {
    /// How many ops come before.
    pub at: usize,
    pub tensor: usize,
    /// Of a factored tensor: u and v of each sample, whose products' sum is the gradient.
    pub factors: Option<[BufferView; 2]>,
}

pub struct Recorder<'r> {
    pub engine: &'r dyn Engine,
    pub variables: &'r BTreeMap<String, Variable>,
    /// Samples.
    pub batch: u32,
    pub is_training: bool,
    /// Where layers with randomness find the states of their generators, four u32 each, in the
    /// order of layers.
    pub random_states: BufferView,
    pub used_random_states: u64,
    pub ops: Vec<Op>,
    /// From so many ops on, the values of this tensor are needed.
    pub needs: Vec<(usize, usize)>,
    pub ready: Vec<GradientReady>,
    /// Tensors whose gradients are not multiplied out.
    pub factored: BTreeSet<usize>,
    pool: Rc<RefCell<ScratchPool>>,
}

impl<'r> Recorder<'r> {
    pub fn new(
        engine: &'r dyn Engine,
        variables: &'r BTreeMap<String, Variable>,
        random_states: BufferView,
        (batch, is_training): (u32, bool),
        free: Vec<Buffer>,
    ) -> Self {
        let pool = Rc::new(RefCell::new(ScratchPool { free }));
        Self {
            engine,
            variables,
            batch,
            is_training,
            random_states,
            used_random_states: 0,
            ops: Vec::new(),
            needs: Vec::new(),
            ready: Vec::new(),
            factored: BTreeSet::new(),
            pool,
        }
    }

    /// Ops with what they need and have ready, and the memory for the next recording. Nothing that
    /// was recorded may be held any more.
    pub fn finish(self) -> (Recording, Vec<Buffer>) {
        let free = std::mem::take(&mut self.pool.borrow_mut().free);
        (
            Recording {
                ops: self.ops,
                needs: self.needs,
                ready: self.ready,
            },
            free,
        )
    }

    /// Memory for `len` numbers. What is in it is undefined.
    pub fn memory(&mut self, kind: ElementKind, len: u64) -> Result<Rc<HeldMemory>, NetworkError> {
        let bytes = len * kind.bytes();
        let mut pool = self.pool.borrow_mut();
        let fits = pool
            .free
            .iter()
            .enumerate()
            .filter(|(_, buffer)| buffer.bytes() >= bytes);
        let best = fits
            .min_by_key(|(_, buffer)| buffer.bytes())
            .map(|(index, _)| index);
        let buffer = match best {
            Some(index) => pool.free.swap_remove(index),
            None => self.engine.buffer(bytes.max(4))?,
        };
        let view = buffer.view(kind, 0, len);
        Ok(Rc::new(HeldMemory {
            view,
            pool: Some(self.pool.clone()),
        }))
    }

    /// A value of this shape, made of `x`.
    pub fn value(
        &mut self,
        shape: &[u32],
        needs_gradient: bool,
    ) -> Result<LayerValue, NetworkError> {
        let held = self.memory(ElementKind::F32, self.elements(shape))?;
        Ok(LayerValue {
            held,
            shape: shape.to_vec(),
            needs_gradient,
        })
    }

    /// Numbers in a batch of samples of this shape.
    pub fn elements(&self, shape: &[u32]) -> u64 {
        shape
            .iter()
            .map(|extent| u64::from(*extent))
            .product::<u64>()
            * u64::from(self.batch)
    }

    pub fn push(&mut self, op: impl Into<Op>) {
        self.ops.push(op.into());
    }

    /// The array `part` of the layer `name`.
    pub fn variable(&mut self, name: &str, part: &str) -> Variable {
        self.optional(name, part).expect("its layer has it")
    }

    /// A variable that a layer may lack.
    pub fn optional(&mut self, name: &str, part: &str) -> Option<Variable> {
        let variable = self.variables.get(&format!("{name}.{part}"))?.clone();
        if let Some(tensor) = variable
            .tensor
            .filter(|tensor| self.needs.iter().all(|(_, known)| known != tensor))
        {
            self.needs.push((self.ops.len(), tensor));
        }
        Some(variable)
    }

    /// The gradient of this array is computed by what was recorded so far.
    pub fn is_ready(&mut self, variable: &Variable) {
        if let Some(tensor) = variable.tensor {
            self.ready.push(GradientReady {
                at: self.ops.len(),
                tensor,
                factors: None,
            });
        }
    }

    /// Whether the gradient of this array goes as factors.
    pub fn is_factored(&self, variable: &Variable) -> bool {
        variable
            .tensor
            .is_some_and(|tensor| self.factored.contains(&tensor))
    }

    /// The factors of its gradient are there.
    pub fn has_factors(&mut self, variable: &Variable, factors: [BufferView; 2]) {
        if let Some(tensor) = variable.tensor {
            self.ready.push(GradientReady {
                at: self.ops.len(),
                tensor,
                factors: Some(factors),
            });
        }
    }

    /// Where the next generator's state lies.
    pub fn random_state(&mut self) -> BufferView {
        let state = self.random_states.part(self.used_random_states * 4, 4);
        self.used_random_states += 1;
        state
    }

    /// Layers that follow each other. The backward pass goes through them from the last on.
    pub fn sequence(
        &mut self,
        prefix: &str,
        layers: &[Layer],
        x: LayerValue,
    ) -> Result<(LayerValue, Vec<Backward>), NetworkError> {
        let mut value = x;
        let mut tape = Vec::new();
        let mut index = 0;
        while index < layers.len() {
            let name = format!("{prefix}{index}");
            let (output, backward, taken) = self.layer(&name, &layers[index..], value)?;
            value = output;
            if self.is_training {
                tape.push(backward);
            }
            index += taken;
        }
        Ok((value, tape))
    }

    /// Goes back through layers. None where nothing before them needs a gradient.
    pub fn backward(
        &mut self,
        tape: Vec<Backward>,
        mut dy: LayerValue,
    ) -> Result<Option<LayerValue>, NetworkError> {
        for backward in tape.into_iter().rev() {
            match backward(self, dy)? {
                Some(dx) => dy = dx,
                None => return Ok(None),
            }
        }
        Ok(Some(dy))
    }
}

/// The state of a generator in a step: the key from the seed and the layer's number, the counter's
/// high word from the step, so that a step draws the same wherever the run began.
pub fn random_state(seed: u64, layer: u64, step: u64) -> [u32; 4] {
    let key = seed ^ (layer + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    [key as u32, (key >> 32) as u32, 0, step as u32]
}

/// `Input(index)`.
pub fn input(index: u8) -> Expression {
    Expression::Input(index)
}

pub fn constant(value: f32) -> Expression {
    Expression::Constant(value)
}
