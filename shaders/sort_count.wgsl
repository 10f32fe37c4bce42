// One pass of a radix sort, first half: how many keys of each block of 2048 have each digit of 4 bits. Counts lie digit by
// digit, so that their running sum is where each block's keys of a digit go.
#include "include/sort.wgsl"

struct Push {
    keys_at: u32, counts_at: u32,
    n: u32, shift: u32, blocks: u32,
    // Bits: keys are f32; descending.
    flags: u32,
}

@group(0) @binding(0) var<storage, read> keys: array<u32>;
@group(0) @binding(1) var<storage, read_write> counts: array<u32>;
var<immediate> p: Push;

const BLOCK = 2048u;

var<workgroup> local: array<atomic<u32>, 16>;

@compute @workgroup_size(256)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    for (var block = group.x; block < p.blocks; block += groups.x) {
        if thread < 16u {
            atomicStore(&local[thread], 0u);
        }
        workgroupBarrier();
        let end = min((block + 1u) * BLOCK, p.n);
        for (var i = block * BLOCK + thread; i < end; i += 256u) {
            atomicAdd(&local[(order(keys[p.keys_at + i]) >> p.shift) & 15u], 1u);
        }
        workgroupBarrier();
        if thread < 16u {
            counts[p.counts_at + thread * p.blocks + block] = atomicLoad(&local[thread]);
        }
        workgroupBarrier();
    }
}
