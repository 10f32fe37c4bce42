// One pass of a radix sort, second half: each key goes behind those of lower digits, of earlier blocks, and of earlier places
// in its block. Equal keys keep their order.
#include "include/sort.wgsl"

struct Push {
    keys_at: u32, payload_at: u32, firsts_at: u32, keys_out_at: u32, payload_out_at: u32,
    n: u32, shift: u32, blocks: u32,
    // Bits: keys are f32; descending; there is a payload.
    flags: u32,
}

@group(0) @binding(0) var<storage, read> keys: array<u32>;
@group(0) @binding(1) var<storage, read> payload: array<u32>;
@group(0) @binding(2) var<storage, read> firsts: array<u32>;
@group(0) @binding(3) var<storage, read_write> keys_out: array<u32>;
@group(0) @binding(4) var<storage, read_write> payload_out: array<u32>;
var<immediate> p: Push;

const EACH = 16u;
const THREADS = 128u;
const BLOCK = 2048u;

// How many of an invocation's keys have a digit, digit by digit: 8 KiB. Then where the next of them goes.
var<workgroup> places: array<u32, 2048>;
var<workgroup> sums: array<u32, 128>;

@compute @workgroup_size(128)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    for (var block = group.x; block < p.blocks; block += groups.x) {
        for (var digit = 0u; digit < 16u; digit++) {
            places[digit * THREADS + thread] = 0u;
        }
        let first = block * BLOCK + thread * EACH;
        let end = min(first + EACH, p.n);
        for (var i = first; i < end; i++) {
            places[((order(keys[p.keys_at + i]) >> p.shift) & 15u) * THREADS + thread] += 1u;
        }
        workgroupBarrier();
        // Running sums over all 2048: each invocation sums 16 that lie side by side, then the sums are summed.
        var sum = 0u;
        for (var i = 0u; i < 16u; i++) {
            sum += places[thread * 16u + i];
        }
        sums[thread] = sum;
        workgroupBarrier();
        for (var reach = 1u; reach < THREADS; reach *= 2u) {
            var total = sums[thread];
            if thread >= reach {
                total += sums[thread - reach];
            }
            workgroupBarrier();
            sums[thread] = total;
            workgroupBarrier();
        }
        // 128 places to a digit: eight invocations share one, and its keys in the block begin at the eighth before's sum.
        var running = sums[thread] - sum;
        let digit = thread / 8u;
        var before = 0u;
        if digit > 0u {
            before = sums[digit * 8u - 1u];
        }
        running = running - before + firsts[p.firsts_at + digit * p.blocks + block];
        for (var i = 0u; i < 16u; i++) {
            let count = places[thread * 16u + i];
            places[thread * 16u + i] = running;
            running += count;
        }
        workgroupBarrier();
        for (var i = first; i < end; i++) {
            let key = keys[p.keys_at + i];
            let slot = ((order(key) >> p.shift) & 15u) * THREADS + thread;
            let place = places[slot];
            places[slot] = place + 1u;
            keys_out[p.keys_out_at + place] = key;
            if (p.flags & 4u) != 0u {
                payload_out[p.payload_out_at + place] = payload[p.payload_at + i];
            }
        }
        workgroupBarrier();
    }
}
