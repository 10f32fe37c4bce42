//! Convolution and pooling: what they record.

use super::{
    network::NetworkError,
    recorder::{Backward, LayerValue, Recorder},
    spec::WindowSpec,
};
use nodectl_gpu::ops::{
    self, Activation, Conv2d, Conv2dInputGradient, Conv2dShape, Conv2dWeightGradient, ElementKind,
    Pool2d, Pool2dBackward, Pool2dShape, Pooling,
};

impl Recorder<'_> {
    pub fn conv2d(
        &mut self,
        name: &str,
        (filters, groups): (u32, u32),
        window: WindowSpec,
        x: LayerValue,
        activation: Activation,
    ) -> Result<(LayerValue, Backward), NetworkError> {
        let shape = Conv2dShape {
            samples: self.batch,
            channels: x.shape[0],
            filters,
            image: [x.shape[1], x.shape[2]],
            window: moving(window),
            groups,
        };
        let (weight, bias) = (self.variable(name, "weight"), self.optional(name, "bias"));
        let y = self.value(&window_output(filters, window, &x), true)?;
        self.push(Conv2d {
            shape,
            x: x.view().clone(),
            weights: weight.values.clone(),
            bias: bias.as_ref().map(|bias| bias.values.clone()),
            y: y.view().clone(),
            activation,
        });
        let output = (activation != Activation::None && self.is_training).then(|| y.clone());
        let backward: Backward = Box::new(move |recorder, dy| {
            let dz = match output {
                Some(output) => recorder.activation_gradient(activation, &output, dy)?,
                None => dy,
            };
            recorder.push(Conv2dWeightGradient {
                shape,
                x: x.view().clone(),
                dy: dz.view().clone(),
                dweights: weight.gradient.clone().expect("it is trained"),
                dbias: bias
                    .as_ref()
                    .map(|bias| bias.gradient.clone().expect("it is trained")),
            });
            bias.iter()
                .chain([&weight])
                .for_each(|variable| recorder.is_ready(variable));
            if !x.needs_gradient {
                return Ok(None);
            }
            let before = x.shape.clone();
            drop(x);
            let dx = recorder.value(&before, true)?;
            recorder.push(Conv2dInputGradient {
                shape,
                dy: dz.view().clone(),
                weights: weight.values.clone(),
                dx: dx.view().clone(),
            });
            Ok(Some(dx))
        });
        Ok((y, backward))
    }

    pub fn pool(
        &mut self,
        pooling: Pooling,
        window: WindowSpec,
        x: LayerValue,
    ) -> Result<(LayerValue, Backward), NetworkError> {
        let channels = x.shape[0];
        let image = [x.shape[1], x.shape[2]];
        let shape = Pool2dShape {
            planes: self.batch * channels,
            image,
            window: moving(window),
        };
        let y = self.value(&window_output(channels, window, &x), x.needs_gradient)?;
        let places = y.view().len;
        let is_needed = self.is_training && x.needs_gradient && pooling == Pooling::Max;
        let maxima = if is_needed {
            Some(self.memory(ElementKind::U32, places)?)
        } else {
            None
        };
        self.push(Pool2d {
            pooling,
            shape,
            x: x.view().clone(),
            y: y.view().clone(),
            maxima: maxima.as_ref().map(|maxima| maxima.view.clone()),
        });
        let (before, needs_gradient) = (x.shape, x.needs_gradient);
        let backward: Backward = Box::new(move |recorder, dy| {
            if !needs_gradient {
                return Ok(None);
            }
            let dx = recorder.value(&before, true)?;
            let maxima = maxima.as_ref().map(|maxima| maxima.view.clone());
            let (dy, dx_view) = (dy.view().clone(), dx.view().clone());
            recorder.push(Pool2dBackward {
                pooling,
                shape,
                dy,
                maxima,
                dx: dx_view,
            });
            Ok(Some(dx))
        });
        Ok((y, backward))
    }
}

/// The shape that a window leaves, with so many channels.
fn window_output(channels: u32, window: WindowSpec, x: &LayerValue) -> Vec<u32> {
    let places = |axis: usize| {
        window
            .places(axis, x.shape[axis + 1])
            .expect("its shape fits")
    };
    vec![channels, places(0), places(1)]
}

/// The engines' words for the same.
fn moving(window: WindowSpec) -> ops::Window {
    let WindowSpec {
        size,
        stride,
        padding,
        dilation,
    } = window;
    ops::Window {
        size,
        stride,
        padding,
        dilation,
    }
}
