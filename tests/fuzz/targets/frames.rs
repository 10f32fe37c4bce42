//! Chunks of frames: whatever filter and bytes, there are pixels or an error; LZ4 gives as many
//! bytes as were asked for. And plans of integrations, and integrator's configuration files.
#![no_main]

use libfuzzer_sys::fuzz_target;
use nodectl::{
    azint::{
        decode::{FilterSpec, Pipeline, Scratch, fuzz},
        plan::IntegratePlan,
    },
    workloads,
};

fuzz_target!(|bytes: &[u8]| {
    let Some(([choice, length, parameter], rest)) = bytes.split_first_chunk::<3>() else {
        return;
    };
    let length = usize::from(*length) * 16;
    if let Some(decoded) = fuzz::lz4(rest, length) {
        assert_eq!(decoded.len(), length);
    }
    let id = [1, 2, 3, 32004, 32008, 32015][usize::from(choice % 6)];
    let parameters = vec![
        0,
        2,
        1 << (parameter & 3),
        u32::from(parameter >> 4) * 8,
        u32::from(parameter >> 2 & 3),
    ];
    if let Ok(pipeline) = Pipeline::new(&[FilterSpec { id, parameters }], 4) {
        let _ = pipeline.decode(rest, 0, &mut vec![0; length], &mut Scratch::default());
    }
    let _ = IntegratePlan::decode(rest);
    if let Ok(text) = std::str::from_utf8(rest) {
        let text = format!("[azimuthal integration]\n{text}");
        let _ = workloads::parse(&text, std::path::Path::new("/nonexistent/job.toml"));
    }
});
