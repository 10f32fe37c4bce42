// What the products with tiles of TILE x TILE have in common, of which each of THREADS invocations sums 4 x 4 in registers: so TILE / 4
// invocations make a row of the tile.
#include "include/gemm_tiles.wgsl"

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
        var c0 = vec4<f32>();
        var c1 = vec4<f32>();
        var c2 = vec4<f32>();
        var c3 = vec4<f32>();
        for (var step = 0u; step < p.k; step += STEP) {
            load_tiles(thread, row, column, step, a_base, b_base);
            workgroupBarrier();
            for (var k = 0u; k < STEP; k++) {
                let a0 = a_tile[k * PITCH + y];
                let b0 = b_tile[k * PITCH + x];
                c0 = fma(vec4<f32>(a0.x), b0, c0);
                c1 = fma(vec4<f32>(a0.y), b0, c1);
                c2 = fma(vec4<f32>(a0.z), b0, c2);
                c3 = fma(vec4<f32>(a0.w), b0, c3);
            }
            workgroupBarrier();
        }
        store4(row + y * 4u + 0u, column + x * 4u, c0, c_base);
        store4(row + y * 4u + 1u, column + x * 4u, c1, c_base);
        store4(row + y * 4u + 2u, column + x * 4u, c2, c_base);
        store4(row + y * 4u + 3u, column + x * 4u, c3, c_base);
    }
}
