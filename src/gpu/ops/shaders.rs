//! The shipped shaders. Their sources are in `shaders/`; `tests/shaders.rs` checks that these are
//! what they compile to.

use super::dispatch::CompiledShader;

macro_rules! shaders {
    ($($function:ident: $file:literal),* $(,)?) => {$(
        pub fn $function() -> CompiledShader {
            CompiledShader { name: $file, spirv: words(include_bytes!(concat!("../../../shaders/", $file, ".spv"))) }
        }
    )*};
}

shaders! {
    convolution: "convolution",
    csr: "csr",
    gemm_cooperative: "gemm_cooperative",
    gemm_large: "gemm_large",
    gemm_medium: "gemm_medium",
    gemm_small: "gemm_small",
    gemm_vectors_128: "gemm_vectors_128",
    gemm_vectors_64: "gemm_vectors_64",
    histogram: "histogram",
    norm: "norm",
    norm_backward: "norm_backward",
    norm_columns: "norm_columns",
    optimize: "optimize",
    pool: "pool",
    pool_backward: "pool_backward",
    random: "random",
    reduce: "reduce",
    scan: "scan",
    softmax: "softmax",
    softmax_backward: "softmax_backward",
    sort_count: "sort_count",
    sort_scatter: "sort_scatter",
}

fn words(bytes: &[u8]) -> std::sync::Arc<[u32]> {
    bytes
        .chunks_exact(4)
        .map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]]))
        .collect()
}
