// The digit that most of an image's k nearest neighbours show; of those with as many votes the one with the nearest.

struct Tile { origin: vec3<u32>, size: vec3<u32>, space: vec3<u32>, step: u32 }

@group(0) @binding(0) var<uniform> tile: Tile;
@group(0) @binding(1) var<uniform> k: u32;
// The last `space` images are read, by what the others show.
@group(0) @binding(2) var<storage, read> images: array<u32>;
@group(0) @binding(3) var<storage, read> digits: array<u32>;
@group(0) @binding(4) var<storage, read_write> taken_for: array<u32>;
@group(0) @binding(5) var<storage, read_write> right: array<atomic<u32>>;

const PIXELS = 64u;
const MOST = 16u;

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    if (any(id >= tile.size)) {
        return;
    }
    let known = arrayLength(&digits) - tile.space.x;
    let image = known + tile.origin.x + id.x;
    // The nearest so far, in order: distance and digit.
    var near: array<vec2<u32>, MOST>;
    for (var place = 0u; place < MOST; place++) {
        near[place] = vec2(0xffffffffu, 0u);
    }
    let count = min(k, MOST);
    for (var other = 0u; other < known; other++) {
        var distance = 0u;
        for (var pixel = 0u; pixel < PIXELS; pixel++) {
            let difference = i32(images[image * PIXELS + pixel]) - i32(images[other * PIXELS + pixel]);
            distance += u32(difference * difference);
        }
        var candidate = vec2(distance, digits[other]);
        for (var place = 0u; place < count; place++) {
            if (candidate.x < near[place].x) {
                let farther = near[place];
                near[place] = candidate;
                candidate = farther;
            }
        }
    }
    var votes: array<u32, 10>;
    for (var place = 0u; place < count; place++) {
        votes[near[place].y] += 1u;
    }
    var winner = near[0].y;
    for (var place = 1u; place < count; place++) {
        if (votes[near[place].y] > votes[winner]) {
            winner = near[place].y;
        }
    }
    taken_for[id.x] = winner;
    if (winner == digits[image]) {
        atomicAdd(&right[0], 1u);
    }
}
