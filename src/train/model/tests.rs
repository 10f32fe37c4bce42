//! Models beside PyTorch's numbers (`tests/fixtures/torch`), and beside finite differences.

use super::{Batch, Layer, Loss, ModelSpec, NeuralNetwork, WindowSpec, arrays, output_shape, spec};
use crate::model::shapes::Place;
use bytes::Bytes;
use nodectl_formats::{convert, safetensors};
use nodectl_gpu::ops::{Cpu, Engine, Vulkan};
use nodectl_types::{Scalar, checkpoint::NOTE};
use std::{path::Path, sync::Arc};

const CASES: [&str; 6] = [
    "mlp",
    "regression",
    "binary",
    "lenet",
    "resnet",
    "embedding",
];

fn bytes(values: &[f32]) -> Bytes {
    Bytes::copy_from_slice(bytemuck::cast_slice(values))
}

fn cpu() -> Arc<dyn Engine> {
    Arc::new(Cpu::new(2).unwrap())
}

/// One step of each model on an engine: everything within `tolerance` of what PyTorch found,
/// relative to the largest number of the array, or 1e-2: biases before batch normalization have
/// none.
fn agrees_with_pytorch(engine: &Arc<dyn Engine>, tolerance: f32) {
    for case in CASES {
        let path = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join(format!("../../tests/fixtures/torch/{case}.safetensors"));
        let file = safetensors::read_all(&path).unwrap();
        let spec: ModelSpec = serde_json::from_str(&file.metadata[NOTE]).unwrap();
        let numbers = |name: &str| file.arrays[name].clone().into_f32();
        let near = |what: &str, ours: &[f32], theirs: &[f32]| {
            assert_eq!(ours.len(), theirs.len(), "{case}: {what}");
            let largest = theirs
                .iter()
                .fold(1e-2f32, |most, value| most.max(value.abs()));
            for (index, (ours, theirs)) in ours.iter().zip(theirs).enumerate() {
                let apart = (ours - theirs).abs() / largest;
                assert!(
                    apart <= tolerance,
                    "{case}: {what} at {index}: {ours} is not {theirs}"
                );
            }
        };
        let raw = |name: &str, scalar| {
            let array = file.arrays[name].clone();
            Bytes::from(convert(array.bytes, array.info.scalar, scalar))
        };
        let count = file.arrays["inputs"].info.shape[0] as u32;
        let mut network = NeuralNetwork::new(engine.clone(), &spec, 1, count + 2, false).unwrap();
        for (array, _) in network.arrays().unwrap() {
            assert!(
                network
                    .set(&array.name, &numbers(&format!("value/{}", array.name)))
                    .unwrap()
            );
        }
        let batch = Batch {
            count,
            inputs: raw(
                "inputs",
                if spec.takes_indices() {
                    Scalar::U32
                } else {
                    Scalar::F32
                },
            ),
            targets: raw(
                "targets",
                if spec.loss == Loss::CrossEntropy {
                    Scalar::U32
                } else {
                    Scalar::F32
                },
            ),
            weights: None,
        };
        for in_segments in [true, false] {
            for name in file
                .arrays
                .keys()
                .filter_map(|name| name.strip_prefix("after/"))
            {
                network
                    .set(name, &numbers(&format!("value/{name}")))
                    .unwrap();
            }
            let mut pushed = Vec::new();
            let report = network.train(batch.clone(), 1, in_segments, &mut |tensor| {
                pushed.push(tensor);
                Ok(())
            });
            let (losses, _) = report.unwrap().wait().unwrap();
            let tensors = network.tensors();
            assert_eq!(
                pushed,
                (0..tensors.len()).rev().collect::<Vec<_>>(),
                "{case}: from the last on"
            );
            near(
                "loss",
                &[losses.iter().sum::<f32>() / count as f32],
                &numbers("loss"),
            );
            for (index, tensor) in tensors.iter().enumerate() {
                let name = format!("gradient/{}", tensor.name);
                near(&name, &network.gradient(index).unwrap(), &numbers(&name));
            }
            for (array, values) in network
                .arrays()
                .unwrap()
                .iter()
                .filter(|(array, _)| !array.is_trained)
            {
                near(
                    &array.name,
                    values,
                    &numbers(&format!("after/{}", array.name)),
                );
            }
        }
        near(
            "answers",
            &network.predict(count, batch.inputs.clone()).unwrap(),
            &numbers("answers"),
        );
    }
}

/// Sums of some hundred products round in another order; batch normalization divides small
/// differences.
#[test]
fn models_agree_with_pytorch() {
    agrees_with_pytorch(&cpu(), 2e-5);
}

#[test]
fn models_agree_with_pytorch_on_vulkan() {
    use nodectl_gpu::device::{Device, DeviceOptions};
    match Device::any(&DeviceOptions {
        validation: true,
        software: true,
    }) {
        Ok(device) => agrees_with_pytorch(
            &(Arc::new(Vulkan::new(device).unwrap()) as Arc<dyn Engine>),
            5e-5,
        ),
        Err(error) => eprintln!("SKIPPED: no Vulkan device: {error}"),
    }
}

/// The mean loss of a batch.
fn loss(network: &mut NeuralNetwork, batch: &Batch) -> f64 {
    let (losses, _) = network
        .train(batch.clone(), 1, false, &mut |_| Ok(()))
        .unwrap()
        .wait()
        .unwrap();
    losses.iter().map(|loss| f64::from(*loss)).sum::<f64>() / losses.len() as f64
}

/// Smooth models with every kind of layer, moved a little along each tensor's gradient: the loss
/// changes by its square. The loss is rounded at 1e-7 of itself, a step is some 1e-2 long, so
/// differences are good to 1e-3 of a gradient of norm 0.1; the third derivative adds as much.
#[test]
fn gradients_are_those_of_finite_differences() {
    let window = |size, padding| WindowSpec {
        padding: [padding; 2],
        ..WindowSpec::square(size)
    };
    let conv = |channels, size, padding| Layer::Conv2d {
        channels,
        window: window(size, padding),
        groups: 1,
        bias: true,
    };
    let dense = |units| Layer::Dense { units, bias: true };
    let batch_norm = Layer::BatchNorm {
        momentum: 0.1,
        epsilon: 1e-5,
    };
    let block = Layer::Residual {
        layers: vec![conv(3, 3, 1), batch_norm, Layer::Tanh],
        shortcut: vec![],
    };
    let pool = Layer::AvgPool {
        window: WindowSpec {
            stride: [2; 2],
            ..WindowSpec::square(2)
        },
    };
    let image = vec![
        conv(3, 3, 1),
        Layer::Gelu,
        block,
        pool,
        Layer::Flatten,
        Layer::Dropout { share: 0.3 },
        dense(3),
    ];
    let row = vec![
        dense(8),
        Layer::LayerNorm { epsilon: 1e-5 },
        Layer::Sigmoid,
        dense(3),
    ];
    for (input, layers) in [(vec![2, 6, 6], image), (vec![7], row)] {
        for loss_kind in [Loss::CrossEntropy, Loss::Mse, Loss::BinaryCrossEntropy] {
            let spec = ModelSpec {
                input: input.clone(),
                layers: layers.clone(),
                loss: loss_kind,
            };
            let count = 5;
            let mut network = NeuralNetwork::new(cpu(), &spec, 3, count, false).unwrap();
            let len = count as usize * input.iter().product::<u32>() as usize;
            let inputs: Vec<f32> = (0..len)
                .map(|i| ((i * 37 + 11) % 101) as f32 / 50.0 - 1.0)
                .collect();
            let targets = match loss_kind {
                Loss::CrossEntropy => Bytes::from(
                    [0u32, 1, 2, 1, 0]
                        .iter()
                        .flat_map(|t| t.to_le_bytes())
                        .collect::<Vec<_>>(),
                ),
                _ => bytes(&(0..15).map(|i| (i % 2) as f32).collect::<Vec<_>>()),
            };
            let batch = Batch {
                count,
                inputs: bytes(&inputs),
                targets,
                weights: None,
            };
            loss(&mut network, &batch);
            for (index, tensor) in network.tensors().iter().enumerate() {
                loss(&mut network, &batch);
                let gradient = network.gradient(index).unwrap();
                let norm = gradient
                    .iter()
                    .map(|g| f64::from(*g).powi(2))
                    .sum::<f64>()
                    .sqrt();
                let arrays = network.arrays().unwrap();
                let values = &arrays
                    .iter()
                    .find(|(array, _)| array.name == tensor.name)
                    .unwrap()
                    .1;
                let step = 1e-2;
                let mut moved = |direction: f64| {
                    let along = |(x, g): (&f32, &f32)| {
                        (f64::from(*x) + direction * step * f64::from(*g) / norm.max(1e-9)) as f32
                    };
                    let there: Vec<f32> = values.iter().zip(&gradient).map(along).collect();
                    network.set(&tensor.name, &there).unwrap();
                    loss(&mut network, &batch)
                };
                let slope = (moved(1.0) - moved(-1.0)) / (2.0 * step);
                network.set(&tensor.name, values).unwrap();
                let name = &tensor.name;
                assert!(
                    (slope - norm).abs() < 2e-4 + 5e-3 * norm,
                    "{loss_kind:?} {name}: {slope} is not {norm}"
                );
            }
        }
    }
}

#[test]
fn dropout_draws_anew_each_step_and_the_same_in_the_same_step() {
    let layers = vec![
        Layer::Dropout { share: 0.5 },
        Layer::Dense {
            units: 1,
            bias: false,
        },
    ];
    let spec = ModelSpec {
        input: vec![1000],
        layers,
        loss: Loss::Mse,
    };
    let mut network = NeuralNetwork::new(cpu(), &spec, 3, 1, false).unwrap();
    network.set("1.weight", &[1.0; 1000]).unwrap();
    let batch = Batch {
        count: 1,
        inputs: bytes(&[1.0; 1000]),
        targets: bytes(&[0.0]),
        weights: None,
    };
    let mut sum = |step| {
        network
            .train(batch.clone(), step, false, &mut |_| Ok(()))
            .unwrap()
            .wait()
            .unwrap()
            .0[0]
            .sqrt()
    };
    let (first, second, again) = (sum(1), sum(2), sum(1));
    assert!(first == again && first != second);
    // Each of the 1000 counts 0 or 2: a deviation of 32.
    assert!(
        (first - 1000.0).abs() < 160.0 && (second - 1000.0).abs() < 160.0,
        "{first} {second}"
    );
    assert_eq!(
        network.predict(1, batch.inputs).unwrap(),
        [1000.0],
        "nothing is dropped in use"
    );
}

#[test]
fn weights_multiply_what_each_sample_is_learnt_from() {
    let layers = vec![Layer::Dense {
        units: 2,
        bias: true,
    }];
    let spec = ModelSpec {
        input: vec![3],
        layers,
        loss: Loss::CrossEntropy,
    };
    let gradient = |weights: Option<[f32; 2]>| {
        let mut network = NeuralNetwork::new(cpu(), &spec, 3, 2, weights.is_some()).unwrap();
        let targets: Vec<u8> = [0u32, 1]
            .iter()
            .flat_map(|class| class.to_le_bytes())
            .collect();
        let weights = weights.map(|[one, other]| bytes(&[one, one, other, other]));
        let inputs = bytes(&[0.1, 0.2, 0.3, -1.0, 0.5, 2.0]);
        let batch = Batch {
            count: 2,
            inputs,
            targets: targets.into(),
            weights,
        };
        network
            .train(batch, 1, false, &mut |_| Ok(()))
            .unwrap()
            .wait()
            .unwrap();
        network.gradient(0).unwrap()
    };
    let near = |one: &[f32], other: &[f32]| {
        assert!(one.iter().zip(other).all(|(a, b)| (a - b).abs() < 1e-6))
    };
    near(&gradient(None), &gradient(Some([0.5, 0.5])));
    let (first, second) = (gradient(Some([1.0, 0.0])), gradient(Some([0.0, 1.0])));
    let sum: Vec<f32> = first
        .iter()
        .zip(&second)
        .map(|(a, b)| 0.75 * a + 0.25 * b)
        .collect();
    near(&gradient(Some([0.75, 0.25])), &sum);
}

#[test]
fn layers_that_do_not_fit_are_named_with_their_place() {
    let dense = |units| Layer::Dense { units, bias: true };
    let conv = |size| Layer::Conv2d {
        channels: 4,
        window: WindowSpec::square(size),
        groups: 1,
        bias: true,
    };
    let of = |input: &[u32], layers: Vec<Layer>, loss| {
        output_shape(&ModelSpec {
            input: input.to_vec(),
            layers,
            loss,
        })
        .map_err(|misfit| (misfit.path, misfit.message))
    };
    assert_eq!(
        of(
            &[1, 8, 8],
            vec![conv(3), Layer::Flatten, dense(10)],
            Loss::CrossEntropy
        )
        .unwrap(),
        [10]
    );
    let (path, message) = of(&[1, 8, 8], vec![conv(3), dense(10)], Loss::CrossEntropy).unwrap_err();
    assert_eq!(
        (path, message.as_str()),
        (
            vec![Place::Layer(1)],
            "`dense` takes a row of numbers, and is given 4 x 6 x 6"
        )
    );
    let (_, message) = of(&[64], vec![conv(3)], Loss::Mse).unwrap_err();
    assert!(
        message.contains("channels x rows x columns, and is given 64"),
        "{message}"
    );
    let (_, message) = of(&[1, 2, 2], vec![conv(3)], Loss::Mse).unwrap_err();
    assert!(message.contains("larger than the 2 x 2"), "{message}");
    let block = Layer::Residual {
        layers: vec![dense(3)],
        shortcut: vec![Layer::Relu, Layer::Flatten],
    };
    let (path, message) = of(&[4], vec![dense(4), block], Loss::Mse).unwrap_err();
    assert!(
        path == [Place::Layer(1)] && message.contains("leave 3, its shortcut 4"),
        "{message}"
    );
    let inner = Layer::Residual {
        layers: vec![dense(4)],
        shortcut: vec![Layer::MaxPool {
            window: WindowSpec::square(2),
        }],
    };
    let (path, _) = of(&[4], vec![dense(4), inner], Loss::Mse).unwrap_err();
    assert_eq!(path, [Place::Layer(1), Place::Shortcut(0)]);
    let (_, message) = of(&[4], vec![dense(1)], Loss::CrossEntropy).unwrap_err();
    assert!(message.contains("one output"), "{message}");
    let huge = of(&[1 << 20], vec![dense(1 << 20)], Loss::Mse).unwrap();
    assert_eq!(huge, [1 << 20]);
    assert!(
        arrays(&ModelSpec {
            input: vec![1 << 20],
            layers: vec![dense(1 << 20)],
            loss: Loss::Mse
        })
        .is_err()
    );
    let deep = (0..20).fold(dense(4), |inner, _| Layer::Residual {
        layers: vec![inner],
        shortcut: vec![],
    });
    assert!(of(&[4], vec![deep], Loss::Mse).is_err());
    assert_eq!(spec::Loss::CrossEntropy.metric(), "accuracy");
}
