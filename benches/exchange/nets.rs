//! Shapes of networks whose exchange is simulated: those of Poseidon's evaluation (arXiv
//! 1706.03292, table 3).

/// A layer with weights.
#[derive(Clone, Copy)]
pub struct WeightLayer {
    /// Rows of its matrix: inputs, or of a convolution channels × window.
    pub inputs: u64,
    pub outputs: u64,
    /// How often a sample meets the matrix: 1 in a dense layer, each place of a convolution's
    /// output.
    pub places: u64,
}

impl WeightLayer {
    fn dense(inputs: u64, outputs: u64) -> Self {
        Self {
            inputs,
            outputs,
            places: 1,
        }
    }

    /// A convolution with windows of `area` pixels, onto an image of `side` × `side`.
    fn conv(channels: u64, filters: u64, area: u64, side: u64) -> Self {
        Self {
            inputs: channels * area,
            outputs: filters,
            places: side * side,
        }
    }

    pub fn is_dense(&self) -> bool {
        self.places == 1
    }

    pub fn weights(&self) -> u64 {
        self.inputs * self.outputs
    }

    /// Multiplications and additions of the forward pass, a sample.
    pub fn flop(&self) -> f64 {
        2.0 * (self.weights() * self.places) as f64
    }
}

pub struct ExchangeNet {
    pub name: &'static str,
    pub layers: Vec<WeightLayer>,
    /// Samples of a batch on each node, as in the paper.
    pub samples: u64,
    /// FLOP/s that a GPU sustains in training it. An assumption, about what GPUs of 2017 did: 34
    /// and 44 images a second.
    pub rate: f64,
    /// Nodes, and Poseidon's speed-up over one at 10 GbE (VGG19-22K) and as published
    /// (Inception-V3).
    pub published: &'static [(usize, f64)],
}

/// VGG19 (Simonyan and Zisserman, arXiv 1409.1556, configuration E) with 21,841 classes: 229 M
/// weights.
pub fn vgg19_22k() -> ExchangeNet {
    let stages: [(u64, &[(u64, u64)]); 5] = [
        (224, &[(3, 64), (64, 64)]),
        (112, &[(64, 128), (128, 128)]),
        (56, &[(128, 256), (256, 256), (256, 256), (256, 256)]),
        (28, &[(256, 512), (512, 512), (512, 512), (512, 512)]),
        (14, &[(512, 512), (512, 512), (512, 512), (512, 512)]),
    ];
    let of_stage = |(side, convs): (u64, &'static [(u64, u64)])| {
        convs
            .iter()
            .map(move |(channels, filters)| WeightLayer::conv(*channels, *filters, 9, side))
    };
    let dense = [
        WeightLayer::dense(512 * 49, 4096),
        WeightLayer::dense(4096, 4096),
        WeightLayer::dense(4096, 21_841),
    ];
    let layers = stages.into_iter().flat_map(of_stage).chain(dense).collect();
    ExchangeNet {
        name: "VGG19-22K",
        layers,
        samples: 32,
        rate: 4e12,
        published: &[(16, 15.5), (32, 30.0)],
    }
}

/// Inception-V3 (Szegedy et al., arXiv 1512.00567) without the auxiliary classifier: 24 M weights.
/// Branches follow each other.
pub fn inception_v3() -> ExchangeNet {
    let conv = WeightLayer::conv;
    let mut layers = vec![
        conv(3, 32, 9, 149),
        conv(32, 32, 9, 147),
        conv(32, 64, 9, 147),
        conv(64, 80, 1, 73),
        conv(80, 192, 9, 71),
    ];
    for (given, pooled) in [(192, 32), (256, 64), (288, 64)] {
        layers.extend([
            conv(given, 64, 1, 35),
            conv(given, 48, 1, 35),
            conv(48, 64, 25, 35),
            conv(given, 64, 1, 35),
        ]);
        layers.extend([
            conv(64, 96, 9, 35),
            conv(96, 96, 9, 35),
            conv(given, pooled, 1, 35),
        ]);
    }
    layers.extend([
        conv(288, 384, 9, 17),
        conv(288, 64, 1, 35),
        conv(64, 96, 9, 35),
        conv(96, 96, 9, 17),
    ]);
    for narrow in [128, 160, 160, 192] {
        layers.extend([
            conv(768, 192, 1, 17),
            conv(768, narrow, 1, 17),
            conv(narrow, narrow, 7, 17),
        ]);
        layers.extend([conv(narrow, 192, 7, 17), conv(768, narrow, 1, 17)]);
        layers.extend([conv(narrow, narrow, 7, 17); 3]);
        layers.extend([conv(narrow, 192, 7, 17), conv(768, 192, 1, 17)]);
    }
    layers.extend([
        conv(768, 192, 1, 17),
        conv(192, 320, 9, 8),
        conv(768, 192, 1, 17),
    ]);
    layers.extend([
        conv(192, 192, 7, 17),
        conv(192, 192, 7, 17),
        conv(192, 192, 9, 8),
    ]);
    for given in [1280, 2048] {
        layers.extend([
            conv(given, 320, 1, 8),
            conv(given, 384, 1, 8),
            conv(384, 384, 3, 8),
            conv(384, 384, 3, 8),
        ]);
        layers.extend([
            conv(given, 448, 1, 8),
            conv(448, 384, 9, 8),
            conv(384, 384, 3, 8),
            conv(384, 384, 3, 8),
        ]);
        layers.push(conv(given, 192, 1, 8));
    }
    layers.push(WeightLayer::dense(2048, 1000));
    ExchangeNet {
        name: "Inception-V3",
        layers,
        samples: 32,
        rate: 1.5e12,
        published: &[(32, 31.5)],
    }
}
