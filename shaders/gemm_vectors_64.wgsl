// C = act(alpha op(A) op(B) + beta C + bias), one matrix of a batch for each workgroup in z.
// Tiles of 64 x 64, 16 steps of k at a time in workgroup memory; 256 invocations, each with 4 x 4 sums in registers.
#include "include/gemm_vectors.wgsl"

const TILE = 64u;

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
    let x = thread % (TILE / 4u);
    let y = thread / (TILE / 4u);
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
        store4(row + y * 4u + 0u, column + x * 4u, sums.c0, c_base);
        store4(row + y * 4u + 1u, column + x * 4u, sums.c1, c_base);
        store4(row + y * 4u + 2u, column + x * 4u, sums.c2, c_base);
        store4(row + y * 4u + 3u, column + x * 4u, sums.c3, c_base);
    }
}
