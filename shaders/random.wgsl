// Philox 4x32-10 (Salmon et al., SC 2011): four outputs to a counter. Element 4 i + w is word w of counter `start` + i.

struct Push {
    state_at: u32, out_at: u32,
    n: u32,
    // 0 uniform bits, 1 uniform in [0, 1), 2 normal.
    kind: u32,
    a: f32, b: f32,
}

@group(0) @binding(0) var<storage, read> state: array<u32>;
@group(0) @binding(1) var<storage, read_write> out: array<u32>;
var<immediate> p: Push;

// Both halves of a product of 64 bits: (low, high).
fn product(a: u32, b: u32) -> vec2<u32> {
    let al = a & 0xffffu;
    let ah = a >> 16u;
    let bl = b & 0xffffu;
    let bh = b >> 16u;
    let low = al * bl;
    let middle = ah * bl + (low >> 16u);
    let middle2 = al * bh + (middle & 0xffffu);
    return vec2<u32>(a * b, ah * bh + (middle >> 16u) + (middle2 >> 16u));
}

fn philox(counter: vec4<u32>, key: vec2<u32>) -> vec4<u32> {
    var c = counter;
    var k = key;
    for (var round = 0u; round < 10u; round++) {
        let m0 = product(0xD2511F53u, c.x);
        let m1 = product(0xCD9E8D57u, c.z);
        c = vec4<u32>(m1.y ^ c.y ^ k.x, m1.x, m0.y ^ c.w ^ k.y, m0.x);
        k += vec2<u32>(0x9E3779B9u, 0xBB67AE85u);
    }
    return c;
}

// Box and Muller, 1958. Sine and cosine by quadrants and Cephes' polynomials: those of devices may have 11 good bits.
fn normals(a: u32, b: u32) -> vec2<f32> {
    let u = f32((a >> 8u) + 1u) * 5.9604645e-8;
    let radius = sqrt(-2.0 * log(u));
    // Quarter turns, exact.
    let turns = f32(b >> 8u) * 2.3841858e-7;
    let quadrant = floor(turns + 0.5);
    let x = (turns - quadrant) * 1.5707964;
    let z = x * x;
    let sine = ((-1.9515296e-4 * z + 8.3321609e-3) * z - 1.6666655e-1) * z * x + x;
    let cosine = ((2.4433157e-5 * z - 1.3887316e-3) * z + 4.1666646e-2) * z * z - 0.5 * z + 1.0;
    switch u32(quadrant) & 3u {
        case 0u: { return radius * vec2<f32>(cosine, sine); }
        case 1u: { return radius * vec2<f32>(-sine, cosine); }
        case 2u: { return radius * vec2<f32>(-cosine, -sine); }
        default: { return radius * vec2<f32>(sine, -cosine); }
    }
}

@compute @workgroup_size(256)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    let key = vec2<u32>(state[p.state_at], state[p.state_at + 1u]);
    let low = state[p.state_at + 2u];
    let high = state[p.state_at + 3u];
    let blocks = (p.n + 3u) / 4u;
    for (var block = id.x; block < blocks; block += groups.x * 256u) {
        let counter = low + block;
        let words = philox(vec4<u32>(counter, high + select(0u, 1u, counter < low), 0u, 0u), key);
        var values = words;
        if p.kind == 1u {
            values = bitcast<vec4<u32>>(vec4<f32>(words >> vec4<u32>(8u)) * 5.9604645e-8);
        } else if p.kind == 2u {
            let first = normals(words.x, words.y);
            let second = normals(words.z, words.w);
            values = bitcast<vec4<u32>>(vec4<f32>(p.a) + p.b * vec4<f32>(first, second));
        }
        for (var w = 0u; w < 4u && block * 4u + w < p.n; w++) {
            out[p.out_at + block * 4u + w] = values[w];
        }
    }
}
