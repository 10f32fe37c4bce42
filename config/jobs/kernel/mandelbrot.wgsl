// How soon z² + c leaves the circle of radius 2, for c around a center: smooth between 0 and 1, 0 inside of the set.

// The part of the space that this dispatch computes. Buffers with a number for each cell have `size.x * size.y` of them.
struct Tile { origin: vec3<u32>, size: vec3<u32>, space: vec3<u32>, step: u32 }
@group(0) @binding(0) var<uniform> tile: Tile;

struct View { center: vec2<f32>, zoom: f32 }
@group(0) @binding(1) var<uniform> view: View;

@group(0) @binding(2) var<storage, read_write> image: array<f32>;

override LIMIT: u32 = 200;

@compute @workgroup_size(8, 8)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    if any(id >= tile.size) {
        return;
    }
    let at = vec2<f32>((tile.origin + id).xy) + 0.5 - 0.5 * vec2<f32>(tile.space.xy);
    let c = view.center + at * 3.0 / (f32(tile.space.x) * view.zoom);
    var z = vec2<f32>(0.0);
    var shade = 0.0;
    for (var i = 0u; i < LIMIT; i++) {
        z = vec2<f32>(z.x * z.x - z.y * z.y, 2.0 * z.x * z.y) + c;
        if dot(z, z) > 256.0 {
            // The logarithms make the steps smooth.
            let steps = f32(i) + 4.0 - log2(log2(dot(z, z)));
            shade = sqrt(clamp(steps / f32(LIMIT), 0.0, 1.0));
            break;
        }
    }
    image[id.y * tile.size.x + id.x] = shade;
}
