// Counts values in equal bins. Each workgroup counts in its own memory first; counts are whole numbers, so their order does
// not matter. Where the bins do not fit there, they are counted in the result directly.

struct Push {
    x_at: u32, counts_at: u32,
    n: u32, bins: u32,
    low: f32, high: f32, scale: f32,
}

@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read_write> counts: array<atomic<u32>>;
var<immediate> p: Push;

const LOCAL_BINS = 4096u;

var<workgroup> local: array<atomic<u32>, LOCAL_BINS>;

@compute @workgroup_size(256)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let is_local = p.bins <= LOCAL_BINS;
    if is_local {
        for (var bin = thread; bin < p.bins; bin += 256u) {
            atomicStore(&local[bin], 0u);
        }
    }
    workgroupBarrier();
    for (var i = group.x * 256u + thread; i < p.n; i += groups.x * 256u) {
        let value = x[p.x_at + i];
        // Neither holds for NaN.
        if value >= p.low && value <= p.high {
            let bin = min(u32((value - p.low) * p.scale), p.bins - 1u);
            if is_local {
                atomicAdd(&local[bin], 1u);
            } else {
                atomicAdd(&counts[p.counts_at + bin], 1u);
            }
        }
    }
    workgroupBarrier();
    if is_local {
        for (var bin = thread; bin < p.bins; bin += 256u) {
            let count = atomicLoad(&local[bin]);
            if count > 0u {
                atomicAdd(&counts[p.counts_at + bin], count);
            }
        }
    }
}
