//! A plan with the parameters of one set in it. Pure: the job file's reader tries every set before
//! anything is sent, and the worker computes the same for each task.

use super::plan::{
    ArraySource, Content, Distribution, Extent, KernelPlan, OutputPlan, PlanError, Quantity,
    UniformValue,
};
use half::f16;
use nodectl_types::{Params, Scalar, Value, template};

/// The most elements of an array.
const MAX_ELEMENTS: u64 = 1 << 40;

/// What a parameter set makes of a plan.
#[derive(Clone, Debug, PartialEq)]
pub struct Resolved {
    pub space: [u32; 3],
    /// Name or number, and value.
    pub constants: Vec<(String, Number)>,
    /// In the order of the plan's bindings.
    pub bindings: Vec<ResolvedContent>,
    /// The path of each output's file, in the order of the plan's outputs.
    pub files: Vec<String>,
}

/// A number of one of the types that constants and uniforms have.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Number {
    pub scalar: Scalar,
    /// As stored: little-endian, the first `scalar.bytes()` of it; of a `Bool`, 4 bytes of 0 or 1,
    /// as `VkBool32`.
    pub bytes: [u8; 8],
}

#[derive(Clone, Debug, PartialEq)]
pub enum ResolvedContent {
    Tile,
    Uniform(Vec<u8>),
    Array(ResolvedArray),
}

#[derive(Clone, Debug, PartialEq)]
pub struct ResolvedArray {
    /// Of `Extent::Cells` without a file the whole array over the space; of files empty: their
    /// headers say.
    pub shape: Vec<u64>,
    pub source: Option<ResolvedSource>,
}

#[derive(Clone, Debug, PartialEq)]
pub enum ResolvedSource {
    /// `raw`: type and shape of a file without a header.
    File {
        path: String,
        member: Option<String>,
        raw: Option<(Scalar, Vec<u64>)>,
        convert: bool,
    },
    Generated(GeneratedSource),
}

/// Numbers that nobody has to read: each follows from its place in the array.
#[derive(Clone, Debug, PartialEq)]
pub enum GeneratedSource {
    Range {
        start: f64,
        step: f64,
    },
    Linspace {
        start: f64,
        stop: f64,
    },
    Fill {
        value: f64,
    },
    Uniform {
        seed: u64,
        low: f64,
        high: f64,
    },
    Normal {
        seed: u64,
        mean: f64,
        deviation: f64,
    },
}

impl KernelPlan {
    /// Puts the parameters in. The error names what does not fit.
    pub fn resolve(&self, params: &Params) -> Result<Resolved, PlanError> {
        let mut space = [1; 3];
        for (axis, extent) in self.space.iter().enumerate() {
            space[axis] = whole(extent, params, "an extent of `space`")?
                .try_into()
                .ok()
                .filter(|n| *n > 0)
                .ok_or_else(|| {
                    PlanError::Invalid(format!(
                        "`space` along {} is from 1 to {} cells",
                        ["x", "y", "z"][axis],
                        u32::MAX
                    ))
                })?;
        }
        let too_small = (0..3).find(|axis| space[*axis] < self.grid[*axis]);
        if let Some(axis) = too_small {
            let message = format!(
                "a space of {} cells cannot be cut into {} tiles",
                space[axis], self.grid[axis]
            );
            return Err(PlanError::Invalid(message));
        }
        let constant = |constant: &super::plan::ConstantPlan| {
            let value = constant.value.get(params)?;
            Ok((
                constant.name.clone(),
                Number::new(value, constant.scalar).map_err(|error| error.of(&constant.name))?,
            ))
        };
        let file = |output: &OutputPlan| {
            expand(&output.file, params).map_err(|error| error.of(&output.binding))
        };
        Ok(Resolved {
            space,
            constants: self
                .constants
                .iter()
                .map(constant)
                .collect::<Result<_, _>>()?,
            bindings: self
                .bindings
                .iter()
                .map(|binding| {
                    self.content(&binding.content, space, params)
                        .map_err(|error| error.of(&binding.name))
                })
                .collect::<Result<_, _>>()?,
            files: self.outputs.iter().map(file).collect::<Result<_, _>>()?,
        })
    }

    fn content(
        &self,
        content: &Content,
        space: [u32; 3],
        params: &Params,
    ) -> Result<ResolvedContent, PlanError> {
        let array = match content {
            Content::Tile => return Ok(ResolvedContent::Tile),
            Content::Uniform { bytes, values } => {
                return uniform(*bytes, values, params).map(ResolvedContent::Uniform);
            }
            Content::Array(array) => array,
        };
        let source = array
            .source
            .as_ref()
            .map(|source| resolve_source(source, params))
            .transpose()?;
        let is_file = matches!(source, Some(ResolvedSource::File { .. }));
        let components = array.element.components;
        let shape = match &array.extent {
            _ if is_file => Vec::new(),
            Extent::Whole { shape } => shape_of(shape, params)?,
            Extent::Cells { per_cell } => {
                let mut shape: Vec<u64> = space[..self.dimensions]
                    .iter()
                    .rev()
                    .map(|n| u64::from(*n))
                    .collect();
                shape.extend(shape_of(per_cell, params)?);
                if per_cell.is_empty() && components > 1 {
                    shape.push(u64::from(components));
                }
                shape
            }
        };
        let numbers = shape
            .iter()
            .try_fold(1u64, |product, n| product.checked_mul(*n))
            .filter(|n| *n <= MAX_ELEMENTS);
        let numbers = numbers
            .ok_or_else(|| PlanError::Invalid(format!("{shape:?} is too large an array")))?;
        if !is_file && !numbers.is_multiple_of(u64::from(components)) {
            let message = format!(
                "an array of {shape:?} does not divide into elements of {components} numbers"
            );
            return Err(PlanError::Invalid(message));
        }
        Ok(ResolvedContent::Array(ResolvedArray { shape, source }))
    }
}

impl PlanError {
    /// The error, saying of what it is.
    fn of(self, name: &str) -> Self {
        match self {
            Self::Invalid(message) => Self::Of {
                name: name.to_string(),
                message,
            },
            other => other,
        }
    }
}

fn uniform(bytes: u32, values: &[UniformValue], params: &Params) -> Result<Vec<u8>, PlanError> {
    let mut filled = vec![0; bytes as usize];
    for value in values {
        let number = Number::new(value.value.get(params)?, value.scalar)?;
        let bytes = number.stored();
        let place = filled
            .get_mut(value.offset as usize..)
            .and_then(|rest| rest.get_mut(..bytes.len()));
        place.ok_or(PlanError::Malformed)?.copy_from_slice(bytes);
    }
    Ok(filled)
}

fn resolve_source(source: &ArraySource, params: &Params) -> Result<ResolvedSource, PlanError> {
    let real = |quantity: &Quantity| real(quantity, params);
    let seed = |quantity: &Quantity| {
        let seed = whole(quantity, params, "a seed")?;
        u64::try_from(seed)
            .map_err(|_| PlanError::Invalid(format!("a seed is not negative, as {seed} is")))
    };
    Ok(match source {
        ArraySource::File {
            path,
            member,
            raw,
            convert,
        } => ResolvedSource::File {
            path: expand(path, params)?,
            member: member
                .as_ref()
                .map(|member| expand(member, params))
                .transpose()?,
            raw: raw
                .as_ref()
                .map(|raw| Ok((raw.scalar, shape_of(&raw.shape, params)?)))
                .transpose()?,
            convert: *convert,
        },
        ArraySource::Range { start, step } => ResolvedSource::Generated(GeneratedSource::Range {
            start: real(start)?,
            step: real(step)?,
        }),
        ArraySource::Linspace { start, stop } => {
            ResolvedSource::Generated(GeneratedSource::Linspace {
                start: real(start)?,
                stop: real(stop)?,
            })
        }
        ArraySource::Fill { value } => ResolvedSource::Generated(GeneratedSource::Fill {
            value: real(value)?,
        }),
        ArraySource::Random {
            seed: key,
            distribution: Distribution::Uniform { low, high },
        } => {
            let (low, high) = (real(low)?, real(high)?);
            if !(low < high && (high - low).is_finite()) {
                return Err(PlanError::Invalid(format!(
                    "`low` of random numbers, {low}, is not below their `high`, {high}"
                )));
            }
            ResolvedSource::Generated(GeneratedSource::Uniform {
                seed: seed(key)?,
                low,
                high,
            })
        }
        ArraySource::Random {
            seed: key,
            distribution: Distribution::Normal { mean, deviation },
        } => {
            let (mean, deviation) = (real(mean)?, real(deviation)?);
            if deviation < 0.0 {
                return Err(PlanError::Invalid(format!(
                    "the `deviation` of random numbers is at least 0, not {deviation}"
                )));
            }
            ResolvedSource::Generated(GeneratedSource::Normal {
                seed: seed(key)?,
                mean,
                deviation,
            })
        }
    })
}

fn shape_of(shape: &[Quantity], params: &Params) -> Result<Vec<u64>, PlanError> {
    let extent = |quantity: &Quantity| {
        let extent = whole(quantity, params, "an extent of a shape")?;
        u64::try_from(extent)
            .ok()
            .filter(|n| *n > 0)
            .ok_or_else(|| {
                PlanError::Invalid(format!("an extent of a shape is at least 1, not {extent}"))
            })
    };
    shape.iter().map(extent).collect()
}

fn whole(quantity: &Quantity, params: &Params, what: &str) -> Result<i64, PlanError> {
    match quantity.get(params)?.plain().as_ref() {
        Value::Int(number) => Ok(*number),
        Value::Float(number) if number.fract() == 0.0 && number.abs() < 9e15 => Ok(*number as i64),
        other => Err(PlanError::Invalid(format!(
            "{what} is a whole number, not {other}"
        ))),
    }
}

fn real(quantity: &Quantity, params: &Params) -> Result<f64, PlanError> {
    match quantity.get(params)?.plain().as_ref() {
        Value::Int(number) => Ok(*number as f64),
        Value::Float(number) if number.is_finite() => Ok(*number),
        other => Err(PlanError::Invalid(format!(
            "a finite number is needed, not {other}"
        ))),
    }
}

pub(super) fn expand(text: &str, params: &Params) -> Result<String, PlanError> {
    let lookup = |name: &str| {
        params
            .iter()
            .find(|(known, _)| known == name)
            .map(|(_, value)| value.to_string())
    };
    template::expand(text, &lookup).map_err(|error| PlanError::Invalid(error.to_string()))
}

impl Number {
    /// A value as this type; what would lose more than a float's last digits is an error.
    pub fn new(value: &Value, scalar: Scalar) -> Result<Self, PlanError> {
        let unfit = || PlanError::Invalid(format!("{value} is not of type {scalar}"));
        let value = value.plain();
        let value = value.as_ref();
        let mut bytes = [0; 8];
        let mut put = |stored: &[u8]| bytes[..stored.len()].copy_from_slice(stored);
        if scalar.is_float() {
            let number = match value {
                Value::Int(number) => *number as f64,
                Value::Float(number) => *number,
                Value::Bool(_) | Value::Text(_) | Value::Spelled(_) => return Err(unfit()),
            };
            match scalar {
                Scalar::F16 => put(&f16::from_f64(number).to_le_bytes()),
                Scalar::F32 => put(&(number as f32).to_le_bytes()),
                _ => put(&number.to_le_bytes()),
            }
            return Ok(Self { scalar, bytes });
        }
        let number = match value {
            Value::Bool(truth) if scalar == Scalar::Bool => i64::from(*truth),
            Value::Int(number) if scalar != Scalar::Bool => *number,
            Value::Float(number)
                if scalar != Scalar::Bool && number.fract() == 0.0 && number.abs() < 9e15 =>
            {
                *number as i64
            }
            _ => return Err(unfit()),
        };
        match scalar {
            Scalar::Bool => put(&(number as u32).to_le_bytes()),
            Scalar::U8 => put(&u8::try_from(number).map_err(|_| unfit())?.to_le_bytes()),
            Scalar::I8 => put(&i8::try_from(number).map_err(|_| unfit())?.to_le_bytes()),
            Scalar::U16 => put(&u16::try_from(number).map_err(|_| unfit())?.to_le_bytes()),
            Scalar::I16 => put(&i16::try_from(number).map_err(|_| unfit())?.to_le_bytes()),
            Scalar::U32 => put(&u32::try_from(number).map_err(|_| unfit())?.to_le_bytes()),
            Scalar::I32 => put(&i32::try_from(number).map_err(|_| unfit())?.to_le_bytes()),
            Scalar::U64 => put(&u64::try_from(number).map_err(|_| unfit())?.to_le_bytes()),
            _ => put(&number.to_le_bytes()),
        }
        Ok(Self { scalar, bytes })
    }

    /// The number as a float; whole numbers beyond 53 bits lose their last digits.
    pub fn to_f64(self) -> f64 {
        let bytes = self.bytes;
        match self.scalar {
            Scalar::Bool | Scalar::U8 | Scalar::U16 | Scalar::U32 | Scalar::U64 => {
                u64::from_le_bytes(bytes) as f64
            }
            Scalar::I8 => f64::from(bytes[0] as i8),
            Scalar::I16 => f64::from(i16::from_le_bytes([bytes[0], bytes[1]])),
            Scalar::I32 => f64::from(i32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])),
            Scalar::I64 => i64::from_le_bytes(bytes) as f64,
            Scalar::F16 => f16::from_le_bytes([bytes[0], bytes[1]]).to_f64(),
            Scalar::F32 => f64::from(f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])),
            Scalar::F64 => f64::from_le_bytes(bytes),
        }
    }

    /// As it is stored in a uniform.
    pub fn stored(&self) -> &[u8] {
        let length = if self.scalar == Scalar::Bool {
            4
        } else {
            self.scalar.bytes()
        };
        &self.bytes[..length]
    }
}

impl Resolved {
    /// The constants as `gpu::shader::Shader::compile` takes them.
    pub fn shader_constants(&self) -> Vec<(String, f64)> {
        self.constants
            .iter()
            .map(|(name, number)| (name.clone(), number.to_f64()))
            .collect()
    }
}
