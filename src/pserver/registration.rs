//! What a worker registers: tensors and settings, which must be those of all other workers.

use super::{file::Form, frames::invalid};
use nodectl_pserver_logic::ArenaLayout;
use nodectl_types::StreamToken;
use nodectl_wire::api::params::Register;
use std::{io, sync::Arc};

/// Where everything lies of what is registered, if that can be.
pub fn layout(register: &Register) -> io::Result<Arc<ArenaLayout>> {
    let Register {
        tensors, settings, ..
    } = register;
    settings
        .check()
        .map_err(|error| invalid(error.to_string()))?;
    if settings.sums as usize >= tensors.len() {
        let (sums, tensors) = (settings.sums, tensors.len());
        return Err(invalid(format!(
            "{sums} of {tensors} tensors are sums: none is left to train"
        )));
    }
    let trained = tensors.len() as u32 - settings.sums;
    if let Some(tensor) = settings.factored.iter().find(|tensor| **tensor >= trained) {
        return Err(invalid(format!(
            "tensor {tensor} is a sum: it has no factors"
        )));
    }
    let layout = ArenaLayout::with_cuts(
        tensors,
        settings.block_bytes,
        &settings.factored,
        &settings.cuts,
    );
    Ok(Arc::new(
        layout.map_err(|error| invalid(error.to_string()))?,
    ))
}

/// Names a job among nodes.
pub fn token_of(job: &str) -> StreamToken {
    let hash = blake3::Hasher::new()
        .update(b"nodectl training job")
        .update(job.as_bytes())
        .finalize();
    hash.as_bytes()[..16]
        .try_into()
        .expect("a hash has 32 bytes")
}

/// What a checkpoint of the job has.
pub fn form(register: &Register, layout: &Arc<ArenaLayout>) -> Form {
    let states = register.settings.training.optimizer.states();
    Form::new(
        layout.clone(),
        register.tensors.clone(),
        states,
        register.settings.sums,
        register.note.clone(),
    )
}

/// Tensors and settings, for comparison.
pub fn digest(register: &Register) -> [u8; 32] {
    let json = serde_json::to_vec(&(&register.tensors, &register.settings))
        .expect("plain data always encodes");
    *blake3::hash(&json).as_bytes()
}

/// How two workers' tensors or settings differ, in words.
pub fn difference(new: &Register, known: &Register) -> String {
    let worker = new.worker;
    if new.settings != known.settings {
        return format!(
            "worker {worker} has other settings than worker {}: all need the same",
            known.worker
        );
    }
    let pairs = new.tensors.iter().zip(&known.tensors);
    match pairs.clone().find(|(a, b)| a != b) {
        Some((a, b)) => format!(
            "worker {worker} registers `{}` {:?} where worker {} has `{}` {:?}",
            a.name, a.shape, known.worker, b.name, b.shape
        ),
        None => format!(
            "worker {worker} registers {} tensors, worker {} has {}",
            new.tensors.len(),
            known.worker,
            known.tensors.len()
        ),
    }
}
