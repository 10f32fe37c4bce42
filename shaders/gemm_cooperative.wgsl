// C = act(alpha A B + beta C + bias) for f16 inputs, by matrices that 32 invocations hold together: 16 x 16 products of f16 with
// sums of f32. A workgroup computes 128 x 64, 32 steps of k at a time in workgroup memory; each of its 8 subgroups 32 x 32 of it.
// What the next step needs is on its way while this one is computed. Only for devices whose subgroups are of 32 in the order of
// invocations, and for matrices that, like their rows, begin at multiples of 16 bytes and have whole eights in each row.

enable f16;
enable wgpu_cooperative_matrix;

#include "include/gemm.wgsl"

const ROWS = 128u;
const COLUMNS = 64u;
const STEP = 32u;
// From one row to the next, in vectors of four; two more than there are, so that rows are not in the same banks.
const A_PITCH = 10u;
const B_PITCH = 18u;

@group(0) @binding(0) var<storage, read> a: array<vec4<f16>>;
@group(0) @binding(1) var<storage, read> b: array<vec4<f16>>;

// [row][k] and [k][column].
var<workgroup> a_tile: array<vec4<f16>, 1280>;
var<workgroup> b_tile: array<vec4<f16>, 576>;
// 16 x 16 for each subgroup, on their way out.
var<workgroup> sums: array<f32, 2048>;

struct Eight { low: vec4<f16>, high: vec4<f16> }

// Elements k to k + 7 of a row of A.
fn load_a(row: u32, k: u32, base: u32) -> Eight {
    if row >= p.m || k >= p.k {
        return Eight();
    }
    let at = (base + row * p.a_stride + k) / 4u;
    return Eight(a[at], a[at + 1u]);
}

// Elements column to column + 7 of a row of B.
fn load_b(k: u32, column: u32, base: u32) -> Eight {
    if k >= p.k || column >= p.n {
        return Eight();
    }
    let at = (base + k * p.b_stride + column) / 4u;
    return Eight(b[at], b[at + 1u]);
}

fn keep_a(row: u32, eight: u32, value: Eight) {
    let at = row * A_PITCH + 2u * eight;
    a_tile[at] = value.low;
    a_tile[at + 1u] = value.high;
}

// A subgroup's 16 x 16 sums, eight of each invocation.
fn store_sums(row: u32, column: u32, thread: u32, base: u32) {
    let lane = thread % 32u;
    for (var i = 0u; i < 8u; i++) {
        let element = lane + i * 32u;
        store(row + element / 16u, column + element % 16u, sums[thread / 32u * 256u + element], base);
    }
}

@compute @workgroup_size(256)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let batch = p.first_batch + group.z;
    let a_base = p.a_at + batch * p.a_batch;
    let b_base = p.b_at + batch * p.b_batch;
    let c_base = p.c_at + batch * p.c_batch;
    let column = group.x * COLUMNS;
    // What an invocation brings: eights of two rows of A, and of one of B.
    let a_row = thread / 4u;
    let a_eight = thread % 4u;
    let b_row = thread / 8u;
    let b_eight = thread % 8u;
    // Of the subgroup, in the tile.
    let own_row = thread / 64u * 32u;
    let own_column = thread / 32u % 2u * 32u;
    let patch_at = thread / 32u * 256u;
    for (var row = group.y * ROWS; row < p.m; row += MOST_GROUPS * ROWS) {
        var c00 = coop_mat16x16<f32, C>();
        var c01 = coop_mat16x16<f32, C>();
        var c10 = coop_mat16x16<f32, C>();
        var c11 = coop_mat16x16<f32, C>();
        var next_a0 = load_a(row + a_row, 8u * a_eight, a_base);
        var next_a1 = load_a(row + a_row + 64u, 8u * a_eight, a_base);
        var next_b = load_b(b_row, column + 8u * b_eight, b_base);
        for (var step = 0u; step < p.k; step += STEP) {
            keep_a(a_row, a_eight, next_a0);
            keep_a(a_row + 64u, a_eight, next_a1);
            b_tile[b_row * B_PITCH + 2u * b_eight] = next_b.low;
            b_tile[b_row * B_PITCH + 2u * b_eight + 1u] = next_b.high;
            workgroupBarrier();
            let next = step + STEP;
            if next < p.k {
                next_a0 = load_a(row + a_row, next + 8u * a_eight, a_base);
                next_a1 = load_a(row + a_row + 64u, next + 8u * a_eight, a_base);
                next_b = load_b(next + b_row, column + 8u * b_eight, b_base);
            }
            // Both sixteens of k: drivers do not unroll it themselves.
            let a_from = own_row * A_PITCH;
            let b_from = own_column / 4u;
            let a00 = coopLoadT<coop_mat16x16<f16, A>>(&a_tile[a_from], A_PITCH);
            let a10 = coopLoadT<coop_mat16x16<f16, A>>(&a_tile[a_from + 16u * A_PITCH], A_PITCH);
            let b00 = coopLoadT<coop_mat16x16<f16, B>>(&b_tile[b_from], B_PITCH);
            let b01 = coopLoadT<coop_mat16x16<f16, B>>(&b_tile[b_from + 4u], B_PITCH);
            c00 = coopMultiplyAdd(a00, b00, c00);
            c01 = coopMultiplyAdd(a00, b01, c01);
            c10 = coopMultiplyAdd(a10, b00, c10);
            c11 = coopMultiplyAdd(a10, b01, c11);
            let a01 = coopLoadT<coop_mat16x16<f16, A>>(&a_tile[a_from + 4u], A_PITCH);
            let a11 = coopLoadT<coop_mat16x16<f16, A>>(&a_tile[a_from + 16u * A_PITCH + 4u], A_PITCH);
            let b10 = coopLoadT<coop_mat16x16<f16, B>>(&b_tile[b_from + 16u * B_PITCH], B_PITCH);
            let b11 = coopLoadT<coop_mat16x16<f16, B>>(&b_tile[b_from + 16u * B_PITCH + 4u], B_PITCH);
            c00 = coopMultiplyAdd(a01, b10, c00);
            c01 = coopMultiplyAdd(a01, b11, c01);
            c10 = coopMultiplyAdd(a11, b10, c10);
            c11 = coopMultiplyAdd(a11, b11, c11);
            workgroupBarrier();
        }
        let r = row + own_row;
        let s = column + own_column;
        coopStoreT(c00, &sums[patch_at], 16u);
        workgroupBarrier();
        store_sums(r, s, thread, c_base);
        workgroupBarrier();
        coopStoreT(c01, &sums[patch_at], 16u);
        workgroupBarrier();
        store_sums(r, s + 16u, thread, c_base);
        workgroupBarrier();
        coopStoreT(c10, &sums[patch_at], 16u);
        workgroupBarrier();
        store_sums(r + 16u, s, thread, c_base);
        workgroupBarrier();
        coopStoreT(c11, &sums[patch_at], 16u);
        workgroupBarrier();
        store_sums(r + 16u, s + 16u, thread, c_base);
        workgroupBarrier();
    }
}
