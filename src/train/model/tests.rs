//! Models beside PyTorch's numbers (`tests/fixtures/torch`), and beside finite differences.

use super::{Batch, Layer, Loss, ModelSpec, NeuralNetwork, WindowSpec, arrays, output_shape, spec};
use crate::model::shapes::LayerStep;
use bytes::Bytes;
use nodectl_formats::{
    convert,
    safetensors::{self, NamedArrays},
};
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

/// A model, a batch, and what PyTorch made of them.
struct TorchCase {
    name: &'static str,
    file: NamedArrays,
    spec: ModelSpec,
}

impl TorchCase {
    fn read(name: &'static str) -> Self {
        let path = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join(format!("../../tests/fixtures/torch/{name}.safetensors"));
        let file = safetensors::read_all(&path).unwrap();
        let spec = serde_json::from_str(&file.metadata[NOTE]).unwrap();
        Self { name, file, spec }
    }

    fn numbers(&self, array: &str) -> Vec<f32> {
        self.file.arrays[array].clone().into_f32()
    }

    fn batch(&self) -> Batch {
        let scalar = |whole| if whole { Scalar::U32 } else { Scalar::F32 };
        let raw = |name: &str, scalar| {
            let array = self.file.arrays[name].clone();
            Bytes::from(convert(array.bytes, array.info.scalar, scalar))
        };
        let are_classes = self.spec.loss == Loss::CrossEntropy;
        Batch {
            count: self.file.arrays["inputs"].info.shape[0] as u32,
            inputs: raw("inputs", scalar(self.spec.takes_indices())),
            targets: raw("targets", scalar(are_classes)),
            weights: None,
        }
    }

    /// A network of the model, larger than the batch asks for.
    fn network(&self, engine: &Arc<dyn Engine>) -> NeuralNetwork {
        let most = self.batch().count + 2;
        let mut network = NeuralNetwork::new(engine.clone(), &self.spec, 1, most, false).unwrap();
        for (array, _) in network.arrays().unwrap() {
            let values = self.numbers(&format!("value/{}", array.name));
            assert!(network.set(&array.name, &values).unwrap());
        }
        network
    }

    /// Everything within `tolerance` of what PyTorch found, relative to the largest number of the
    /// array, or 1e-2: biases before batch normalization have none.
    #[track_caller]
    fn near(&self, what: &str, ours: &[f32], array: &str, tolerance: f32) {
        let (case, theirs) = (self.name, self.numbers(array));
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
    }
}

/// One step of each model on an engine.
fn agrees_with_pytorch(engine: &Arc<dyn Engine>, tolerance: f32) {
    for case in CASES.map(TorchCase::read) {
        let mut network = case.network(engine);
        let batch = case.batch();
        for in_segments in [true, false] {
            let names = case.file.arrays.keys();
            for name in names.filter_map(|name| name.strip_prefix("after/")) {
                let values = case.numbers(&format!("value/{name}"));
                network.set(name, &values).unwrap();
            }
            let mut pushed = Vec::new();
            let report = network.train(batch.clone(), 1, in_segments, &mut |tensor| {
                pushed.push(tensor);
                Ok(())
            });
            let (losses, _) = report.unwrap().wait().unwrap();
            let tensors = network.tensors();
            let backward: Vec<usize> = (0..tensors.len()).rev().collect();
            assert_eq!(pushed, backward, "{}: from the last on", case.name);
            let loss = losses.iter().sum::<f32>() / batch.count as f32;
            case.near("loss", &[loss], "loss", tolerance);
            for (index, tensor) in tensors.iter().enumerate() {
                let name = format!("gradient/{}", tensor.name);
                case.near(&name, &network.gradient(index).unwrap(), &name, tolerance);
            }
            let arrays = network.arrays().unwrap();
            for (array, values) in arrays.iter().filter(|(array, _)| !array.is_trained) {
                let after = format!("after/{}", array.name);
                case.near(&array.name, values, &after, tolerance);
            }
        }
        let answers = network.predict(batch.count, batch.inputs).unwrap();
        case.near("answers", &answers, "answers", tolerance);
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
        learned: None,
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

/// Layers over an image of 6 x 6 with two channels, all of them smooth.
fn smooth_image_layers() -> Vec<Layer> {
    let conv = Layer::Conv2d {
        channels: 3,
        window: WindowSpec {
            padding: [1; 2],
            ..WindowSpec::square(3)
        },
        groups: 1,
        bias: true,
    };
    let batch_norm = Layer::BatchNorm {
        momentum: 0.1,
        epsilon: 1e-5,
    };
    let block = Layer::Residual {
        layers: vec![conv.clone(), batch_norm, Layer::Tanh],
        shortcut: vec![],
    };
    let pool = Layer::AvgPool {
        window: WindowSpec {
            stride: [2; 2],
            ..WindowSpec::square(2)
        },
    };
    let dense = Layer::Dense {
        units: 3,
        bias: true,
    };
    vec![
        conv,
        Layer::Gelu,
        block,
        pool,
        Layer::Flatten,
        Layer::Dropout { share: 0.3 },
        dense,
    ]
}

/// Smooth layers over a row of numbers.
fn smooth_row_layers() -> Vec<Layer> {
    let dense = |units| Layer::Dense { units, bias: true };
    vec![
        dense(8),
        Layer::LayerNorm { epsilon: 1e-5 },
        Layer::Sigmoid,
        dense(3),
    ]
}

/// Five samples.
fn smooth_batch(spec: &ModelSpec) -> Batch {
    let len = 5 * spec.input.iter().product::<u32>();
    let inputs: Vec<f32> = (0..len)
        .map(|i| ((i * 37 + 11) % 101) as f32 / 50.0 - 1.0)
        .collect();
    let targets = match spec.loss {
        Loss::CrossEntropy => [0u32, 1, 2, 1, 0].map(u32::to_le_bytes).concat().into(),
        Loss::Mse | Loss::BinaryCrossEntropy => {
            bytes(&(0..15).map(|i| (i % 2) as f32).collect::<Vec<_>>())
        }
    };
    Batch {
        count: 5,
        inputs: bytes(&inputs),
        targets,
        weights: None,
    }
}

/// Smooth models with every kind of layer, moved a little along each tensor's gradient: the loss
/// changes by its square. The loss is rounded at 1e-7 of itself, a step is some 1e-2 long, so
/// differences are good to 1e-3 of a gradient of norm 0.1; the third derivative adds as much.
#[test]
fn gradients_are_those_of_finite_differences() {
    for (input, layers) in [
        (vec![2, 6, 6], smooth_image_layers()),
        (vec![7], smooth_row_layers()),
    ] {
        for loss in [Loss::CrossEntropy, Loss::Mse, Loss::BinaryCrossEntropy] {
            check_gradients(&ModelSpec {
                input: input.clone(),
                layers: layers.clone(),
                loss,
            });
        }
    }
}

fn check_gradients(spec: &ModelSpec) {
    const STEP: f64 = 1e-2;
    let batch = smooth_batch(spec);
    let mut network = NeuralNetwork::new(cpu(), spec, 3, batch.count, false).unwrap();
    loss(&mut network, &batch);
    for (index, tensor) in network.tensors().iter().enumerate() {
        loss(&mut network, &batch);
        let gradient = network.gradient(index).unwrap();
        let squares = gradient.iter().map(|g| f64::from(*g).powi(2));
        let norm = squares.sum::<f64>().sqrt();
        let name = &tensor.name;
        let arrays = network.arrays().unwrap();
        let found = arrays.iter().find(|(array, _)| array.name == *name);
        let values = &found.unwrap().1;
        let mut moved = |direction: f64| {
            let along = |(x, g): (&f32, &f32)| {
                (f64::from(*x) + direction * STEP * f64::from(*g) / norm.max(1e-9)) as f32
            };
            let there: Vec<f32> = values.iter().zip(&gradient).map(along).collect();
            network.set(name, &there).unwrap();
            loss(&mut network, &batch)
        };
        let slope = (moved(1.0) - moved(-1.0)) / (2.0 * STEP);
        network.set(name, values).unwrap();
        assert!(
            (slope - norm).abs() < 2e-4 + 5e-3 * norm,
            "{:?} {name}: {slope} is not {norm}",
            spec.loss
        );
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

fn dense(units: u32) -> Layer {
    Layer::Dense { units, bias: true }
}

fn conv() -> Layer {
    Layer::Conv2d {
        channels: 4,
        window: WindowSpec::square(3),
        groups: 1,
        bias: true,
    }
}

/// The shape of the outputs, or what does not fit and where.
fn shape_of(
    input: &[u32],
    layers: Vec<Layer>,
    loss: Loss,
) -> Result<Vec<u32>, (Vec<LayerStep>, String)> {
    output_shape(&ModelSpec {
        input: input.to_vec(),
        layers,
        loss,
    })
    .map_err(|misfit| (misfit.path, misfit.message))
}

#[test]
fn layers_that_do_not_fit_are_named_with_their_place() {
    let fitting = vec![conv(), Layer::Flatten, dense(10)];
    let shape = shape_of(&[1, 8, 8], fitting, Loss::CrossEntropy);
    assert_eq!(shape.unwrap(), [10]);
    let refused = |input: &[u32], layers, loss| shape_of(input, layers, loss).unwrap_err();
    let image = vec![conv(), dense(10)];
    let (path, message) = refused(&[1, 8, 8], image, Loss::CrossEntropy);
    assert_eq!(path, [LayerStep::Layer(1)]);
    assert_eq!(
        message,
        "`dense` takes a row of numbers, and is given 4 x 6 x 6"
    );
    for (input, layers, loss, wanted) in [
        (
            &[64][..],
            vec![conv()],
            Loss::Mse,
            "channels x rows x columns, and is given 64",
        ),
        (&[1, 2, 2], vec![conv()], Loss::Mse, "larger than the 2 x 2"),
        (&[4], vec![dense(1)], Loss::CrossEntropy, "one output"),
    ] {
        let (_, message) = refused(input, layers, loss);
        assert!(message.contains(wanted), "{message}");
    }
}

#[test]
fn blocks_that_do_not_fit_are_named_with_their_place() {
    let after_dense = |layers, shortcut| {
        let block = Layer::Residual { layers, shortcut };
        shape_of(&[4], vec![dense(4), block], Loss::Mse).unwrap_err()
    };
    let (path, message) = after_dense(vec![dense(3)], vec![Layer::Relu, Layer::Flatten]);
    assert!(
        path == [LayerStep::Layer(1)] && message.contains("leave 3, its shortcut 4"),
        "{message}"
    );
    let pool = Layer::MaxPool {
        window: WindowSpec::square(2),
    };
    let (path, _) = after_dense(vec![dense(4)], vec![pool]);
    assert_eq!(path, [LayerStep::Layer(1), LayerStep::Shortcut(0)]);
    let deep = (0..20).fold(dense(4), |inner, _| Layer::Residual {
        layers: vec![inner],
        shortcut: vec![],
    });
    assert!(shape_of(&[4], vec![deep], Loss::Mse).is_err());
}

#[test]
fn a_model_of_fitting_shapes_may_have_too_many_parameters() {
    let shape = shape_of(&[1 << 20], vec![dense(1 << 20)], Loss::Mse);
    assert_eq!(shape.unwrap(), [1 << 20]);
    let spec = ModelSpec {
        input: vec![1 << 20],
        layers: vec![dense(1 << 20)],
        loss: Loss::Mse,
    };
    assert!(arrays(&spec).is_err());
    assert_eq!(spec::Loss::CrossEntropy.metric(), "accuracy");
}
