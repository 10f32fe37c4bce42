// The digit that most of an image's k nearest neighbours show; of those with as many votes the nearest one's.

struct Tile { origin: vec3<u32>, size: vec3<u32>, space: vec3<u32>, step: u32 }

@group(0) @binding(0) var<uniform> tile: Tile;
@group(0) @binding(1) var<uniform> k: u32;
// The last `space` images are read, by what the others show.
@group(0) @binding(2) var<storage, read> images: array<vec4<u32>>;
@group(0) @binding(3) var<storage, read> digits: array<u32>;
@group(0) @binding(4) var<storage, read_write> taken_for: array<u32>;
@group(0) @binding(5) var<storage, read_write> right: array<atomic<u32>>;

// Groups of four pixels.
const GROUPS = 16u;
const MOST = 16u;

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    if (any(id >= tile.size)) {
        return;
    }
    let known = arrayLength(&digits) - tile.space.x;
    let image = known + tile.origin.x + id.x;
    // The nearest so far, in order: ten times the distance, and the digit.
    var near: array<u32, MOST>;
    for (var place = 0u; place < MOST; place++) {
        near[place] = 0xffffffffu;
    }
    let count = min(k, MOST);
    for (var other = 0u; other < known; other++) {
        var distance = 0u;
        for (var group = 0u; group < GROUPS; group++) {
            let difference = vec4<i32>(images[image * GROUPS + group]) - vec4<i32>(images[other * GROUPS + group]);
            distance += u32(dot(difference, difference));
        }
        var candidate = 10u * distance + digits[other];
        for (var place = 0u; place < count; place++) {
            let nearer = min(candidate, near[place]);
            candidate = max(candidate, near[place]);
            near[place] = nearer;
        }
    }
    var votes: array<u32, 10>;
    for (var place = 0u; place < count; place++) {
        votes[near[place] % 10u] += 1u;
    }
    var winner = near[0] % 10u;
    for (var place = 1u; place < count; place++) {
        let digit = near[place] % 10u;
        if (votes[digit] > votes[winner]) {
            winner = digit;
        }
    }
    taken_for[id.x] = winner;
    if (winner == digits[image]) {
        atomicAdd(&right[0], 1u);
    }
}
