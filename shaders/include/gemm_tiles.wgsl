// Tiles of A and B in workgroup memory, TILE x STEP elements of each, for THREADS invocations. f16 inputs are read as pairs in 32
// bits, which every device can.
#include "include/gemm.wgsl"

@group(0) @binding(0) var<storage, read> a: array<u32>;
@group(0) @binding(1) var<storage, read> b: array<u32>;

const STEP = 16u;
// Four rows or columns to a vector; one more, so that neighbours in k are not in the same bank.
const PITCH = TILE / 4u + 1u;

var<workgroup> a_tile: array<vec4<f32>, PITCH * STEP>;
var<workgroup> b_tile: array<vec4<f32>, PITCH * STEP>;

fn half_of(pair: u32, index: u32) -> f32 {
    return unpack2x16float(pair >> (16u * (index & 1u))).x;
}

fn load_a(row: u32, k: u32, base: u32) -> f32 {
    if row >= p.m || k >= p.k {
        return 0.0;
    }
    let index = base + select(row * p.a_stride + k, k * p.a_stride + row, (p.flags & 1u) != 0u);
    if (p.flags & 4u) != 0u {
        return half_of(a[index >> 1u], index);
    }
    return bitcast<f32>(a[index]);
}

fn load_b(k: u32, column: u32, base: u32) -> f32 {
    if column >= p.n || k >= p.k {
        return 0.0;
    }
    let index = base + select(k * p.b_stride + column, column * p.b_stride + k, (p.flags & 2u) != 0u);
    if (p.flags & 8u) != 0u {
        return half_of(b[index >> 1u], index);
    }
    return bitcast<f32>(b[index]);
}

// The next STEP columns of A's tile and rows of B's. Neighbouring invocations read neighbouring elements, however the matrix
// lies.
fn load_tiles(thread: u32, row: u32, column: u32, step: u32, a_base: u32, b_base: u32) {
    for (var element = thread; element < TILE * STEP; element += THREADS) {
        let along_k = vec2<u32>(element / STEP, element % STEP);
        let across_k = vec2<u32>(element % TILE, element / TILE);
        let at_a = select(along_k, across_k, (p.flags & 1u) != 0u);
        a_tile[at_a.y * PITCH + at_a.x / 4u][at_a.x % 4u] = load_a(row + at_a.x, step + at_a.y, a_base);
        let at_b = select(across_k, along_k, (p.flags & 2u) != 0u);
        b_tile[at_b.y * PITCH + at_b.x / 4u][at_b.x % 4u] = load_b(step + at_b.y, column + at_b.x, b_base);
    }
}
