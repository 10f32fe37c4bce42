// C = act(alpha op(A) op(B) + beta C + bias), one matrix of a batch for each workgroup in z.
// Tiles of 128 x 128, 16 steps of k at a time in workgroup memory; 512 invocations, each with 4 x 8 sums in registers.
#include "include/gemm_vectors.wgsl"

const TILE = 128u;
const COLUMNS = 8u;

struct TileSums {
    c0l: vec4<f32>, c0r: vec4<f32>,
    c1l: vec4<f32>, c1r: vec4<f32>,
    c2l: vec4<f32>, c2r: vec4<f32>,
    c3l: vec4<f32>, c3r: vec4<f32>,
}

// Adds the products of elements `k` of the tiles.
fn plus_products(sums: TileSums, k: u32, x: u32, y: u32) -> TileSums {
    let a4 = a_tile[k * PITCH + y];
    let left = b_tile[k * PITCH + x];
    let right = b_tile[k * PITCH + TILE / 8u + x];
    return TileSums(
        fma(vec4<f32>(a4.x), left, sums.c0l),
        fma(vec4<f32>(a4.x), right, sums.c0r),
        fma(vec4<f32>(a4.y), left, sums.c1l),
        fma(vec4<f32>(a4.y), right, sums.c1r),
        fma(vec4<f32>(a4.z), left, sums.c2l),
        fma(vec4<f32>(a4.z), right, sums.c2r),
        fma(vec4<f32>(a4.w), left, sums.c3l),
        fma(vec4<f32>(a4.w), right, sums.c3r),
    );
}

fn store_sums(sums: TileSums, row: u32, column: u32, base: u32) {
    store4(row + 0u, column, sums.c0l, base);
    store4(row + 0u, column + TILE / 2u, sums.c0r, base);
    store4(row + 1u, column, sums.c1l, base);
    store4(row + 1u, column + TILE / 2u, sums.c1r, base);
    store4(row + 2u, column, sums.c2l, base);
    store4(row + 2u, column + TILE / 2u, sums.c2r, base);
    store4(row + 3u, column, sums.c3l, base);
    store4(row + 3u, column + TILE / 2u, sums.c3r, base);
}
