// A European call under geometric Brownian motion: what it pays at the end, discounted, averaged over random paths.

struct Tile { origin: vec3<u32>, size: vec3<u32>, space: vec3<u32>, step: u32 }
struct Call { spot: f32, strike: f32, rate: f32, volatility: f32, years: f32 }

@group(0) @binding(0) var<uniform> tile: Tile;
@group(0) @binding(1) var<uniform> call: Call;
// For each workgroup of a tile: its part of the mean, and of the mean of squares.
@group(0) @binding(2) var<storage, read_write> sums: array<vec2<f32>>;

override DRAWS: u32 = 64;

const WORKGROUP = 64u;
const TAU = 6.28318530717959;

var<workgroup> paid: array<vec2<f32>, WORKGROUP>;

// Jarzynski and Olano, "Hash functions for GPU rendering", JCGT 9 (2020) 3.
fn pcg3d(counter: vec3<u32>) -> vec3<u32> {
    var v = counter * 1664525u + 1013904223u;
    v.x += v.y * v.z;
    v.y += v.z * v.x;
    v.z += v.x * v.y;
    v ^= v >> vec3(16u);
    v.x += v.y * v.z;
    v.y += v.z * v.x;
    v.z += v.x * v.y;
    return v;
}

// Box and Muller's transform of two numbers above 0 and up to 1.
fn normal(bits: vec3<u32>) -> f32 {
    let uniform_pair = (vec2<f32>(bits.xy >> vec2(8u)) + 1.0) / 16777216.0;
    return sqrt(-2.0 * log(uniform_pair.x)) * cos(TAU * uniform_pair.y);
}

fn pays(draw: f32) -> f32 {
    let drift = (call.rate - 0.5 * call.volatility * call.volatility) * call.years;
    let end = call.spot * exp(drift + call.volatility * sqrt(call.years) * draw);
    return max(end - call.strike, 0.0) * exp(-call.rate * call.years);
}

@compute @workgroup_size(WORKGROUP)
fn main(
    @builtin(global_invocation_id) id: vec3<u32>,
    @builtin(local_invocation_index) own: u32,
    @builtin(workgroup_id) group: vec3<u32>,
) {
    var total = vec2(0.0);
    if (id.x < tile.size.x) {
        for (var draw = 0u; draw < DRAWS; draw++) {
            let number = normal(pcg3d(vec3(tile.origin.x + id.x, draw, 12345u)));
            // Each draw and its opposite: their errors cancel in part.
            let pair = vec2(pays(number), pays(-number));
            total += vec2(pair.x + pair.y, dot(pair, pair));
        }
    }
    paid[own] = total;
    for (var half = WORKGROUP / 2u; half > 0u; half /= 2u) {
        workgroupBarrier();
        if (own < half) {
            paid[own] += paid[own + half];
        }
    }
    if (own == 0u) {
        sums[group.x] = paid[0] / (f32(tile.space.x) * f32(DRAWS) * 2.0);
    }
}
