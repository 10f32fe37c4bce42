//! Reductions over an axis, softmax over rows.

use super::{
    super::{ElementKind, Op, Reduce, Reduction, Softmax, SoftmaxBackward, SoftmaxCrossEntropy},
    EPSILON, Rig, assert_close, numbers, rng, size,
};
use rand::RngExt;

const KINDS: [Reduction; 5] = [
    Reduction::Sum,
    Reduction::Min,
    Reduction::Max,
    Reduction::Mean,
    Reduction::ArgMax,
];

fn reference(kind: Reduction, values: &[f64]) -> f64 {
    let nan = values.iter().any(|x| x.is_nan());
    match kind {
        Reduction::Sum => values.iter().sum(),
        Reduction::Mean => values.iter().sum::<f64>() / values.len() as f64,
        Reduction::Min => {
            if nan {
                f64::NAN
            } else {
                values.iter().copied().fold(f64::INFINITY, f64::min)
            }
        }
        Reduction::Max => {
            if nan {
                f64::NAN
            } else {
                values.iter().copied().fold(f64::NEG_INFINITY, f64::max)
            }
        }
        Reduction::ArgMax => {
            let best = reference(Reduction::Max, values);
            values
                .iter()
                .position(|x| *x == best || x.is_nan())
                .expect("it is one of them") as f64
        }
    }
}

/// All kinds over one input. Sums round once an addition, in whatever order: at most (n - 1)
/// EPSILON of the magnitudes.
#[track_caller]
fn check(rig: &Rig, x: &[f32], [outer, axis, inner]: [u32; 3]) {
    let input = rig.f32(x);
    for kind in KINDS {
        if kind == Reduction::ArgMax && axis == 0 {
            continue;
        }
        let outputs = (outer * inner) as usize;
        let output = rig.output(
            if kind == Reduction::ArgMax {
                ElementKind::U32
            } else {
                ElementKind::F32
            },
            outputs,
        );
        rig.run([Op::Reduce(Reduce {
            kind,
            input: input.clone(),
            output: output.clone(),
            outer,
            axis,
            inner,
        })]);
        let ours: Vec<f32> = match kind {
            Reduction::ArgMax => rig
                .read_u32(&output)
                .into_iter()
                .map(|place| place as f32)
                .collect(),
            _ => rig.read_f32(&output),
        };
        let (mut exact, mut tolerance) = (Vec::new(), Vec::new());
        for slot in 0..outputs {
            let (o, i) = (slot / inner as usize, slot % inner as usize);
            let at = |j: usize| f64::from(x[(o * axis as usize + j) * inner as usize + i]);
            let values: Vec<f64> = (0..axis as usize).map(at).collect();
            exact.push(reference(kind, &values));
            let magnitude: f64 = values.iter().map(|x| x.abs()).sum();
            tolerance.push(match kind {
                Reduction::Sum => f64::from(axis) * EPSILON * magnitude,
                Reduction::Mean => (f64::from(axis) + 5.0) * EPSILON * magnitude / f64::from(axis),
                _ => 0.0,
            });
        }
        assert_close(
            &format!("{kind:?} of {:?}", [outer, axis, inner]),
            &ours,
            &exact,
            |at| tolerance[at],
        );
    }
}

pub fn reductions_of_random_shapes(rig: &Rig) {
    for seed in 0..16 {
        let rng = &mut rng(seed);
        let shape = [
            size(rng, 20),
            size(rng, 300),
            if seed % 2 == 0 { 1 } else { size(rng, 200) },
        ];
        let x = numbers(rng, shape.iter().product::<u32>() as usize);
        check(rig, &x, shape);
    }
}

pub fn reductions_of_specials(rig: &Rig) {
    for inner in [1, 70] {
        let rng = &mut rng(u64::from(inner));
        let specials = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 0.0, -0.0, 1.0];
        for most in 1..specials.len() {
            let shape = [9, 11, inner];
            let len = shape.iter().product::<u32>();
            // Few kinds of values: many equal ones.
            let x: Vec<f32> = (0..len)
                .map(|_| specials[specials.len() - 1 - rng.random_range(0..=most)])
                .collect();
            check(rig, &x, shape);
        }
        check(
            rig,
            &vec![f32::NEG_INFINITY; 40 * inner as usize],
            [2, 20, inner],
        );
    }
}

/// In several rounds on a GPU, in parts on the CPU.
pub fn long_reductions(rig: &Rig) {
    let rng = &mut rng(5);
    for shape in [[1, 100_003, 1], [3, 9001, 2], [1, 3001, 77]] {
        let mut x = numbers(rng, shape.iter().product::<u32>() as usize);
        check(rig, &x, shape);
        let last = x.len() - 1;
        x[last] = f32::NAN;
        check(rig, &x, shape);
    }
}

fn softmax(row: &[f64]) -> Vec<f64> {
    let max = reference(Reduction::Max, row);
    let sum: f64 = row.iter().map(|x| (x - max).exp()).sum();
    row.iter().map(|x| (x - max).exp() / sum).collect()
}

fn exact(values: &[f32]) -> Vec<f64> {
    values.iter().map(|x| f64::from(*x)).collect()
}

/// exp within 3 + 2|x| ulp of its argument's rounding, a sum of `columns`, a division: relative to
/// the result.
fn softmax_tolerance(columns: usize, widest: f64) -> f64 {
    (2.0 * columns as f64 + 4.0 * widest + 16.0) * EPSILON
}

pub fn softmax_of_random_shapes(rig: &Rig) {
    for seed in 0..12 {
        let rng = &mut rng(seed);
        let (rows, columns) = (size(rng, 40), size(rng, 600));
        let len = (rows * columns) as usize;
        let width = if seed % 2 == 0 { 1.0 } else { 40.0 };
        let x: Vec<f32> = numbers(rng, len)
            .into_iter()
            .map(|x| x * width + 1000.0)
            .collect();
        let dy = numbers(rng, len);
        let (y, dx) = (rig.output(ElementKind::F32, len), rig.f32(&dy));
        let forward = Softmax {
            x: rig.f32(&x),
            y: y.clone(),
            rows,
            columns,
        };
        let backward = SoftmaxBackward {
            y: y.clone(),
            dy: dx.clone(),
            dx: dx.clone(),
            rows,
            columns,
        };
        rig.run([forward.into(), backward.into()]);
        let row = columns.max(1) as usize;
        let expected: Vec<f64> = x.chunks(row).flat_map(|row| softmax(&exact(row))).collect();
        let relative = softmax_tolerance(row, 2.0 * f64::from(width));
        let tiny = f64::from(f32::MIN_POSITIVE);
        assert_close("softmax", &rig.read_f32(&y), &expected, |at| {
            relative * expected[at] + tiny
        });
        let gradient: Vec<f64> = expected
            .chunks(row)
            .zip(exact(&dy).chunks(row))
            .flat_map(|(y, dy)| {
                let sum: f64 = y.iter().zip(dy).map(|(y, dy)| y * dy).sum();
                y.iter()
                    .zip(dy)
                    .map(|(y, dy)| y * (dy - sum))
                    .collect::<Vec<f64>>()
            })
            .collect();
        // dy and its mean are at most 1.
        assert_close("backward", &rig.read_f32(&dx), &gradient, |at| {
            4.0 * relative * expected[at] + tiny
        });
    }
}

pub fn softmax_of_specials(rig: &Rig) {
    let (nan, inf) = (f32::NAN, f32::INFINITY);
    let x = [
        [nan, 1.0, 2.0],
        [inf, 1.0, 2.0],
        [-inf, 1.0, 1.0],
        [-inf, -inf, -inf],
        [-3e38, 3e38, 3e38],
        [88.0, -inf, 88.0],
    ];
    let y = rig.f32(x.as_flattened());
    rig.run([Softmax {
        x: y.clone(),
        y: y.clone(),
        rows: 6,
        columns: 3,
    }
    .into()]);
    let expected = [
        [f64::NAN; 3],
        [f64::NAN; 3],
        [0.0, 0.5, 0.5],
        [f64::NAN; 3],
        [0.0, 0.5, 0.5],
        [0.5, 0.0, 0.5],
    ];
    assert_close(
        "softmax",
        &rig.read_f32(&y),
        expected.as_flattened(),
        |_| 1e-7,
    );
}

pub fn cross_entropy(rig: &Rig) {
    for seed in 0..10 {
        let rng = &mut rng(seed);
        let (rows, columns) = (size(rng, 40), size(rng, 500).max(1));
        let len = (rows * columns) as usize;
        let x: Vec<f32> = numbers(rng, len).into_iter().map(|x| x * 10.0).collect();
        let mut labels: Vec<u32> = (0..rows).map(|_| rng.random_range(0..columns)).collect();
        if let Some(label) = labels.get_mut(3) {
            *label = columns;
        }
        let in_place = seed % 3 == 0;
        let logits = rig.f32(&x);
        let gradient = if in_place {
            logits.clone()
        } else {
            rig.output(ElementKind::F32, len)
        };
        let loss = rig.output(ElementKind::F32, rows as usize);
        let op = SoftmaxCrossEntropy {
            logits,
            labels: rig.u32(&labels),
            loss: Some(loss.clone()),
            gradient: Some(gradient.clone()),
            scale: 0.5,
            rows,
            columns,
        };
        let only_loss = SoftmaxCrossEntropy {
            gradient: None,
            loss: Some(rig.output(ElementKind::F32, rows as usize)),
            ..op.clone()
        };
        let again = only_loss.loss.clone().expect("it was given");
        rig.run([Op::from(only_loss), op.into()]);
        let (mut losses, mut gradients) = (Vec::new(), Vec::new());
        for (row, label) in x.chunks(columns as usize).zip(&labels) {
            let y = softmax(&exact(row));
            let wrong = *label >= columns;
            losses.push(if wrong {
                f64::NAN
            } else {
                -y[*label as usize].ln()
            });
            let one_hot = |j: usize| f64::from(u8::from(j == *label as usize));
            gradients.extend((0..y.len()).map(|j| {
                if wrong {
                    f64::NAN
                } else {
                    (y[j] - one_hot(j)) * 0.5
                }
            }));
        }
        let relative = softmax_tolerance(columns as usize, 20.0);
        // The loss is a difference of numbers up to 20, and the sum's relative error.
        assert_close("loss", &rig.read_f32(&loss), &losses, |_| {
            relative + 40.0 * EPSILON + 2f64.powi(-21)
        });
        assert_close("loss alone", &rig.read_f32(&again), &losses, |_| {
            relative + 40.0 * EPSILON + 2f64.powi(-21)
        });
        assert_close("gradient", &rig.read_f32(&gradient), &gradients, |_| {
            relative
        });
    }
}
