//! Layers and losses as plain data: what a job file describes, what travels with a job, what a
//! model's file says of itself.

use serde::{Deserialize, Serialize};

/// A model: what each sample is, what is done with it, what the result is compared with.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ModelSpec {
    /// The shape of a sample: channels × rows × columns of an image, otherwise as the data have it.
    pub input: Vec<u32>,
    pub layers: Vec<Layer>,
    pub loss: Loss,
}

/// A layer. Shapes are those of one sample.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Layer {
    /// y = x Wᵀ + b, with W units × inputs, over the last axis.
    Dense {
        units: u32,
        bias: bool,
    },
    /// Cross-correlation of channels × rows × columns.
    Conv2d {
        channels: u32,
        window: WindowSpec,
        groups: u32,
        bias: bool,
    },
    MaxPool {
        window: WindowSpec,
    },
    /// What a window has beyond the edge does not count.
    AvgPool {
        window: WindowSpec,
    },
    /// Over the batch, for each channel. Ioffe and Szegedy, arXiv 1502.03167. What is used after
    /// training is a running average, in which a step counts `momentum`.
    BatchNorm {
        momentum: f32,
        epsilon: f32,
    },
    /// Over the last axis. Ba, Kiros and Hinton, arXiv 1607.06450.
    LayerNorm {
        epsilon: f32,
    },
    /// Zeroes a share of the numbers in training, and scales the others. Srivastava et al., JMLR
    /// 15, 2014.
    Dropout {
        share: f32,
    },
    /// A vector for each whole number below `vocabulary`. Only first.
    Embedding {
        vocabulary: u32,
        dimensions: u32,
    },
    Relu,
    Tanh,
    Sigmoid,
    /// With erf. Hendrycks and Gimpel, arXiv 1606.08415.
    Gelu,
    /// layers(x) + shortcut(x), where no shortcut is x itself. He et al., arXiv 1512.03385.
    Residual {
        layers: Vec<Layer>,
        shortcut: Vec<Layer>,
    },
    Flatten,
}

/// What moves over an image, along rows and columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WindowSpec {
    pub size: [u32; 2],
    pub stride: [u32; 2],
    /// Rows and columns added on both sides.
    pub padding: [u32; 2],
    pub dilation: [u32; 2],
}

impl WindowSpec {
    /// `size` × `size`, step by step, without padding.
    pub fn square(size: u32) -> Self {
        Self {
            size: [size; 2],
            stride: [1; 2],
            padding: [0; 2],
            dilation: [1; 2],
        }
    }

    /// Places of the window along one axis; None where it does not fit.
    pub fn places(&self, axis: usize, extent: u32) -> Option<u32> {
        let reach = self.dilation[axis]
            .checked_mul(self.size[axis].checked_sub(1)?)?
            .checked_add(1)?;
        let padded = self.padding[axis].checked_mul(2)?.checked_add(extent)?;
        Some(padded.checked_sub(reach)? / self.stride[axis].max(1) + 1)
    }
}

/// What is made small. Each is the mean over the samples of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Loss {
    /// Of the softmax of the outputs, one for each class, against the number of the right class.
    CrossEntropy,
    /// The mean of the squared differences over the outputs.
    Mse,
    /// Of the sigmoid of each output against 0 or 1.
    BinaryCrossEntropy,
}

impl Loss {
    pub fn name(self) -> &'static str {
        match self {
            Self::CrossEntropy => "cross-entropy",
            Self::Mse => "mse",
            Self::BinaryCrossEntropy => "binary-cross-entropy",
        }
    }

    /// What is counted beside it, for people: more is better of `accuracy`, less of `mae`, the mean
    /// absolute difference.
    pub fn metric(self) -> &'static str {
        match self {
            Self::CrossEntropy | Self::BinaryCrossEntropy => "accuracy",
            Self::Mse => "mae",
        }
    }
}

impl Layer {
    /// As the job file names it.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Dense { .. } => "dense",
            Self::Conv2d { .. } => "conv2d",
            Self::MaxPool { .. } => "max_pool",
            Self::AvgPool { .. } => "avg_pool",
            Self::BatchNorm { .. } => "batch_norm",
            Self::LayerNorm { .. } => "layer_norm",
            Self::Dropout { .. } => "dropout",
            Self::Embedding { .. } => "embedding",
            Self::Relu => "relu",
            Self::Tanh => "tanh",
            Self::Sigmoid => "sigmoid",
            Self::Gelu => "gelu",
            Self::Residual { .. } => "residual",
            Self::Flatten => "flatten",
        }
    }
}

impl ModelSpec {
    /// Whether samples are whole numbers that name something.
    pub fn takes_indices(&self) -> bool {
        self.vocabulary().is_some()
    }

    /// How many such names there are.
    pub fn vocabulary(&self) -> Option<u32> {
        match self.layers.first() {
            Some(Layer::Embedding { vocabulary, .. }) => Some(*vocabulary),
            _ => None,
        }
    }
}
