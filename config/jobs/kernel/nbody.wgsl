// A step of leapfrog for bodies of equal mass, 1 in all, with softened gravity (G = 1). Velocities are half a step behind the
// positions: see e.g. Quinn et al., "Time stepping N-body simulations", 1997.

struct Tile { origin: vec3<u32>, size: vec3<u32>, space: vec3<u32>, step: u32 }

@group(0) @binding(0) var<uniform> tile: Tile;
// Three coordinates each; the fourth is not used.
@group(0) @binding(1) var<storage, read> position: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read> velocity: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read_write> position_next: array<vec4<f32>>;
@group(0) @binding(4) var<storage, read_write> velocity_next: array<vec4<f32>>;
// Of each body: its energy at the first step and at this one.
@group(0) @binding(5) var<storage, read_write> energy: array<vec2<f32>>;

override DT: f32 = 0.01;

const SOFTENING = 0.1;

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    if (any(id >= tile.size)) {
        return;
    }
    let body = tile.origin.x + id.x;
    let count = tile.space.x;
    let mass = 1.0 / f32(count);
    let here = position[body].xyz;
    var acceleration = vec3(0.0);
    var potential = 0.0;
    for (var other = 0u; other < count; other++) {
        if (other == body) {
            continue;
        }
        let away = position[other].xyz - here;
        let inverse = inverseSqrt(dot(away, away) + SOFTENING * SOFTENING);
        acceleration += mass * inverse * inverse * inverse * away;
        potential -= mass * inverse;
    }
    let speed = velocity[body].xyz;
    let in_step = speed + 0.5 * DT * acceleration;
    // Half the potential: each pair is counted twice.
    let total = 0.5 * mass * (dot(in_step, in_step) + potential);
    if (tile.step == 0u) {
        energy[id.x].x = total;
    }
    energy[id.x].y = total;
    let after = speed + DT * acceleration;
    velocity_next[id.x] = vec4(after, 0.0);
    position_next[id.x] = vec4(here + DT * after, 0.0);
}
