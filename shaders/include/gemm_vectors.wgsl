// What the products have in common whose tiles of A and B, TILE x STEP elements of each in workgroup memory, are brought by
// TILE * STEP / 4 invocations: each one vector of either. For matrices of f32 that, like their rows, begin at multiples of 16 bytes
// and have whole vectors in each row. What the next step needs is on its way while this one is computed. A shader says what an
// invocation sums: `TileSums`, 4 x COLUMNS of them.
#include "include/gemm.wgsl"

const STEP = 16u;
const THREADS = TILE * STEP / 4u;
// Four rows or columns to a vector; one more, so that neighbours in k are not in the same bank.
const PITCH = TILE / 4u + 1u;

@group(0) @binding(0) var<storage, read> a: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read> b: array<vec4<f32>>;

var<workgroup> a_tile: array<vec4<f32>, PITCH * STEP>;
var<workgroup> b_tile: array<vec4<f32>, PITCH * STEP>;

// Where an invocation's vector lies in its tile: across k and along k, if its elements follow each other along k or across it.
fn along_k(thread: u32) -> vec2<u32> {
    return vec2<u32>(thread / (STEP / 4u), thread % (STEP / 4u) * 4u);
}

fn across_k(thread: u32) -> vec2<u32> {
    return vec2<u32>(thread % (TILE / 4u) * 4u, thread / (TILE / 4u));
}

fn load_a(thread: u32, row: u32, step: u32, base: u32) -> vec4<f32> {
    let is_across = (p.flags & 1u) != 0u;
    let at = vec2<u32>(row, step) + select(along_k(thread), across_k(thread), is_across);
    if at.x >= p.m || at.y >= p.k {
        return vec4<f32>();
    }
    return a[(base + select(at.x * p.a_stride + at.y, at.y * p.a_stride + at.x, is_across)) / 4u];
}

fn load_b(thread: u32, column: u32, step: u32, base: u32) -> vec4<f32> {
    let is_along = (p.flags & 2u) != 0u;
    let at = vec2<u32>(column, step) + select(across_k(thread), along_k(thread), is_along);
    if at.x >= p.n || at.y >= p.k {
        return vec4<f32>();
    }
    return b[(base + select(at.y * p.b_stride + at.x, at.x * p.b_stride + at.y, is_along)) / 4u];
}

fn keep_a(thread: u32, vector: vec4<f32>) {
    if (p.flags & 1u) != 0u {
        let at = across_k(thread);
        a_tile[at.y * PITCH + at.x / 4u] = vector;
        return;
    }
    let at = along_k(thread);
    let first = at.y * PITCH + at.x / 4u;
    a_tile[first][at.x % 4u] = vector.x;
    a_tile[first + PITCH][at.x % 4u] = vector.y;
    a_tile[first + 2u * PITCH][at.x % 4u] = vector.z;
    a_tile[first + 3u * PITCH][at.x % 4u] = vector.w;
}

fn keep_b(thread: u32, vector: vec4<f32>) {
    if (p.flags & 2u) == 0u {
        let at = across_k(thread);
        b_tile[at.y * PITCH + at.x / 4u] = vector;
        return;
    }
    let at = along_k(thread);
    let first = at.y * PITCH + at.x / 4u;
    b_tile[first][at.x % 4u] = vector.x;
    b_tile[first + PITCH][at.x % 4u] = vector.y;
    b_tile[first + 2u * PITCH][at.x % 4u] = vector.z;
    b_tile[first + 3u * PITCH][at.x % 4u] = vector.w;
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
    let x = thread % (TILE / COLUMNS);
    let y = thread / (TILE / COLUMNS);
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
        store_sums(sums, row + y * 4u, column + x * 4u, c_base);
    }
}
