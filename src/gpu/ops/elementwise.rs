//! Fused element-wise expressions: one pass over memory, however long the expression.

use super::{
    access::OpAccess,
    buffer::{BufferView, ElementKind},
    cpu::CpuMemory,
    dispatch::{GROUP, Lowering, grid},
    engine::EngineError,
    expression::{Binary, Expression, ExpressionStep, StraightLine, Unary},
    op::Operation,
};
use rayon::prelude::*;

pub const MAX_INPUTS: usize = 8;
/// The most constants of an expression: push constants hold them, of which every device has 128
/// bytes.
pub const MAX_CONSTANTS: usize = 12;

/// `output[i]` = expression(inputs at i). All f32.
#[derive(Clone, Debug)]
pub struct Elementwise {
    pub expression: Expression,
    /// Each as long as the output, or shorter by a whole factor: then it is repeated, as a bias is
    /// for each row. An input may be the very view of the output.
    pub inputs: Vec<BufferView>,
    pub output: BufferView,
}

impl Operation for Elementwise {
    fn name(&self) -> &'static str {
        "elementwise"
    }

    fn access(&self) -> Result<OpAccess, String> {
        if self.inputs.len() > MAX_INPUTS {
            return Err(format!(
                "{} inputs, more than {MAX_INPUTS}; hint: make it two ops",
                self.inputs.len()
            ));
        }
        let constants = StraightLine::new(&self.expression, self.inputs.len())?
            .constants
            .len();
        if constants > MAX_CONSTANTS {
            return Err(format!(
                "{constants} constants, more than {MAX_CONSTANTS}; hint: make it two ops"
            ));
        }
        let len = self.output.len;
        let mut access =
            OpAccess::default().write("output", &self.output, ElementKind::F32, len)?;
        for input in &self.inputs {
            if len > 0 && (input.len == 0 || !len.is_multiple_of(input.len)) {
                return Err(format!(
                    "an input of {} elements cannot be repeated to {len}",
                    input.len
                ));
            }
            access = access.read_in_place("input", input, ElementKind::F32, input.len)?;
        }
        Ok(access)
    }

    fn cpu(&self, memory: &CpuMemory<'_>) {
        /// Elements to a thread at a time, and to a register: registers stay in the first cache.
        const CHUNK: usize = 1 << 15;
        const BLOCK: usize = 256;
        let line = StraightLine::new(&self.expression, self.inputs.len())
            .expect("access() has checked it");
        let in_place = |input: &BufferView| input.is_same(&self.output);
        let inputs = self
            .inputs
            .iter()
            .map(|input| (!in_place(input)).then(|| memory.read::<f32>(input)));
        let inputs: Vec<Option<&[f32]>> = inputs.collect();
        let chunks = memory
            .write::<f32>(&self.output)
            .par_chunks_mut(CHUNK)
            .enumerate();
        chunks.for_each_init(
            || vec![vec![0.0; BLOCK]; line.steps.len()],
            |registers, (chunk, output)| {
                for (block, output) in output.chunks_mut(BLOCK).enumerate() {
                    let first = chunk * CHUNK + block * BLOCK;
                    line.evaluate(registers, output.len(), |input, to| match inputs[input] {
                        None => to.copy_from_slice(output),
                        Some(values) => load(values, first, to),
                    });
                    output.copy_from_slice(
                        &registers.last().expect("an expression has a step")[..output.len()],
                    );
                }
            },
        );
    }

    fn lower(&self, lowering: &mut Lowering<'_>) -> Result<(), EngineError> {
        let len = self.output.len;
        if len == 0 {
            return Ok(());
        }
        let line = StraightLine::new(&self.expression, self.inputs.len())
            .expect("access() has checked it");
        let repeated: Vec<bool> = self.inputs.iter().map(|input| input.len < len).collect();
        let shader = lowering.generated("elementwise", &wgsl(&line, &repeated));
        let bindings: Vec<&BufferView> = self.inputs.iter().chain([&self.output]).collect();
        let lengths = self.inputs.iter().map(|input| input.len as u32);
        let constants = line.constants.iter().map(|constant| constant.to_bits());
        let parameters: Vec<u32> = [len as u32, f32::NAN.to_bits()]
            .into_iter()
            .chain(lengths)
            .chain(constants)
            .collect();
        lowering.dispatch(shader, &bindings, &parameters, grid(len, GROUP));
        Ok(())
    }
}

/// The input's elements from `first` of the output on, repeated as needed.
fn load(values: &[f32], first: usize, to: &mut [f32]) {
    let (mut at, mut done) = (first % values.len(), 0);
    while done < to.len() {
        let len = (values.len() - at).min(to.len() - done);
        to[done..done + len].copy_from_slice(&values[at..at + len]);
        (at, done) = (0, done + len);
    }
}

/// The shader of an expression. Constants are parameters, so that it is compiled once for all their
/// values.
fn wgsl(line: &StraightLine, repeated: &[bool]) -> String {
    let inputs = repeated.len();
    let fields = |count: usize, name: &str, kind: &str| -> String {
        (0..count)
            .map(|i| format!("    {name}{i}: {kind},\n"))
            .collect()
    };
    let binding = |i: usize, name: &str| {
        // In place, the same memory is bound twice: every binding says that it may be written.
        format!("@group(0) @binding({i}) var<storage, read_write> {name}: array<f32>;\n")
    };
    let mut text = String::from("struct Push {\n");
    text += &fields(inputs, "at", "u32");
    text += "    out_at: u32,\n    n: u32,\n    nan: f32,\n";
    text += &fields(inputs, "len", "u32");
    text += &fields(line.constants.len(), "c", "f32");
    text += "}\nvar<immediate> p: Push;\n";
    (0..inputs).for_each(|i| text += &binding(i, &format!("i{i}")));
    text += &binding(inputs, "out");
    text += FUNCTIONS;
    text += "    for (var i = id.x; i < p.n; i += groups.x * 256u) {\n";
    for (index, step) in line.steps.iter().enumerate() {
        let value = match *step {
            ExpressionStep::Input(input) if repeated[input] => {
                format!("i{input}[p.at{input} + i % p.len{input}]")
            }
            ExpressionStep::Input(input) => format!("i{input}[p.at{input} + i]"),
            ExpressionStep::Constant(constant) => format!("p.c{constant}"),
            ExpressionStep::Unary(function, x) => unary(function, x),
            ExpressionStep::Binary(function, x, y) => binary(function, x, y),
            ExpressionStep::Select(condition, x, y) => {
                format!("select(v{x}, v{y}, v{condition} == 0.0)")
            }
        };
        text += &format!("        let v{index} = {value};\n");
    }
    text + &format!(
        "        out[p.out_at + i] = v{};\n    }}\n}}\n",
        line.steps.len() - 1
    )
}

fn unary(function: Unary, x: usize) -> String {
    match function {
        Unary::Neg => format!("-v{x}"),
        Unary::Abs => format!("abs(v{x})"),
        Unary::Exp => format!("keep(v{x}, exp(v{x}))"),
        Unary::Log => format!("select(keep(v{x}, log(v{x})), p.nan, v{x} < 0.0)"),
        Unary::Sqrt => format!("select(keep(v{x}, sqrt(v{x})), p.nan, v{x} < 0.0)"),
        Unary::Tanh => format!("keep(v{x}, tanh_(v{x}))"),
        Unary::Sigmoid => format!("keep(v{x}, 1.0 / (1.0 + exp(-v{x})))"),
        Unary::Relu => format!("keep(v{x}, max(v{x}, 0.0))"),
        Unary::Gelu => format!("keep(v{x}, 0.5 * v{x} * (1.0 + erf_(v{x} * 0.70710677)))"),
        Unary::Step => format!("keep(v{x}, select(0.0, 1.0, v{x} > 0.0))"),
    }
}

fn binary(function: Binary, x: usize, y: usize) -> String {
    match function {
        Binary::Add => format!("v{x} + v{y}"),
        Binary::Sub => format!("v{x} - v{y}"),
        Binary::Mul => format!("v{x} * v{y}"),
        Binary::Div => format!("v{x} / v{y}"),
        Binary::Min => format!("keep(v{x}, keep(v{y}, min(v{x}, v{y})))"),
        Binary::Max => format!("keep(v{x}, keep(v{y}, max(v{x}, v{y})))"),
        Binary::Pow => format!("pow_(v{x}, v{y})"),
    }
}

/// What WGSL leaves open or devices do in different ways. NaN is told by its bits: compilers may
/// believe that there is none.
const FUNCTIONS: &str = "
fn is_nan(x: f32) -> bool {
    return (bitcast<u32>(x) & 0x7fffffffu) > 0x7f800000u;
}

// NaN if x is, else the value.
fn keep(x: f32, value: f32) -> f32 {
    return select(value, x, is_nan(x));
}

// Beyond 10 the result is 1 in f32, and exp of devices may overflow.
fn tanh_(x: f32) -> f32 {
    return tanh(clamp(x, -10.0, 10.0));
}

// Abramowitz and Stegun, 7.1.26.
fn erf_(x: f32) -> f32 {
    let t = 1.0 / (1.0 + 0.3275911 * abs(x));
    let poly = ((((1.0614054 * t - 1.453152) * t + 1.4214137) * t - 0.28449674) * t + 0.2548296) * t;
    let value = 1.0 - poly * exp(-x * x);
    return select(value, -value, x < 0.0);
}

// As in C. WGSL's is not defined below 0.
fn pow_(x: f32, y: f32) -> f32 {
    if y == 0.0 || x == 1.0 {
        return 1.0;
    }
    if is_nan(x) || is_nan(y) {
        return p.nan;
    }
    var value = exp2(y * log2(abs(x)));
    if abs(x) == 1.0 {
        value = 1.0;
    }
    if (bitcast<u32>(x) >> 31u) == 0u {
        return value;
    }
    let whole = floor(y) == y;
    let odd = whole && abs(y) < 16777216.0 && (i32(abs(y)) & 1) == 1;
    if !whole && x != 0.0 && (bitcast<u32>(x) != 0xff800000u) {
        return p.nan;
    }
    return select(value, -value, odd);
}

@compute @workgroup_size(256)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
";
