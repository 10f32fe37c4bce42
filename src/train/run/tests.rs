//! Trainings, whole, on the CPU: that they learn and give the same bits; what is told when they
//! cannot begin.

use super::worker::{load, train};
use crate::{
    data::{ClassWeights, Column, DataSpec, Source, Split, Validation},
    file::{ModelFile, SavedProgress},
    model::{Layer, Loss, ModelSpec},
    plan::{Checkpoints, DecayPlan, Every, OptimizerPlan, Sharing, TrainPlan},
    predict,
};
use nodectl_gpu::ops::{Cpu, Engine};
use nodectl_types::params::Optimizer;
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
        Layer::Dense {
            units: 24,
            bias: true,
        },
        Layer::BatchNorm {
            momentum: 0.1,
            epsilon: 1e-5,
        },
        Layer::Relu,
        Layer::Dropout { share: 0.1 },
        Layer::Dense {
            units: 2,
            bias: true,
        },
    ];
    TrainPlan {
        model: ModelSpec {
            input: vec![2],
            layers,
            loss: Loss::CrossEntropy,
        },
        data: DataSpec {
            source: Source::Table {
                path: "moons.csv".into(),
                target: Column::Last,
            },
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
            optimizer: Optimizer::Adam {
                betas: [0.9, 0.999],
                epsilon: 1e-8,
            },
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
    train(plan, &load(plan, base).unwrap(), engine, (base, &dir), None)
        .unwrap_or_else(|error| panic!("{error}"))
        .result
}

/// The columns of `metrics.csv` without times.
fn curve(path: &Path) -> Vec<String> {
    let text = fs::read_to_string(path).unwrap();
    text.lines()
        .map(|line| line.split(',').take(7).collect::<Vec<_>>().join(","))
        .collect()
}

#[test]
fn a_seed_gives_a_curve_bit_for_bit_and_a_model_that_has_learnt() {
    let dir = tempfile::tempdir().unwrap();
    let base = dir.path();
    write_moons(&base.join("moons.csv"));
    let plan = || TrainPlan {
        epochs: 40,
        ..plan()
    };
    let result = run(&plan(), base, "one", 1);
    assert!(
        result["validation_accuracy"].as_f64().unwrap() > 0.95,
        "{result}"
    );
    run(&plan(), base, "two", 3);
    assert_eq!(
        curve(&base.join("one/metrics.csv")),
        curve(&base.join("two/metrics.csv"))
    );
    let model = |into: &str| fs::read(base.join(into).join("model.safetensors")).unwrap();
    assert!(
        model("one") == model("two"),
        "the same bits, also with more threads"
    );
    run(&TrainPlan { seed: 4, ..plan() }, base, "other", 1);
    assert!(model("one") != model("other"));
    for file in ["loss.svg", "accuracy.svg", "confusion.svg"] {
        assert!(
            fs::read_to_string(base.join("one").join(file))
                .unwrap()
                .contains("</svg>"),
            "{file}"
        );
    }
    let table = fs::read_to_string(base.join("one/confusion.csv")).unwrap();
    let counts = table.lines().skip(1).flat_map(|line| {
        line.split(',')
            .skip(1)
            .map(|cell| cell.parse::<u64>().unwrap())
    });
    assert_eq!(counts.sum::<u64>(), 36);
    assert_eq!(curve(&base.join("one/metrics.csv")).len(), 41);

    let moons = base.join("moons.csv").to_string_lossy().into_owned();
    let prediction = predict(
        &ModelFile::read(&base.join("one/model.safetensors")).unwrap(),
        &moons,
        1,
    )
    .unwrap();
    let right = prediction
        .answers
        .chunks(2)
        .enumerate()
        .filter(|(i, row)| (row[1] > row[0]) == (i % 2 == 1))
        .count();
    assert!(right > 170, "{right} of 180");
    let text = prediction.to_csv();
    assert!(
        text.starts_with("sample,class,probability\n0,") && text.lines().count() == 181,
        "{text}"
    );
}

/// A directory with data and a trained model, and what is said of plans that fail there.
struct FailingPlans {
    dir: tempfile::TempDir,
    engine: Arc<dyn Engine>,
    split: Split,
}

impl FailingPlans {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        write_moons(&dir.path().join("moons.csv"));
        run(&plan(), dir.path(), "whole", 1);
        Self {
            engine: Arc::new(Cpu::new(1).unwrap()),
            split: load(&plan(), dir.path()).unwrap(),
            dir,
        }
    }

    /// The error contains `message`.
    #[track_caller]
    fn refuse(&self, plan: TrainPlan, message: &str) {
        let (base, into) = (self.dir.path(), self.dir.path().join("refused"));
        std::fs::create_dir_all(&into).unwrap();
        let trained = train(&plan, &self.split, self.engine.clone(), (base, &into), None);
        let error = trained.err().unwrap().to_string();
        assert!(error.contains(message), "{message}: {error}");
    }
}

#[test]
fn a_training_begins_with_a_model_of_its_own_shapes() {
    let failing = FailingPlans::new();
    let begun = TrainPlan {
        init_from: Some("whole/model.safetensors".into()),
        epochs: 1,
        ..plan()
    };
    let first = run(&begun, failing.dir.path(), "begun", 1);
    assert!(
        first["accuracy"].as_f64().unwrap() > 0.9,
        "it begins with what was learnt: {first}"
    );
    let narrow = Layer::Dense {
        units: 2,
        bias: true,
    };
    let other = TrainPlan {
        model: ModelSpec {
            layers: vec![narrow],
            ..plan().model
        },
        ..begun
    };
    failing.refuse(
        other,
        "`0.weight` has the shape [24, 2], the model's [2, 2]",
    );
}

#[test]
fn a_training_goes_on_only_where_one_like_it_stopped() {
    let failing = FailingPlans::new();
    let base = failing.dir.path();
    let resumed = || TrainPlan {
        resume_from: Some("step.safetensors".into()),
        ..plan()
    };
    let mut file = ModelFile::read(&base.join("whole/model.safetensors")).unwrap();
    file.write(&base.join("step.safetensors")).unwrap();
    failing.refuse(resumed(), "it is not a checkpoint");
    file.progress = Some(SavedProgress {
        step: 76,
        history: Vec::new(),
        state: Vec::new(),
    });
    file.write(&base.join("step.safetensors")).unwrap();
    failing.refuse(resumed(), "`optimizer/0.weight/first` is not there");
    let mut other = resumed();
    other.seed = 9;
    failing.refuse(other, "another seed, 3");
    let mut other = resumed();
    other.batch = 10;
    failing.refuse(other, "epochs of 8 batches, this job's have 15");
    let mut other = resumed();
    other.optimizer.optimizer = Optimizer::Momentum { momentum: 0.9 };
    failing.refuse(other, "another optimizer");
    let mut other = resumed();
    other.epochs = 9;
    failing.refuse(other, "step 76, this job has 72 in all");
}

#[test]
fn checkpoints_need_a_node_and_steps_must_be_small_enough() {
    let failing = FailingPlans::new();
    let checkpoints = Checkpoints {
        every: Every::Steps(5),
        keep: 2,
    };
    let kept = TrainPlan {
        checkpoints: Some(checkpoints),
        ..plan()
    };
    failing.refuse(kept, "no node is there to keep checkpoints");
    let wild = OptimizerPlan {
        optimizer: Optimizer::Sgd,
        rate: 1e30,
        clip_norm: None,
        ..plan().optimizer
    };
    let diverging = TrainPlan {
        optimizer: wild,
        ..plan()
    };
    failing.refuse(diverging, "hint: a smaller `rate`");
}
