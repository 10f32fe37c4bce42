// C = act(alpha op(A) op(B) + beta C + bias), one matrix of a batch for each workgroup in z.
// Tiles of 64 x 64, 16 steps of k at a time in workgroup memory; 256 invocations, each with 4 x 4 sums in registers.
#include "include/gemm_vectors.wgsl"

const TILE = 64u;
const COLUMNS = 4u;

struct TileSums {
    c0: vec4<f32>,
    c1: vec4<f32>,
    c2: vec4<f32>,
    c3: vec4<f32>,
}

// Adds the products of elements `k` of the tiles.
fn plus_products(sums: TileSums, k: u32, x: u32, y: u32) -> TileSums {
    let a4 = a_tile[k * PITCH + y];
    let b4 = b_tile[k * PITCH + x];
    return TileSums(
        fma(vec4<f32>(a4.x), b4, sums.c0),
        fma(vec4<f32>(a4.y), b4, sums.c1),
        fma(vec4<f32>(a4.z), b4, sums.c2),
        fma(vec4<f32>(a4.w), b4, sums.c3),
    );
}

fn store_sums(sums: TileSums, row: u32, column: u32, base: u32) {
    store4(row + 0u, column, sums.c0, base);
    store4(row + 1u, column, sums.c1, base);
    store4(row + 2u, column, sums.c2, base);
    store4(row + 3u, column, sums.c3, base);
}
