// The maximum or average of each window of each plane; an invocation for each place of the window. Maxima say which pixel of
// the plane they were: of equal ones the first, and NaN before all.
#include "include/nan.wgsl"

struct Push {
    x_at: u32, y_at: u32, maxima_at: u32,
    planes: u32, height: u32, width: u32, rows: u32, columns: u32,
    size_y: u32, size_x: u32, stride_y: u32, stride_x: u32, top: u32, left: u32,
    // Bits: maximum, maxima are wanted.
    flags: u32,
}

@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read_write> y: array<f32>;
@group(0) @binding(2) var<storage, read_write> maxima: array<u32>;
var<immediate> p: Push;

@compute @workgroup_size(256)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    let places = p.rows * p.columns;
    for (var place = id.x; place < p.planes * places; place += groups.x * 256u) {
        let plane = p.x_at + place / places * p.height * p.width;
        let from_y = place % places / p.columns * p.stride_y;
        let from_x = place % p.columns * p.stride_x;
        let first_y = max(from_y, p.top) - p.top;
        let first_x = max(from_x, p.left) - p.left;
        let end_y = min(from_y + p.size_y - p.top, p.height);
        let end_x = min(from_x + p.size_x - p.left, p.width);
        if (p.flags & 1u) == 0u {
            var sum = 0.0;
            for (var row = first_y; row < end_y; row++) {
                for (var column = first_x; column < end_x; column++) {
                    sum += x[plane + row * p.width + column];
                }
            }
            y[p.y_at + place] = sum / f32((end_y - first_y) * (end_x - first_x));
        } else {
            var best_at = first_y * p.width + first_x;
            var best = x[plane + best_at];
            for (var row = first_y; row < end_y; row++) {
                for (var column = first_x; column < end_x; column++) {
                    let at = row * p.width + column;
                    let value = x[plane + at];
                    if !is_nan(best) && (value > best || is_nan(value)) {
                        best = value;
                        best_at = at;
                    }
                }
            }
            y[p.y_at + place] = best;
            if (p.flags & 2u) != 0u {
                maxima[p.maxima_at + place] = best_at;
            }
        }
    }
}
