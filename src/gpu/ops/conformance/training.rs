//! Optimizers and normalization.

use super::{
    super::{BufferView, ElementKind, Groups, Norm, NormBackward, Op, Optimize},
    EPSILON, Rig, assert_close, numbers, rng, size,
};
use nodectl_types::params::Optimizer;

const RULES: [Optimizer; 6] = [
    Optimizer::Sgd,
    Optimizer::Momentum { momentum: 0.9 },
    Optimizer::Nesterov { momentum: 0.8 },
    Optimizer::Adam {
        betas: [0.9, 0.999],
        epsilon: 1e-8,
    },
    Optimizer::AdamW {
        betas: [0.8, 0.99],
        epsilon: 1e-6,
    },
    Optimizer::Adagrad { epsilon: 1e-10 },
];

/// One step in f64, as `torch.optim` documents it.
fn step(
    rule: Optimizer,
    x: &mut f64,
    g: f64,
    a: &mut f64,
    b: &mut f64,
    [rate, decay, t]: [f64; 3],
) {
    let decayed = g + decay * *x;
    match rule {
        Optimizer::Sgd => *x -= rate * decayed,
        Optimizer::Momentum { momentum } => {
            *a = f64::from(momentum) * *a + decayed;
            *x -= rate * *a;
        }
        Optimizer::Nesterov { momentum } => {
            *a = f64::from(momentum) * *a + decayed;
            *x -= rate * (decayed + f64::from(momentum) * *a);
        }
        Optimizer::Adagrad { epsilon } => {
            *a += decayed * decayed;
            *x -= rate * decayed / (a.sqrt() + f64::from(epsilon));
        }
        Optimizer::Adam { betas, epsilon } | Optimizer::AdamW { betas, epsilon } => {
            let apart = matches!(rule, Optimizer::AdamW { .. });
            let g = if apart { g } else { decayed };
            if apart {
                *x -= rate * decay * *x;
            }
            let [first, second] = betas.map(f64::from);
            *a = first * *a + (1.0 - first) * g;
            *b = second * *b + (1.0 - second) * g * g;
            let (m, v) = (*a / (1.0 - first.powf(t)), *b / (1.0 - second.powf(t)));
            *x -= rate * m / (v.sqrt() + f64::from(epsilon));
        }
    }
}

/// Five steps of one recorded program. Each step rounds some ten times, of numbers up to 1; Adam
/// divides numbers whose 1 - β was rounded, by 6e-5 of itself at 0.999.
pub fn optimizers(rig: &Rig) {
    for (seed, rule) in RULES.into_iter().enumerate() {
        for len in [0, 1, 20_003] {
            let rng = &mut rng(seed as u64);
            let x = numbers(rng, len);
            let parameters = rig.f32(&x);
            let state: Vec<BufferView> = (0..rule.states())
                .map(|_| rig.f32(&vec![0.0; len]))
                .collect();
            let (gradients, schedule) = (
                rig.output(ElementKind::F32, len),
                rig.output(ElementKind::F32, 4),
            );
            let op = Optimize {
                rule,
                parameters: parameters.clone(),
                gradients: gradients.clone(),
                state,
                schedule: schedule.clone(),
                weight_decay: 0.01,
            };
            let program = rig.engine.record(&[op.into()]).expect("it fits");
            let mut exact: Vec<f64> = x.iter().map(|x| f64::from(*x)).collect();
            let mut remembered = vec![[0.0; 2]; len];
            for t in 1u32..=5 {
                let g = numbers(rng, len);
                let rate = 0.1 / t as f32;
                rig.write_f32(&gradients, &g);
                rig.write_f32(&schedule, &Optimize::schedule(rule, rate, 0.5, t.into()));
                rig.engine
                    .run(&program)
                    .wait(super::LIMIT)
                    .expect("it runs");
                let each = exact.iter_mut().zip(&g).zip(&mut remembered);
                each.for_each(|((x, g), [a, b])| {
                    step(
                        rule,
                        x,
                        f64::from(*g) * 0.5,
                        a,
                        b,
                        [rate.into(), 0.01f32.into(), t.into()],
                    );
                });
            }
            assert_close(
                &format!("{rule:?}"),
                &rig.read_f32(&parameters),
                &exact,
                |_| 2e-5,
            );
        }
    }
    let (x, schedule) = (rig.f32(&[1.0]), rig.f32(&[0.1, 1.0, 1.0, 1.0]));
    let op = Optimize {
        rule: RULES[1],
        parameters: x.clone(),
        gradients: schedule.part(0, 1),
        state: vec![],
        schedule,
        weight_decay: 0.0,
    };
    let error = rig
        .engine
        .record(&[op.into()])
        .err()
        .expect("it has no state")
        .to_string();
    assert!(error.contains("remembers 1 numbers"), "{error}");
}

const NORM_EPSILON: f32 = 1e-5;

fn layouts(seed: u64) -> (Groups, Vec<Vec<usize>>) {
    let rng = &mut rng(seed);
    let [a, b, c] = [size(rng, 40), size(rng, 30), size(rng, 300)];
    if seed.is_multiple_of(2) {
        let groups =
            (0..a as usize).map(|row| (0..c as usize).map(|j| row * c as usize + j).collect());
        return (
            Groups::Layer {
                rows: a,
                columns: c,
            },
            groups.collect(),
        );
    }
    let c = c.min(50);
    let place =
        |channel: u32, sample: u32, pixel: u32| ((sample * b + channel) * c + pixel) as usize;
    let of = |channel| {
        (0..a)
            .flat_map(move |sample| (0..c).map(move |pixel| place(channel, sample, pixel)))
            .collect()
    };
    (
        Groups::Batch {
            samples: a,
            channels: b,
            pixels: c,
        },
        (0..b).map(of).collect(),
    )
}

/// The mean is off by n EPSILON of the values' size at most, and the deviation by as much again;
/// both are relative to a deviation of about 0.6, or to √ε where a group has one element or equal
/// ones.
pub fn norms(rig: &Rig) {
    for seed in 0..16 {
        let (groups, members) = layouts(seed);
        let layer = matches!(groups, Groups::Layer { .. });
        let rng = &mut rng(seed + 100);
        let n = members.first().map_or(0, Vec::len);
        let len = members.len() * n;
        let scales = if layer {
            n.max(match groups {
                Groups::Layer { columns, .. } => columns as usize,
                _ => 0,
            })
        } else {
            members.len()
        };
        let (x, dy, scale, shift) = (
            numbers(rng, len),
            numbers(rng, len),
            numbers(rng, scales),
            numbers(rng, scales),
        );
        let (y, dx) = (
            rig.output(ElementKind::F32, len),
            rig.output(ElementKind::F32, len),
        );
        let (means, inverses) = (
            rig.f32(&vec![0.0; members.len()]),
            rig.f32(&vec![1.0; members.len()]),
        );
        let (dscale, dshift) = (
            rig.output(ElementKind::F32, scales),
            rig.output(ElementKind::F32, scales),
        );
        let forward = Norm {
            groups,
            x: rig.f32(&x),
            scale: rig.f32(&scale),
            shift: rig.f32(&shift),
            y: y.clone(),
            means: means.clone(),
            inverses: inverses.clone(),
            given: false,
            epsilon: NORM_EPSILON,
        };
        let backward = NormBackward {
            groups,
            x: forward.x.clone(),
            scale: forward.scale.clone(),
            dy: rig.f32(&dy),
            means: means.clone(),
            inverses: inverses.clone(),
            dx: dx.clone(),
            dscale: dscale.clone(),
            dshift: dshift.clone(),
        };
        let again = Norm {
            given: true,
            y: rig.output(ElementKind::F32, len),
            ..forward.clone()
        };
        let given = again.y.clone();
        rig.run([Op::from(forward), backward.into(), again.into()]);

        let (mut exact_y, mut exact_dx) = (vec![0.0; len], vec![0.0; len]);
        let (mut exact_dscale, mut exact_dshift) = (vec![0.0; scales], vec![0.0; scales]);
        for (group, members) in members.iter().enumerate() {
            let of = |values: &[f32], at: usize| f64::from(values[at]);
            let own = |j: usize| if layer { j } else { group };
            let mean = members.iter().map(|at| of(&x, *at)).sum::<f64>() / n as f64;
            let variance = members
                .iter()
                .map(|at| (of(&x, *at) - mean).powi(2))
                .sum::<f64>()
                / n as f64;
            let inverse = 1.0 / (variance + f64::from(NORM_EPSILON)).sqrt();
            let z: Vec<f64> = members
                .iter()
                .map(|at| (of(&x, *at) - mean) * inverse)
                .collect();
            let h: Vec<f64> = members
                .iter()
                .enumerate()
                .map(|(j, at)| of(&dy, *at) * of(&scale, own(j)))
                .collect();
            let h_mean = h.iter().sum::<f64>() / n as f64;
            let hz_mean = h.iter().zip(&z).map(|(h, z)| h * z).sum::<f64>() / n as f64;
            for (j, at) in members.iter().enumerate() {
                exact_y[*at] = z[j] * of(&scale, own(j)) + of(&shift, own(j));
                exact_dx[*at] = inverse * (h[j] - h_mean - z[j] * hz_mean);
                exact_dscale[own(j)] += of(&dy, *at) * z[j];
                exact_dshift[own(j)] += of(&dy, *at);
            }
        }
        // Few elements may lie close together: then the deviation is small, and what is divided by
        // it is off by more.
        let tolerance = 2e-5 + if n < 8 { 3e-3 } else { 0.0 };
        let many = (members.len() + n + 4) as f64;
        assert_close("y", &rig.read_f32(&y), &exact_y, |_| tolerance);
        assert_close("given", &rig.read_f32(&given), &exact_y, |_| tolerance);
        assert_close("dx", &rig.read_f32(&dx), &exact_dx, |at| {
            tolerance * (20.0 + exact_dx[at].abs())
        });
        assert_close("dscale", &rig.read_f32(&dscale), &exact_dscale, |_| {
            many * tolerance
        });
        assert_close("dshift", &rig.read_f32(&dshift), &exact_dshift, |_| {
            many * many * EPSILON
        });
    }
}
