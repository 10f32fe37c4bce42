// Normalizes groups: y = (x - mean) * inverse deviation * scale + shift. One workgroup to a group, whose element j lies at
// (j / inner) * groups * inner + group * inner + j % inner. Scale and shift: one for each group, or for each element of one.

struct Push {
    x_at: u32, scale_at: u32, shift_at: u32, y_at: u32, means_at: u32, inverses_at: u32,
    groups: u32, outer: u32, inner: u32,
    // Bits: scale and shift are per element; mean and inverse deviation are given.
    flags: u32,
    epsilon: f32,
}

@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read> scale: array<f32>;
@group(0) @binding(2) var<storage, read> shift: array<f32>;
@group(0) @binding(3) var<storage, read_write> y: array<f32>;
@group(0) @binding(4) var<storage, read_write> means: array<f32>;
@group(0) @binding(5) var<storage, read_write> inverses: array<f32>;
var<immediate> p: Push;

var<workgroup> sums: array<f32, 256>;

// The sum over the workgroup, for every invocation.
fn total(thread: u32, value: f32) -> f32 {
    workgroupBarrier();
    sums[thread] = value;
    for (var half = 128u; half > 0u; half /= 2u) {
        workgroupBarrier();
        if thread < half {
            sums[thread] += sums[thread + half];
        }
    }
    workgroupBarrier();
    return sums[0];
}

fn place(group: u32, j: u32) -> u32 {
    return (j / p.inner) * p.groups * p.inner + group * p.inner + j % p.inner;
}

@compute @workgroup_size(256)
fn main(
    @builtin(workgroup_id) id: vec3<u32>,
    @builtin(num_workgroups) ids: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let n = p.outer * p.inner;
    for (var group = id.x; group < p.groups; group += ids.x) {
        var mean = 0.0;
        var inverse = 0.0;
        if (p.flags & 2u) != 0u {
            mean = means[p.means_at + group];
            inverse = inverses[p.inverses_at + group];
        } else {
            var sum = 0.0;
            for (var j = thread; j < n; j += 256u) {
                sum += x[p.x_at + place(group, j)];
            }
            mean = total(thread, sum) / f32(n);
            var squares = 0.0;
            for (var j = thread; j < n; j += 256u) {
                let away = x[p.x_at + place(group, j)] - mean;
                squares = fma(away, away, squares);
            }
            inverse = 1.0 / sqrt(total(thread, squares) / f32(n) + p.epsilon);
            if thread == 0u {
                means[p.means_at + group] = mean;
                inverses[p.inverses_at + group] = inverse;
            }
        }
        for (var j = thread; j < n; j += 256u) {
            let at = place(group, j);
            let own = select(group, j, (p.flags & 1u) != 0u);
            y[p.y_at + at] = (x[p.x_at + at] - mean) * inverse * scale[p.scale_at + own] + shift[p.shift_at + own];
        }
    }
}
