//! Library operations. On one thread of the CPU: the matrix product beside numpy's OpenBLAS, sparse
//! products and histograms beside a stream copy, each in turns in the same run. On a GPU, where
//! there is one: rates, with a copy of its own memory. `-- --rounds N` (7). `-- --device`: only the
//! best device, a software one where there is no other, products of f32 and f16 in more sizes.

mod support;

use half::f16;
use nodectl::{
    gpu::{
        device::{Device, DeviceOptions},
        ops::{
            BufferView, Cpu, Csr, ElementKind, Elementwise, Engine, Expression, Gemm, Histogram,
            Op, Program, Vulkan,
        },
    },
    types::GpuKind,
};
use std::time::{Duration, Instant};
use support::{best_device, is_set, number, peer::BenchPeer, proc::own_cpu, report};

const LIMIT: Duration = Duration::from_secs(60);
const BYTES: u64 = 256 << 20;

fn main() {
    let rounds = number("--rounds", 7);
    if is_set("--device") {
        if let Some(device) = best_device() {
            on_the_device(device, rounds);
        }
        return;
    }
    report::title("library operations, one thread");
    let cpu = Cpu::new(1).expect("there is a thread");
    products(&cpu, rounds);
    memory_bound(&cpu, rounds, 0.7);
    let options = DeviceOptions {
        validation: false,
        software: false,
        learned: None,
    };
    match Device::any(&options)
        .map_err(Into::into)
        .and_then(Vulkan::new)
    {
        Err(error) => println!("  SKIPPED: no GPU: {error}"),
        Ok(gpu) => {
            report::title(&format!("library operations on {}", gpu.name()));
            for size in [1024, 4096] {
                let program = ProductCase::new(&gpu, [size; 3]);
                let best = (0..rounds).map(|_| program.run()).fold(f64::MAX, f64::min);
                let rate = 2.0 * f64::from(size).powi(3) / best / 1e9;
                report::value(&format!("f32 product of {size}³"), rate, "TFLOPS", "");
            }
            memory_bound(&gpu, rounds, 0.5);
        }
    }
}

/// Products of both types, from sizes that a cache holds to what a task may have, then what is
/// bound by memory.
fn on_the_device(device: Device, rounds: usize) {
    let is_software = device.info().gpu.kind == GpuKind::Software;
    let sizes: &[u32] = if is_software {
        &[64, 256]
    } else {
        &[512, 1024, 2048, 4096, 8192]
    };
    let gpu = Vulkan::new(device).expect("there is memory");
    report::title(&format!("library operations on {}", gpu.name()));
    for (kind, name) in [(ElementKind::F32, "f32"), (ElementKind::F16, "f16")] {
        for size in sizes {
            let program = ProductCase::of(kind, &gpu, [*size; 3]);
            program.run();
            let best = (0..rounds).map(|_| program.run()).fold(f64::MAX, f64::min);
            let rate = 2.0 * f64::from(*size).powi(3) / best / 1e9;
            report::value(&format!("{name} product of {size}³"), rate, "TFLOPS", "");
        }
    }
    if !is_software {
        memory_bound(&gpu, rounds, 0.5);
    }
}

/// Milliseconds: on a CPU those of its own time, so that what else runs there does not count; on a
/// GPU those that passed.
fn timed(engine: &dyn Engine, work: impl FnOnce()) -> f64 {
    if !is_cpu(engine) {
        let begun = Instant::now();
        work();
        return begun.elapsed().as_secs_f64() * 1e3;
    }
    let begun = own_cpu();
    work();
    (own_cpu() - begun).as_secs_f64() * 1e3
}

fn is_cpu(engine: &dyn Engine) -> bool {
    engine.name().starts_with("CPU")
}

/// A product, several times over where it is short.
struct ProductCase<'a> {
    engine: &'a dyn Engine,
    program: Program,
    times: u32,
}

impl<'a> ProductCase<'a> {
    fn new(engine: &'a dyn Engine, shape: [u32; 3]) -> Self {
        Self::of(ElementKind::F32, engine, shape)
    }

    /// A and B of the given type, C of f32.
    fn of(kind: ElementKind, engine: &'a dyn Engine, shape: [u32; 3]) -> Self {
        let [m, n, k] = shape;
        let [a, b] = [m * k, k * n].map(|len| {
            let values = (0..len).map(|i| (i % 1009) as f32 / 1009.0);
            match kind {
                ElementKind::F16 => f16s(engine, values),
                _ => f32s(engine, values),
            }
        });
        let c = engine
            .buffer(u64::from(m * n) * 4)
            .expect("there is memory")
            .f32s();
        let times = (1_000_000_000 / shape.iter().map(|size| u64::from(*size)).product::<u64>())
            .clamp(1, 4000) as u32;
        let ops = vec![Gemm::new(a, b, c, shape).into(); times as usize];
        Self {
            engine,
            program: engine.record(&ops).expect("it fits"),
            times,
        }
    }

    /// Milliseconds of one.
    fn run(&self) -> f64 {
        timed(self.engine, || {
            self.engine.run(&self.program).wait(LIMIT).expect("it runs")
        }) / f64::from(self.times)
    }
}

fn f32s(engine: &dyn Engine, values: impl Iterator<Item = f32>) -> BufferView {
    upload(engine, ElementKind::F32, values.map(f32::to_bits))
}

fn f16s(engine: &dyn Engine, values: impl Iterator<Item = f32>) -> BufferView {
    let halves: Vec<f16> = values.map(f16::from_f32).collect();
    let bytes: Vec<u8> = bytemuck::cast_slice(&halves).to_vec();
    let buffer = engine.buffer(bytes.len() as u64).expect("there is memory");
    let uploaded = engine.upload(&buffer, 0, bytes.into());
    uploaded.wait(LIMIT).expect("it fits");
    buffer.view(ElementKind::F16, 0, halves.len() as u64)
}

fn upload(engine: &dyn Engine, kind: ElementKind, values: impl Iterator<Item = u32>) -> BufferView {
    let bytes: Vec<u8> = values.flat_map(u32::to_le_bytes).collect();
    let buffer = engine.buffer(bytes.len() as u64).expect("there is memory");
    let len = buffer.bytes() / 4;
    engine
        .upload(&buffer, 0, bytes.into())
        .wait(LIMIT)
        .expect("it fits");
    buffer.view(kind, 0, len)
}

/// In turns, so that both meet the same noise; the best of each.
fn products(cpu: &Cpu, rounds: usize) {
    let Some(mut openblas) = BenchPeer::start("openblas.py", &[]) else {
        return;
    };
    for shape in [
        [64; 3],
        [256; 3],
        [1024; 3],
        [2048; 3],
        [4096, 64, 512],
        [64, 4096, 512],
    ] {
        let product = ProductCase::new(cpu, shape);
        product.run();
        let (mut ours, mut theirs) = (f64::MAX, f64::MAX);
        for _ in 0..rounds {
            let [m, n, k] = shape;
            let answer = openblas.ask(&format!("{m} {n} {k}"));
            theirs = theirs.min(answer.parse().expect("milliseconds"));
            ours = ours.min(product.run());
        }
        let [m, n, k] = shape;
        let reference = format!("OpenBLAS {theirs:.3} ms");
        report::bar(
            &format!("f32 product {m} × {k} × {n}"),
            ours,
            theirs / 0.9,
            "ms",
            &reference,
        );
    }
}

/// What is bound by memory: an op, the bytes that it must move, whether it has a bar to pass.
struct MemoryWork {
    name: &'static str,
    op: Op,
    bytes: u64,
    barred: bool,
}

/// Bytes that must be moved, at the rate of a copy in the same run.
fn memory_bound(engine: &dyn Engine, rounds: usize, share: f64) {
    let len = BYTES / 4;
    let from = f32s(engine, (0..len).map(|i| (i % 1009) as f32 / 1009.0));
    let to = upload(engine, ElementKind::F32, 0..len as u32);
    let mut works = vec![MemoryWork {
        name: "copy by an element-wise expression",
        op: copy(&from, &to),
        bytes: BYTES * 2,
        barred: false,
    }];
    works.extend(sparse_products(engine, &from));
    works.extend(histograms(engine, &from));
    for work in works {
        let program = engine.record(&[work.op]).expect("it fits");
        let run = || engine.run(&program).wait(LIMIT).expect("it runs");
        run();
        let (mut best, mut rate) = (f64::MAX, 0f64);
        for _ in 0..rounds {
            rate = rate.max(stream_copy(engine, &from, &to));
            best = best.min(timed(engine, run));
        }
        let bytes = work.bytes as f64;
        let reference = format!(
            "{:.1} GB/s; stream copy {:.1} GB/s",
            bytes / best / 1e6,
            rate / 1e6
        );
        if work.barred {
            report::bar(work.name, best, bytes / rate / share, "ms", &reference);
        } else {
            report::value(work.name, best, "ms", &reference);
        }
    }
}

/// About as one frame of a detector with 4 million pixels to 1000 bins, neighbours mostly together.
fn sparse_products(engine: &dyn Engine, numbers: &BufferView) -> [MemoryWork; 2] {
    let (rows, width, each) = (1000, 4 << 20, 4 << 10);
    let nonzeros = rows * each;
    let starts = upload(engine, ElementKind::U32, (0..=rows).map(|row| row * each));
    let columns = upload(
        engine,
        ElementKind::U32,
        (0..nonzeros).map(|j| (j / 16 * 21 + j % 16) % width),
    );
    let values = f32s(engine, (0..nonzeros).map(|j| (j % 7) as f32));
    let csr = |vectors: u32| Csr {
        starts: starts.clone(),
        columns: columns.clone(),
        values: values.clone(),
        x: numbers.part(0, u64::from(width) * 8),
        y: upload(engine, ElementKind::F32, 0..rows * vectors),
        rows,
        width,
        nonzeros,
        vectors,
    };
    let matrix = u64::from(nonzeros) * 8;
    [
        MemoryWork {
            name: "sparse product, one vector",
            op: csr(1).into(),
            bytes: matrix + u64::from(nonzeros) * 4,
            barred: true,
        },
        MemoryWork {
            name: "sparse product, eight vectors",
            op: csr(8).into(),
            bytes: matrix * 2 + u64::from(nonzeros) * 32,
            barred: false,
        },
    ]
}

fn histograms(engine: &dyn Engine, values: &BufferView) -> [MemoryWork; 2] {
    let counts = upload(engine, ElementKind::U32, 0..1000);
    let work = |name, high, barred| MemoryWork {
        name,
        op: Op::from(Histogram {
            values: values.clone(),
            counts: counts.clone(),
            bins: 1000,
            low: 0.0,
            high,
        }),
        bytes: BYTES,
        barred,
    };
    [
        work("histogram of 1000 bins", 1.0, true),
        work("histogram, all in one bin", 1e6, false),
    ]
}

fn copy(from: &BufferView, to: &BufferView) -> Op {
    Op::from(Elementwise {
        expression: Expression::Input(0),
        inputs: vec![from.clone()],
        output: to.clone(),
    })
}

/// Bytes a millisecond, read and written.
fn stream_copy(engine: &dyn Engine, from: &BufferView, to: &BufferView) -> f64 {
    if is_cpu(engine) {
        let source = vec![1f32; from.len as usize];
        let mut target = vec![0f32; from.len as usize];
        target.copy_from_slice(&source);
        return BYTES as f64 * 2.0
            / timed(engine, || {
                std::hint::black_box(&mut target).copy_from_slice(&source)
            });
    }
    let program = engine.record(&[copy(from, to)]).expect("it fits");
    BYTES as f64 * 2.0
        / timed(engine, || {
            engine.run(&program).wait(LIMIT).expect("it runs")
        })
}
