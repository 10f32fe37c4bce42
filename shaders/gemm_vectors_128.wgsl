// C = act(alpha op(A) op(B) + beta C + bias), one matrix of a batch for each workgroup in z.
// Tiles of 128 x 128, 16 steps of k at a time in workgroup memory; 512 invocations, each with 4 x 8 sums in registers.
#include "include/gemm_vectors.wgsl"

const TILE = 128u;

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

@compute @workgroup_size(THREADS)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let batch = p.first_batch + group.z;
    let a_base = p.a_at + batch * p.a_batch;
    let b_base = p.b_at + batch * p.b_batch;
    let c_base = p.c_at + batch * p.c_batch;
    let column = group.x * TILE;
    let x = thread % (TILE / 8u);
    let y = thread / (TILE / 8u);
    for (var row = group.y * TILE; row < p.m; row += MOST_GROUPS * TILE) {
        var sums = TileSums();
        var next_a = load_a(thread, row, 0u, a_base);
        var next_b = load_b(thread, column, 0u, b_base);
        for (var step = 0u; step < p.k; step += STEP) {
            keep_a(thread, next_a);
            keep_b(thread, next_b);
            workgroupBarrier();
            if step + STEP < p.k {
                next_a = load_a(thread, row, step + STEP, a_base);
                next_b = load_b(thread, column, step + STEP, b_base);
            }
            // By eights: drivers do not unroll it themselves.
            for (var k = 0u; k < STEP; k += 8u) {
                sums = plus_products(sums, k, x, y);
                sums = plus_products(sums, k + 1u, x, y);
                sums = plus_products(sums, k + 2u, x, y);
                sums = plus_products(sums, k + 3u, x, y);
                sums = plus_products(sums, k + 4u, x, y);
                sums = plus_products(sums, k + 5u, x, y);
                sums = plus_products(sums, k + 6u, x, y);
                sums = plus_products(sums, k + 7u, x, y);
            }
            workgroupBarrier();
        }
        store4(row + y * 4u + 0u, column + x * 4u, sums.c0l, c_base);
        store4(row + y * 4u + 0u, column + TILE / 2u + x * 4u, sums.c0r, c_base);
        store4(row + y * 4u + 1u, column + x * 4u, sums.c1l, c_base);
        store4(row + y * 4u + 1u, column + TILE / 2u + x * 4u, sums.c1r, c_base);
        store4(row + y * 4u + 2u, column + x * 4u, sums.c2l, c_base);
        store4(row + y * 4u + 2u, column + TILE / 2u + x * 4u, sums.c2r, c_base);
        store4(row + y * 4u + 3u, column + x * 4u, sums.c3l, c_base);
        store4(row + y * 4u + 3u, column + TILE / 2u + x * 4u, sums.c3r, c_base);
    }
}
