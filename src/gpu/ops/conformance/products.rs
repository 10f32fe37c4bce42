//! Matrix products, dense and sparse.

use super::{
    super::{
        super::device::{Device, DeviceOptions},
        Activation, Csr, ElementKind, Gemm, Matrix, Op, Vulkan, compile,
        dispatch::CompiledShader,
        shader_source, shaders,
        tuning::{ProductWay, Tuning},
    },
    EPSILON, Rig, assert_close, numbers, rng, size,
};
use rand::{RngExt, rngs::StdRng};
use std::path::Path;

/// A product with its matrices here: rows are `pad` longer than they need to be.
struct Case {
    gemm: Gemm,
    a: Vec<f32>,
    b: Vec<f32>,
    c: Vec<f32>,
    bias: Vec<f32>,
}

impl Case {
    fn new(
        rig: &Rig,
        rng: &mut StdRng,
        [m, n, k, batch]: [u32; 4],
        transpose: [bool; 2],
        pad: u32,
    ) -> Self {
        let matrix = |rng: &mut StdRng, rows: u32, columns: u32| {
            let (row_stride, batch_stride) = (columns + pad, rows * (columns + pad));
            let values = numbers(rng, (batch_stride * batch) as usize);
            (
                Matrix {
                    view: rig.f32(&values),
                    row_stride,
                    batch_stride,
                },
                values,
            )
        };
        let swap = |yes: bool, rows: u32, columns: u32| {
            if yes {
                (columns, rows)
            } else {
                (rows, columns)
            }
        };
        let (a_rows, a_columns) = swap(transpose[0], m, k);
        let (b_rows, b_columns) = swap(transpose[1], k, n);
        let (a_matrix, a) = matrix(rng, a_rows, a_columns);
        let (b_matrix, b) = matrix(rng, b_rows, b_columns);
        let (c_matrix, c) = matrix(rng, m, n);
        let view = c_matrix.view.clone();
        let gemm = Gemm {
            a: a_matrix,
            b: b_matrix,
            c: c_matrix,
            batch,
            transpose_a: transpose[0],
            transpose_b: transpose[1],
            ..Gemm::new(view.clone(), view.clone(), view, [m, n, k])
        };
        Self {
            gemm,
            a,
            b,
            c,
            bias: Vec::new(),
        }
    }

    /// Runs it; compares all of `c`, what is between its rows, too. Each of k products and sums
    /// rounds once, at most by EPSILON of the sum of magnitudes; α, β, bias and activation by a few
    /// more, erf by 3e-7.
    #[track_caller]
    fn check(&self, rig: &Rig) {
        let gemm = &self.gemm;
        let stride = |matrix: &Matrix| (matrix.row_stride as usize, matrix.batch_stride as usize);
        let ((a_row, a_batch), (b_row, b_batch), (c_row, c_batch)) =
            (stride(&gemm.a), stride(&gemm.b), stride(&gemm.c));
        let a_at = |row: usize, column: usize| match gemm.transpose_a {
            true => column * a_row + row,
            false => row * a_row + column,
        };
        let b_at = |row: usize, column: usize| match gemm.transpose_b {
            true => column * b_row + row,
            false => row * b_row + column,
        };
        let mut exact: Vec<f64> = self.c.iter().map(|c| f64::from(*c)).collect();
        let mut tolerance = vec![0.0; exact.len()];
        for batch in 0..gemm.batch as usize {
            for i in 0..gemm.m as usize {
                for j in 0..gemm.n as usize {
                    let (mut sum, mut magnitude) = (0.0, 0.0);
                    for l in 0..gemm.k as usize {
                        let a = self.a[batch * a_batch + a_at(i, l)];
                        let b = self.b[batch * b_batch + b_at(l, j)];
                        let product = f64::from(a) * f64::from(b);
                        sum += product;
                        magnitude += product.abs();
                    }
                    let at = batch * c_batch + i * c_row + j;
                    let beta = if gemm.beta == 0.0 {
                        0.0
                    } else {
                        f64::from(gemm.beta) * exact[at]
                    };
                    let bias = self.bias.get(j).map_or(0.0, |bias| f64::from(*bias));
                    let value = f64::from(gemm.alpha) * sum + beta + bias;
                    exact[at] = activation(gemm.activation, value);
                    let magnitude =
                        f64::from(gemm.alpha).abs() * magnitude + beta.abs() + bias.abs();
                    let rounding =
                        (f64::from(gemm.k) + 8.0) * EPSILON * (magnitude + exact[at].abs());
                    tolerance[at] = 2.0 * rounding
                        + if gemm.activation == Activation::None {
                            0.0
                        } else {
                            1e-6
                        };
                }
            }
        }
        rig.run([Op::Gemm(gemm.clone())]);
        let what = format!(
            "{:?}",
            (
                gemm.m,
                gemm.n,
                gemm.k,
                gemm.batch,
                gemm.transpose_a,
                gemm.transpose_b
            )
        );
        assert_close(&what, &rig.read_f32(&gemm.c.view), &exact, |at| {
            tolerance[at]
        });
    }
}

fn activation(activation: Activation, x: f64) -> f64 {
    match activation {
        Activation::None => x,
        Activation::Relu => {
            if x < 0.0 {
                0.0
            } else {
                x
            }
        }
        Activation::Tanh => x.tanh(),
        Activation::Sigmoid => 1.0 / (1.0 + (-x).exp()),
        Activation::Gelu => 0.5 * x * (1.0 + super::pointwise::erf(x / std::f64::consts::SQRT_2)),
    }
}

pub fn gemm_of_random_shapes(rig: &Rig) {
    for seed in 0..24 {
        let rng = &mut rng(seed);
        let shape = [size(rng, 150), size(rng, 150), size(rng, 150), 1];
        Case::new(rig, rng, shape, [seed & 1 > 0, seed & 2 > 0], 0).check(rig);
    }
    // Beyond one large tile, both ways.
    Case::new(rig, &mut rng(99), [131, 257, 19, 1], [false, true], 0).check(rig);
}

pub fn gemm_in_part_of_larger_matrices(rig: &Rig) {
    for seed in 0..4 {
        let rng = &mut rng(100 + seed);
        let mut case = Case::new(rig, rng, [67, 70, 33, 1], [seed & 1 > 0, seed & 2 > 0], 5);
        (case.gemm.alpha, case.gemm.beta) = (-0.5, 2.0);
        case.check(rig);
    }
}

pub fn gemm_of_f16(rig: &Rig) {
    for seed in 0..8 {
        let rng = &mut rng(200 + seed);
        let m = size(rng, 100) + 1;
        let mut case = Case::new(rig, rng, [m, 75, 41, 1], [seed & 1 > 0, seed & 2 > 0], 1);
        let round = |values: &mut Vec<f32>| {
            values
                .iter_mut()
                .for_each(|x| *x = half::f16::from_f32(*x).to_f32())
        };
        // What f16 holds is exact; products and sums are f32.
        round(&mut case.a);
        case.gemm.a.view = rig.f16(&case.a);
        if seed & 4 > 0 {
            round(&mut case.b);
            case.gemm.b.view = rig.f16(&case.b);
        }
        case.check(rig);
    }
}

/// `gemm_cooperative` computes what it should where plain arrays stand for the matrices that 32
/// invocations hold together: its tiles, edges and results are those of a product. What a device
/// makes of the matrices themselves no software device shows.
#[test]
fn cooperative_products_are_products() {
    let Some(rig) = Rig::vulkan() else { return };
    let device = Device::any(&DeviceOptions {
        validation: true,
        software: true,
        learned: None,
    })
    .expect("the rig has one");
    if !device.info().features.f16 {
        return eprintln!("SKIPPED: {} has no f16", device.info().gpu.name);
    }
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shaders");
    let source =
        shader_source(&folder, "gemm_cooperative.wgsl").unwrap_or_else(|error| panic!("{error}"));
    let mut source = source.replace("enable wgpu_cooperative_matrix;", EMULATION);
    for (what, by) in [
        ("coop_mat16x16<f32, C>()", "Sums()"),
        ("coopLoadT<coop_mat16x16<f16, A>>(&a_tile[", "vec2<u32>("),
        ("coopLoadT<coop_mat16x16<f16, B>>(&b_tile[", "vec2<u32>("),
        ("], A_PITCH);", ", A_PITCH);"),
        ("], B_PITCH);", ", B_PITCH);"),
        ("coopMultiplyAdd(", "multiply_add(thread, "),
        ("coopStoreT(", "put_sums("),
        (", &sums[patch_at], 16u);", ", patch_at, thread);"),
    ] {
        assert!(source.contains(what), "{what}");
        source = source.replace(what, by);
    }
    let spirv = compile("emulated", &source).unwrap_or_else(|error| panic!("{error}"));
    let emulated = CompiledShader {
        name: "emulated",
        spirv: spirv.into(),
    };
    drop(rig);
    let limits = &device.info().limits;
    let bindable = limits.storage_range;
    let mut tuning = Tuning::new(limits, Some(emulated));
    tuning.only = Some(ProductWay::Cooperative);
    let engine = Vulkan::with(device, tuning, bindable).expect("there is memory");
    let rig = Rig::of(engine).aligned();
    cooperative_products(&rig);
}

/// `gemm_cooperative` by a device that has cooperative matrices.
#[test]
fn cooperative_matrices_multiply() {
    let Some(device) = Rig::device() else { return };
    let info = device.info();
    if !info.multiplies_halves() {
        return eprintln!("SKIPPED: {} has no such matrices", info.gpu.name);
    }
    let mut tuning = Tuning::new(&info.limits, Some(shaders::gemm_cooperative()));
    tuning.only = Some(ProductWay::Cooperative);
    let bindable = info.limits.storage_range;
    let engine = Vulkan::with(device, tuning, bindable).expect("there is memory");
    cooperative_products(&Rig::of(engine).aligned());
}

fn cooperative_products(rig: &Rig) {
    for (seed, shape) in [
        [131, 72, 40, 1],
        [66, 136, 8, 2],
        [130, 128, 72, 1],
        [70, 80, 0, 1],
    ]
    .into_iter()
    .enumerate()
    {
        let rng = &mut rng(800 + seed as u64);
        let mut case = Case::new(rig, rng, shape, [false; 2], 8 * seed as u32);
        for values in [&mut case.a, &mut case.b] {
            values
                .iter_mut()
                .for_each(|x| *x = half::f16::from_f32(*x).to_f32());
        }
        (case.gemm.a.view, case.gemm.b.view) = (rig.f16(&case.a), rig.f16(&case.b));
        (case.gemm.alpha, case.gemm.beta, case.bias) =
            (-0.5, seed as f32, numbers(rng, shape[1] as usize));
        (case.gemm.bias, case.gemm.activation) = (Some(rig.f32(&case.bias)), Activation::Relu);
        assert!(case.gemm.is_of_vectors());
        case.check(rig);
    }
}

/// Whichever shader multiplies them, products of f32 have the same bits: which one is taken is
/// found by measuring.
#[test]
fn all_ways_of_multiplying_give_the_same_bits() {
    let Some(device) = Rig::device() else { return };
    let tiles = [
        ProductWay::Tiles32,
        ProductWay::Tiles64,
        ProductWay::Tiles128,
    ];
    let vectors = [ProductWay::Vectors64, ProductWay::Vectors128];
    let all = [&tiles[..], &vectors].concat();
    let cases = [
        ([131, 257, 19, 1], [false; 2], 3, &tiles[..]),
        ([65, 65, 200, 2], [true, false], 3, &tiles),
        ([131, 132, 36, 2], [false; 2], 4, &all),
        ([132, 67, 20, 1], [true, false], 0, &tiles),
        ([132, 68, 19, 1], [true, false], 0, &all),
        ([67, 131, 40, 1], [false, true], 8, &all),
        ([136, 70, 24, 2], [true, true], 4, &all),
    ];
    for (seed, (shape, transpose, gap, ways)) in cases.into_iter().enumerate() {
        let is_of_vectors = ways.len() > tiles.len();
        let mut bits = Vec::new();
        for way in ways.iter().copied() {
            let limits = &device.info().limits;
            let mut tuning = Tuning::new(limits, None);
            tuning.only = Some(way);
            let bindable = limits.storage_range;
            let engine = Vulkan::with(device.clone(), tuning, bindable).expect("there is memory");
            let rig = match is_of_vectors {
                true => Rig::of(engine).aligned(),
                false => Rig::of(engine),
            };
            let case = Case::new(&rig, &mut rng(seed as u64), shape, transpose, gap);
            assert_eq!(case.gemm.is_of_vectors(), is_of_vectors);
            case.check(&rig);
            bits.push(
                rig.read_f32(&case.gemm.c.view)
                    .into_iter()
                    .map(f32::to_bits)
                    .collect(),
            );
        }
        assert!(
            bits.iter().all(|other: &Vec<u32>| *other == bits[0]),
            "{shape:?}"
        );
    }
}

/// Matrices that are larger than a binding may be are bound by parts.
#[test]
fn products_of_matrices_that_cannot_be_bound_whole_are_products() {
    let Some(device) = Rig::device() else { return };
    let tuning = Tuning::new(&device.info().limits, None);
    let engine = Vulkan::with(device, tuning, 2048).expect("there is memory");
    let rig = Rig::of(engine);
    for seed in 0..8 {
        let rng = &mut rng(900 + seed);
        let shape = [
            3 + size(rng, 60),
            3 + size(rng, 60),
            3 + size(rng, 60),
            1 + seed as u32 % 3,
        ];
        let mut case = Case::new(
            &rig,
            rng,
            shape,
            [seed & 1 > 0, seed & 2 > 0],
            seed as u32 % 5,
        );
        (case.gemm.alpha, case.gemm.beta, case.bias) =
            (-0.5, (seed / 4) as f32, numbers(rng, shape[1] as usize));
        (case.gemm.bias, case.gemm.activation) = (Some(rig.f32(&case.bias)), Activation::Relu);
        case.check(&rig);
    }
    csr_of_random_shapes(&rig);
    let long = rig.f32(&[0.0; 1000]);
    let product = Gemm::new(
        long.clone(),
        long.clone(),
        rig.output(ElementKind::F32, 1),
        [1, 1, 1000],
    );
    rig.run([Op::Gemm(product)]);
}

/// In place of cooperative matrices: A and B are places in the tiles, and of C each of 32
/// invocations has eight elements.
const EMULATION: &str = "
struct Sums { v: array<f32, 8> }
fn multiply_add(thread: u32, x: vec2<u32>, y: vec2<u32>, z: Sums) -> Sums {
    var m = z;
    for (var i = 0u; i < 8u; i++) {
        let element = thread % 32u * 8u + i;
        for (var k = 0u; k < 16u; k++) {
            let a = a_tile[x.x + element / 16u * x.y + k / 4u][k % 4u];
            let b = b_tile[y.x + k * y.y + element % 16u / 4u][element % 4u];
            m.v[i] += f32(a) * f32(b);
        }
    }
    return m;
}
fn put_sums(m: Sums, to: u32, thread: u32) {
    var l = m;
    for (var i = 0u; i < 8u; i++) { sums[to + thread % 32u * 8u + i] = l.v[i]; }
}
";

pub fn gemm_epilogues(rig: &Rig) {
    let activations = [
        Activation::None,
        Activation::Relu,
        Activation::Tanh,
        Activation::Sigmoid,
        Activation::Gelu,
    ];
    for (seed, activation) in activations.into_iter().enumerate() {
        let rng = &mut rng(300 + seed as u64);
        let mut case = Case::new(rig, rng, [9, 35, 12, 1], [false, false], 0);
        (case.gemm.activation, case.gemm.alpha, case.bias) = (activation, 3.0, numbers(rng, 35));
        case.gemm.bias = Some(rig.f32(&case.bias));
        case.check(rig);
    }
}

pub fn gemm_specials(rig: &Rig) {
    let rng = &mut rng(400);
    // What was in C does not count where beta is 0, not even NaN. Sums of nothing are 0.
    for k in [0, 7] {
        let mut case = Case::new(rig, rng, [5, 6, k, 1], [false, false], 0);
        case.c = vec![f32::NAN; 30];
        case.gemm.c.view = rig.f32(&case.c);
        case.check(rig);
    }
    let mut case = Case::new(rig, rng, [5, 6, 0, 1], [false, false], 0);
    case.gemm.beta = -3.0;
    case.check(rig);
    let mut case = Case::new(rig, rng, [70, 70, 9, 1], [false, false], 0);
    (case.a[3], case.a[9 * 2], case.b[5]) = (f32::NAN, f32::INFINITY, f32::NEG_INFINITY);
    (case.gemm.a.view, case.gemm.b.view) = (rig.f32(&case.a), rig.f32(&case.b));
    for activation in [
        Activation::None,
        Activation::Relu,
        Activation::Tanh,
        Activation::Sigmoid,
    ] {
        case.gemm.activation = activation;
        case.check(rig);
    }
}

pub fn gemm_batches(rig: &Rig) {
    let rng = &mut rng(500);
    Case::new(rig, rng, [17, 33, 5, 4], [false, true], 3).check(rig);
    Case::new(rig, rng, [0, 33, 5, 4], [false, true], 0).check(rig);
    Case::new(rig, rng, [17, 33, 5, 0], [false, true], 0).check(rig);
    // One B for all.
    let mut case = Case::new(rig, rng, [7, 3, 5, 6], [false, false], 0);
    case.gemm.b.batch_stride = 0;
    case.check(rig);
}

/// Starts, columns and values with rows of very different lengths, some empty.
fn sparse(rng: &mut StdRng, rows: u32, width: u32) -> (Vec<u32>, Vec<u32>, Vec<f32>) {
    let (mut starts, mut columns) = (vec![0], Vec::new());
    for _ in 0..rows {
        let most = if width == 0 {
            0
        } else {
            [0, 3, 40, 700][rng.random_range(0..4)]
        };
        let len = rng.random_range(0..=most);
        columns.extend((0..len).map(|_| rng.random_range(0..width)));
        starts.push(columns.len() as u32);
    }
    let values = numbers(rng, columns.len());
    (starts, columns, values)
}

pub fn csr_of_random_shapes(rig: &Rig) {
    for seed in 0..20 {
        let rng = &mut rng(600 + seed);
        let (rows, width, vectors) = (size(rng, 200), size(rng, 200), size(rng, 9));
        let (starts, columns, values) = sparse(rng, rows, width);
        Csr::check(&starts, &columns, width).expect("it is a matrix");
        let mut x = numbers(rng, (width * vectors) as usize);
        if let Some(some) = x.get_mut(7) {
            *some = [f32::NAN, f32::INFINITY, 1e30][seed as usize % 3];
        }
        let y = rig.output(ElementKind::F32, (rows * vectors) as usize);
        let (mut exact, mut tolerance) = (Vec::new(), Vec::new());
        for v in 0..vectors as usize {
            for row in 0..rows as usize {
                let range = starts[row] as usize..starts[row + 1] as usize;
                let product = |j: usize| {
                    f64::from(values[j]) * f64::from(x[v * width as usize + columns[j] as usize])
                };
                exact.push(range.clone().map(product).sum());
                // As for dense products.
                tolerance.push(
                    2.0 * (range.len() as f64 + 2.0)
                        * EPSILON
                        * range.map(|j| product(j).abs()).sum::<f64>(),
                );
            }
        }
        let nonzeros = columns.len() as u32;
        let (starts, columns, values) = (rig.u32(&starts), rig.u32(&columns), rig.f32(&values));
        let x = rig.f32(&x);
        rig.run([Op::Csr(Csr {
            starts,
            columns,
            values,
            x,
            y: y.clone(),
            rows,
            width,
            nonzeros,
            vectors,
        })]);
        assert_close(&format!("seed {seed}"), &rig.read_f32(&y), &exact, |at| {
            tolerance[at]
        });
    }
}

/// A broken matrix is told before; if nobody asked, it harms nothing else.
pub fn csr_broken(rig: &Rig) {
    assert!(
        Csr::check(&[0, 2, 1], &[0], 1)
            .unwrap_err()
            .contains("row 1")
    );
    assert!(
        Csr::check(&[0, 2], &[0, 5], 5)
            .unwrap_err()
            .contains("column 5 of 5")
    );
    assert!(
        Csr::check(&[0, 2], &[0], 5).is_err()
            && Csr::check(&[], &[], 5).is_err()
            && Csr::check(&[1], &[], 5).is_err()
    );
    for vectors in [1, 4] {
        let (starts, columns) = (
            rig.u32(&[0, 4_000_000_000, 3, 1, 4]),
            rig.u32(&[9, 4_000_000_000, 0, 1]),
        );
        let (values, x) = (
            rig.f32(&[1.0; 4]),
            rig.f32(&vec![1.0; 2 * vectors as usize]),
        );
        let y = rig.output(ElementKind::F32, 4 * vectors as usize);
        rig.run([Op::Csr(Csr {
            starts,
            columns,
            values,
            x,
            y: y.clone(),
            rows: 4,
            width: 2,
            nonzeros: 4,
            vectors,
        })]);
        rig.read(&y);
    }
}
