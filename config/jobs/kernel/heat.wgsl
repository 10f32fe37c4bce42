// One explicit step of du/dt = d²u/dx² + d²u/dy² on a square with u = 0 at its edges.

struct Tile { origin: vec3<u32>, size: vec3<u32>, space: vec3<u32>, step: u32 }

@group(0) @binding(0) var<uniform> tile: Tile;
@group(0) @binding(1) var<storage, read> now: array<f32>;
@group(0) @binding(2) var<storage, read_write> next: array<f32>;

override R: f32 = 0.2;

const PI = 3.14159265358979;

// The state before this step at a cell of the tile.
fn before(id: vec2<u32>) -> f32 {
    if (tile.step > 0u) {
        return now[id.x + tile.size.x * id.y];
    }
    let place = vec2<f32>(tile.origin.xy + id) / vec2<f32>(tile.space.xy - 1u);
    return sin(PI * place.x) * sin(PI * place.y);
}

@compute @workgroup_size(8, 8)
fn main(@builtin(global_invocation_id) invocation: vec3<u32>) {
    if (any(invocation >= tile.size)) {
        return;
    }
    let id = invocation.xy;
    let cell = tile.origin.xy + id;
    var after = 0.0;
    if (all(cell > vec2(0u)) && all(cell + 1u < tile.space.xy)) {
        let here = before(id);
        let x = vec2(1u, 0u);
        let y = vec2(0u, 1u);
        after = here + R * (before(id - x) + before(id + x) + before(id - y) + before(id + y) - 4.0 * here);
    }
    next[id.x + tile.size.x * id.y] = after;
}
