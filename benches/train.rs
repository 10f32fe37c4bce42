//! Steps of training on the CPU, beside PyTorch eager with as many threads, in turns in the same
//! run: an MLP and a LeNet, forward, backward and Adam, on batches of 64. `-- --rounds N` (7),
//! `-- --threads N` (1). `-- --device`: only samples a second on the best device here.

mod support;

use bytes::Bytes;
use nodectl::{
    gpu::ops::{Cpu, Engine, Vulkan},
    train::{
        Parameters,
        local::Local,
        model::{Batch, Layer, Loss, ModelSpec, NeuralNetwork, WindowSpec},
    },
    types::{
        GpuKind,
        params::{Optimizer, Schedule, Training},
    },
};
use std::{sync::Arc, time::Instant};
use support::{best_device, is_set, number, peer::BenchPeer, proc::own_cpu, report};

const BATCH: u32 = 64;
const PIXELS: u32 = 28 * 28;

fn main() {
    let (rounds, threads) = (number("--rounds", 7), number("--threads", 1));
    if is_set("--device") {
        return on_the_device(rounds);
    }
    report::title(&format!(
        "training on the CPU, {threads} threads, batches of {BATCH}"
    ));
    let mut pytorch = BenchPeer::start("train.py", &[&threads.to_string()]);
    for (name, spec, steps) in nets() {
        let engine = Arc::new(Cpu::new(threads).expect("there are threads"));
        let mut ours = Steps::new(&spec, engine);
        let (mut best, mut theirs) = (f64::MAX, f64::MAX);
        // The first round warms up.
        for round in 0..=rounds {
            let begun = own_cpu();
            ours.run(steps);
            let seconds = (own_cpu() - begun).as_secs_f64();
            if round > 0 {
                best = best.min(seconds);
            }
            if let Some(pytorch) = &mut pytorch {
                let seconds: f64 = pytorch
                    .ask(&format!("{name} {steps}"))
                    .parse()
                    .expect("a number of seconds");
                if round > 0 {
                    theirs = theirs.min(seconds);
                }
            }
        }
        let rate = |seconds: f64| f64::from(steps * BATCH) / seconds;
        report::value(&format!("{name}: samples a CPU-second"), rate(best), "", "");
        if pytorch.is_some() {
            report::value(&format!("{name}: PyTorch's"), rate(theirs), "", "");
            report::value(
                &format!("{name}: ratio (bar: 1 or more)"),
                theirs / best,
                "",
                "",
            );
        }
    }
}

/// By the clock, as a GPU's own time is that.
fn on_the_device(rounds: usize) {
    let Some(device) = best_device() else {
        return;
    };
    let share = match device.info().gpu.kind {
        GpuKind::Software => 10,
        _ => 1,
    };
    let engine = Arc::new(Vulkan::new(device).expect("there is memory"));
    report::title(&format!(
        "training on {}, batches of {BATCH}",
        engine.name()
    ));
    for (name, spec, steps) in nets() {
        let mut ours = Steps::new(&spec, engine.clone());
        let steps = steps / share;
        let round = |_| {
            let begun = Instant::now();
            ours.run(steps);
            begun.elapsed().as_secs_f64()
        };
        // The first round warms up.
        let best = (0..=rounds).map(round).skip(1).fold(f64::MAX, f64::min);
        let rate = f64::from(steps * BATCH) / best;
        report::value(&format!("{name}: samples a second"), rate, "/s", "");
    }
}

/// As `benches/python/nets.py` has them.
fn nets() -> [(&'static str, ModelSpec, u32); 2] {
    let dense = |units| Layer::Dense { units, bias: true };
    let conv = |channels, padding| {
        let window = WindowSpec {
            padding: [padding; 2],
            ..WindowSpec::square(5)
        };
        Layer::Conv2d {
            channels,
            window,
            groups: 1,
            bias: true,
        }
    };
    let pool = || Layer::MaxPool {
        window: WindowSpec {
            stride: [2; 2],
            ..WindowSpec::square(2)
        },
    };
    let relu = || Layer::Relu;
    let mlp = vec![dense(256), relu(), dense(128), relu(), dense(10)];
    let images = vec![
        conv(6, 2),
        relu(),
        pool(),
        conv(16, 0),
        relu(),
        pool(),
        Layer::Flatten,
    ];
    let lenet = [
        images,
        vec![dense(120), relu(), dense(84), relu(), dense(10)],
    ]
    .concat();
    let spec = |input: &[u32], layers| ModelSpec {
        input: input.to_vec(),
        layers,
        loss: Loss::CrossEntropy,
    };
    [
        ("mlp", spec(&[PIXELS], mlp), 150),
        ("lenet", spec(&[1, 28, 28], lenet), 60),
    ]
}

struct Steps {
    network: NeuralNetwork,
    parameters: Local,
    inputs: Vec<f32>,
    targets: Vec<u32>,
    step: u64,
}

impl Steps {
    fn new(spec: &ModelSpec, engine: Arc<dyn Engine>) -> Self {
        let network = NeuralNetwork::new(engine.clone(), spec, 1, BATCH, false).expect("it fits");
        let optimizer = Optimizer::Adam {
            betas: [0.9, 0.999],
            epsilon: 1e-8,
        };
        let schedule = Schedule::CONSTANT;
        let mut parameters = Local::new(Training {
            optimizer,
            rate: 1e-3,
            schedule,
            weight_decay: 0.0,
            clip_norm: None,
        });
        parameters
            .register(engine, network.tensors())
            .expect("they fit");
        let inputs = (0..BATCH * PIXELS)
            .map(|i| (i * 37 % 101) as f32 / 101.0)
            .collect();
        Self {
            network,
            parameters,
            inputs,
            targets: (0..BATCH).map(|i| i % 10).collect(),
            step: 0,
        }
    }

    fn run(&mut self, steps: u32) {
        for _ in 0..steps {
            self.step += 1;
            let bytes = |numbers: &[u8]| Bytes::copy_from_slice(numbers);
            let (inputs, targets) = (
                bytemuck::cast_slice(&self.inputs),
                bytemuck::cast_slice(&self.targets),
            );
            let batch = Batch {
                count: BATCH,
                inputs: bytes(inputs),
                targets: bytes(targets),
                weights: None,
            };
            let report = self
                .network
                .train(batch, self.step, false, &mut |_| Ok(()))
                .expect("it runs");
            self.parameters.clock(BATCH).expect("it runs");
            report.wait().expect("it ran");
        }
    }
}
