// The sums of azimuthal integration: of frames, over the pixels of each bin. `lanes` invocations share a bin and up to four
// frames, which the workgroup's y names; each takes every lanes-th share, then they combine as a tree. Every sum is a pair of
// floats, the second of which holds what rounding took from the first (Knuth's TwoSum).

struct Push {
    bins: u32, pixels: u32, shares: u32,
    // Pixels from one frame's first to the next one's.
    stride: u32, frames: u32,
    lanes: u32,
    // Of the frames' numbers: 0 u8, 1 u16, 2 u32, 3 i32, 4 f32.
    kind: u32,
    has_dummy: u32, is_poisson: u32,
    dummy: f32, delta: f32,
}

@group(0) @binding(0) var<storage, read> starts: array<u32>;
@group(0) @binding(1) var<storage, read> pixels: array<u32>;
@group(0) @binding(2) var<storage, read> weights: array<f32>;
// Of each pixel: omega, dark, variance, nothing. Pixels whose omega is 0 do not count.
@group(0) @binding(3) var<storage, read> constants: array<vec4<f32>>;
// Frames as they are in memory, four bytes to a word.
@group(0) @binding(4) var<storage, read> words: array<u32>;
// [frame][signal, variance, norm, norm2, count][sum, rest][bin]
@group(0) @binding(5) var<storage, read_write> sums: array<f32>;
var<immediate> p: Push;

// Workgroups at most. A dispatch may be cut between them, so that none asks how many there are.
const MOST_GROUPS = 65535u;

struct Sum { high: vec4<f32>, low: vec4<f32> }

var<workgroup> shared_high: array<vec4<f32>, 128>;
var<workgroup> shared_low: array<vec4<f32>, 128>;

fn plus(sum: Sum, value: vec4<f32>) -> Sum {
    let high = sum.high + value;
    let added = high - sum.high;
    return Sum(high, sum.low + ((sum.high - (high - added)) + (value - added)));
}

fn value(index: u32) -> f32 {
    switch p.kind {
        case 0u: { return f32((words[index / 4u] >> (8u * (index % 4u))) & 0xffu); }
        case 1u: { return f32((words[index / 2u] >> (16u * (index % 2u))) & 0xffffu); }
        case 2u: { return f32(words[index]); }
        case 3u: { return f32(bitcast<i32>(words[index])); }
        default: { return bitcast<f32>(words[index]); }
    }
}

// 1 where a pixel counts, 0 where it is a dummy or NaN.
fn counts(value: f32) -> f32 {
    let magnitude = bitcast<u32>(value) & 0x7fffffffu;
    let is_number = magnitude < 0x7f800000u;
    return select(0.0, 1.0, is_number && (p.has_dummy == 0u || abs(value - p.dummy) > p.delta));
}

// Adds up the sums of the lanes of a bin and stores them.
fn store(sum: Sum, quantity: u32, row: u32, first_frame: u32, thread: u32) {
    let lane = thread % p.lanes;
    shared_high[thread] = sum.high;
    shared_low[thread] = sum.low;
    for (var half = p.lanes / 2u; half > 0u; half /= 2u) {
        workgroupBarrier();
        if lane < half {
            let both = plus(Sum(shared_high[thread], shared_low[thread]), shared_high[thread + half]);
            shared_high[thread] = both.high;
            shared_low[thread] = both.low + shared_low[thread + half];
        }
    }
    if lane == 0u && row < p.bins {
        for (var frame = 0u; frame < min(p.frames - first_frame, 4u); frame++) {
            let at = (((first_frame + frame) * 5u + quantity) * 2u) * p.bins + row;
            sums[at] = shared_high[thread][frame];
            sums[at + p.bins] = shared_low[thread][frame];
        }
    }
    workgroupBarrier();
}

@compute @workgroup_size(128)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let per_group = 128u / p.lanes;
    let lane = thread % p.lanes;
    // Of fewer than four frames, the last is added up again and not stored.
    let last = p.frames - 1u;
    let first_frame = 4u * group.y;
    let at = vec4<u32>(first_frame, min(first_frame + 1u, last), min(first_frame + 2u, last), min(first_frame + 3u, last))
        * p.stride;
    for (var first = group.x * per_group; first < p.bins; first += MOST_GROUPS * per_group) {
        let row = first + thread / p.lanes;
        var signal = Sum();
        var variance = Sum();
        var norm = Sum();
        var norm2 = Sum();
        var count = Sum();
        if row < p.bins {
            let end = min(starts[row + 1u], p.shares);
            for (var share = starts[row] + lane; share < end; share += p.lanes) {
                let pixel = min(pixels[share], p.pixels - 1u);
                let own = constants[pixel];
                let omega = own.x;
                if omega == 0.0 {
                    continue;
                }
                let raw = vec4<f32>(value(at.x + pixel), value(at.y + pixel), value(at.z + pixel), value(at.w + pixel));
                let valid = vec4<f32>(counts(raw.x), counts(raw.y), counts(raw.z), counts(raw.w));
                let is_valid = valid > vec4<f32>();
                let weight = weights[share];
                let scaled = valid * weight;
                let of_counts = select(vec4<f32>(), max(raw, vec4<f32>(1.0)), p.is_poisson != 0u);
                signal = plus(signal, select(vec4<f32>(), weight * (raw - own.y), is_valid));
                variance = plus(variance, select(vec4<f32>(), weight * weight * (of_counts + own.z), is_valid));
                norm = plus(norm, scaled * omega);
                norm2 = plus(norm2, scaled * omega * weight * omega);
                count = plus(count, scaled);
            }
        }
        store(signal, 0u, row, first_frame, thread);
        store(variance, 1u, row, first_frame, thread);
        store(norm, 2u, row, first_frame, thread);
        store(norm2, 3u, row, first_frame, thread);
        store(count, 4u, row, first_frame, thread);
    }
}
