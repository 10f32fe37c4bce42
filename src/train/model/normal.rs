//! Batch and layer normalization: what they record.

use super::{
    network::NetworkError,
    recorder::{Backward, LayerValue, Recorder, Variable, constant, input},
};
use nodectl_gpu::ops::{BufferView, ElementKind, Elementwise, Groups, Norm, NormBackward};

impl Recorder<'_> {
    pub fn layer_norm(
        &mut self,
        name: &str,
        epsilon: f32,
        x: LayerValue,
    ) -> Result<(LayerValue, Backward), NetworkError> {
        let (columns, outer) = x.shape.split_last().expect("its shape fits");
        let rows = self.batch * outer.iter().product::<u32>();
        let groups = Groups::Layer {
            rows,
            columns: *columns,
        };
        let scales = Scales {
            weight: self.variable(name, "weight"),
            bias: self.variable(name, "bias"),
        };
        self.normalize(groups, scales, epsilon, x, |_, _| {})
    }

    pub fn batch_norm(
        &mut self,
        name: &str,
        momentum: f32,
        epsilon: f32,
        x: LayerValue,
    ) -> Result<(LayerValue, Backward), NetworkError> {
        let channels = x.shape[0];
        let pixels: u32 = x.shape[1..].iter().product();
        let groups = Groups::Batch {
            samples: self.batch,
            channels,
            pixels,
        };
        let scales = Scales {
            weight: self.variable(name, "weight"),
            bias: self.variable(name, "bias"),
        };
        let mean = self.variable(name, "running_mean").values;
        let variance = self.variable(name, "running_var").values;
        if !self.is_training {
            return self.normalize_as_given(groups, scales, (mean, variance), epsilon, x);
        }
        let n = f64::from(self.batch) * f64::from(pixels);
        // The unbiased variance is what is averaged, as PyTorch does; of one number there is none.
        let unbiased = if n > 1.0 { (n / (n - 1.0)) as f32 } else { 1.0 };
        self.normalize(
            groups,
            scales,
            epsilon,
            x,
            move |recorder, [means, inverses]| {
                let averaged = |new| input(0) * constant(1.0 - momentum) + new * constant(momentum);
                recorder.push(Elementwise {
                    expression: averaged(input(1)),
                    inputs: vec![mean.clone(), means],
                    output: mean,
                });
                let batch_variance = constant(1.0) / (input(1) * input(1)) - constant(epsilon);
                recorder.push(Elementwise {
                    expression: averaged(batch_variance * constant(unbiased)),
                    inputs: vec![variance.clone(), inverses],
                    output: variance,
                });
            },
        )
    }

    /// Each group by itself. `observe` sees their means and inverse deviations.
    fn normalize(
        &mut self,
        groups: Groups,
        scales: Scales,
        epsilon: f32,
        x: LayerValue,
        observe: impl FnOnce(&mut Self, [BufferView; 2]),
    ) -> Result<(LayerValue, Backward), NetworkError> {
        let y = self.value(&x.shape, true)?;
        let means = self.memory(ElementKind::F32, groups.count().into())?;
        let inverses = self.memory(ElementKind::F32, groups.count().into())?;
        self.push(Norm {
            groups,
            x: x.view().clone(),
            scale: scales.weight.values.clone(),
            shift: scales.bias.values.clone(),
            y: y.view().clone(),
            means: means.view.clone(),
            inverses: inverses.view.clone(),
            given: false,
            epsilon,
        });
        observe(self, [means.view.clone(), inverses.view.clone()]);
        let backward: Backward = Box::new(move |recorder, dy| {
            let dx = recorder.value(&x.shape, true)?;
            recorder.push(NormBackward {
                groups,
                x: x.view().clone(),
                scale: scales.weight.values.clone(),
                dy: dy.view().clone(),
                means: means.view.clone(),
                inverses: inverses.view.clone(),
                dx: dx.view().clone(),
                dscale: scales.weight.gradient.clone().expect("it is trained"),
                dshift: scales.bias.gradient.clone().expect("it is trained"),
            });
            recorder.is_ready(&scales.bias);
            recorder.is_ready(&scales.weight);
            Ok(x.needs_gradient.then_some(dx))
        });
        Ok((y, backward))
    }

    /// With running averages, when a model is used.
    fn normalize_as_given(
        &mut self,
        groups: Groups,
        scales: Scales,
        (mean, variance): (BufferView, BufferView),
        epsilon: f32,
        x: LayerValue,
    ) -> Result<(LayerValue, Backward), NetworkError> {
        let inverses = self.memory(ElementKind::F32, variance.len)?;
        let expression = constant(1.0) / (input(0) + constant(epsilon)).sqrt();
        self.push(Elementwise {
            expression,
            inputs: vec![variance],
            output: inverses.view.clone(),
        });
        let y = self.value(&x.shape, true)?;
        self.push(Norm {
            groups,
            x: x.view().clone(),
            scale: scales.weight.values,
            shift: scales.bias.values,
            y: y.view().clone(),
            means: mean,
            inverses: inverses.view.clone(),
            given: true,
            epsilon,
        });
        Ok((y, Box::new(|_, _| Ok(None))))
    }
}

struct Scales {
    weight: Variable,
    bias: Variable,
}
