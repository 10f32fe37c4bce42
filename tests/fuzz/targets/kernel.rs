//! Plans of kernel jobs, and users' shaders: bytes are a plan or an error; a shader that is
//! accepted compiles or says why not.
#![no_main]

use libfuzzer_sys::fuzz_target;
use nodectl::{
    gpu::shader::{Language, Shader, ShaderChecks},
    kernel::KernelPlan,
};

fuzz_target!(|bytes: &[u8]| {
    if let Ok(plan) = KernelPlan::decode(bytes) {
        let again = KernelPlan::decode(&plan.encode()).expect("a plan is a plan");
        // By their bytes: a number may be NaN.
        assert_eq!(again.encode(), plan.encode());
        let _ = plan.resolve(&Vec::new());
    }
    if let Ok(shader) = Shader::parse(Language::Wgsl, bytes) {
        for entry in shader.entry_points() {
            assert!(shader.entry(entry).is_some());
            let _ = shader.compile(entry, &[], ShaderChecks::Full);
        }
    }
});
