// C = A B, all n x n, row by row, n a multiple of 64: how fast a plain tiled product runs here.
// A workgroup makes a tile of 64 x 64, 16 steps of k at a time in workgroup memory; each of 256 invocations keeps 4 x 4 sums.

@group(0) @binding(0) var<storage, read> a: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read> b: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read_write> c: array<vec4<f32>>;
var<immediate> n: u32;

// [k][row / 4], [k][column / 4]
var<workgroup> a_tile: array<vec4<f32>, 256>;
var<workgroup> b_tile: array<vec4<f32>, 256>;

@compute @workgroup_size(16, 16)
fn main(@builtin(workgroup_id) tile: vec3<u32>, @builtin(local_invocation_id) at: vec3<u32>) {
    let pitch = n / 4u;
    let thread = at.y * 16u + at.x;
    let a_row = thread / 4u;
    let a_k = thread % 4u;
    var sum0 = vec4<f32>();
    var sum1 = vec4<f32>();
    var sum2 = vec4<f32>();
    var sum3 = vec4<f32>();
    for (var k = 0u; k < n; k += 16u) {
        let four = a[(tile.y * 64u + a_row) * pitch + k / 4u + a_k];
        a_tile[(a_k * 4u) * 16u + a_row / 4u][a_row % 4u] = four.x;
        a_tile[(a_k * 4u + 1u) * 16u + a_row / 4u][a_row % 4u] = four.y;
        a_tile[(a_k * 4u + 2u) * 16u + a_row / 4u][a_row % 4u] = four.z;
        a_tile[(a_k * 4u + 3u) * 16u + a_row / 4u][a_row % 4u] = four.w;
        b_tile[thread] = b[(k + at.y) * pitch + tile.x * 16u + at.x];
        workgroupBarrier();
        for (var step = 0u; step < 16u; step++) {
            let rows = a_tile[step * 16u + at.y];
            let columns = b_tile[step * 16u + at.x];
            sum0 += rows.x * columns;
            sum1 += rows.y * columns;
            sum2 += rows.z * columns;
            sum3 += rows.w * columns;
        }
        workgroupBarrier();
    }
    let first = (tile.y * 64u + at.y * 4u) * pitch + tile.x * 16u + at.x;
    c[first] = sum0;
    c[first + pitch] = sum1;
    c[first + 2u * pitch] = sum2;
    c[first + 3u * pitch] = sum3;
}
