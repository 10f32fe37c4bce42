//! Running sums, histograms, sorting.

use super::{
    super::{ElementKind, Histogram, Op, Scan, Sort},
    EPSILON, Rig, assert_close, numbers, rng,
};
use rand::{RngExt, rngs::StdRng};

/// Around the sizes at which engines change what they do.
const SIZES: [usize; 9] = [0, 1, 2, 255, 1024, 1025, 2049, 16_385, 70_001];

pub fn scans(rig: &Rig) {
    for len in SIZES {
        let rng = &mut rng(len as u64);
        for exclusive in [false, true] {
            let x: Vec<u32> = (0..len).map(|_| rng.random()).collect();
            let output = rig.output(ElementKind::U32, len);
            rig.run([Op::Scan(Scan {
                input: rig.u32(&x),
                output: output.clone(),
                exclusive,
            })]);
            let running = x.iter().scan(0u32, |sum, x| {
                let before = *sum;
                *sum = sum.wrapping_add(*x);
                Some(if exclusive { before } else { *sum })
            });
            assert_eq!(
                rig.read_u32(&output),
                running.collect::<Vec<u32>>(),
                "{len}"
            );

            let mut x = numbers(rng, len);
            if len > 2000 {
                x[2000] = [f32::INFINITY, f32::NAN][usize::from(exclusive)];
            }
            let output = rig.output(ElementKind::F32, len);
            rig.run([Op::Scan(Scan {
                input: rig.f32(&x),
                output: output.clone(),
                exclusive,
            })]);
            let (mut sum, mut magnitude, mut exact, mut tolerance) =
                (0.0, 0.0, Vec::new(), Vec::new());
            for x in x.iter().map(|x| f64::from(*x)) {
                let before = (sum, magnitude);
                (sum, magnitude) = (sum + x, magnitude + x.abs());
                let (sum, magnitude) = if exclusive { before } else { (sum, magnitude) };
                exact.push(sum);
                // One rounding an addition.
                tolerance.push(exact.len() as f64 * EPSILON * magnitude);
            }
            assert_close(&format!("{len}"), &rig.read_f32(&output), &exact, |at| {
                tolerance[at]
            });
        }
    }
}

/// Counts are exact: the bin of a value is defined by f32 arithmetic.
pub fn histograms(rig: &Rig) {
    for (seed, len) in SIZES.into_iter().enumerate() {
        let rng = &mut rng(seed as u64);
        let mut x: Vec<f32> = numbers(rng, len).into_iter().map(|x| x * 12.0).collect();
        let specials = [
            f32::NAN,
            f32::INFINITY,
            f32::NEG_INFINITY,
            -10.0,
            10.0,
            10.000_001,
            -10.000_001,
            0.0,
            -0.0,
        ];
        x.iter_mut()
            .zip(specials)
            .for_each(|(x, special)| *x = special);
        for bins in [1, 7, 256, 4096, 4097, 10_000] {
            let (low, high) = (-10.0, 10.0);
            let counts = rig.output(ElementKind::U32, bins as usize);
            let op = Histogram {
                values: rig.f32(&x),
                counts: counts.clone(),
                bins,
                low,
                high,
            };
            let mut expected = vec![0; bins as usize];
            for x in x.iter().filter(|x| (low..=high).contains(*x)) {
                expected[(((x - low) * op.scale()) as usize).min(bins as usize - 1)] += 1;
            }
            // Twice: what was counted before is gone.
            rig.run([Op::Histogram(op.clone()), Op::Histogram(op)]);
            assert_eq!(rig.read_u32(&counts), expected, "{len} in {bins}");
        }
    }
}

fn keys(rng: &mut StdRng, len: usize, kind: ElementKind) -> Vec<u32> {
    let specials = [
        f32::NAN,
        -f32::NAN,
        f32::INFINITY,
        f32::NEG_INFINITY,
        0.0,
        -0.0,
        1.0,
        -1.0,
    ];
    let key = |_| match (kind, rng.random_range(0..3)) {
        (ElementKind::F32, 0) => specials[rng.random_range(0..specials.len())].to_bits(),
        (ElementKind::F32, _) => rng.random_range(-1e6f32..1e6).to_bits(),
        // Few values, so that order among equals shows; and all bits.
        (_, 0) => rng.random_range(0..10),
        (_, _) => rng.random(),
    };
    (0..len).map(key).collect()
}

pub fn sorts(rig: &Rig) {
    for len in SIZES {
        for (kind, descending) in [
            (ElementKind::U32, false),
            (ElementKind::U32, true),
            (ElementKind::F32, false),
            (ElementKind::F32, true),
        ] {
            let rng = &mut rng(len as u64);
            let keys = keys(rng, len, kind);
            let mut expected: Vec<(u32, u32)> = keys.iter().copied().zip(0..).collect();
            expected.sort_by(|(a, _), (b, _)| {
                let (x, y) = (f32::from_bits(*a), f32::from_bits(*b));
                let order = match kind {
                    ElementKind::U32 => a.cmp(b),
                    _ if x.is_nan() || y.is_nan() => return x.is_nan().cmp(&y.is_nan()),
                    _ => x.partial_cmp(&y).expect("neither is NaN"),
                };
                if descending { order.reverse() } else { order }
            });
            let (sorted, places): (Vec<u32>, Vec<u32>) = expected.into_iter().unzip();
            for with_payload in [true, false] {
                let view = rig.bytes(kind, bytemuck::cast_slice(&keys));
                let payload = with_payload.then(|| rig.u32(&(0..len as u32).collect::<Vec<u32>>()));
                rig.run([Op::Sort(Sort {
                    keys: view.clone(),
                    payload: payload.clone(),
                    descending,
                })]);
                assert!(rig.read_u32(&view) == sorted, "{len} {kind} {descending}");
                assert!(
                    payload.is_none_or(|payload| rig.read_u32(&payload) == places),
                    "{len} {kind} {descending}"
                );
            }
        }
    }
}
