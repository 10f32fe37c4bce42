// Gradients of norm.wgsl. With z = (x - mean) * inverse and h = dy * scale:
// dx = inverse * (h - mean of h - z * mean of h z); dscale = sum of dy z and dshift = sum of dy, over a group where they are per
// group. Where they are per element, norm_columns.wgsl has them.

struct Push {
    x_at: u32, scale_at: u32, dy_at: u32, means_at: u32, inverses_at: u32, dx_at: u32, dscale_at: u32, dshift_at: u32,
    groups: u32, outer: u32, inner: u32,
    // Bit: scale and shift are per element.
    flags: u32,
}

@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read> scale: array<f32>;
@group(0) @binding(2) var<storage, read> dy: array<f32>;
@group(0) @binding(3) var<storage, read> means: array<f32>;
@group(0) @binding(4) var<storage, read> inverses: array<f32>;
@group(0) @binding(5) var<storage, read_write> dx: array<f32>;
@group(0) @binding(6) var<storage, read_write> dscale: array<f32>;
@group(0) @binding(7) var<storage, read_write> dshift: array<f32>;
var<immediate> p: Push;

var<workgroup> sums: array<vec4<f32>, 256>;

fn total(thread: u32, value: vec4<f32>) -> vec4<f32> {
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
        let mean = means[p.means_at + group];
        let inverse = inverses[p.inverses_at + group];
        // Of h, h z, dy, dy z.
        var all = vec4<f32>();
        for (var j = thread; j < n; j += 256u) {
            let at = place(group, j);
            let own = select(group, j, (p.flags & 1u) != 0u);
            let d = dy[p.dy_at + at];
            let h = d * scale[p.scale_at + own];
            let z = (x[p.x_at + at] - mean) * inverse;
            all += vec4<f32>(h, h * z, d, d * z);
        }
        all = total(thread, all);
        for (var j = thread; j < n; j += 256u) {
            let at = place(group, j);
            let own = select(group, j, (p.flags & 1u) != 0u);
            let h = dy[p.dy_at + at] * scale[p.scale_at + own];
            let z = (x[p.x_at + at] - mean) * inverse;
            dx[p.dx_at + at] = inverse * (h - all.x / f32(n) - z * (all.y / f32(n)));
        }
        if thread == 0u && (p.flags & 1u) == 0u {
            dscale[p.dscale_at + group] = all.w;
            dshift[p.dshift_at + group] = all.z;
        }
    }
}
