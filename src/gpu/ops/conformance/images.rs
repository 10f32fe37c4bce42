//! Convolutions and pooling.

use super::{
    super::{
        Activation, Conv2d, Conv2dInputGradient, Conv2dShape, Conv2dWeightGradient, ElementKind,
        Op, Pool2d, Pool2dBackward, Pool2dShape, Pooling, Window,
    },
    EPSILON, Rig, assert_close, numbers,
    refusals::refused,
    rng, size,
};
use rand::{RngExt, rngs::StdRng};

/// A convolution with its numbers here.
struct ConvolutionCase {
    shape: Conv2dShape,
    x: Vec<f32>,
    weights: Vec<f32>,
    bias: Vec<f32>,
    dy: Vec<f32>,
}

/// Results of a convolution and of its gradients.
struct ExactConvolution {
    y: Vec<CheckedSum>,
    dx: Vec<CheckedSum>,
    dweights: Vec<CheckedSum>,
    dbias: Vec<CheckedSum>,
}

/// A sum in f64, and the sum of magnitudes.
#[derive(Clone, Copy, Default)]
struct CheckedSum(f64, f64);

impl CheckedSum {
    fn add(&mut self, a: f32, b: f32) {
        let product = f64::from(a) * f64::from(b);
        self.0 += product;
        self.1 += product.abs();
    }
}

fn window(rng: &mut StdRng) -> Window {
    let mut pair = |most: u32| [rng.random_range(1..=most), rng.random_range(1..=most)];
    Window {
        size: pair(4),
        stride: pair(3),
        dilation: pair(2),
        padding: pair(3).map(|padding| padding - 1),
    }
}

impl ConvolutionCase {
    fn new(rng: &mut StdRng, shape: Conv2dShape) -> Self {
        let [height, width] = shape.image;
        let [rows, columns] = shape.places().expect("it fits");
        let taps = shape.channels / shape.groups * shape.window.size[0] * shape.window.size[1];
        let mut some = |sizes: &[u32]| numbers(rng, sizes.iter().product::<u32>() as usize);
        Self {
            x: some(&[shape.samples, shape.channels, height, width]),
            weights: some(&[shape.filters, taps]),
            bias: some(&[shape.filters]),
            dy: some(&[shape.samples, shape.filters, rows, columns]),
            shape,
        }
    }

    fn random(seed: u64) -> Self {
        let rng = &mut rng(seed);
        let groups = if rng.random_bool(0.3) {
            rng.random_range(2..4)
        } else {
            1
        };
        let (window, [samples, channels, filters]) =
            (window(rng), [4, 5, 40].map(|most| size(rng, most)));
        // From the smallest image that the window fits into; sometimes that is nothing but padding.
        let side = |rng: &mut StdRng, axis: usize| {
            let reach = (window.size[axis] - 1) * window.dilation[axis] + 1;
            reach.saturating_sub(2 * window.padding[axis]) + rng.random_range(0..12)
        };
        let image = [side(rng, 0), side(rng, 1)];
        let (channels, filters) = (channels * groups, filters * groups);
        Self::new(
            rng,
            Conv2dShape {
                samples,
                channels,
                filters,
                image,
                window,
                groups,
            },
        )
    }

    /// Calls with the places in x, weights and y of each product; x is `None` in the padding.
    fn each(&self, mut product: impl FnMut(Option<usize>, usize, usize)) {
        let Conv2dShape {
            samples,
            channels,
            filters,
            image: [height, width],
            window,
            groups,
        } = self.shape;
        let ([rows, columns], [tall, wide]) = (self.shape.places().expect("it fits"), window.size);
        let (own, per_group) = (channels / groups, filters / groups);
        for (sample, filter) in
            (0..samples).flat_map(|sample| (0..filters).map(move |filter| (sample, filter)))
        {
            for (row, column) in
                (0..rows).flat_map(|row| (0..columns).map(move |column| (row, column)))
            {
                let y = ((sample * filters + filter) * rows + row) * columns + column;
                for tap in 0..own * tall * wide {
                    let (channel, i, j) = (tap / (tall * wide), tap / wide % tall, tap % wide);
                    let pixel = |place: u32, tap: u32, axis: usize, side: u32| {
                        let at = place * window.stride[axis] + tap * window.dilation[axis];
                        at.checked_sub(window.padding[axis]).filter(|at| *at < side)
                    };
                    let plane = sample * channels + filter / per_group * own + channel;
                    let x = pixel(row, i, 0, height).zip(pixel(column, j, 1, width));
                    let x = x.map(|(at_y, at_x)| ((plane * height + at_y) * width + at_x) as usize);
                    product(x, (filter * own * tall * wide + tap) as usize, y as usize);
                }
            }
        }
    }

    /// A convolution and its gradients in f64.
    fn exact(&self) -> ExactConvolution {
        let zeros = |like: &[f32]| vec![CheckedSum::default(); like.len()];
        let mut exact = ExactConvolution {
            y: zeros(&self.dy),
            dx: zeros(&self.x),
            dweights: zeros(&self.weights),
            dbias: zeros(&self.bias),
        };
        let planes = (self.shape.samples * self.shape.filters).max(1) as usize;
        let places = self.dy.len() / planes;
        for (at, sum) in exact.y.iter_mut().enumerate() {
            let filter = at / places % self.bias.len();
            sum.add(self.bias[filter], 1.0);
            exact.dbias[filter].add(self.dy[at], 1.0);
        }
        self.each(|x, w, y| {
            exact.y[y].add(x.map_or(0.0, |x| self.x[x]), self.weights[w]);
            exact.dweights[w].add(x.map_or(0.0, |x| self.x[x]), self.dy[y]);
            if let Some(x) = x {
                exact.dx[x].add(self.weights[w], self.dy[y]);
            }
        });
        exact
    }

    /// All three against f64. Each product and sum rounds once, by EPSILON of the sum of magnitudes
    /// at most.
    #[track_caller]
    fn check(&self, rig: &Rig) {
        let shape = self.shape;
        let (x, weights, dy) = (rig.f32(&self.x), rig.f32(&self.weights), rig.f32(&self.dy));
        let output = |like: &[f32]| rig.output(ElementKind::F32, like.len());
        let (y, dx, dweights, dbias) = (
            output(&self.dy),
            output(&self.x),
            output(&self.weights),
            output(&self.bias),
        );
        let bias = Some(rig.f32(&self.bias));
        let activation = Activation::None;
        rig.run([
            Op::from(Conv2d {
                shape,
                x: x.clone(),
                weights: weights.clone(),
                bias,
                y: y.clone(),
                activation,
            }),
            Conv2dInputGradient {
                shape,
                dy: dy.clone(),
                weights,
                dx: dx.clone(),
            }
            .into(),
            Conv2dWeightGradient {
                shape,
                x,
                dy,
                dweights: dweights.clone(),
                dbias: Some(dbias.clone()),
            }
            .into(),
        ]);
        let exact = self.exact();
        let per_filter = |len: usize| len / self.bias.len().max(1);
        let results = [
            ("y", y, exact.y, per_filter(self.weights.len())),
            ("dx", dx, exact.dx, self.weights.len()),
            (
                "dweights",
                dweights,
                exact.dweights,
                per_filter(self.dy.len()),
            ),
            ("dbias", dbias, exact.dbias, per_filter(self.dy.len())),
        ];
        for (what, view, exact, terms) in results {
            let values: Vec<f64> = exact.iter().map(|sum| sum.0).collect();
            let tolerance = |at: usize| 2.0 * (terms + 8) as f64 * EPSILON * exact[at].1;
            assert_close(
                &format!("{what} of {shape:?}"),
                &rig.read_f32(&view),
                &values,
                tolerance,
            );
        }
    }
}

pub fn convolutions_of_random_shapes(rig: &Rig) {
    for seed in 0..24 {
        ConvolutionCase::random(seed).check(rig);
    }
    // Beyond a tile in every direction; in parts, the last of which is smaller; pointwise.
    let shape = Conv2dShape {
        samples: 3,
        channels: 8,
        filters: 35,
        image: [9, 11],
        window: Window {
            padding: [1; 2],
            ..Window::new([3; 2])
        },
        groups: 1,
    };
    ConvolutionCase::new(&mut rng(98), shape).check(rig);
    let many = Conv2dShape {
        samples: 1030,
        channels: 1,
        filters: 2,
        image: [3, 4],
        ..shape
    };
    ConvolutionCase::new(&mut rng(99), many).check(rig);
    ConvolutionCase::new(
        &mut rng(100),
        Conv2dShape {
            window: Window::new([1; 2]),
            ..shape
        },
    )
    .check(rig);
    ConvolutionCase::new(
        &mut rng(101),
        Conv2dShape {
            window: Window::new([1; 2]),
            groups: 1,
            channels: 0,
            ..shape
        },
    )
    .check(rig);
}

/// NaN and infinities reach what they are multiplied into, and nothing else.
pub fn convolutions_of_specials(rig: &Rig) {
    for (seed, special) in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY]
        .into_iter()
        .enumerate()
    {
        let mut case = ConvolutionCase::new(
            &mut rng(seed as u64),
            Conv2dShape {
                samples: 2,
                channels: 2,
                filters: 3,
                image: [7, 6],
                window: Window {
                    stride: [2, 1],
                    padding: [1, 0],
                    ..Window::new([3, 2])
                },
                groups: 1,
            },
        );
        (case.x[17], case.dy[5]) = (special, special);
        case.check(rig);
    }
}

/// With weights that are not finite, forward; activations.
pub fn convolution_epilogues(rig: &Rig) {
    let shape = Conv2dShape {
        samples: 1,
        channels: 1,
        filters: 2,
        image: [3, 3],
        window: Window {
            padding: [1; 2],
            ..Window::new([3; 2])
        },
        groups: 1,
    };
    let mut weights = vec![1.0; 18];
    weights[9] = f32::INFINITY;
    let (x, weights, y) = (
        rig.f32(&[-1.0; 9]),
        rig.f32(&weights),
        rig.output(ElementKind::F32, 18),
    );
    let activation = Activation::Relu;
    rig.run([Conv2d {
        shape,
        x,
        weights,
        bias: Some(rig.f32(&[5.0, 0.0])),
        y: y.clone(),
        activation,
    }
    .into()]);
    let ours = rig.read_f32(&y);
    assert_eq!(ours[..9], [1.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 1.0]);
    // 0 of the padding times infinity; then -∞, which relu makes 0.
    let nan: Vec<bool> = ours[9..].iter().map(|y| y.is_nan()).collect();
    assert_eq!(
        nan,
        [true, true, true, true, false, false, true, false, false]
    );
}

/// Averages round once for each pixel; gradients once for each window that holds the pixel.
pub fn pools_of_random_shapes(rig: &Rig) {
    for seed in 0..24 {
        let rng = &mut rng(seed);
        let mut window = Window {
            dilation: [1; 2],
            ..window(rng)
        };
        window.padding = [0, 1].map(|axis| window.padding[axis].min(window.size[axis] - 1));
        let image = [0, 1].map(|axis| window.size[axis] + rng.random_range(0..20));
        let shape = Pool2dShape {
            planes: size(rng, 12),
            image,
            window,
        };
        let mut x = numbers(rng, (shape.planes * image[0] * image[1]) as usize);
        if seed % 4 == 1 && !x.is_empty() {
            // Equal maxima, and NaN.
            x.iter_mut().for_each(|x| *x = (*x * 2.0).round());
            let at = rng.random_range(0..x.len());
            x[at] = f32::NAN;
        }
        [Pooling::Max, Pooling::Average]
            .into_iter()
            .for_each(|pooling| pool(rig, pooling, shape, &x, rng));
    }
}

/// Pooling and its gradient in f64.
struct ExactPool {
    y: Vec<f64>,
    /// The first of the largest pixels of each window, within its plane; none of averages.
    maxima: Vec<u32>,
    dx: Vec<f64>,
}

impl ExactPool {
    fn new(pooling: Pooling, shape: Pool2dShape, x: &[f32], dy: &[f32]) -> Self {
        let [rows, columns] = shape.places().expect("it fits").map(|side| side as usize);
        let pixels = (shape.image[0] * shape.image[1]) as usize;
        let mut exact = Self {
            y: Vec::new(),
            maxima: Vec::new(),
            dx: vec![0.0; x.len()],
        };
        for (place, dy) in dy.iter().enumerate() {
            let first = place / (rows * columns) * pixels;
            let window = window_pixels(shape, place / columns % rows, place % columns);
            let x = &x[first..first + pixels];
            let dx = &mut exact.dx[first..first + pixels];
            if pooling == Pooling::Average {
                let n = window.len() as f64;
                let sum: f64 = window.iter().map(|pixel| f64::from(x[*pixel])).sum();
                exact.y.push(sum / n);
                let share = f64::from(*dy) / n;
                window.iter().for_each(|pixel| dx[*pixel] += share);
                continue;
            }
            let better = |best: usize, pixel: usize| {
                let (old, new) = (x[best], x[pixel]);
                let is_better = !old.is_nan() && (new.is_nan() || new > old);
                if is_better { pixel } else { best }
            };
            let best = window.into_iter().reduce(better);
            let best = best.expect("a window holds a pixel");
            exact.y.push(x[best].into());
            exact.maxima.push(best as u32);
            dx[best] += f64::from(*dy);
        }
        exact
    }
}

/// The pixels of a plane that the window at a place holds.
fn window_pixels(shape: Pool2dShape, row: usize, column: usize) -> Vec<usize> {
    let ([height, width], window) = (shape.image.map(|side| side as usize), shape.window);
    let inside = |place: usize, axis: usize, side: usize| {
        let first = place * window.stride[axis] as usize;
        let taps = (first..first + window.size[axis] as usize)
            .map(move |at| at.checked_sub(window.padding[axis] as usize));
        taps.flatten().filter(move |at| *at < side)
    };
    inside(row, 0, height)
        .flat_map(|y| inside(column, 1, width).map(move |x| y * width + x))
        .collect()
}

#[track_caller]
fn pool(rig: &Rig, pooling: Pooling, shape: Pool2dShape, x: &[f32], rng: &mut StdRng) {
    let [rows, columns] = shape.places().expect("it fits").map(|side| side as usize);
    let len = shape.planes as usize * rows * columns;
    let dy = numbers(rng, len);
    let exact = ExactPool::new(pooling, shape, x, &dy);
    let (y, dx) = (
        rig.output(ElementKind::F32, len),
        rig.output(ElementKind::F32, x.len()),
    );
    let maxima = (pooling == Pooling::Max).then(|| rig.output(ElementKind::U32, len));
    let forward = Pool2d {
        pooling,
        shape,
        x: rig.f32(x),
        y: y.clone(),
        maxima: maxima.clone(),
    };
    let backward = Pool2dBackward {
        pooling,
        shape,
        dy: rig.f32(&dy),
        maxima: maxima.clone(),
        dx: dx.clone(),
    };
    let alone = Pool2d {
        maxima: None,
        y: rig.output(ElementKind::F32, len),
        ..forward.clone()
    };
    let alone_y = alone.y.clone();
    rig.run([Op::from(forward), backward.into(), alone.into()]);
    let what = format!("{pooling:?} {shape:?}");
    assert_close(&what, &rig.read_f32(&y), &exact.y, |_| 20.0 * EPSILON);
    assert_close(&what, &rig.read_f32(&alone_y), &exact.y, |_| 20.0 * EPSILON);
    assert_close(&what, &rig.read_f32(&dx), &exact.dx, |_| 64.0 * EPSILON);
    assert_eq!(
        maxima.map_or(Vec::new(), |maxima| rig.read_u32(&maxima)),
        exact.maxima,
        "{what}"
    );
}

const WINDOW: Window = Window {
    size: [3; 2],
    stride: [1; 2],
    padding: [0; 2],
    dilation: [1; 2],
};

pub fn convolution_refusals(rig: &Rig) {
    let view = || rig.output(ElementKind::F32, 100);
    let shape = Conv2dShape {
        samples: 1,
        channels: 4,
        filters: 4,
        image: [5, 5],
        window: WINDOW,
        groups: 1,
    };
    let refused = |shape, because| {
        let op = Conv2dInputGradient {
            shape,
            dy: view(),
            weights: view(),
            dx: view(),
        };
        refused(rig, op, because);
    };
    refused(shape, "`weights` has 100 elements where 144");
    for (groups, because) in [
        (3, "cannot be cut into 3 groups"),
        (0, "cannot be cut into 0 groups"),
    ] {
        refused(Conv2dShape { groups, ..shape }, because);
    }
    let with = |window| Conv2dShape { window, ..shape };
    refused(with(Window::new([6, 1])), "reaches over 6 of 5");
    let stride = [0, 1];
    refused(with(Window { stride, ..WINDOW }), "at least 1");
    let padding = [u32::MAX; 2];
    refused(with(Window { padding, ..WINDOW }), "too large");
    let samples = 1 << 30;
    refused(Conv2dShape { samples, ..shape }, "cut the work");
}

pub fn pool_refusals(rig: &Rig) {
    let view = || rig.output(ElementKind::F32, 100);
    let refused = |window, pooling, maxima, because| {
        let shape = Pool2dShape {
            planes: 4,
            image: [5, 5],
            window,
        };
        let op = Pool2d {
            pooling,
            shape,
            x: view(),
            y: view(),
            maxima,
        };
        refused(rig, op, because);
    };
    let padded = Window {
        padding: [3, 0],
        ..WINDOW
    };
    refused(padded, Pooling::Max, None, "less padding");
    let dilated = Window {
        dilation: [2; 2],
        ..WINDOW
    };
    refused(dilated, Pooling::Max, None, "no dilation");
    let maxima = Some(rig.output(ElementKind::U32, 100));
    refused(WINDOW, Pooling::Average, maxima, "no `maxima`");
    refused(WINDOW, Pooling::Max, Some(view()), "`maxima` is f32");
}
