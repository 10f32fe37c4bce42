// One row to a workgroup: dx = y (dy - sum of y dy).

struct Push { y_at: u32, dy_at: u32, dx_at: u32, rows: u32, columns: u32 }

@group(0) @binding(0) var<storage, read> y: array<f32>;
@group(0) @binding(1) var<storage, read_write> dy: array<f32>;
@group(0) @binding(2) var<storage, read_write> dx: array<f32>;
var<immediate> p: Push;

var<workgroup> sums: array<f32, 256>;

@compute @workgroup_size(256)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    for (var row = group.x; row < p.rows; row += groups.x) {
        let at = row * p.columns;
        var sum = 0.0;
        for (var j = thread; j < p.columns; j += 256u) {
            sum = fma(y[p.y_at + at + j], dy[p.dy_at + at + j], sum);
        }
        sums[thread] = sum;
        for (var half = 128u; half > 0u; half /= 2u) {
            workgroupBarrier();
            if thread < half {
                sums[thread] += sums[thread + half];
            }
        }
        workgroupBarrier();
        sum = sums[0];
        for (var j = thread; j < p.columns; j += 256u) {
            dx[p.dx_at + at + j] = y[p.y_at + at + j] * (dy[p.dy_at + at + j] - sum);
        }
        workgroupBarrier();
    }
}
