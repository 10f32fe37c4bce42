//! Element-wise expressions and random numbers.

use super::{
    super::{
        Binary, BufferView, ElementKind, Elementwise, Expression, Op, Random, RandomDistribution,
        Unary,
    },
    EPSILON, Rig, assert_close, numbers, rng,
};
use rand::RngExt;

/// Maclaurin's series, and 1 where that has no digits left.
pub fn erf(x: f64) -> f64 {
    if x.is_nan() || x.abs() > 5.0 {
        return if x.is_nan() { x } else { x.signum() };
    }
    let (mut term, mut sum) = (x, x);
    for n in 1..200 {
        term *= -x * x / f64::from(n);
        sum += term / f64::from(2 * n + 1);
    }
    sum * std::f64::consts::FRAC_2_SQRT_PI
}

const UNARY: [Unary; 10] = [
    Unary::Neg,
    Unary::Abs,
    Unary::Exp,
    Unary::Log,
    Unary::Sqrt,
    Unary::Tanh,
    Unary::Sigmoid,
    Unary::Relu,
    Unary::Gelu,
    Unary::Step,
];
const BINARY: [Binary; 7] = [
    Binary::Add,
    Binary::Sub,
    Binary::Mul,
    Binary::Div,
    Binary::Min,
    Binary::Max,
    Binary::Pow,
];

fn unary(function: Unary, x: f64) -> f64 {
    match function {
        Unary::Neg => -x,
        Unary::Abs => x.abs(),
        Unary::Exp => x.exp(),
        Unary::Log => x.ln(),
        Unary::Sqrt => x.sqrt(),
        Unary::Tanh => x.tanh(),
        Unary::Sigmoid => 1.0 / (1.0 + (-x).exp()),
        Unary::Relu => {
            if x < 0.0 {
                0.0
            } else {
                x
            }
        }
        Unary::Gelu => 0.5 * x * (1.0 + erf(x / std::f64::consts::SQRT_2)),
        Unary::Step => {
            if x.is_nan() {
                x
            } else {
                f64::from(x > 0.0)
            }
        }
    }
}

fn binary(function: Binary, x: f64, y: f64) -> f64 {
    match function {
        Binary::Add => x + y,
        Binary::Sub => x - y,
        Binary::Mul => x * y,
        Binary::Div => x / y,
        Binary::Min => {
            if x.is_nan() || y.is_nan() {
                f64::NAN
            } else {
                x.min(y)
            }
        }
        Binary::Max => {
            if x.is_nan() || y.is_nan() {
                f64::NAN
            } else {
                x.max(y)
            }
        }
        Binary::Pow => x.powf(y),
    }
}

/// What Vulkan's table "Precision of core SPIR-V instructions" and the formulas used leave:
/// arithmetic rounds once, division within 2.5 ulp, sqrt as 1/inversesqrt; exp(x) within 3 + 2|x|
/// ulp, log within 3 ulp or 2⁻²¹ near 1; tanh and what is made of exp accordingly; pow(x, y) as
/// exp2(y log2 x). Gelu: erf within 3e-7.
fn unary_tolerance(function: Unary, x: f64) -> f64 {
    let relative = match function {
        Unary::Neg | Unary::Abs | Unary::Relu | Unary::Step => 0.0,
        Unary::Sqrt => 4.0,
        Unary::Exp => 6.0 + 4.0 * x.abs(),
        Unary::Log => 6.0,
        Unary::Tanh => 16.0,
        Unary::Sigmoid => 16.0 + 4.0 * x.abs(),
        Unary::Gelu => 16.0,
    };
    let absolute = match function {
        Unary::Log => 2f64.powi(-21),
        Unary::Tanh => 4.0 * EPSILON,
        Unary::Gelu => 4e-7 * x.abs(),
        // Subnormal results may be flushed to 0.
        Unary::Exp | Unary::Sigmoid => f64::from(f32::MIN_POSITIVE),
        _ => 0.0,
    };
    relative * EPSILON * unary(function, x).abs() + absolute
}

fn binary_tolerance(function: Binary, x: f64, y: f64) -> f64 {
    let relative = match function {
        Binary::Add | Binary::Sub | Binary::Mul => 1.0,
        Binary::Div => 5.0,
        Binary::Min | Binary::Max => 0.0,
        Binary::Pow => 16.0 + 8.0 * (y * x.abs().log2()).abs() + 16.0 * y.abs(),
    };
    let value = binary(function, x, y).abs();
    relative * EPSILON * value + f64::from(f32::MIN_POSITIVE)
}

fn input(index: u8) -> Expression {
    Expression::Input(index)
}

fn apply(rig: &Rig, expression: Expression, inputs: &[BufferView], len: usize) -> Vec<f32> {
    let output = rig.output(ElementKind::F32, len);
    rig.run([Op::Elementwise(Elementwise {
        expression,
        inputs: inputs.to_vec(),
        output: output.clone(),
    })]);
    rig.read_f32(&output)
}

/// Values of every size and sign, with those that are special to some function. No subnormal ones:
/// devices may flush them.
fn values(seed: u64, len: usize) -> Vec<f32> {
    let rng = &mut rng(seed);
    let specials = [
        0.0,
        1.0,
        -1.0,
        0.5,
        2.0,
        -2.0,
        3.0,
        -3.0,
        f32::INFINITY,
        f32::NEG_INFINITY,
        f32::NAN,
        1e30,
        -1e30,
        88.0,
        104.0,
    ];
    let random = |_| match rng.random_range(0..4) {
        0 => specials[rng.random_range(0..specials.len())],
        1 => rng.random_range(-1.0..1.0),
        2 => rng.random_range(-20.0..20.0),
        _ => rng.random_range(-100.0..100.0),
    };
    (0..len).map(random).collect()
}

pub fn every_function_on_many_values(rig: &Rig) {
    // A prime, and more than a workgroup.
    let len = 1009;
    let (x, y) = (values(1, len), values(2, len));
    let views = [rig.f32(&x), rig.f32(&y)];
    for function in UNARY {
        let exact: Vec<f64> = x.iter().map(|x| unary(function, f64::from(*x))).collect();
        let ours = apply(
            rig,
            Expression::Unary(function, Box::new(input(0))),
            &views[..1],
            len,
        );
        let what = |at: usize| unary_tolerance(function, f64::from(x[at]));
        assert_close(&format!("{function:?}"), &ours, &exact, what);
    }
    for function in BINARY {
        let pairs = x
            .iter()
            .zip(&y)
            .map(|(x, y)| binary(function, f64::from(*x), f64::from(*y)));
        let exact: Vec<f64> = pairs.collect();
        let ours = apply(rig, input(0).binary(function, input(1)), &views, len);
        let what = |at: usize| binary_tolerance(function, f64::from(x[at]), f64::from(y[at]));
        assert_close(&format!("{function:?}"), &ours, &exact, what);
    }
    let ours = apply(
        rig,
        input(0).select(input(1), Expression::Constant(7.0)),
        &views,
        len,
    );
    let exact = x
        .iter()
        .zip(&y)
        .map(|(x, y)| if *x != 0.0 { f64::from(*y) } else { 7.0 });
    assert_close("Select", &ours, &exact.collect::<Vec<f64>>(), |_| 0.0);
}

/// Eight inputs, shared parts, constants that are not numbers. Compared with the same in f64.
pub fn long_expressions(rig: &Rig) {
    for len in [0, 1, 255, 257, 70_000] {
        let rng = &mut rng(len as u64);
        let inputs: Vec<Vec<f32>> = (0..8).map(|_| numbers(rng, len)).collect();
        let views: Vec<BufferView> = inputs.iter().map(|values| rig.f32(values)).collect();
        let product = (0..8u8)
            .map(input)
            .reduce(|sum, next| sum.clone() * next + sum)
            .expect("there are eight");
        let expression = product
            .clone()
            .step()
            .select(product.clone() * Expression::Constant(0.1), -product);
        let ours = apply(rig, expression, &views, len);
        let exact: Vec<f64> = (0..len)
            .map(|at| {
                let product = inputs
                    .iter()
                    .map(|values| f64::from(values[at]))
                    .reduce(|sum, next| sum * next + sum);
                let product = product.expect("there are eight");
                if product > 0.0 {
                    product * f64::from(0.1f32)
                } else {
                    -product
                }
            })
            .collect();
        // Fifteen roundings; factors 1 + x, the smallest 1e-7 here, lose as much as they cancel.
        assert_close(&format!("{len}"), &ours, &exact, |at| {
            1e-6 * exact[at].abs() + 1e-6
        });
    }
    let special =
        Expression::Constant(f32::INFINITY) * input(0) + Expression::Constant(f32::NAN).step();
    assert!(apply(rig, special, &[rig.f32(&[1.0])], 1)[0].is_nan());
    assert_eq!(
        apply(rig, Expression::Constant(f32::NEG_INFINITY), &[], 3),
        [f32::NEG_INFINITY; 3]
    );
}

pub fn inputs_are_repeated(rig: &Rig) {
    let (rows, columns) = (37, 29);
    let rng = &mut rng(7);
    let (x, bias) = (numbers(rng, rows * columns), numbers(rng, columns));
    let views = [rig.f32(&x), rig.f32(&bias), rig.f32(&[2.0])];
    let ours = apply(rig, input(0) * input(2) + input(1), &views, x.len());
    let exact = x
        .iter()
        .enumerate()
        .map(|(at, x)| f64::from(*x) * 2.0 + f64::from(bias[at % columns]));
    assert_close("bias", &ours, &exact.collect::<Vec<f64>>(), |_| {
        4.0 * EPSILON
    });
}

pub fn in_place(rig: &Rig) {
    let x = numbers(&mut rng(8), 100_003);
    let (view, one) = (rig.f32(&x), rig.f32(&[1.0]));
    let op = Elementwise {
        expression: input(0) + input(1) + input(0),
        inputs: vec![view.clone(), one],
        output: view.clone(),
    };
    rig.run([op.clone().into(), op.into()]);
    let exact: Vec<f64> = x.iter().map(|x| 4.0 * f64::from(*x) + 3.0).collect();
    assert_close("in place", &rig.read_f32(&view), &exact, |_| 16.0 * EPSILON);
}

fn random(rig: &Rig, distribution: RandomDistribution, state: [u32; 4], len: usize) -> BufferView {
    let output = rig.output(
        if distribution == RandomDistribution::Bits {
            ElementKind::U32
        } else {
            ElementKind::F32
        },
        len,
    );
    rig.run([Op::Random(Random {
        distribution,
        state: rig.u32(&state),
        output: output.clone(),
    })]);
    output
}

/// The published words, any cut of the work, and a counter that goes beyond 32 bits.
pub fn random_bits(rig: &Rig) {
    let bits = |state, len| rig.read_u32(&random(rig, RandomDistribution::Bits, state, len));
    assert_eq!(
        bits([0, 0, 0, 0], 4),
        [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]
    );
    assert_eq!(bits([0; 4], 0), [0u32; 0]);
    let all = bits([3, 4, u32::MAX - 1, 5], 4003);
    assert_eq!(bits([3, 4, 1, 6], 21), all[12..33]);
    let uniform = rig.read_f32(&random(
        rig,
        RandomDistribution::Uniform,
        [3, 4, u32::MAX - 1, 5],
        4003,
    ));
    let expected = all.iter().map(|bits| (bits >> 8) as f32 / 16_777_216.0);
    assert!(uniform.iter().copied().eq(expected));
}

/// The moments of so many samples are within five standard errors; the values are those of the
/// formula.
pub fn random_normal(rig: &Rig) {
    let len = 40_001;
    let state = [11, 22, 33, 44];
    let bits = rig.read_u32(&random(rig, RandomDistribution::Bits, state, len + 3));
    let ours = rig.read_f32(&random(
        rig,
        RandomDistribution::Normal {
            mean: 3.0,
            deviation: 2.0,
        },
        state,
        len,
    ));
    let exact: Vec<f64> = (0..len)
        .map(|at| {
            let [a, b] =
                [bits[at & !1], bits[at | 1]].map(|bits| f64::from(bits >> 8) * 2f64.powi(-24));
            let (radius, angle) = (
                (-2.0 * (a + 2f64.powi(-24)).ln()).sqrt(),
                b * std::f64::consts::TAU,
            );
            3.0 + 2.0
                * radius
                * if at % 2 == 0 {
                    angle.cos()
                } else {
                    angle.sin()
                }
        })
        .collect();
    // Log within 2⁻²¹ where it is near 0: that is what its root loses most by.
    assert_close("normal", &ours, &exact, |at| {
        1e-5 + 1e-6 / (exact[at] - 3.0).abs().max(1e-3)
    });
    let mean = ours.iter().map(|x| f64::from(*x)).sum::<f64>() / len as f64;
    let variance = ours
        .iter()
        .map(|x| (f64::from(*x) - mean).powi(2))
        .sum::<f64>()
        / len as f64;
    let root = (len as f64).sqrt();
    assert!((mean - 3.0).abs() < 5.0 * 2.0 / root, "{mean}");
    assert!(
        (variance - 4.0).abs() < 5.0 * 4.0 * 2f64.sqrt() / root,
        "{variance}"
    );
}
