// Gradients of scale and shift where each element of a group has its own: sums over the groups, which are rows here. 32
// columns to a workgroup, eight invocations to a column.

struct Push {
    x_at: u32, dy_at: u32, means_at: u32, inverses_at: u32, dscale_at: u32, dshift_at: u32,
    rows: u32, columns: u32,
}

@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read> dy: array<f32>;
@group(0) @binding(2) var<storage, read> means: array<f32>;
@group(0) @binding(3) var<storage, read> inverses: array<f32>;
@group(0) @binding(4) var<storage, read_write> dscale: array<f32>;
@group(0) @binding(5) var<storage, read_write> dshift: array<f32>;
var<immediate> p: Push;

var<workgroup> sums: array<vec2<f32>, 256>;

@compute @workgroup_size(256)
fn main(
    @builtin(workgroup_id) id: vec3<u32>,
    @builtin(num_workgroups) ids: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let lane = thread / 32u;
    for (var first = id.x * 32u; first < p.columns; first += ids.x * 32u) {
        let column = first + thread % 32u;
        var sum = vec2<f32>();
        if column < p.columns {
            for (var row = lane; row < p.rows; row += 8u) {
                let at = row * p.columns + column;
                let d = dy[p.dy_at + at];
                let z = (x[p.x_at + at] - means[p.means_at + row]) * inverses[p.inverses_at + row];
                sum += vec2<f32>(d * z, d);
            }
        }
        sums[thread] = sum;
        for (var half = 4u; half > 0u; half /= 2u) {
            workgroupBarrier();
            if lane < half {
                sums[thread] += sums[thread + half * 32u];
            }
        }
        if lane == 0u && column < p.columns {
            dscale[p.dscale_at + column] = sums[thread].x;
            dshift[p.dshift_at + column] = sums[thread].y;
        }
        workgroupBarrier();
    }
}
