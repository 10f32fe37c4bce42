// C = act(alpha op(A) op(B) + beta C + bias) for f16 inputs, by matrices that 32 invocations hold together: 16 x 16 products of
// f16 with sums of f32. A workgroup computes 128 x 128, 32 steps of k at a time in workgroup memory; each of its 8 subgroups
// 32 x 64 of it. Only for devices whose subgroups are of 32 in the order of invocations.

enable f16;
enable wgpu_cooperative_matrix;

#include "include/gemm.wgsl"

const TILE = 128u;
const STEP = 32u;
// From one row to the next; eight more than there are, so that rows are not in the same banks.
const A_PITCH = 40u;
const B_PITCH = 136u;

// [row][k] and [k][column].
var<workgroup> a_tile: array<f16, 5120>;
var<workgroup> b_tile: array<f16, 4352>;
// 16 x 16 for each subgroup, on their way out.
var<workgroup> sums: array<f32, 2048>;

// Two elements of a matrix, side by side in memory, from `index` on.
fn pair_of_a(index: u32, both: bool) -> vec2<f32> {
    let first = unpack2x16float(a[index >> 1u]);
    if (index & 1u) == 0u {
        return first;
    }
    return vec2<f32>(first.y, select(0.0, unpack2x16float(a[(index + u32(both)) >> 1u]).x, both));
}

fn pair_of_b(index: u32, both: bool) -> vec2<f32> {
    let first = unpack2x16float(b[index >> 1u]);
    if (index & 1u) == 0u {
        return first;
    }
    return vec2<f32>(first.y, select(0.0, unpack2x16float(b[(index + u32(both)) >> 1u]).x, both));
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
    let column = group.x * TILE;
    // Of the subgroup, in the tile.
    let own_row = thread / 64u * 32u;
    let own_column = thread / 32u % 2u * 64u;
    let patch_at = thread / 32u * 256u;
    for (var row = group.y * TILE; row < p.m; row += MOST_GROUPS * TILE) {
        var c00 = coop_mat16x16<f32, C>();
        var c01 = coop_mat16x16<f32, C>();
        var c02 = coop_mat16x16<f32, C>();
        var c03 = coop_mat16x16<f32, C>();
        var c10 = coop_mat16x16<f32, C>();
        var c11 = coop_mat16x16<f32, C>();
        var c12 = coop_mat16x16<f32, C>();
        var c13 = coop_mat16x16<f32, C>();
        for (var step = 0u; step < p.k; step += STEP) {
            // Pairs along the rows in memory: of A along k, or along m if it is transposed.
            for (var i = thread; i < 2048u; i += 256u) {
                if (p.flags & 1u) == 0u {
                    let at = vec2<u32>(i / 16u, i % 16u * 2u);
                    var pair = vec2<f32>();
                    if row + at.x < p.m && step + at.y < p.k {
                        let both = step + at.y + 1u < p.k;
                        pair = pair_of_a(a_base + (row + at.x) * p.a_stride + step + at.y, both);
                        pair.y = select(0.0, pair.y, both);
                    }
                    a_tile[at.x * A_PITCH + at.y] = f16(pair.x);
                    a_tile[at.x * A_PITCH + at.y + 1u] = f16(pair.y);
                } else {
                    let at = vec2<u32>(i % 64u * 2u, i / 64u);
                    var pair = vec2<f32>();
                    if row + at.x < p.m && step + at.y < p.k {
                        let both = row + at.x + 1u < p.m;
                        pair = pair_of_a(a_base + (step + at.y) * p.a_stride + row + at.x, both);
                        pair.y = select(0.0, pair.y, both);
                    }
                    a_tile[at.x * A_PITCH + at.y] = f16(pair.x);
                    a_tile[(at.x + 1u) * A_PITCH + at.y] = f16(pair.y);
                }
            }
            for (var i = thread; i < 2048u; i += 256u) {
                if (p.flags & 2u) == 0u {
                    let at = vec2<u32>(i / 64u, i % 64u * 2u);
                    var pair = vec2<f32>();
                    if step + at.x < p.k && column + at.y < p.n {
                        let both = column + at.y + 1u < p.n;
                        pair = pair_of_b(b_base + (step + at.x) * p.b_stride + column + at.y, both);
                        pair.y = select(0.0, pair.y, both);
                    }
                    b_tile[at.x * B_PITCH + at.y] = f16(pair.x);
                    b_tile[at.x * B_PITCH + at.y + 1u] = f16(pair.y);
                } else {
                    let at = vec2<u32>(i % 16u * 2u, i / 16u);
                    var pair = vec2<f32>();
                    if step + at.x < p.k && column + at.y < p.n {
                        let both = step + at.x + 1u < p.k;
                        pair = pair_of_b(b_base + (column + at.y) * p.b_stride + step + at.x, both);
                        pair.y = select(0.0, pair.y, both);
                    }
                    b_tile[at.x * B_PITCH + at.y] = f16(pair.x);
                    b_tile[(at.x + 1u) * B_PITCH + at.y] = f16(pair.y);
                }
            }
            workgroupBarrier();
            for (var k = 0u; k < STEP; k += 16u) {
                let a_from = own_row * A_PITCH + k;
                let b_from = k * B_PITCH + own_column;
                let a0 = coopLoadT<coop_mat16x16<f16, A>>(&a_tile[a_from], A_PITCH);
                let a1 = coopLoadT<coop_mat16x16<f16, A>>(&a_tile[a_from + 16u * A_PITCH], A_PITCH);
                let b0 = coopLoadT<coop_mat16x16<f16, B>>(&b_tile[b_from], B_PITCH);
                let b1 = coopLoadT<coop_mat16x16<f16, B>>(&b_tile[b_from + 16u], B_PITCH);
                let b2 = coopLoadT<coop_mat16x16<f16, B>>(&b_tile[b_from + 32u], B_PITCH);
                let b3 = coopLoadT<coop_mat16x16<f16, B>>(&b_tile[b_from + 48u], B_PITCH);
                c00 = coopMultiplyAdd(a0, b0, c00);
                c01 = coopMultiplyAdd(a0, b1, c01);
                c02 = coopMultiplyAdd(a0, b2, c02);
                c03 = coopMultiplyAdd(a0, b3, c03);
                c10 = coopMultiplyAdd(a1, b0, c10);
                c11 = coopMultiplyAdd(a1, b1, c11);
                c12 = coopMultiplyAdd(a1, b2, c12);
                c13 = coopMultiplyAdd(a1, b3, c13);
            }
            workgroupBarrier();
        }
        let r = row + own_row;
        let s = column + own_column;
        coopStoreT(c00, &sums[patch_at], 16u);
        workgroupBarrier();
        store_sums(r + 0u, s + 0u, thread, c_base);
        workgroupBarrier();
        coopStoreT(c01, &sums[patch_at], 16u);
        workgroupBarrier();
        store_sums(r + 0u, s + 16u, thread, c_base);
        workgroupBarrier();
        coopStoreT(c02, &sums[patch_at], 16u);
        workgroupBarrier();
        store_sums(r + 0u, s + 32u, thread, c_base);
        workgroupBarrier();
        coopStoreT(c03, &sums[patch_at], 16u);
        workgroupBarrier();
        store_sums(r + 0u, s + 48u, thread, c_base);
        workgroupBarrier();
        coopStoreT(c10, &sums[patch_at], 16u);
        workgroupBarrier();
        store_sums(r + 16u, s + 0u, thread, c_base);
        workgroupBarrier();
        coopStoreT(c11, &sums[patch_at], 16u);
        workgroupBarrier();
        store_sums(r + 16u, s + 16u, thread, c_base);
        workgroupBarrier();
        coopStoreT(c12, &sums[patch_at], 16u);
        workgroupBarrier();
        store_sums(r + 16u, s + 32u, thread, c_base);
        workgroupBarrier();
        coopStoreT(c13, &sums[patch_at], 16u);
        workgroupBarrier();
        store_sums(r + 16u, s + 48u, thread, c_base);
        workgroupBarrier();
    }
}
