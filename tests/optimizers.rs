//! The optimizers are written down where they run: for blocks on parameter servers, for the CPU and
//! for GPUs as an operation, in numpy for scripts that train alone. On the same numbers they come to
//! the same values, by formulas that are PyTorch's.

mod common;

use common::python;
use nodectl::{
    gpu::{
        device::{Device, DeviceOptions},
        ops::{BufferView, Cpu, Engine, Op, Optimize, Vulkan},
    },
    pserver::optimizer,
    types::params::{Optimizer, Schedule, Training},
};
use std::{
    io::Write,
    process::{Command, Stdio},
    time::Duration,
};

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
const STEPS: usize = 5;
const LEN: usize = 300;
const LIMIT: Duration = Duration::from_secs(60);
/// Each step rounds some ten times, of numbers up to 1; Adam divides numbers whose 1 - β was
/// rounded, by 6e-5 of itself at 0.999.
const TOLERANCE: f32 = 2e-5;

/// Values, and the gradients of each step.
struct Numbers {
    values: Vec<f32>,
    gradients: Vec<Vec<f32>>,
}

impl Numbers {
    /// From -1 to 1, without a pattern that the rules could hide behind.
    fn new() -> Self {
        let row = |seed: usize| -> Vec<f32> {
            let number =
                |i: usize| ((i * 2_654_435 + seed * 40_503) % 2_001) as f32 / 1_000.0 - 1.0;
            (0..LEN).map(number).collect()
        };
        Self {
            values: row(0),
            gradients: (1..=STEPS).map(row).collect(),
        }
    }
}

fn training(optimizer: Optimizer) -> Training {
    Training {
        optimizer,
        rate: 0.1,
        schedule: Schedule::CONSTANT,
        weight_decay: 0.01,
        clip_norm: None,
    }
}

fn on_parameter_servers(training: &Training, numbers: &Numbers) -> Vec<f32> {
    let mut values = numbers.values.clone();
    let mut state = vec![vec![0.0; LEN]; training.optimizer.states()];
    for (step, gradient) in (1..).zip(&numbers.gradients) {
        let gradients = [(&gradient[..], 1.0)];
        let steps = (step, step);
        optimizer::step(training, &mut values, &mut state, &gradients, 1.0, steps);
    }
    values
}

fn on_engine(engine: &dyn Engine, training: &Training, numbers: &Numbers) -> Vec<f32> {
    let memory = |len: usize| {
        engine
            .buffer(len as u64 * 4)
            .expect("there is memory")
            .f32s()
    };
    let write = |view: &BufferView, numbers: &[f32]| {
        let bytes: Vec<u8> = bytemuck::cast_slice(numbers).to_vec();
        let written = engine.upload(&view.buffer, 0, bytes.into()).wait(LIMIT);
        written.expect("it fits");
    };
    let (parameters, gradients, schedule) = (memory(LEN), memory(LEN), memory(4));
    let state: Vec<BufferView> = (0..training.optimizer.states())
        .map(|_| memory(LEN))
        .collect();
    let step = Op::from(Optimize {
        rule: training.optimizer,
        parameters: parameters.clone(),
        gradients: gradients.clone(),
        state: state.clone(),
        schedule: schedule.clone(),
        weight_decay: training.weight_decay,
    });
    let program = engine.record(&[step]).expect("its views fit");
    write(&parameters, &numbers.values);
    state.iter().for_each(|state| write(state, &[0.0; LEN]));
    for (step, gradient) in (1..).zip(&numbers.gradients) {
        write(&gradients, gradient);
        let varying = Optimize::schedule(training.optimizer, training.rate, 1.0, step);
        write(&schedule, &varying);
        engine.run(&program).wait(LIMIT).expect("it runs");
    }
    let all = 0..parameters.buffer.bytes();
    let bytes = engine.download(&parameters.buffer, all).wait(LIMIT);
    bytemuck::pod_collect_to_vec(&bytes.expect("it is there"))
}

const ALONE: &str = "
import json, sys
import numpy as np
from nodectl._alone import Alone

for case in json.load(sys.stdin):
    server = Alone({'training': case['training']})
    server.register({'x': np.array(case['values'], np.float32)})
    for gradient in case['gradients']:
        server.push({'x': np.array(gradient, np.float32)})
        server.clock()
    print(json.dumps([float(value) for value in server.pull()['x']]))
";

/// The values of each rule, if there is a Python that can run the package.
fn in_numpy(numbers: &Numbers) -> Option<Vec<Vec<f32>>> {
    let path = python::python_path()?;
    let case = |rule| {
        serde_json::json!({
            "training": training(rule),
            "values": numbers.values,
            "gradients": numbers.gradients,
        })
    };
    let cases = serde_json::to_vec(&RULES.map(case)).expect("plain data");
    let mut child = python::keep_compiled(&mut Command::new("python3"))
        .args(["-c", ALONE])
        .env("PYTHONPATH", path)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("python3 starts");
    let mut stdin = child.stdin.take().expect("it is piped");
    stdin.write_all(&cases).expect("python3 reads it all");
    drop(stdin);
    let output = child.wait_with_output().expect("python3 ends");
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).expect("JSON");
    let lines = text.lines();
    Some(
        lines
            .map(|line| serde_json::from_str(line).expect("a list of numbers"))
            .collect(),
    )
}

#[track_caller]
fn near(rule: Optimizer, place: &str, found: &[f32], expected: &[f32]) {
    assert_eq!(found.len(), expected.len(), "{rule:?} {place}");
    for (index, (found, expected)) in found.iter().zip(expected).enumerate() {
        assert!(
            (found - expected).abs() <= TOLERANCE,
            "{rule:?} {place}, parameter {index}: {found} is not {expected}"
        );
    }
}

#[test]
fn an_optimizer_is_the_same_wherever_it_runs() {
    let numbers = Numbers::new();
    let cpu = Cpu::new(2).expect("there are threads");
    let options = DeviceOptions {
        validation: false,
        software: true,
        learned: None,
    };
    let gpu = Device::any(&options).map(|device| Vulkan::new(device).expect("there is memory"));
    if let Err(error) = &gpu {
        println!("SKIPPED: no Vulkan device: {error}");
    }
    let numpy = in_numpy(&numbers);
    for (index, rule) in RULES.into_iter().enumerate() {
        let training = training(rule);
        let expected = on_parameter_servers(&training, &numbers);
        near(
            rule,
            "on the CPU",
            &on_engine(&cpu, &training, &numbers),
            &expected,
        );
        if let Ok(gpu) = &gpu {
            near(
                rule,
                "on a GPU",
                &on_engine(gpu, &training, &numbers),
                &expected,
            );
        }
        if let Some(numpy) = &numpy {
            near(rule, "in numpy", &numpy[index], &expected);
        }
    }
}
