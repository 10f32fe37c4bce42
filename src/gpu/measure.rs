//! How fast a GPU copies its memory and multiplies matrices: enough to compare GPUs and to cut work
//! in proportion. Copies and products of f32 are two plain shaders, those of f16 what the library
//! has for them. Runs in a child of the node.

use super::{
    device::{
        BufferBinding, Device, DeviceBuffer, DeviceError, DeviceOptions, KernelSource,
        RecordingStep, learned_folder,
    },
    ops::{ElementKind, Engine, EngineError, Gemm as Product, Vulkan},
};
use nodectl_types::{GpuKind, GpuRates};
use std::time::{Duration, Instant};

const COPY: &[u8] = include_bytes!("../../shaders/measure_copy.spv");
const GEMM: &[u8] = include_bytes!("../../shaders/measure_gemm.spv");

/// A measurement counts when it took at least this long.
const LONG_ENOUGH: Duration = Duration::from_millis(50);
/// What a run may take before the device is given up.
const LIMIT: Duration = Duration::from_secs(20);
/// Repetitions in one run at most.
const MAX_REPEATS: u32 = 1024;

/// How much work one repetition is.
#[derive(Clone, Copy)]
struct RepetitionSizes {
    copied_bytes: u64,
    /// Rows and columns of the matrices; a multiple of 64.
    n: u32,
}

/// Measures the GPU with this UUID, software devices too. Takes about a second.
///
/// # Errors
/// As `Device::open`, and whatever goes wrong on the way.
pub fn measure(uuid: [u8; 16]) -> Result<GpuRates, DeviceError> {
    let device = Device::open(
        uuid,
        &DeviceOptions {
            validation: false,
            software: true,
            learned: learned_folder(),
        },
    )?;
    let sizes = match device.info().gpu.kind {
        // Caches hold small amounts, and a GPU needs enough to be busy.
        GpuKind::Discrete | GpuKind::Virtual => RepetitionSizes {
            copied_bytes: 256 << 20,
            n: 2048,
        },
        GpuKind::Integrated => RepetitionSizes {
            copied_bytes: 64 << 20,
            n: 1024,
        },
        GpuKind::Software => RepetitionSizes {
            copied_bytes: 16 << 20,
            n: 256,
        },
    };
    rates(&device, sizes)
}

fn rates(device: &Device, sizes: RepetitionSizes) -> Result<GpuRates, DeviceError> {
    let limits = &device.info().limits;
    let bytes = sizes
        .copied_bytes
        .min(limits.storage_range)
        .min(limits.buffer_bytes)
        / 16
        * 16;
    let copy_s = seconds(device, &copy(device, bytes)?)?;
    let gemm_s = seconds(device, &gemm(device, sizes.n)?.step)?;
    let operations = 2.0 * f64::from(sizes.n).powi(3);
    let engine = Vulkan::new(device.clone()).map_err(of_engine)?;
    let [gemm_f32_tile, gemm_f16_tile] = engine.product_tiles([sizes.n; 3]).map_err(of_engine)?;
    Ok(GpuRates {
        // Read and written.
        copy_bytes_per_s: (2.0 * bytes as f64 / copy_s) as u64,
        gemm_f32_flops: (operations / gemm_s) as u64,
        gemm_f16_flops: (operations / halves(&engine, sizes.n)?) as u64,
        gemm_f32_tile,
        gemm_f16_tile,
    })
}

/// How long a product of f16 matrices takes.
fn halves(engine: &Vulkan, n: u32) -> Result<f64, DeviceError> {
    let len = u64::from(n) * u64::from(n);
    let matrix = |kind: ElementKind| {
        engine
            .buffer(len * kind.bytes())
            .map(|buffer| buffer.view(kind, 0, len))
    };
    let views = || {
        Ok([
            matrix(ElementKind::F16)?,
            matrix(ElementKind::F16)?,
            matrix(ElementKind::F32)?,
        ])
    };
    let [a, b, c] = views().map_err(of_engine)?;
    let product = Product::new(a, b, c, [n; 3]);
    let run = |repeats: u32| {
        let program = engine.record(&vec![product.clone().into(); repeats as usize])?;
        let began = Instant::now();
        engine.run(&program).wait(LIMIT).map(|()| began.elapsed())
    };
    timed(|repeats| run(repeats).map_err(of_engine))
}

fn of_engine(error: EngineError) -> DeviceError {
    match error {
        EngineError::Device(error) => error,
        other => DeviceError::Invalid(other.to_string()),
    }
}

fn copy(device: &Device, bytes: u64) -> Result<RecordingStep, DeviceError> {
    let kernel = device.kernel(&source(&words(COPY), "measure_copy"))?;
    let (from, to) = (device.buffer(bytes)?, device.buffer(bytes)?);
    let groups = (bytes / 16)
        .div_ceil(256)
        .clamp(1, u64::from(device.info().limits.workgroup_count[0]));
    let bindings = vec![BufferBinding::whole(0, &from), BufferBinding::whole(1, &to)];
    Ok(RecordingStep::Dispatch {
        kernel,
        bindings,
        push: Vec::new(),
        groups: [groups as u32, 1, 1],
    })
}

/// A product and its operands, row by row.
struct MeasuredGemm {
    step: RecordingStep,
    #[cfg_attr(not(test), expect(dead_code, reason = "tests look into them"))]
    operands: [DeviceBuffer; 3],
}

fn gemm(device: &Device, n: u32) -> Result<MeasuredGemm, DeviceError> {
    let kernel = device.kernel(&source(&words(GEMM), "measure_gemm"))?;
    let matrix = || device.buffer(u64::from(n) * u64::from(n) * 4);
    let operands = [matrix()?, matrix()?, matrix()?];
    let bindings = (0..)
        .zip(&operands)
        .map(|(binding, buffer)| BufferBinding::whole(binding, buffer))
        .collect();
    let step = RecordingStep::Dispatch {
        kernel,
        bindings,
        push: n.to_le_bytes().to_vec(),
        groups: [n / 64, n / 64, 1],
    };
    Ok(MeasuredGemm { step, operands })
}

/// How long one repetition takes, of as many as are needed to tell.
fn seconds(device: &Device, step: &RecordingStep) -> Result<f64, DeviceError> {
    timed(|repeats| {
        let recording = device.record(vec![step.clone(); repeats as usize])?;
        let began = Instant::now();
        device.run(&recording).wait(LIMIT).map(|()| began.elapsed())
    })
}

/// The time of one run, from as many runs as take long enough to be measured.
fn timed(run: impl Fn(u32) -> Result<Duration, DeviceError>) -> Result<f64, DeviceError> {
    let mut repeats = 1;
    // The first run compiles, allocates and wakes the device up.
    run(repeats)?;
    loop {
        let took = run(repeats)?;
        if took >= LONG_ENOUGH || repeats >= MAX_REPEATS {
            return Ok(took.as_secs_f64() / f64::from(repeats));
        }
        repeats *= 4;
    }
}

fn source<'a>(spirv: &'a [u32], name: &'a str) -> KernelSource<'a> {
    KernelSource {
        spirv,
        entry: "main",
        constants: &[],
        name,
    }
}

fn words(bytes: &[u8]) -> Vec<u32> {
    bytes
        .chunks_exact(4)
        .map(|word| u32::from_le_bytes(word.try_into().expect("four bytes")))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;

    fn device() -> Option<Device> {
        match Device::any(&DeviceOptions {
            validation: true,
            software: true,
            learned: None,
        }) {
            Ok(device) => Some(device),
            Err(error) => {
                eprintln!("SKIPPED: no Vulkan here: {error}");
                None
            }
        }
    }

    #[test]
    fn the_measured_product_is_one() {
        let Some(device) = device() else { return };
        let n = 128;
        let made = gemm(&device, n as u32).unwrap();
        // Small integers: exact in any order.
        let value = |seed: usize, at: usize| ((at * 7 + seed * 3 + at / n) % 11) as f32 - 5.0;
        for (seed, matrix) in made.operands[..2].iter().enumerate() {
            let bytes: Vec<u8> = (0..n * n)
                .flat_map(|at| value(seed, at).to_le_bytes())
                .collect();
            device
                .upload(matrix, 0, Bytes::from(bytes))
                .wait(LIMIT)
                .unwrap();
        }
        device
            .run(&device.record(vec![made.step]).unwrap())
            .wait(LIMIT)
            .unwrap();
        let bytes = device
            .download(&made.operands[2], 0..(n * n * 4) as u64)
            .wait(LIMIT)
            .unwrap();
        for (at, four) in bytes.chunks(4).enumerate() {
            let (row, column) = (at / n, at % n);
            let expected: f32 = (0..n)
                .map(|k| value(0, row * n + k) * value(1, k * n + column))
                .sum();
            assert_eq!(
                f32::from_le_bytes(four.try_into().unwrap()),
                expected,
                "row {row}, column {column}"
            );
        }
    }

    #[test]
    fn rates_are_plausible() {
        let Some(device) = device() else { return };
        let rates = rates(
            &device,
            RepetitionSizes {
                copied_bytes: 1 << 20,
                n: 64,
            },
        )
        .unwrap();
        // From a slow CPU to a thousand times the fastest GPU of today.
        assert!(
            (1_000_000..1 << 53).contains(&rates.copy_bytes_per_s),
            "{rates:?}"
        );
        for flops in [rates.gemm_f32_flops, rates.gemm_f16_flops] {
            assert!((1_000_000..1 << 60).contains(&flops), "{rates:?}");
        }
    }
}
