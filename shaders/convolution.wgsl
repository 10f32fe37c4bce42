// C = A B for each group of each batch, where the elements of B are pixels of an image: a convolution or one of its gradients,
// as the parameters say. Tiles of 32 x 32, 16 steps of k at a time in workgroup memory; 64 invocations, each with 4 x 4 sums.
//
// k is (plane, row, column) with k_area pixels to a plane and k_width to a row; so is n. Element (k, n) of B is the pixel
// (n * n_step + k * k_step + shift) / divide, rows and columns apart, or 0 if that is not whole or not inside.
#include "include/activation.wgsl"

struct Push {
    a_at: u32, b_at: u32, bias_at: u32, c_at: u32,
    m: u32, n: u32, k: u32,
    k_area: u32, k_width: u32, n_area: u32, n_width: u32,
    a_m: u32, a_plane: u32, a_group: u32, a_batch: u32,
    b_batch: u32, b_group: u32, b_plane: u32,
    height: i32, width: i32,
    n_step_y: i32, n_step_x: i32,
    k_step_y: i32, k_step_x: i32,
    shift_y: i32, shift_x: i32,
    divide_y: i32, divide_x: i32,
    groups: u32,
    // Of (batch, group).
    first: u32,
    // The activation, and in bit 8 whether there is a bias.
    flags: u32,
}

@group(0) @binding(0) var<storage, read> a: array<f32>;
@group(0) @binding(1) var<storage, read> b: array<f32>;
@group(0) @binding(2) var<storage, read> bias: array<f32>;
@group(0) @binding(3) var<storage, read_write> c: array<f32>;
var<immediate> p: Push;

// Workgroups in each dimension at most. A dispatch may be cut between them, so that none asks how many there are.
const MOST_GROUPS = 65535u;
const TILE = 32u;
const STEP = 16u;
// Four rows or columns to a vector; one more, so that neighbours in k are not in the same bank.
const PITCH = 9u;

var<workgroup> a_tile: array<vec4<f32>, 144>;
var<workgroup> b_tile: array<vec4<f32>, 144>;

fn split(index: u32, area: u32, width: u32) -> vec3<u32> {
    let rest = index % area;
    return vec3<u32>(index / area, rest / width, rest % width);
}

fn pixel(k: vec3<u32>, n: vec3<u32>, plane: u32) -> f32 {
    let n_at = vec2<i32>(n.yz) * vec2<i32>(p.n_step_y, p.n_step_x);
    let k_at = vec2<i32>(k.yz) * vec2<i32>(p.k_step_y, p.k_step_x);
    var at = n_at + k_at + vec2<i32>(p.shift_y, p.shift_x);
    if at.x < 0 || at.y < 0 {
        return 0.0;
    }
    if p.divide_y > 1 || p.divide_x > 1 {
        let divide = vec2<i32>(p.divide_y, p.divide_x);
        let whole = at / divide;
        if any(whole * divide != at) {
            return 0.0;
        }
        at = whole;
    }
    if at.x >= p.height || at.y >= p.width {
        return 0.0;
    }
    let image = plane + k.x * p.b_plane + n.x;
    return b[p.b_at + (image * u32(p.height) + u32(at.x)) * u32(p.width) + u32(at.y)];
}

fn store(row: u32, column: u32, sum: f32, matrix: u32) {
    if row >= p.m || column >= p.n {
        return;
    }
    var value = sum;
    if (p.flags & 256u) != 0u {
        value += bias[p.bias_at + (matrix % p.groups) * p.m + row];
    }
    c[p.c_at + (matrix * p.m + row) * p.n + column] = activate(value, p.flags & 255u);
}

fn store4(row: u32, column: u32, sums: vec4<f32>, matrix: u32) {
    store(row, column, sums.x, matrix);
    store(row, column + 1u, sums.y, matrix);
    store(row, column + 2u, sums.z, matrix);
    store(row, column + 3u, sums.w, matrix);
}

@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) id: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let matrix = p.first + id.z;
    let batch = matrix / p.groups;
    let group = matrix % p.groups;
    let a_base = p.a_at + batch * p.a_batch + group * p.a_group;
    let plane = batch * p.b_batch + group * p.b_group;
    let x = thread % 8u;
    let y = thread / 8u;
    for (var column = id.x * TILE; column < p.n; column += MOST_GROUPS * TILE) {
        // Each invocation reads of one column of B, so that its place is found once.
        let own_column = column + thread % TILE;
        let own = split(own_column, p.n_area, p.n_width);
        for (var row = id.y * TILE; row < p.m; row += MOST_GROUPS * TILE) {
            var c0 = vec4<f32>();
            var c1 = vec4<f32>();
            var c2 = vec4<f32>();
            var c3 = vec4<f32>();
            for (var step = 0u; step < p.k; step += STEP) {
                // And of one column of A.
                let a_k = step + thread % STEP;
                let a_place = a_base + (a_k / p.k_area) * p.a_plane + a_k % p.k_area;
                for (var i = 0u; i < 8u; i++) {
                    let a_row = thread / STEP + i * 4u;
                    var value = 0.0;
                    if row + a_row < p.m && a_k < p.k {
                        value = a[a_place + (row + a_row) * p.a_m];
                    }
                    a_tile[thread % STEP * PITCH + a_row / 4u][a_row % 4u] = value;
                    let b_row = thread / TILE + i * 2u;
                    value = 0.0;
                    if own_column < p.n && step + b_row < p.k {
                        value = pixel(split(step + b_row, p.k_area, p.k_width), own, plane);
                    }
                    b_tile[b_row * PITCH + thread % TILE / 4u][thread % 4u] = value;
                }
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
            store4(row + y * 4u + 0u, column + x * 4u, c0, matrix);
            store4(row + y * 4u + 1u, column + x * 4u, c1, matrix);
            store4(row + y * 4u + 2u, column + x * 4u, c2, matrix);
            store4(row + y * 4u + 3u, column + x * 4u, c3, matrix);
        }
    }
}
