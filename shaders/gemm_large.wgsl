// C = act(alpha op(A) op(B) + beta C + bias), one matrix of a batch for each workgroup in z.
// Tiles of 128 x 128, 16 steps of k at a time in workgroup memory; 256 invocations, each with 8 x 8 sums in registers.
#include "include/gemm_tiles.wgsl"

const TILE = 128u;
const THREADS = 256u;

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
    let x = thread % 16u;
    let y = thread / 16u;
    for (var row = group.y * TILE; row < p.m; row += MOST_GROUPS * TILE) {
        var c0l = vec4<f32>();
        var c0r = vec4<f32>();
        var c1l = vec4<f32>();
        var c1r = vec4<f32>();
        var c2l = vec4<f32>();
        var c2r = vec4<f32>();
        var c3l = vec4<f32>();
        var c3r = vec4<f32>();
        var c4l = vec4<f32>();
        var c4r = vec4<f32>();
        var c5l = vec4<f32>();
        var c5r = vec4<f32>();
        var c6l = vec4<f32>();
        var c6r = vec4<f32>();
        var c7l = vec4<f32>();
        var c7r = vec4<f32>();
        for (var step = 0u; step < p.k; step += STEP) {
            load_tiles(thread, row, column, step, a_base, b_base);
            workgroupBarrier();
            for (var k = 0u; k < STEP; k++) {
                let a0 = a_tile[k * PITCH + y];
                let a1 = a_tile[k * PITCH + 16u + y];
                let b0 = b_tile[k * PITCH + x];
                let b1 = b_tile[k * PITCH + 16u + x];
                c0l = fma(vec4<f32>(a0.x), b0, c0l);
                c0r = fma(vec4<f32>(a0.x), b1, c0r);
                c1l = fma(vec4<f32>(a0.y), b0, c1l);
                c1r = fma(vec4<f32>(a0.y), b1, c1r);
                c2l = fma(vec4<f32>(a0.z), b0, c2l);
                c2r = fma(vec4<f32>(a0.z), b1, c2r);
                c3l = fma(vec4<f32>(a0.w), b0, c3l);
                c3r = fma(vec4<f32>(a0.w), b1, c3r);
                c4l = fma(vec4<f32>(a1.x), b0, c4l);
                c4r = fma(vec4<f32>(a1.x), b1, c4r);
                c5l = fma(vec4<f32>(a1.y), b0, c5l);
                c5r = fma(vec4<f32>(a1.y), b1, c5r);
                c6l = fma(vec4<f32>(a1.z), b0, c6l);
                c6r = fma(vec4<f32>(a1.z), b1, c6r);
                c7l = fma(vec4<f32>(a1.w), b0, c7l);
                c7r = fma(vec4<f32>(a1.w), b1, c7r);
            }
            workgroupBarrier();
        }
        store4(row + y * 4u + 0u, column + x * 4u, c0l, c_base);
        store4(row + y * 4u + 0u, column + 64u + x * 4u, c0r, c_base);
        store4(row + y * 4u + 1u, column + x * 4u, c1l, c_base);
        store4(row + y * 4u + 1u, column + 64u + x * 4u, c1r, c_base);
        store4(row + y * 4u + 2u, column + x * 4u, c2l, c_base);
        store4(row + y * 4u + 2u, column + 64u + x * 4u, c2r, c_base);
        store4(row + y * 4u + 3u, column + x * 4u, c3l, c_base);
        store4(row + y * 4u + 3u, column + 64u + x * 4u, c3r, c_base);
        store4(row + 64u + y * 4u + 0u, column + x * 4u, c4l, c_base);
        store4(row + 64u + y * 4u + 0u, column + 64u + x * 4u, c4r, c_base);
        store4(row + 64u + y * 4u + 1u, column + x * 4u, c5l, c_base);
        store4(row + 64u + y * 4u + 1u, column + 64u + x * 4u, c5r, c_base);
        store4(row + 64u + y * 4u + 2u, column + x * 4u, c6l, c_base);
        store4(row + 64u + y * 4u + 2u, column + 64u + x * 4u, c6r, c_base);
        store4(row + 64u + y * 4u + 3u, column + x * 4u, c7l, c_base);
        store4(row + 64u + y * 4u + 3u, column + 64u + x * 4u, c7r, c_base);
    }
}
