// The gradient of pooling; an invocation for each pixel, which adds what the windows that hold it have for it.

struct Push {
    dy_at: u32, maxima_at: u32, dx_at: u32,
    planes: u32, height: u32, width: u32, rows: u32, columns: u32,
    size_y: u32, size_x: u32, stride_y: u32, stride_x: u32, top: u32, left: u32,
    // Bit 0: of maxima.
    flags: u32,
}

@group(0) @binding(0) var<storage, read> dy: array<f32>;
@group(0) @binding(1) var<storage, read> maxima: array<u32>;
@group(0) @binding(2) var<storage, read_write> dx: array<f32>;
var<immediate> p: Push;

// Pixels of the window at a place, along one axis.
fn pixels(place: u32, stride: u32, size: u32, padding: u32, side: u32) -> u32 {
    let first = place * stride;
    return min(first + size - padding, side) - (max(first, padding) - padding);
}

@compute @workgroup_size(256)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    let area = p.height * p.width;
    for (var pixel = id.x; pixel < p.planes * area; pixel += groups.x * 256u) {
        let in_plane = pixel % area;
        let plane = pixel / area * p.rows * p.columns;
        // Places whose windows reach from at most here to here.
        let y = in_plane / p.width + p.top;
        let x = in_plane % p.width + p.left;
        let first_row = (max(y + 1u, p.size_y) - p.size_y + p.stride_y - 1u) / p.stride_y;
        let first_column = (max(x + 1u, p.size_x) - p.size_x + p.stride_x - 1u) / p.stride_x;
        let end_row = min(y / p.stride_y + 1u, p.rows);
        let end_column = min(x / p.stride_x + 1u, p.columns);
        var sum = 0.0;
        for (var row = first_row; row < end_row; row++) {
            for (var column = first_column; column < end_column; column++) {
                let place = plane + row * p.columns + column;
                let value = dy[p.dy_at + place];
                if (p.flags & 1u) == 0u {
                    let tall = pixels(row, p.stride_y, p.size_y, p.top, p.height);
                    let wide = pixels(column, p.stride_x, p.size_x, p.left, p.width);
                    sum += value / f32(tall * wide);
                } else if maxima[p.maxima_at + place] == in_plane {
                    sum += value;
                }
            }
        }
        dx[p.dx_at + pixel] = sum;
    }
}
