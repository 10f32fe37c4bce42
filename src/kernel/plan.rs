//! What a kernel job is once its file is understood: the contract between the job file's reader and
//! the worker that runs it. It travels as the upload `PLAN_FILE`, postcard after a version, one
//! for each job of the chain. Holds no values of parameters: `resolve` puts those of a task in.
//!
//! # The chain
//!
//! A kernel job becomes one planned job (`Stage::Whole`), or several, each `after` the one before:
//! - `<name>.tiles` or `<name>.round-1`, `<name>.round-2`, …: `Stage::Tiles`. `repeat` is the
//!   number of tiles, so task t is tile `t % tile_count()` of parameter set `t / tile_count()`.
//!   Each task leaves one part for each name in `parts`: the file `part_file(name)` in its
//!   directory, a `.npy` with what the tile's own cells hold.
//! - `<name>`: `Stage::Assemble`, one task a parameter set. Task t finds the parts of tile i as
//!   `<from>/<t * tile_count() + i>/<part_file(name)>` in its directory, combines them, and writes
//!   the outputs' files.
//!
//! # A tile
//!
//! `tiles::Grid` cuts the space into boxes. A task computes its box widened by the halo of all its
//! steps, clamped at the space's edges: that is the `origin` and `size` its shader sees, the size
//! of its dispatch, and the shape of its buffers with `Extent::Cells`. What it computes outside of
//! its own box is dropped when the part is written. So a shader addresses cell `id` of every such
//! buffer as `id.x + size.x * (id.y + size.y * id.z)`, halo or not, cut or not.
//!
//! # What the worker does with a task
//!
//! 1. `KernelPlan::resolve` with the task's parameters.
//! 2. Compiles `shader` with `Resolved::constants` (`gpu::shader`), and compares the entry point
//!    with the device's limits: workgroups, shared bytes, features, storage ranges. What a device
//!    lacks is an error of the task that names both.
//! 3. Makes a buffer for each binding and fills it (`load::content`, or the parts of the round
//!    before: see `resumes`); a binding without content begins as zeros.
//! 4. For each step s of `steps()`: writes `tile_bytes(.., s)` into the binding `Content::Tile`,
//!    dispatches `ceil(size / workgroup)` groups, then exchanges the buffers of each pair in
//!    `swaps`.
//! 5. Reads the buffers named in `parts` or `outputs`. A swapped pair's second name stands for the
//!    buffer that the *last* step wrote to under that name.

use nodectl_gpu::shader::{Element, Language, ShaderChecks};
use nodectl_types::{Params, Scalar, Value};
use serde::{Deserialize, Serialize};

/// The upload with the plan.
pub const PLAN_FILE: &str = "kernel.plan";
/// Raised with every change of these types: worker and submitter may be of different builds.
pub const PLAN_VERSION: u32 = 2;
/// The largest plan that is read, in bytes; a shader is most of it.
pub const MAX_PLAN_BYTES: usize = 32 << 20;

/// The largest uniform: what most devices bind (`maxUniformBufferRange`).
pub(super) const MAX_UNIFORM_BYTES: u32 = 64 << 10;

/// The part of a binding in a task's directory.
pub fn part_file(binding: &str) -> String {
    format!("{binding}.part.npy")
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct KernelPlan {
    pub stage: Stage,
    pub shader: ShaderPlan,
    /// Extents of the index space along x, y and z; of fewer dimensions the last are 1.
    pub space: [Quantity; 3],
    /// How many of the three the job file gave. Arrays over the cells have so many axes, the last
    /// of them x.
    pub dimensions: usize,
    /// Into how many tiles the space is cut along x, y and z. No space of any parameter set is
    /// smaller.
    pub grid: [u32; 3],
    /// How far a step looks along x, y and z, in cells.
    pub halo: [u32; 3],
    /// Overrides (WGSL) or specialization constants (SPIR-V) with a value in the job file.
    pub constants: Vec<ConstantPlan>,
    /// Every binding of the entry point, by set and binding.
    pub bindings: Vec<BindingPlan>,
    /// Read binding, written binding: exchanged after every step.
    pub swaps: Vec<(String, String)>,
    /// The bindings of which a `Tiles` task leaves a part.
    pub parts: Vec<String>,
    /// What a `Whole` or `Assemble` task writes.
    pub outputs: Vec<OutputPlan>,
}

/// What the tasks of this job of the chain do.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Stage {
    /// A parameter set is one tile and one task, which writes the outputs itself. All steps from 0.
    Whole { steps: u32 },
    /// A task a tile, steps `first_step .. first_step + steps`. From the second round on `from` is
    /// the directory with the round before, whose parts are the content of bindings that resume.
    Tiles {
        first_step: u32,
        steps: u32,
        from: Option<String>,
    },
    /// A task a parameter set, which combines the parts in the directory `from`.
    Assemble { from: String },
}

/// A shader as it travels: compiled again where it runs, since constants may differ from task to
/// task.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ShaderPlan {
    /// For messages.
    pub file: String,
    pub language: Language,
    /// The file's bytes.
    pub source: Vec<u8>,
    pub entry: String,
    pub checks: ShaderChecks,
}

/// A number of the job file, or the parameter that gives it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Quantity {
    /// A number in the job file.
    Value(Value),
    /// The parameter of this name.
    Param(String),
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ConstantPlan {
    /// The override's name; `@id` and specialization constants are named by their number.
    pub name: String,
    pub scalar: Scalar,
    pub value: Quantity,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BindingPlan {
    pub set: u32,
    pub binding: u32,
    /// The shader's name of it.
    pub name: String,
    pub content: Content,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Content {
    /// `var<uniform> tile: Tile`, `TILE_BYTES` long.
    Tile,
    /// A uniform of `bytes`, zero but for the values.
    Uniform {
        bytes: u32,
        values: Vec<UniformValue>,
    },
    /// A storage buffer.
    Array(ArrayPlan),
}

/// A number of a uniform, at `offset` bytes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct UniformValue {
    pub offset: u32,
    pub scalar: Scalar,
    pub value: Quantity,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ArrayPlan {
    /// One element of the shader's array. On the device elements are `stride` apart; in files they
    /// are not.
    pub element: Element,
    pub extent: Extent,
    /// None: zeros.
    pub source: Option<ArraySource>,
    /// From the second round on the content is what the round before left of this binding: the
    /// cells of the widened box are put together from the parts of the tiles that they lie in.
    pub resumes: Option<String>,
    /// Whether the shader writes into the array.
    pub is_written: bool,
}

/// Which elements of an array a task holds. An array's axes are numpy's, last fastest, and include
/// the components of its elements as the last axis where they are vectors.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Extent {
    /// One for each cell of the widened box, times `per_cell` (empty: a number or a vector each).
    /// Of a file, the axes after those of the space; `per_cell` is empty then.
    Cells { per_cell: Vec<Quantity> },
    /// All of it, in every task. Of a file, what its header says; `shape` is empty then.
    Whole { shape: Vec<Quantity> },
}

/// Where an array's content comes from. `i` is an element's place in the whole array, in row-major
/// order, whatever the tile.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum ArraySource {
    /// An uploaded file; `path` is a template. `convert`: numbers that the shader's type does not
    /// have are cast.
    File {
        path: String,
        member: Option<String>,
        raw: Option<RawPlan>,
        convert: bool,
    },
    /// start + i * step
    Range { start: Quantity, step: Quantity },
    /// start + i * (stop - start) / (count - 1)
    Linspace { start: Quantity, stop: Quantity },
    /// One number everywhere.
    Fill { value: Quantity },
    /// Philox4x32-10 with key `seed` and counter i (see `random`).
    Random {
        seed: Quantity,
        distribution: Distribution,
    },
}

/// What a file without a header holds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RawPlan {
    pub scalar: Scalar,
    pub shape: Vec<Quantity>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Distribution {
    /// From `low` to below `high`.
    Uniform {
        low: Quantity,
        high: Quantity,
    },
    Normal {
        mean: Quantity,
        deviation: Quantity,
    },
}

/// A file, or a member of one, that a job's last stage writes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OutputPlan {
    pub binding: String,
    pub combine: Combine,
    /// A template; below the task's directory; `.npy`, `.npz`, `.png` or `.h5`.
    pub file: String,
    /// The name within an `.npz`, the path within an `.h5`. Outputs with the same file share it.
    pub member: Option<String>,
    /// The type in the file. From the shader's type, numbers are rounded and saturate.
    pub scalar: Scalar,
    /// Of a `.png`: these two become black and white.
    pub scale: Option<[f64; 2]>,
}

/// How the parts of the tiles become one array.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Combine {
    /// Side by side, by their cells.
    Concat,
    /// Element by element, in the order of the tiles. Integers wrap; NaN stays.
    Sum,
    Min,
    Max,
    /// A shader folds part after part, in the order of the tiles, into the first one: its storage
    /// bindings are set 0, binding 0 (read and written: what was folded so far) and binding 1 (the
    /// next part), both flat arrays of the output's elements; its invocations are one an element
    /// along x.
    Shader(ShaderPlan),
}

/// The size of the shader's `struct Tile { origin: vec3<u32>, size: vec3<u32>, space: vec3<u32>,
/// step: u32 }`.
pub const TILE_BYTES: usize = 48;

/// The bytes of that struct.
pub fn tile_bytes(
    origin: [u32; 3],
    size: [u32; 3],
    space: [u32; 3],
    step: u32,
) -> [u8; TILE_BYTES] {
    let words = [
        origin[0], origin[1], origin[2], 0, size[0], size[1], size[2], 0, space[0], space[1],
        space[2], step,
    ];
    let mut bytes = [0; TILE_BYTES];
    for (place, word) in bytes.chunks_exact_mut(4).zip(words) {
        place.copy_from_slice(&word.to_le_bytes());
    }
    bytes
}

/// Why a plan, or a parameter set under it, cannot be used. A sentence for the user.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    #[error("{0}")]
    Invalid(String),
    /// A binding, constant or output of this name cannot be used.
    #[error("`{name}`: {message}")]
    Of { name: String, message: String },
    #[error(
        "the plan is of version {found}, this nodectl reads {PLAN_VERSION}\nhint: run the same nodectl everywhere"
    )]
    Version { found: u32 },
    #[error("the file is not the plan of a kernel job")]
    Malformed,
}

impl KernelPlan {
    pub fn encode(&self) -> Vec<u8> {
        postcard::to_stdvec(&(PLAN_VERSION, self)).expect("plain data always encodes")
    }

    pub fn decode(bytes: &[u8]) -> Result<Self, PlanError> {
        let (found, rest) =
            postcard::take_from_bytes::<u32>(bytes).map_err(|_| PlanError::Malformed)?;
        match found {
            PLAN_VERSION => {
                let plan: Self = postcard::from_bytes(rest).map_err(|_| PlanError::Malformed)?;
                if plan.is_sound() {
                    Ok(plan)
                } else {
                    Err(PlanError::Malformed)
                }
            }
            _ => Err(PlanError::Version { found }),
        }
    }

    /// What everything else takes for granted.
    fn is_sound(&self) -> bool {
        let tiles = self
            .grid
            .iter()
            .try_fold(1u32, |product, cuts| product.checked_mul(*cuts));
        let is_sound = |binding: &BindingPlan| match &binding.content {
            Content::Array(ArrayPlan { element, .. }) => {
                let used = (element.components as usize).checked_mul(element.scalar.bytes());
                element.components > 0 && used.is_some_and(|used| used <= element.stride as usize)
            }
            Content::Uniform { bytes, .. } => *bytes <= MAX_UNIFORM_BYTES,
            Content::Tile => true,
        };
        (1..=3).contains(&self.dimensions)
            && tiles.is_some_and(|tiles| tiles > 0)
            && self.bindings.iter().all(is_sound)
    }

    /// Tiles of a parameter set, which are as many as the tasks of a `Tiles` stage have for each.
    pub fn tile_count(&self) -> u32 {
        self.grid.iter().product()
    }

    /// The steps that a task of this stage does: the first, and how many. None of an `Assemble`
    /// stage.
    pub fn steps(&self) -> Option<(u32, u32)> {
        match self.stage {
            Stage::Whole { steps } => Some((0, steps)),
            Stage::Tiles {
                first_step, steps, ..
            } => Some((first_step, steps)),
            Stage::Assemble { .. } => None,
        }
    }

    pub fn binding(&self, name: &str) -> Option<&BindingPlan> {
        self.bindings.iter().find(|binding| binding.name == name)
    }
}

impl ArrayPlan {
    /// Whether every task holds all of it.
    pub fn is_whole(&self) -> bool {
        matches!(self.extent, Extent::Whole { .. })
    }
}

impl Quantity {
    pub fn get<'v>(&'v self, params: &'v Params) -> Result<&'v Value, PlanError> {
        match self {
            Self::Value(value) => Ok(value),
            Self::Param(name) => params
                .iter()
                .find(|(known, _)| known == name)
                .map(|(_, value)| value)
                .ok_or_else(|| PlanError::Invalid(format!("there is no parameter `{name}`"))),
        }
    }
}
