//! What ops become for a GPU: dispatches of shaders on views, as data. Knows the conventions of the
//! shipped shaders; knows no Vulkan.
//!
//! Every shader has its storage buffers in set 0, bindings 0, 1, …, and one block of push
//! constants: for each binding the element at which the view begins (bindings must begin at aligned
//! bytes, views need not), then the op's own parameters.

use super::{
    buffer::{Buffer, BufferView, ElementKind},
    compile::compile,
    engine::EngineError,
    gemm::Gemm,
    tuning::ProductShader,
};
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
};

/// Invocations of a workgroup in all shaders that do not say otherwise.
pub const GROUP: u64 = 256;
/// Bindings begin at multiples of so many bytes at most, by the specification.
const MOST_ALIGNED: u64 = 256;
/// Every device has at least so many workgroups in each dimension.
const MAX_GROUPS: u64 = 65_535;

/// A compiled shader, entry point `main`.
#[derive(Clone, Debug)]
pub struct CompiledShader {
    pub name: &'static str,
    pub spirv: Arc<[u32]>,
}

/// One step of a program.
#[derive(Clone, Debug)]
pub enum ProgramStep {
    Dispatch {
        shader: CompiledShader,
        /// Empty views are bound to memory that nobody uses.
        bindings: Vec<BufferView>,
        /// The op's parameters, which follow the bindings' first elements.
        parameters: Vec<u32>,
        groups: [u32; 3],
    },
    /// Every 32 bits of the view become `value`.
    Fill { view: BufferView, value: u32 },
}

/// What ops are lowered for.
pub trait LoweringTarget {
    /// New memory, which lives as long as the program.
    fn allocate(&self, bytes: u64) -> Result<Buffer, EngineError>;

    /// The most bytes that one binding has.
    fn bindable(&self) -> u64;

    /// The shader for a product of matrices.
    fn product(&self, product: &Gemm) -> Result<ProductShader, EngineError>;
}

/// Collects the steps of a program and gives ops memory for what they keep between steps.
pub struct Lowering<'a> {
    target: &'a dyn LoweringTarget,
    generated: &'a Generated,
    pub(super) steps: Vec<ProgramStep>,
}

impl<'a> Lowering<'a> {
    pub fn new(target: &'a dyn LoweringTarget, generated: &'a Generated) -> Self {
        Self {
            target,
            generated,
            steps: Vec::new(),
        }
    }

    /// The most bytes of a view that can be bound wherever it begins.
    pub fn bindable(&self) -> u64 {
        self.target.bindable().saturating_sub(MOST_ALIGNED)
    }

    /// The shader for a product of matrices.
    pub fn product(&self, product: &Gemm) -> Result<ProductShader, EngineError> {
        self.target.product(product)
    }

    /// The shader of WGSL that an op wrote itself.
    pub fn generated(&self, name: &'static str, source: &str) -> CompiledShader {
        self.generated.shader(name, source)
    }

    /// Memory of `len` elements that lives as long as the program. What is in it when the program
    /// starts is undefined.
    pub fn scratch(&mut self, kind: ElementKind, len: u64) -> Result<BufferView, EngineError> {
        let buffer = self.target.allocate((len * kind.bytes()).max(4))?;
        Ok(buffer.view(kind, 0, len))
    }

    pub fn dispatch(
        &mut self,
        shader: CompiledShader,
        bindings: &[&BufferView],
        parameters: &[u32],
        groups: [u32; 3],
    ) {
        let bindings = bindings.iter().map(|view| (*view).clone()).collect();
        self.steps.push(ProgramStep::Dispatch {
            shader,
            bindings,
            parameters: parameters.to_vec(),
            groups,
        });
    }

    pub fn fill(&mut self, view: &BufferView, value: u32) {
        if view.len > 0 {
            self.steps.push(ProgramStep::Fill {
                view: view.clone(),
                value,
            });
        }
    }
}

/// Shaders that were compiled while the program runs, by their source.
#[derive(Default)]
pub struct Generated(Mutex<BTreeMap<String, CompiledShader>>);

impl Generated {
    /// More are forgotten, all at once: they are compiled again in milliseconds.
    const MOST: usize = 1024;

    fn shader(&self, name: &'static str, source: &str) -> CompiledShader {
        // A panic while it was held left the map whole.
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(shader) = known.get(source) {
            return shader.clone();
        }
        let spirv = compile(name, source)
            .unwrap_or_else(|error| panic!("an op wrote a broken shader: {error}\n{source}"));
        let shader = CompiledShader {
            name,
            spirv: spirv.into(),
        };
        if known.len() == Self::MOST {
            known.clear();
        }
        known.insert(source.to_owned(), shader.clone());
        shader
    }
}

/// Workgroups for `items` of which each group takes `per_group` at a time; shaders loop where there
/// are more.
pub fn grid(items: u64, per_group: u64) -> [u32; 3] {
    [items.div_ceil(per_group).clamp(1, MAX_GROUPS) as u32, 1, 1]
}

/// An empty view in place of a binding that is not used.
pub fn unused(like: &BufferView, kind: ElementKind) -> BufferView {
    BufferView {
        kind,
        offset: 0,
        len: 0,
        ..like.clone()
    }
}
