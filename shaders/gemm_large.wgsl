// C = act(alpha op(A) op(B) + beta C + bias), one matrix of a batch for each workgroup in z.
// Tiles of 128 x 128, 16 steps of k at a time in workgroup memory; 256 invocations, each with 8 x 8 sums in registers.
// f16 inputs are read as pairs in 32 bits, which every device can.

struct Push {
    a_at: u32, b_at: u32, bias_at: u32, c_at: u32,
    m: u32, n: u32, k: u32,
    a_stride: u32, b_stride: u32, c_stride: u32,
    a_batch: u32, b_batch: u32, c_batch: u32,
    alpha: f32, beta: f32,
    // Bits: A transposed, B transposed, A is f16, B is f16, there is a bias.
    flags: u32,
    activation: u32,
    first_batch: u32,
}

@group(0) @binding(0) var<storage, read> a: array<u32>;
@group(0) @binding(1) var<storage, read> b: array<u32>;
@group(0) @binding(2) var<storage, read> bias: array<f32>;
@group(0) @binding(3) var<storage, read_write> c: array<f32>;
var<immediate> p: Push;

const TILE = 128u;
const STEP = 16u;
// Four rows or columns to a vector; one more, so that neighbours in k are not in the same bank.
const PITCH = 33u;

var<workgroup> a_tile: array<vec4<f32>, 528>;
var<workgroup> b_tile: array<vec4<f32>, 528>;

fn half_of(pair: u32, index: u32) -> f32 {
    return unpack2x16float(pair >> (16u * (index & 1u))).x;
}

fn load_a(row: u32, k: u32, base: u32) -> f32 {
    if row >= p.m || k >= p.k {
        return 0.0;
    }
    let index = base + select(row * p.a_stride + k, k * p.a_stride + row, (p.flags & 1u) != 0u);
    if (p.flags & 4u) != 0u {
        return half_of(a[index >> 1u], index);
    }
    return bitcast<f32>(a[index]);
}

fn load_b(k: u32, column: u32, base: u32) -> f32 {
    if column >= p.n || k >= p.k {
        return 0.0;
    }
    let index = base + select(k * p.b_stride + column, column * p.b_stride + k, (p.flags & 2u) != 0u);
    if (p.flags & 8u) != 0u {
        return half_of(b[index >> 1u], index);
    }
    return bitcast<f32>(b[index]);
}

fn is_nan(x: f32) -> bool {
    return (bitcast<u32>(x) & 0x7fffffffu) > 0x7f800000u;
}

// Abramowitz and Stegun, 7.1.26.
fn erf(x: f32) -> f32 {
    let t = 1.0 / (1.0 + 0.3275911 * abs(x));
    let poly = ((((1.0614054 * t - 1.453152) * t + 1.4214137) * t - 0.28449674) * t + 0.2548296) * t;
    let value = 1.0 - poly * exp(-x * x);
    return select(value, -value, x < 0.0);
}

fn activate(x: f32) -> f32 {
    if is_nan(x) {
        return x;
    }
    switch p.activation {
        case 1u: { return max(x, 0.0); }
        case 2u: { return tanh(x); }
        case 3u: { return 1.0 / (1.0 + exp(-x)); }
        case 4u: { return 0.5 * x * (1.0 + erf(x * 0.70710677)); }
        default: { return x; }
    }
}

fn store(row: u32, column: u32, sum: f32, base: u32) {
    if row >= p.m || column >= p.n {
        return;
    }
    let index = base + row * p.c_stride + column;
    var value = p.alpha * sum;
    if p.beta != 0.0 {
        value += p.beta * c[index];
    }
    if (p.flags & 16u) != 0u {
        value += bias[p.bias_at + column];
    }
    c[index] = activate(value);
}

fn store4(row: u32, column: u32, sums: vec4<f32>, base: u32) {
    store(row, column, sums.x, base);
    store(row, column + 1u, sums.y, base);
    store(row, column + 2u, sums.z, base);
    store(row, column + 3u, sums.w, base);
}

@compute @workgroup_size(256)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let batch = p.first_batch + group.z;
    let a_base = p.a_at + batch * p.a_batch;
    let b_base = p.b_at + batch * p.b_batch;
    let c_base = p.c_at + batch * p.c_batch;
    let column = group.x * TILE;
    let x = thread % 16u;
    let y = thread / 16u;
    for (var row = group.y * TILE; row < p.m; row += groups.y * TILE) {
        var c0l = vec4<f32>();
        var c0r = vec4<f32>();
        var c1l = vec4<f32>();
        var c1r = vec4<f32>();
        var c2l = vec4<f32>();
        var c2r = vec4<f32>();
        var c3l = vec4<f32>();
        var c3r = vec4<f32>();
        var c4l = vec4<f32>();
        var c4r = vec4<f32>();
        var c5l = vec4<f32>();
        var c5r = vec4<f32>();
        var c6l = vec4<f32>();
        var c6r = vec4<f32>();
        var c7l = vec4<f32>();
        var c7r = vec4<f32>();
        for (var step = 0u; step < p.k; step += STEP) {
            // Neighbouring invocations read neighbouring elements, however the matrix lies.
            for (var i = 0u; i < 8u; i++) {
                let element = thread + i * 256u;
                let along_k = vec2<u32>(element / STEP, element % STEP);
                let across_k = vec2<u32>(element % TILE, element / TILE);
                let at_a = select(along_k, across_k, (p.flags & 1u) != 0u);
                a_tile[at_a.y * PITCH + at_a.x / 4u][at_a.x % 4u] = load_a(row + at_a.x, step + at_a.y, a_base);
                let at_b = select(across_k, along_k, (p.flags & 2u) != 0u);
                b_tile[at_b.y * PITCH + at_b.x / 4u][at_b.x % 4u] = load_b(step + at_b.y, column + at_b.x, b_base);
            }
            workgroupBarrier();
            for (var k = 0u; k < STEP; k++) {
                let a0 = a_tile[k * PITCH + y];
                let a1 = a_tile[k * PITCH + 16u + y];
                let b0 = b_tile[k * PITCH + x];
                let b1 = b_tile[k * PITCH + 16u + x];
                c0l = fma(vec4<f32>(a0.x), b0, c0l);
                c0r = fma(vec4<f32>(a0.x), b1, c0r);
                c1l = fma(vec4<f32>(a0.y), b0, c1l);
                c1r = fma(vec4<f32>(a0.y), b1, c1r);
                c2l = fma(vec4<f32>(a0.z), b0, c2l);
                c2r = fma(vec4<f32>(a0.z), b1, c2r);
                c3l = fma(vec4<f32>(a0.w), b0, c3l);
                c3r = fma(vec4<f32>(a0.w), b1, c3r);
                c4l = fma(vec4<f32>(a1.x), b0, c4l);
                c4r = fma(vec4<f32>(a1.x), b1, c4r);
                c5l = fma(vec4<f32>(a1.y), b0, c5l);
                c5r = fma(vec4<f32>(a1.y), b1, c5r);
                c6l = fma(vec4<f32>(a1.z), b0, c6l);
                c6r = fma(vec4<f32>(a1.z), b1, c6r);
                c7l = fma(vec4<f32>(a1.w), b0, c7l);
                c7r = fma(vec4<f32>(a1.w), b1, c7r);
            }
            workgroupBarrier();
        }
        store4(row + y * 4u + 0u, column + x * 4u, c0l, c_base);
        store4(row + y * 4u + 0u, column + 64u + x * 4u, c0r, c_base);
        store4(row + y * 4u + 1u, column + x * 4u, c1l, c_base);
        store4(row + y * 4u + 1u, column + 64u + x * 4u, c1r, c_base);
        store4(row + y * 4u + 2u, column + x * 4u, c2l, c_base);
        store4(row + y * 4u + 2u, column + 64u + x * 4u, c2r, c_base);
        store4(row + y * 4u + 3u, column + x * 4u, c3l, c_base);
        store4(row + y * 4u + 3u, column + 64u + x * 4u, c3r, c_base);
        store4(row + 64u + y * 4u + 0u, column + x * 4u, c4l, c_base);
        store4(row + 64u + y * 4u + 0u, column + 64u + x * 4u, c4r, c_base);
        store4(row + 64u + y * 4u + 1u, column + x * 4u, c5l, c_base);
        store4(row + 64u + y * 4u + 1u, column + 64u + x * 4u, c5r, c_base);
        store4(row + 64u + y * 4u + 2u, column + x * 4u, c6l, c_base);
        store4(row + 64u + y * 4u + 2u, column + 64u + x * 4u, c6r, c_base);
        store4(row + 64u + y * 4u + 3u, column + x * 4u, c7l, c_base);
        store4(row + 64u + y * 4u + 3u, column + 64u + x * 4u, c7r, c_base);
    }
}
