//! Trainings, whole, on the CPU: that they learn, give the same bits, and go on from checkpoints.

use super::worker::{load, train};
use crate::{
    gpu::ops::{Cpu, Engine},
    types::params::Optimizer,
    workloads::train::{
        data::{ClassWeights, Column, DataSpec, Source, Validation},
        file::ModelFile,
        model::{Layer, Loss, ModelSpec},
        plan::{Checkpoints, DecayPlan, Every, OptimizerPlan, Sharing, TrainPlan},
        predict,
    },
};
use serde_json::Value as Json;
use std::{fmt::Write, fs, path::Path, sync::Arc};

/// Two moons of 90 points, and a line between them that no straight one is.
fn write_moons(path: &Path) {
    let mut text = String::new();
    for i in 0..90 {
        let angle = std::f64::consts::PI * f64::from(i) / 90.0;
        let (x, y) = (angle.cos(), angle.sin());
        writeln!(text, "{x},{y},0\n{},{},1", 1.0 - x, 0.3 - y).unwrap();
    }
    fs::write(path, text).unwrap();
}

fn plan() -> TrainPlan {
    let layers = vec![
        Layer::Dense { units: 24, bias: true },
        Layer::BatchNorm { momentum: 0.1, epsilon: 1e-5 },
        Layer::Relu,
        Layer::Dropout { share: 0.1 },
        Layer::Dense { units: 2, bias: true },
    ];
    TrainPlan {
        model: ModelSpec { input: vec![2], layers, loss: Loss::CrossEntropy },
        data: DataSpec {
            source: Source::Table { path: "moons.csv".into(), target: Column::Last },
            validation: Validation::Share(0.2),
            shape: None,
            scale: 1.0,
            standardize: true,
            class_weights: ClassWeights::Equal,
        },
        epochs: 12,
        batch: 20,
        seed: 3,
        optimizer: OptimizerPlan {
            optimizer: Optimizer::Adam { betas: [0.9, 0.999], epsilon: 1e-8 },
            rate: 0.02,
            warmup: 5,
            decay: DecayPlan::Cosine { floor: 0.1 },
            weight_decay: 1e-4,
            clip_norm: Some(1.0),
        },
        checkpoints: None,
        init_from: None,
        resume_from: None,
        threads: 1,
        sharing: Sharing::default(),
    }
}

fn run(plan: &TrainPlan, base: &Path, into: &str, threads: usize) -> Json {
    let dir = base.join(into);
    fs::create_dir_all(&dir).unwrap();
    let engine: Arc<dyn Engine> = Arc::new(Cpu::new(threads).unwrap());
    train(plan, &load(plan, base).unwrap(), engine, (base, &dir), None).unwrap_or_else(|error| panic!("{error}")).result
}

/// The columns of `metrics.csv` without times.
fn curve(path: &Path) -> Vec<String> {
    let text = fs::read_to_string(path).unwrap();
    text.lines().map(|line| line.split(',').take(7).collect::<Vec<_>>().join(",")).collect()
}

#[test]
fn a_seed_gives_a_curve_bit_for_bit_and_a_model_that_has_learnt() {
    let dir = tempfile::tempdir().unwrap();
    let base = dir.path();
    write_moons(&base.join("moons.csv"));
    let plan = || TrainPlan { epochs: 40, ..plan() };
    let result = run(&plan(), base, "one", 1);
    assert!(result["validation_accuracy"].as_f64().unwrap() > 0.95, "{result}");
    run(&plan(), base, "two", 3);
    assert_eq!(curve(&base.join("one/metrics.csv")), curve(&base.join("two/metrics.csv")));
    let model = |into: &str| fs::read(base.join(into).join("model.safetensors")).unwrap();
    assert!(model("one") == model("two"), "the same bits, also with more threads");
    run(&TrainPlan { seed: 4, ..plan() }, base, "other", 1);
    assert!(model("one") != model("other"));
    for file in ["loss.svg", "accuracy.svg", "confusion.svg"] {
        assert!(fs::read_to_string(base.join("one").join(file)).unwrap().contains("</svg>"), "{file}");
    }
    let table = fs::read_to_string(base.join("one/confusion.csv")).unwrap();
    let counts =
        table.lines().skip(1).flat_map(|line| line.split(',').skip(1).map(|cell| cell.parse::<u64>().unwrap()));
    assert_eq!(counts.sum::<u64>(), 36);
    assert_eq!(curve(&base.join("one/metrics.csv")).len(), 41);

    let moons = base.join("moons.csv").to_string_lossy().into_owned();
    let prediction = predict(&base.join("one/model.safetensors"), &moons, 1).unwrap();
    let right = prediction.answers.chunks(2).enumerate().filter(|(i, row)| (row[1] > row[0]) == (i % 2 == 1)).count();
    assert!(right > 170, "{right} of 180");
    let text = prediction.to_csv();
    assert!(text.starts_with("sample,class,probability\n0,") && text.lines().count() == 181, "{text}");
}

#[test]
fn a_resumed_training_ends_with_the_bits_of_an_undisturbed_one() {
    let dir = tempfile::tempdir().unwrap();
    let base = dir.path();
    write_moons(&base.join("moons.csv"));
    let keeping = TrainPlan { checkpoints: Some(Checkpoints { every: Every::Steps(19), keep: 3 }), ..plan() };
    run(&keeping, base, "whole", 1);
    let kept: Vec<_> =
        fs::read_dir(base.join("whole/checkpoints")).unwrap().map(|file| file.unwrap().file_name()).collect();
    assert_eq!(kept.len(), 3, "{kept:?}");
    // 8 steps an epoch, so that it is in the middle of one.
    let path = "whole/checkpoints/step-000000076.safetensors";
    let position = ModelFile::read(&base.join(path)).unwrap().note.position;
    assert_eq!((position.epochs, position.steps_into_epoch), (9, 4));
    run(&TrainPlan { resume_from: Some(path.into()), ..plan() }, base, "resumed", 1);
    let model = |into: &str| fs::read(base.join(into).join("model.safetensors")).unwrap();
    assert!(model("whole") == model("resumed"));
    assert_eq!(curve(&base.join("whole/metrics.csv"))[11..], curve(&base.join("resumed/metrics.csv"))[2..]);

    let begun = TrainPlan { init_from: Some("whole/model.safetensors".into()), epochs: 1, ..plan() };
    let first = run(&begun, base, "begun", 1);
    assert!(first["accuracy"].as_f64().unwrap() > 0.9, "it begins with what was learnt: {first}");
    let engine: Arc<dyn Engine> = Arc::new(Cpu::new(1).unwrap());
    let split = load(&plan(), base).unwrap();
    let other = TrainPlan { resume_from: Some(path.into()), seed: 9, ..plan() };
    let error = train(&other, &split, engine.clone(), (base, &base.join("begun")), None).err().unwrap().to_string();
    assert!(error.contains("another seed"), "{error}");
    let narrow = vec![Layer::Dense { units: 2, bias: true }];
    let other = TrainPlan { model: ModelSpec { layers: narrow, ..plan().model }, ..begun };
    let error = train(&other, &split, engine.clone(), (base, &base.join("begun")), None).err().unwrap().to_string();
    assert!(error.contains("`0.weight` has the shape [24, 2], the model's [2, 2]"), "{error}");
    let wild = OptimizerPlan { optimizer: Optimizer::Sgd, rate: 1e30, clip_norm: None, ..plan().optimizer };
    let error = train(&TrainPlan { optimizer: wild, ..plan() }, &split, engine, (base, &base.join("begun")), None)
        .err()
        .unwrap();
    assert!(error.to_string().contains("hint: a smaller `rate`"), "{error}");
}
