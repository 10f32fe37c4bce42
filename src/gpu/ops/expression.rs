//! Expressions over numbers: the tree, its straight-line form, and how the CPU evaluates that,
//! block by block. What each function means is defined here; `elementwise` says the same in WGSL.

use super::cpu::{math, simd};
use std::ops;

/// A function of the inputs' elements at one place. NaN propagates, unless `Select` passes it over.
#[derive(Clone, Debug, PartialEq)]
pub enum Expression {
    /// The element of that input.
    Input(u8),
    Constant(f32),
    Unary(Unary, Box<Expression>),
    Binary(Binary, Box<Expression>, Box<Expression>),
    /// The second where the first is not 0, which NaN is not either; else the third.
    Select(Box<Expression>, Box<Expression>, Box<Expression>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Unary {
    Neg,
    Abs,
    Exp,
    /// Natural. NaN below 0.
    Log,
    Sqrt,
    Tanh,
    Sigmoid,
    Relu,
    /// With erf, within 3e-7.
    Gelu,
    /// 1 above 0, else 0.
    Step,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Binary {
    Add,
    Sub,
    Mul,
    Div,
    Min,
    Max,
    /// As in C: negative bases have integer powers; x⁰ = 1 and 1ʸ = 1, also for NaN.
    Pow,
}

macro_rules! functions {
    ($($name:ident: $kind:ident),*) => {$(
        pub fn $name(self) -> Self {
            Self::Unary(Unary::$kind, Box::new(self))
        }
    )*};
}

impl Expression {
    functions! { abs: Abs, exp: Exp, log: Log, sqrt: Sqrt, tanh: Tanh, sigmoid: Sigmoid, relu: Relu, gelu: Gelu, step: Step }

    pub fn binary(self, function: Binary, other: Self) -> Self {
        Self::Binary(function, Box::new(self), Box::new(other))
    }

    pub fn select(self, then: Self, otherwise: Self) -> Self {
        Self::Select(Box::new(self), Box::new(then), Box::new(otherwise))
    }
}

impl ops::Neg for Expression {
    type Output = Self;

    fn neg(self) -> Self {
        Self::Unary(Unary::Neg, Box::new(self))
    }
}

macro_rules! operators {
    ($($trait:ident $method:ident),*) => {$(
        impl ops::$trait for Expression {
            type Output = Self;

            fn $method(self, other: Self) -> Self {
                self.binary(Binary::$trait, other)
            }
        }
    )*};
}

operators! { Add add, Sub sub, Mul mul, Div div }

/// One step of the straight-line form; its operands are earlier steps, by number.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ExpressionStep {
    Input(usize),
    /// By its number among the constants.
    Constant(usize),
    Unary(Unary, usize),
    Binary(Binary, usize, usize),
    Select(usize, usize, usize),
}

/// An expression in straight-line form: equal parts are computed once. The last step is the result.
#[derive(Clone, Debug, Default)]
pub struct StraightLine {
    pub steps: Vec<ExpressionStep>,
    pub constants: Vec<f32>,
}

/// More would not fit the registers of a GPU.
const MAX_STEPS: usize = 128;

impl StraightLine {
    pub fn new(expression: &Expression, inputs: usize) -> Result<Self, String> {
        let mut line = Self::default();
        line.add(expression, inputs)?;
        Ok(line)
    }

    fn add(&mut self, expression: &Expression, inputs: usize) -> Result<usize, String> {
        let step = match expression {
            Expression::Input(index) if usize::from(*index) >= inputs => {
                return Err(format!(
                    "the expression uses input {index}, there are {inputs}"
                ));
            }
            Expression::Input(index) => ExpressionStep::Input(usize::from(*index)),
            Expression::Constant(value) => ExpressionStep::Constant(self.constant(*value)),
            Expression::Unary(function, x) => {
                ExpressionStep::Unary(*function, self.add(x, inputs)?)
            }
            Expression::Binary(function, x, y) => {
                ExpressionStep::Binary(*function, self.add(x, inputs)?, self.add(y, inputs)?)
            }
            Expression::Select(condition, x, y) => ExpressionStep::Select(
                self.add(condition, inputs)?,
                self.add(x, inputs)?,
                self.add(y, inputs)?,
            ),
        };
        if let Some(known) = self.steps.iter().position(|known| *known == step) {
            return Ok(known);
        }
        if self.steps.len() == MAX_STEPS {
            return Err(format!(
                "the expression has more than {MAX_STEPS} parts; hint: make it two ops"
            ));
        }
        self.steps.push(step);
        Ok(self.steps.len() - 1)
    }

    fn constant(&mut self, value: f32) -> usize {
        let known = self
            .constants
            .iter()
            .position(|known| known.to_bits() == value.to_bits());
        known.unwrap_or_else(|| {
            self.constants.push(value);
            self.constants.len() - 1
        })
    }

    /// Evaluates one block. `load` puts an input's elements of the block into a register; registers
    /// are one a step, each at least as long as the block. The result is in the last.
    pub fn evaluate(
        &self,
        registers: &mut [Vec<f32>],
        len: usize,
        load: impl Fn(usize, &mut [f32]),
    ) {
        for (index, step) in self.steps.iter().enumerate() {
            let (before, rest) = registers.split_at_mut(index);
            let (before, to) = (
                |register: usize| &before[register][..len],
                &mut rest[0][..len],
            );
            match *step {
                ExpressionStep::Input(input) => load(input, to),
                ExpressionStep::Constant(constant) => to.fill(self.constants[constant]),
                ExpressionStep::Unary(function, x) => unary(function, before(x), to),
                ExpressionStep::Binary(function, x, y) => {
                    binary(function, before(x), before(y), to)
                }
                ExpressionStep::Select(condition, x, y) => {
                    let choices = before(condition)
                        .iter()
                        .zip(before(x).iter().zip(before(y)));
                    to.iter_mut()
                        .zip(choices)
                        .for_each(|(to, (c, (x, y)))| *to = if *c != 0.0 { *x } else { *y });
                }
            }
        }
    }
}

#[inline(always)]
fn each(x: &[f32], to: &mut [f32], function: impl Fn(f32) -> f32) {
    to.iter_mut().zip(x).for_each(|(to, x)| *to = function(*x));
}

#[inline(always)]
fn pairs(x: &[f32], y: &[f32], to: &mut [f32], function: impl Fn(f32, f32) -> f32) {
    to.iter_mut()
        .zip(x.iter().zip(y))
        .for_each(|(to, (x, y))| *to = function(*x, *y));
}

simd! {
    fn unary(function: Unary, x: &[f32], to: &mut [f32]) {
        match function {
            Unary::Neg => each(x, to, |x| -x),
            Unary::Abs => each(x, to, f32::abs),
            Unary::Exp => each(x, to, math::exp),
            Unary::Log => each(x, to, f32::ln),
            Unary::Sqrt => each(x, to, f32::sqrt),
            Unary::Tanh => each(x, to, math::tanh),
            Unary::Sigmoid => each(x, to, math::sigmoid),
            Unary::Relu => each(x, to, |x| if x < 0.0 { 0.0 } else { x }),
            Unary::Gelu => each(x, to, math::gelu),
            Unary::Step => each(x, to, |x| if x.is_nan() { x } else { f32::from(x > 0.0) }),
        }
    }
}

simd! {
    fn binary(function: Binary, x: &[f32], y: &[f32], to: &mut [f32]) {
        match function {
            Binary::Add => pairs(x, y, to, |x, y| x + y),
            Binary::Sub => pairs(x, y, to, |x, y| x - y),
            Binary::Mul => pairs(x, y, to, |x, y| x * y),
            Binary::Div => pairs(x, y, to, |x, y| x / y),
            Binary::Min => pairs(x, y, to, |x, y| if x < y || x.is_nan() { x } else { y }),
            Binary::Max => pairs(x, y, to, |x, y| if x > y || x.is_nan() { x } else { y }),
            Binary::Pow => pairs(x, y, to, f32::powf),
        }
    }
}
