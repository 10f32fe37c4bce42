// Running sums in blocks of 1024: mode 0 writes the sum of each block; mode 1 the running sums within each block, on top of
// what the blocks before it sum to. Elements are f32 or u32, the latter modulo 2^32.

struct Push {
    x_at: u32, before_at: u32, y_at: u32,
    n: u32,
    // Bits: write running sums, not the blocks'; elements are u32; exclusive; `before` is given.
    flags: u32,
}

@group(0) @binding(0) var<storage, read> x: array<u32>;
@group(0) @binding(1) var<storage, read> before: array<u32>;
@group(0) @binding(2) var<storage, read_write> y: array<u32>;
var<immediate> p: Push;

const EACH = 4u;
const BLOCK = 1024u;

var<workgroup> sums: array<u32, 256>;

fn add(a: u32, b: u32) -> u32 {
    if (p.flags & 2u) != 0u {
        return a + b;
    }
    return bitcast<u32>(bitcast<f32>(a) + bitcast<f32>(b));
}

fn load(index: u32) -> u32 {
    // 0 is 0 as f32, too.
    if index < p.n {
        return x[p.x_at + index];
    }
    return 0u;
}

fn store(index: u32, value: u32) {
    if index < p.n {
        y[p.y_at + index] = value;
    }
}

@compute @workgroup_size(256)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let blocks = (p.n + BLOCK - 1u) / BLOCK;
    for (var block = group.x; block < blocks; block += groups.x) {
        let first = block * BLOCK + thread * EACH;
        let a = load(first);
        let b = add(a, load(first + 1u));
        let c = add(b, load(first + 2u));
        let d = add(c, load(first + 3u));
        sums[thread] = d;
        workgroupBarrier();
        for (var reach = 1u; reach < 256u; reach *= 2u) {
            var sum = sums[thread];
            if thread >= reach {
                sum = add(sums[thread - reach], sum);
            }
            workgroupBarrier();
            sums[thread] = sum;
            workgroupBarrier();
        }
        if (p.flags & 1u) == 0u {
            if thread == 255u {
                y[p.y_at + block] = sums[255];
            }
        } else {
            var base = 0u;
            if (p.flags & 8u) != 0u {
                base = before[p.before_at + block];
            }
            if thread > 0u {
                base = add(base, sums[thread - 1u]);
            }
            if (p.flags & 4u) != 0u {
                store(first, base);
                store(first + 1u, add(base, a));
                store(first + 2u, add(base, b));
                store(first + 3u, add(base, c));
            } else {
                store(first, add(base, a));
                store(first + 1u, add(base, b));
                store(first + 2u, add(base, c));
                store(first + 3u, add(base, d));
            }
        }
        workgroupBarrier();
    }
}
