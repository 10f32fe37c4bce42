//! Losses: what they record, and what they report of each sample.

use super::{
    network::NetworkError,
    recorder::{LayerValue, Recorder, constant, input},
    spec::Loss,
};
use nodectl_gpu::ops::{
    BufferView, ElementKind, Elementwise, Expression, Reduce, Reduction, Softmax,
    SoftmaxCrossEntropy,
};

/// Where a program finds what outputs are compared with, and leaves what it found.
pub struct LossBuffers {
    /// Classes, u32, one a sample; otherwise f32, as many as outputs.
    pub targets: BufferView,
    /// One for each sample and class: what its gradient is multiplied by. None: the share of a
    /// sample.
    pub weights: Option<BufferView>,
    /// The loss of each sample.
    pub losses: BufferView,
    /// Of cross-entropy the class that each sample is taken for, u32; otherwise the metric of each
    /// sample, f32.
    pub scores: BufferView,
}

impl Recorder<'_> {
    /// Compares; in training returns the gradient by the outputs.
    pub fn loss(
        &mut self,
        loss: Loss,
        outputs: LayerValue,
        ends: &LossBuffers,
    ) -> Result<Option<LayerValue>, NetworkError> {
        match loss {
            Loss::CrossEntropy => self.cross_entropy(outputs, ends),
            Loss::Mse => {
                let difference = || input(0) - input(1);
                let parts = LossParts {
                    loss: difference() * difference(),
                    metric: difference().abs(),
                    slope: constant(2.0) * difference(),
                };
                self.each_output(parts, outputs, ends)
            }
            Loss::BinaryCrossEntropy => {
                // log(1 + e^-x) + (1 - t) x, in a form that does not overflow.
                let smooth = (constant(1.0) + (-input(0).abs()).exp()).log();
                let parts = LossParts {
                    loss: input(0).relu() - input(0) * input(1) + smooth,
                    metric: constant(1.0) - (input(0).step() - input(1)).abs(),
                    slope: input(0).sigmoid() - input(1),
                };
                self.each_output(parts, outputs, ends)
            }
        }
    }

    /// What a model says of samples: probabilities of classes, or of each output, or the outputs
    /// themselves.
    pub fn answer(&mut self, loss: Loss, outputs: &LayerValue, to: BufferView) {
        let (rows, columns, x) = (self.batch, outputs.shape[0], outputs.view().clone());
        match loss {
            Loss::CrossEntropy => self.push(Softmax {
                x,
                y: to,
                rows,
                columns,
            }),
            Loss::Mse => self.push(Elementwise {
                expression: input(0),
                inputs: vec![x],
                output: to,
            }),
            Loss::BinaryCrossEntropy => {
                self.push(Elementwise {
                    expression: input(0).sigmoid(),
                    inputs: vec![x],
                    output: to,
                });
            }
        }
    }

    fn cross_entropy(
        &mut self,
        outputs: LayerValue,
        ends: &LossBuffers,
    ) -> Result<Option<LayerValue>, NetworkError> {
        let (rows, columns) = (self.batch, outputs.shape[0]);
        self.push(Reduce {
            kind: Reduction::ArgMax,
            input: outputs.view().clone(),
            output: ends.scores.clone(),
            outer: rows,
            axis: columns,
            inner: 1,
        });
        let gradient = if self.is_training {
            Some(self.in_place_of(&outputs)?)
        } else {
            None
        };
        self.push(SoftmaxCrossEntropy {
            logits: outputs.view().clone(),
            labels: ends.targets.clone(),
            loss: Some(ends.losses.clone()),
            gradient: gradient.as_ref().map(|gradient| gradient.view().clone()),
            scale: if ends.weights.is_some() {
                1.0
            } else {
                1.0 / rows as f32
            },
            rows,
            columns,
        });
        if let (Some(gradient), Some(weights)) = (&gradient, &ends.weights) {
            let inputs = vec![gradient.view().clone(), weights.clone()];
            self.push(Elementwise {
                expression: input(0) * input(1),
                inputs,
                output: gradient.view().clone(),
            });
        }
        Ok(gradient)
    }

    /// Losses that are a mean over the outputs, of output (0) and target (1).
    fn each_output(
        &mut self,
        parts: LossParts,
        outputs: LayerValue,
        ends: &LossBuffers,
    ) -> Result<Option<LayerValue>, NetworkError> {
        let (rows, columns) = (self.batch, outputs.shape[0]);
        let pair = || vec![outputs.view().clone(), ends.targets.clone()];
        for (expression, to) in [(parts.loss, &ends.losses), (parts.metric, &ends.scores)] {
            let all = self.memory(ElementKind::F32, outputs.view().len)?;
            self.push(Elementwise {
                expression,
                inputs: pair(),
                output: all.view.clone(),
            });
            let (kind, input, output) = (Reduction::Mean, all.view.clone(), to.clone());
            self.push(Reduce {
                kind,
                input,
                output,
                outer: rows,
                axis: columns,
                inner: 1,
            });
        }
        if !self.is_training {
            return Ok(None);
        }
        let gradient = self.value(&outputs.shape, true)?;
        let share = 1.0 / (f64::from(rows) * f64::from(columns)) as f32;
        let expression = parts.slope * constant(share);
        self.push(Elementwise {
            expression,
            inputs: pair(),
            output: gradient.view().clone(),
        });
        Ok(Some(gradient))
    }
}

/// Of one output (0) and its target (1).
struct LossParts {
    loss: Expression,
    metric: Expression,
    slope: Expression,
}
