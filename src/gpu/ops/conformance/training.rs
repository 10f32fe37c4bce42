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

/// A normalization with its numbers here.
struct NormCase {
    groups: Groups,
    /// The places of each group's numbers.
    members: Vec<Vec<usize>>,
    x: Vec<f32>,
    dy: Vec<f32>,
    scale: Vec<f32>,
    shift: Vec<f32>,
}

/// Results of a normalization and of its gradients, in f64.
struct ExactNorm {
    y: Vec<f64>,
    dx: Vec<f64>,
    dscale: Vec<f64>,
    dshift: Vec<f64>,
}

impl NormCase {
    fn random(seed: u64) -> Self {
        let (groups, members) = layouts(seed);
        let rng = &mut rng(seed + 100);
        let len = members.iter().map(Vec::len).sum();
        let scales = match groups {
            Groups::Layer { columns, .. } => columns as usize,
            Groups::Batch { .. } => members.len(),
        };
        Self {
            groups,
            members,
            x: numbers(rng, len),
            dy: numbers(rng, len),
            scale: numbers(rng, scales),
            shift: numbers(rng, scales),
        }
    }

    fn exact(&self) -> ExactNorm {
        let (len, scales) = (self.x.len(), self.scale.len());
        let mut exact = ExactNorm {
            y: vec![0.0; len],
            dx: vec![0.0; len],
            dscale: vec![0.0; scales],
            dshift: vec![0.0; scales],
        };
        for (group, members) in self.members.iter().enumerate() {
            let n = members.len() as f64;
            let of = |values: &[f32], at: usize| f64::from(values[at]);
            let own = |j: usize| match self.groups {
                Groups::Layer { .. } => j,
                Groups::Batch { .. } => group,
            };
            let mean = members.iter().map(|at| of(&self.x, *at)).sum::<f64>() / n;
            let deviations = members.iter().map(|at| of(&self.x, *at) - mean);
            let squares = deviations.clone().map(|deviation| deviation.powi(2));
            let variance = squares.sum::<f64>() / n;
            let inverse = 1.0 / (variance + f64::from(NORM_EPSILON)).sqrt();
            let z: Vec<f64> = deviations.map(|deviation| deviation * inverse).collect();
            let places = members.iter().enumerate();
            let h: Vec<f64> = places
                .clone()
                .map(|(j, at)| of(&self.dy, *at) * of(&self.scale, own(j)))
                .collect();
            let h_mean = h.iter().sum::<f64>() / n;
            let hz_mean = h.iter().zip(&z).map(|(h, z)| h * z).sum::<f64>() / n;
            for (j, at) in places {
                let (scale, shift) = (of(&self.scale, own(j)), of(&self.shift, own(j)));
                exact.y[*at] = z[j] * scale + shift;
                exact.dx[*at] = inverse * (h[j] - h_mean - z[j] * hz_mean);
                exact.dscale[own(j)] += of(&self.dy, *at) * z[j];
                exact.dshift[own(j)] += of(&self.dy, *at);
            }
        }
        exact
    }

    /// The mean is off by n EPSILON of the values' size at most, and the deviation by as much
    /// again; both are relative to a deviation of about 0.6, or to √ε where a group has one element
    /// or equal ones.
    #[track_caller]
    fn check(&self, rig: &Rig) {
        let output = |like: &[f32]| rig.output(ElementKind::F32, like.len());
        let groups = self.members.len();
        let forward = Norm {
            groups: self.groups,
            x: rig.f32(&self.x),
            scale: rig.f32(&self.scale),
            shift: rig.f32(&self.shift),
            y: output(&self.x),
            means: rig.f32(&vec![0.0; groups]),
            inverses: rig.f32(&vec![1.0; groups]),
            given: false,
            epsilon: NORM_EPSILON,
        };
        let backward = NormBackward {
            groups: self.groups,
            x: forward.x.clone(),
            scale: forward.scale.clone(),
            dy: rig.f32(&self.dy),
            means: forward.means.clone(),
            inverses: forward.inverses.clone(),
            dx: output(&self.x),
            dscale: output(&self.scale),
            dshift: output(&self.scale),
        };
        let again = Norm {
            given: true,
            y: output(&self.x),
            ..forward.clone()
        };
        rig.run([
            Op::from(forward.clone()),
            backward.clone().into(),
            again.clone().into(),
        ]);

        let exact = self.exact();
        let n = self.members.first().map_or(0, Vec::len);
        // Few elements may lie close together: then the deviation is small, and what is divided by
        // it is off by more.
        let tolerance = 2e-5 + if n < 8 { 3e-3 } else { 0.0 };
        let many = (groups + n + 4) as f64;
        let close = |what: &str, view: &BufferView, exact: &[f64], tolerance: f64| {
            assert_close(what, &rig.read_f32(view), exact, |_| tolerance);
        };
        close("y", &forward.y, &exact.y, tolerance);
        close("given", &again.y, &exact.y, tolerance);
        assert_close("dx", &rig.read_f32(&backward.dx), &exact.dx, |at| {
            tolerance * (20.0 + exact.dx[at].abs())
        });
        close("dscale", &backward.dscale, &exact.dscale, many * tolerance);
        let sum_tolerance = many * many * EPSILON;
        close("dshift", &backward.dshift, &exact.dshift, sum_tolerance);
    }
}

pub fn norms(rig: &Rig) {
    for seed in 0..16 {
        NormCase::random(seed).check(rig);
    }
}
