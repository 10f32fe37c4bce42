// C = act(alpha op(A) op(B) + beta C + bias): what a product is told, and how an element of it is stored.
#include "include/activation.wgsl"

struct Push {
    a_at: u32, b_at: u32, bias_at: u32, c_at: u32,
    m: u32, n: u32, k: u32,
    a_stride: u32, b_stride: u32, c_stride: u32,
    a_batch: u32, b_batch: u32, c_batch: u32,
    alpha: f32, beta: f32,
    // Bits: A transposed, B transposed, A is f16, B is f16, there is a bias.
    flags: u32,
    activation: u32,
    first_batch: u32,
}

// Workgroups in each dimension at most. A dispatch may be cut between them, so that none asks how many there are.
const MOST_GROUPS = 65535u;

// A and B are at 0 and 1; whoever reads them says as what.
@group(0) @binding(2) var<storage, read> bias: array<f32>;
@group(0) @binding(3) var<storage, read_write> c: array<f32>;
var<immediate> p: Push;

fn store(row: u32, column: u32, sum: f32, base: u32) {
    if row >= p.m || column >= p.n {
        return;
    }
    let index = base + row * p.c_stride + column;
    var value = p.alpha * sum;
    if p.beta != 0.0 {
        value += p.beta * c[index];
    }
    if (p.flags & 16u) != 0u {
        value += bias[p.bias_at + column];
    }
    c[index] = activate(value, p.activation);
}

fn store4(row: u32, column: u32, sums: vec4<f32>, base: u32) {
    store(row, column, sums.x, base);
    store(row, column + 1u, sums.y, base);
    store(row, column + 2u, sums.z, base);
    store(row, column + 3u, sums.w, base);
}
