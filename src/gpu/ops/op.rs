//! The list of ops, and what each family provides: its rules, how the CPU does it, how it becomes
//! dispatches. An op is here only when every engine has it and the conformance suite tests it.

use super::{
    access::{DisjointAccess, OpAccess},
    cpu::CpuMemory,
    dispatch::Lowering,
    engine::EngineError,
};

macro_rules! ops {
    ($($name:ident),* $(,)?) => {
        /// An operation on views of buffers, as data.
        #[derive(Clone, Debug)]
        pub enum Op {
            $($name(super::$name),)*
        }

        impl Op {
            pub(super) fn operation(&self) -> &dyn Operation {
                match self {
                    $(Self::$name(op) => op,)*
                }
            }
        }

        $(impl From<super::$name> for Op {
            fn from(op: super::$name) -> Self {
                Self::$name(op)
            }
        })*
    };
}

ops! {
    Gemm,
    Elementwise,
    Reduce,
    Softmax,
    SoftmaxBackward,
    SoftmaxCrossEntropy,
    Csr,
    Histogram,
    Scan,
    Random,
    Sort,
    Optimize,
    Norm,
    NormBackward,
    Lookup,
    LookupBackward,
    Conv2d,
    Conv2dInputGradient,
    Conv2dWeightGradient,
    Pool2d,
    Pool2dBackward,
}

/// One family of ops, whole.
pub trait Operation {
    fn name(&self) -> &'static str;

    /// What the op reads and writes; what is wrong with its sizes and views.
    fn access(&self) -> Result<OpAccess, String>;

    /// Computes on the processor. `memory` lends the views that `access` named.
    fn cpu(&self, memory: &CpuMemory<'_>);

    /// Becomes dispatches. Only after `access` found nothing wrong.
    fn lower(&self, lowering: &mut Lowering<'_>) -> Result<(), EngineError>;
}

/// What each op reads and writes, or the first that does not fit its views.
pub fn checked(ops: &[Op]) -> Result<Vec<DisjointAccess>, EngineError> {
    let check = |(index, op): (usize, &Op)| {
        let operation = op.operation();
        let access = operation.access().and_then(OpAccess::check);
        access.map_err(|what| EngineError::Op {
            index,
            op: operation.name(),
            what,
        })
    };
    ops.iter().enumerate().map(check).collect()
}
