//! What layers record, forward and backward. A layer that an activation follows may take it along,
//! as an epilogue.

use super::{
    network::NetworkError,
    recorder::{Backward, LayerValue, Recorder, constant, input},
    spec::Layer,
};
use nodectl_gpu::ops::{
    Activation, ElementKind, Elementwise, Expression, Gemm, Matrix, Pooling, Random,
    RandomDistribution, Reduce, Reduction,
};
use std::rc::Rc;

impl Recorder<'_> {
    /// The first of `layers`, and of what follows it as much as goes into the same ops: says how
    /// many layers that is.
    pub fn layer(
        &mut self,
        name: &str,
        layers: &[Layer],
        x: LayerValue,
    ) -> Result<(LayerValue, Backward, usize), NetworkError> {
        let (layer, next) = (&layers[0], layers.get(1));
        let epilogue = next.and_then(|next| self.epilogue(next));
        let taken = 1 + usize::from(epilogue.is_some());
        let activation = epilogue.unwrap_or(Activation::None);
        let (value, backward) = match layer {
            Layer::Dense { units, .. } => {
                return Ok(with(self.dense(name, *units, x, activation)?, taken));
            }
            Layer::Conv2d {
                channels,
                window,
                groups,
                ..
            } => {
                return Ok(with(
                    self.conv2d(name, (*channels, *groups), *window, x, activation)?,
                    taken,
                ));
            }
            Layer::Residual { layers, shortcut } => {
                let is_relu = next == Some(&Layer::Relu);
                let recorded = self.residual(name, layers, shortcut, x, is_relu)?;
                return Ok(with(recorded, 1 + usize::from(is_relu)));
            }
            Layer::MaxPool { window } => self.pool(Pooling::Max, *window, x)?,
            Layer::AvgPool { window } => self.pool(Pooling::Average, *window, x)?,
            Layer::BatchNorm { momentum, epsilon } => {
                self.batch_norm(name, *momentum, *epsilon, x)?
            }
            Layer::LayerNorm { epsilon } => self.layer_norm(name, *epsilon, x)?,
            Layer::Dropout { share } => self.dropout(*share, x)?,
            Layer::Embedding { dimensions, .. } => self.embedding(name, *dimensions, x)?,
            Layer::Relu => self.pointwise(Activation::Relu, x)?,
            Layer::Tanh => self.pointwise(Activation::Tanh, x)?,
            Layer::Sigmoid => self.pointwise(Activation::Sigmoid, x)?,
            Layer::Gelu => self.pointwise(Activation::Gelu, x)?,
            Layer::Flatten => flatten(x),
        };
        Ok((value, backward, 1))
    }

    /// The activation that can be the epilogue of the layer before: its gradient must not need what
    /// it was given.
    fn epilogue(&self, layer: &Layer) -> Option<Activation> {
        match layer {
            Layer::Relu => Some(Activation::Relu),
            Layer::Tanh => Some(Activation::Tanh),
            Layer::Sigmoid => Some(Activation::Sigmoid),
            Layer::Gelu if !self.is_training => Some(Activation::Gelu),
            _ => None,
        }
    }

    fn dense(
        &mut self,
        name: &str,
        units: u32,
        x: LayerValue,
        activation: Activation,
    ) -> Result<(LayerValue, Backward), NetworkError> {
        let (inputs, outer) = x.shape.split_last().expect("its shape fits");
        let (inputs, outer) = (*inputs, outer.to_vec());
        let rows = self.batch * outer.iter().product::<u32>();
        let (weight, bias) = (self.variable(name, "weight"), self.optional(name, "bias"));
        let y = self.value(&[outer.as_slice(), &[units]].concat(), true)?;
        self.push(Gemm {
            b: Matrix::dense(weight.values.clone(), units, inputs),
            transpose_b: true,
            bias: bias.as_ref().map(|bias| bias.values.clone()),
            activation,
            ..Gemm::new(
                x.view().clone(),
                weight.values.clone(),
                y.view().clone(),
                [rows, units, inputs],
            )
        });
        let output = (activation != Activation::None && self.is_training).then(|| y.clone());
        let backward: Backward = Box::new(move |recorder, dy| {
            let dz = match output {
                Some(output) => recorder.activation_gradient(activation, &output, dy)?,
                None => dy,
            };
            let dweight = weight.gradient.clone().expect("it is trained");
            if let Some(bias) = &bias {
                recorder.sum_rows(
                    &dz,
                    bias.gradient.clone().expect("it is trained"),
                    rows,
                    units,
                );
                recorder.is_ready(bias);
            }
            if recorder.is_factored(&weight) {
                recorder.has_factors(&weight, [dz.view().clone(), x.view().clone()]);
            } else {
                recorder.push(Gemm {
                    a: Matrix::dense(dz.view().clone(), rows, units),
                    transpose_a: true,
                    ..Gemm::new(
                        dz.view().clone(),
                        x.view().clone(),
                        dweight,
                        [units, inputs, rows],
                    )
                });
                recorder.is_ready(&weight);
            }
            if !x.needs_gradient {
                return Ok(None);
            }
            let shape = x.shape.clone();
            drop(x);
            let dx = recorder.value(&shape, true)?;
            let sizes = [rows, inputs, units];
            recorder.push(Gemm::new(
                dz.view().clone(),
                weight.values.clone(),
                dx.view().clone(),
                sizes,
            ));
            Ok(Some(dx))
        });
        Ok((y, backward))
    }

    /// Each column's sum.
    fn sum_rows(
        &mut self,
        of: &LayerValue,
        to: nodectl_gpu::ops::BufferView,
        rows: u32,
        columns: u32,
    ) {
        let (kind, input) = (Reduction::Sum, of.view().clone());
        self.push(Reduce {
            kind,
            input,
            output: to,
            outer: 1,
            axis: rows,
            inner: columns,
        });
    }

    fn pointwise(
        &mut self,
        activation: Activation,
        x: LayerValue,
    ) -> Result<(LayerValue, Backward), NetworkError> {
        let y = self.value(&x.shape, x.needs_gradient)?;
        self.elementwise(function(activation), &[&x], &y);
        // Of gelu the gradient comes from what it was given, of the others from what it gave.
        let kept = if activation == Activation::Gelu {
            x
        } else {
            y.clone()
        };
        let backward: Backward = Box::new(move |recorder, dy| {
            if !kept.needs_gradient {
                return Ok(None);
            }
            recorder
                .activation_gradient(activation, &kept, dy)
                .map(Some)
        });
        Ok((y, backward))
    }

    /// dy times the slope, in place where nobody else looks at dy.
    pub fn activation_gradient(
        &mut self,
        activation: Activation,
        kept: &LayerValue,
        dy: LayerValue,
    ) -> Result<LayerValue, NetworkError> {
        let dx = self.in_place_of(&dy)?;
        self.elementwise(input(1) * slope(activation, input(0)), &[kept, &dy], &dx);
        Ok(dx)
    }

    /// Memory for what replaces a value: the value's own, if nobody else uses it.
    pub fn in_place_of(&mut self, value: &LayerValue) -> Result<LayerValue, NetworkError> {
        if Rc::strong_count(&value.held) == 1 {
            Ok(value.clone())
        } else {
            self.value(&value.shape, true)
        }
    }

    pub fn elementwise(
        &mut self,
        expression: Expression,
        inputs: &[&LayerValue],
        output: &LayerValue,
    ) {
        let inputs = inputs.iter().map(|value| value.view().clone()).collect();
        self.push(Elementwise {
            expression,
            inputs,
            output: output.view().clone(),
        });
    }

    fn dropout(
        &mut self,
        share: f32,
        x: LayerValue,
    ) -> Result<(LayerValue, Backward), NetworkError> {
        if !self.is_training || share == 0.0 {
            return Ok((x, Box::new(|_, dy| Ok(Some(dy)))));
        }
        let len = x.view().len;
        let state = self.random_state();
        let mask = self.memory(ElementKind::F32, len)?;
        self.push(Random {
            distribution: RandomDistribution::Uniform,
            state,
            output: mask.view.clone(),
        });
        let mask = LayerValue {
            held: mask,
            shape: x.shape.clone(),
            needs_gradient: false,
        };
        let kept = (input(0) - constant(share)).step() * constant(1.0 / (1.0 - share));
        self.elementwise(kept, &[&mask], &mask);
        let y = self.value(&x.shape, x.needs_gradient)?;
        self.elementwise(input(0) * input(1), &[&x, &mask], &y);
        let needs_gradient = x.needs_gradient;
        let backward: Backward = Box::new(move |recorder, dy| {
            if !needs_gradient {
                return Ok(None);
            }
            let dx = recorder.in_place_of(&dy)?;
            recorder.elementwise(input(0) * input(1), &[&dy, &mask], &dx);
            Ok(Some(dx))
        });
        Ok((y, backward))
    }

    fn residual(
        &mut self,
        name: &str,
        layers: &[Layer],
        shortcut: &[Layer],
        x: LayerValue,
        is_relu: bool,
    ) -> Result<(LayerValue, Backward), NetworkError> {
        let (through, tape) = self.sequence(&format!("{name}.layers."), layers, x.clone())?;
        let (around, way_back) = self.sequence(&format!("{name}.shortcut."), shortcut, x)?;
        let y = self.value(
            &through.shape,
            through.needs_gradient || around.needs_gradient,
        )?;
        let sum = input(0) + input(1);
        self.elementwise(
            if is_relu { sum.relu() } else { sum },
            &[&through, &around],
            &y,
        );
        let (learns, learns_around) = (through.needs_gradient, around.needs_gradient);
        let output = (is_relu && self.is_training).then(|| y.clone());
        let backward: Backward = Box::new(move |recorder, dy| {
            let dy = match output {
                Some(output) => recorder.activation_gradient(Activation::Relu, &output, dy)?,
                None => dy,
            };
            // In the order in which gradients are pushed: the last layer's first.
            let around = if learns_around {
                recorder.backward(way_back, dy.clone())?
            } else {
                None
            };
            let through = if learns {
                recorder.backward(tape, dy)?
            } else {
                None
            };
            match (through, around) {
                (Some(through), Some(around)) => {
                    let dx = recorder.in_place_of(&through)?;
                    recorder.elementwise(input(0) + input(1), &[&through, &around], &dx);
                    Ok(Some(dx))
                }
                (one, other) => Ok(one.or(other)),
            }
        });
        Ok((y, backward))
    }
}

fn with((value, backward): (LayerValue, Backward), taken: usize) -> (LayerValue, Backward, usize) {
    (value, backward, taken)
}

fn flatten(x: LayerValue) -> (LayerValue, Backward) {
    let shape = x.shape.clone();
    let y = LayerValue {
        shape: vec![shape.iter().product()],
        ..x
    };
    (
        y,
        Box::new(move |_, dy| Ok(Some(LayerValue { shape, ..dy }))),
    )
}

fn function(activation: Activation) -> Expression {
    match activation {
        Activation::None => input(0),
        Activation::Relu => input(0).relu(),
        Activation::Tanh => input(0).tanh(),
        Activation::Sigmoid => input(0).sigmoid(),
        Activation::Gelu => input(0).gelu(),
    }
}

/// The derivative, from what the activation gave; of gelu from what it was given.
fn slope(activation: Activation, kept: Expression) -> Expression {
    match activation {
        Activation::None => constant(1.0),
        Activation::Relu => kept.step(),
        Activation::Tanh => constant(1.0) - kept.clone() * kept,
        Activation::Sigmoid => kept.clone() * (constant(1.0) - kept),
        Activation::Gelu => {
            // Φ(x) + x φ(x), where Φ(x) is gelu(x) / x.
            const INVERSE_ROOT_TAU: f32 = 0.398_942_3;
            let cumulative = kept
                .clone()
                .select(kept.clone().gelu() / kept.clone(), constant(0.5));
            let density =
                (kept.clone() * kept.clone() * constant(-0.5)).exp() * constant(INVERSE_ROOT_TAU);
            cumulative + kept * density
        }
    }
}
