//! Data from each kind of file, and what is refused.

use super::{
    ClassWeights, Column, DataSpec, Dataset, FilePlace, Source, Targets, Validation, load_inputs,
    order,
};
use crate::model::{Layer, Loss, ModelSpec};
use nodectl_formats::{self as formats, Array, Info};
use nodectl_types::Scalar;
use proptest::prelude::*;
use std::{fs, path::Path};

fn model(input: &[u32], outputs: u32, loss: Loss) -> ModelSpec {
    let layers = vec![
        Layer::Flatten,
        Layer::Dense {
            units: outputs,
            bias: true,
        },
    ];
    ModelSpec {
        input: input.to_vec(),
        layers,
        loss,
    }
}

fn spec(source: Source) -> DataSpec {
    DataSpec {
        source,
        validation: Validation::Nothing,
        shape: None,
        scale: 1.0,
        standardize: false,
        class_weights: ClassWeights::Equal,
    }
}

fn table(path: &str, target: Column) -> Source {
    Source::Table {
        path: path.into(),
        target,
    }
}

fn place(path: &str) -> FilePlace {
    FilePlace {
        path: path.into(),
        member: None,
    }
}

/// Two inputs and three outputs, from a table of this text.
fn load_table(text: &str, target: Column, loss: Loss) -> Result<Dataset, String> {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("a.csv"), text).unwrap();
    spec(table("a.csv", target))
        .load(dir.path(), &model(&[2], 3, loss), 3, 0)
        .map(|split| split.training)
        .map_err(|error| error.0)
}

#[test]
fn a_table_has_a_header_when_its_inputs_are_named() {
    let load = |text: &str, target| load_table(text, target, Loss::CrossEntropy).unwrap();
    let plain = load("1,2,0\n3,4,2\n", Column::Last);
    assert_eq!(
        (plain.inputs, plain.targets),
        (vec![1.0, 2.0, 3.0, 4.0], Targets::Classes(vec![0, 2]))
    );
    let first = load("b,1,2\na,3,4\nb,5,6\n", Column::Number(0));
    assert_eq!(first.names, ["a", "b"]);
    assert_eq!(first.targets, Targets::Classes(vec![1, 0, 1]));
    let kind = || Column::Name("kind".into());
    let named = load("u, kind ,v\n1,2,3\n1,0,3\n", kind());
    assert_eq!(
        (named.inputs, named.targets),
        (vec![1.0, 3.0, 1.0, 3.0], Targets::Classes(vec![2, 0]))
    );
    // Numbers may be names where the target's column is named.
    let numbers = load("1, kind ,2\n1,2,3\n1,0,3\n", kind());
    assert_eq!(numbers.targets, Targets::Classes(vec![2, 0]));
}

#[test]
fn mistakes_in_a_table_are_named_with_their_line() {
    for (text, wanted) in [
        ("", "is empty"),
        ("1,2,0\n1,2\n", "a.csv"),
        (
            "1,2,0\n1,nan,1\n",
            "sample 1 (from 0), number 1 of it: NaN is not a finite number",
        ),
        ("1,2,0.5\n", "is 0.5, not the number of a class"),
        ("1,2,-1\n", "is -1, not the number of a class"),
        ("1,2,3,4\n", "samples are 3, the model takes 2"),
        ("1\n", "no inputs beside the target"),
        ("1,2,a\n3,4,\n5,6,b\n", "line 2: the target is empty"),
        ("x,y,z\n1,2,\n3,4,\n", "line 2: the target is empty"),
        (
            "1,O.5,0\n1,2,1\n",
            "line 1, column 1 (from 0): `O.5` is not a number",
        ),
        (
            "O.5,O.1,0\n1,2,1\n",
            "line 1, column 0 (from 0): `O.5` is not a number",
        ),
        ("1,2,1\n3,4,1\n", "all samples are of one class, `1`"),
        ("1,2,a\n3,4,a\n", "all samples are of one class, `a`"),
    ] {
        let error = load_table(text, Column::Last, Loss::CrossEntropy).unwrap_err();
        assert!(error.contains(wanted), "{text:?}: {error}");
    }
    let other = load_table("1,2,7\n", Column::Last, Loss::BinaryCrossEntropy).unwrap_err();
    assert!(
        other.contains("1 numbers for each sample, the model has 3 outputs"),
        "{other}"
    );
}

#[test]
fn arrays_have_as_many_inputs_as_targets() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, shape: &[u64], values: &[f32]| {
        let array = Array::of_f32(shape.to_vec(), values);
        formats::write(&dir.path().join(name), &[("a", &array)], None).unwrap();
    };
    write("x.npy", &[2, 1, 2], &[1.0, 2.0, 3.0, 4.0]);
    write("y.safetensors", &[2, 1], &[0.0, 1.0]);
    write("z.npz", &[3], &[0.0, 1.0, 0.0]);
    let load = |targets: &str, loss, outputs| {
        let source = Source::Arrays {
            inputs: place("x.npy"),
            targets: place(targets),
        };
        spec(source)
            .load(dir.path(), &model(&[1, 2], outputs, loss), outputs, 0)
            .map_err(|error| error.0)
    };
    let split = load("y.safetensors", Loss::Mse, 1).unwrap();
    assert_eq!(
        split.training.targets,
        Targets::Values {
            values: vec![0.0, 1.0],
            width: 1
        }
    );
    assert_eq!(
        load("y.safetensors", Loss::CrossEntropy, 2)
            .unwrap()
            .training
            .targets,
        Targets::Classes(vec![0, 1])
    );
    let error = load("z.npz", Loss::CrossEntropy, 2).unwrap_err();
    assert_eq!(error, "`x.npy` has 2 samples, `z.npz` has 3");
    write("y.safetensors", &[2], &[0.0, 2.0]);
    assert!(
        load("y.safetensors", Loss::BinaryCrossEntropy, 1)
            .unwrap_err()
            .contains("not from 0 to 1")
    );
    let source = Source::Arrays {
        inputs: place("x.npy"),
        targets: place("x.npy"),
    };
    assert_eq!(
        load_inputs(&source, dir.path(), &[2]).unwrap(),
        [1.0, 2.0, 3.0, 4.0]
    );
    assert!(
        load_inputs(&source, dir.path(), &[3])
            .unwrap_err()
            .0
            .contains("the model takes 3")
    );
}

#[test]
fn folders_of_images_are_classes() {
    let dir = tempfile::tempdir().unwrap();
    let draw = |name: &str, rows: u32, pixel: [u8; 3]| {
        let path = dir.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        let info = Info {
            scalar: Scalar::U8,
            shape: vec![rows.into(), 2, 3],
        };
        let array = Array {
            info,
            bytes: pixel.repeat(2 * rows as usize),
        };
        formats::write(&path, &[("", &array)], None).unwrap();
    };
    draw("p/dogs/1.png", 1, [0, 51, 255]);
    draw("p/cats/1.png", 1, [255, 0, 0]);
    let files = vec!["p/cats/1.png".to_string(), "p/dogs/1.png".to_string()];
    let images = |files: &[String], channels, size| Source::Images {
        files: files.to_vec(),
        channels,
        size,
    };
    let load = |source, input: &[u32]| {
        let spec = DataSpec {
            scale: 1.0 / 255.0,
            ..spec(source)
        };
        spec.load(dir.path(), &model(input, 2, Loss::CrossEntropy), 2, 0)
            .map_err(|error| error.0)
    };
    let split = load(images(&files, None, None), &[3, 1, 2]).unwrap();
    assert_eq!(
        (split.training.names, split.training.targets),
        (
            vec!["cats".into(), "dogs".into()],
            Targets::Classes(vec![0, 1])
        )
    );
    let dog = &split.training.inputs[6..];
    assert!(
        dog.iter()
            .zip([0.0, 0.0, 0.2, 0.2, 1.0, 1.0])
            .all(|(a, b)| (a - b).abs() < 1e-6),
        "{dog:?}"
    );
    assert_eq!(
        load(images(&files, Some(1), Some([2, 4])), &[1, 2, 4])
            .unwrap()
            .training
            .width(),
        8
    );
    draw("p/dogs/2.png", 3, [0; 3]);
    let more = [files.as_slice(), &["p/dogs/2.png".to_string()]].concat();
    let error = load(images(&more, None, None), &[3, 1, 2]).unwrap_err();
    assert!(
        error.contains("`p/dogs/2.png` has 3 x 2 pixels") && error.contains("size = [1, 2]"),
        "{error}"
    );
    fs::write(dir.path().join("p/dogs/2.png"), "no image").unwrap();
    assert!(
        load(images(&more, None, None), &[3, 1, 2])
            .unwrap_err()
            .contains("p/dogs/2.png")
    );
}

#[test]
fn what_is_held_back_is_not_learnt_from() {
    let dir = tempfile::tempdir().unwrap();
    let lines: String = (0..20).map(|i| format!("{i},{}\n", i % 2)).collect();
    fs::write(dir.path().join("a.csv"), lines).unwrap();
    let load = |validation, standardize, class_weights| {
        let spec = DataSpec {
            validation,
            standardize,
            class_weights,
            ..spec(table("a.csv", Column::Last))
        };
        spec.load(dir.path(), &model(&[1], 2, Loss::CrossEntropy), 2, 5)
            .map_err(|error| error.0)
    };
    let split = load(Validation::Share(0.25), false, ClassWeights::Equal).unwrap();
    let held = split.validation.unwrap();
    let mut all = [split.training.inputs.as_slice(), &held.inputs].concat();
    all.sort_by(f32::total_cmp);
    assert_eq!((held.len(), all), (5, (0..20).map(|i| i as f32).collect()));
    let split = load(Validation::Share(0.25), true, ClassWeights::Balanced).unwrap();
    let (n, sum) = (
        split.training.len() as f32,
        split.training.inputs.iter().sum::<f32>(),
    );
    let square: f32 = split.training.inputs.iter().map(|x| x * x).sum();
    assert!(
        sum.abs() < 1e-4 && (square / n - 1.0).abs() < 1e-4,
        "{sum} {square}"
    );
    let counts = |class| {
        if let Targets::Classes(of) = &split.training.targets {
            of.iter().filter(|c| **c == class).count()
        } else {
            0
        }
    };
    let weights = split.weights.clone().unwrap();
    assert!(
        (0..2).all(|class| (weights[class] * counts(class as u32) as f32 - n / 2.0).abs() < 1e-4)
    );
    assert!(
        load(Validation::Share(0.99), false, ClassWeights::Equal)
            .unwrap_err()
            .contains("none is left")
    );
    fs::write(dir.path().join("b.csv"), "3,1\n").unwrap();
    let other = load(
        Validation::Other(table("b.csv", Column::Last)),
        false,
        ClassWeights::Equal,
    )
    .unwrap();
    assert_eq!(
        (other.training.len(), other.validation.unwrap().inputs),
        (20, vec![3.0])
    );
    assert!(
        spec(table("missing.csv", Column::Last))
            .sample_shape(Path::new("."))
            .unwrap_err()
            .0
            .contains("missing.csv")
    );
}

proptest! {
    #[test]
    fn an_epoch_has_every_sample_once(count in 0u32..300, seed: u64, epoch in 0u64..5) {
        let mut all = order(count, seed, epoch);
        prop_assert_eq!(&all, &order(count, seed, epoch));
        all.sort_unstable();
        prop_assert_eq!(all, (0..count).collect::<Vec<_>>());
    }
}
