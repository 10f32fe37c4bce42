//! Embedding: what it records.

use super::{
    network::NetworkError,
    recorder::{Backward, LayerValue, Recorder},
};
use nodectl_gpu::ops::{BufferView, ElementKind, Lookup, LookupBackward};

impl Recorder<'_> {
    pub fn embedding(
        &mut self,
        name: &str,
        dimensions: u32,
        x: LayerValue,
    ) -> Result<(LayerValue, Backward), NetworkError> {
        let weight = self.variable(name, "weight");
        let (vocabulary, count) = (weight.array.shape[0], x.view().len as u32);
        let y = self.value(&[x.shape.as_slice(), &[dimensions]].concat(), true)?;
        let indices = BufferView {
            kind: ElementKind::U32,
            ..x.view().clone()
        };
        self.push(Lookup {
            table: weight.values.clone(),
            indices: indices.clone(),
            output: y.view().clone(),
            rows: vocabulary,
            columns: dimensions,
            count,
        });
        let backward: Backward = Box::new(move |recorder, dy| {
            recorder.push(LookupBackward {
                gradient: dy.view().clone(),
                indices,
                table_gradient: weight.gradient.clone().expect("it is trained"),
                rows: vocabulary,
                columns: dimensions,
                count,
            });
            recorder.is_ready(&weight);
            Ok(None)
        });
        Ok((y, backward))
    }
}
