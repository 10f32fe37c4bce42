// y[v, r] = sum over j in row r of values[j] * x[v, columns[j]]. `lanes` invocations share a row and up to four vectors; each
// takes every lanes-th element, then they combine as a tree. Places outside are clamped: a broken matrix reads no memory that
// is not its own.

struct Push {
    starts_at: u32, columns_at: u32, values_at: u32, x_at: u32, y_at: u32,
    rows: u32, width: u32, nonzeros: u32,
    first_vector: u32, vectors: u32,
    lanes: u32,
    // Of the matrix's elements those that are bound, and whether y has the sums of those before.
    first_element: u32, elements: u32, adds: u32,
}

// Workgroups at most. A dispatch may be cut between them, so that none asks how many there are.
const MOST_GROUPS = 65535u;

@group(0) @binding(0) var<storage, read> starts: array<u32>;
@group(0) @binding(1) var<storage, read> columns: array<u32>;
@group(0) @binding(2) var<storage, read> values: array<f32>;
@group(0) @binding(3) var<storage, read> x: array<f32>;
@group(0) @binding(4) var<storage, read_write> y: array<f32>;
var<immediate> p: Push;

var<workgroup> sums: array<vec4<f32>, 256>;

@compute @workgroup_size(256)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let per_group = 256u / p.lanes;
    let lane = thread % p.lanes;
    // Of fewer than four vectors, the last is computed again and not written.
    let last = p.vectors - 1u;
    let x0 = p.x_at + p.first_vector * p.width;
    let x1 = p.x_at + (p.first_vector + min(1u, last)) * p.width;
    let x2 = p.x_at + (p.first_vector + min(2u, last)) * p.width;
    let x3 = p.x_at + (p.first_vector + min(3u, last)) * p.width;
    for (var first = group.x * per_group; first < p.rows; first += MOST_GROUPS * per_group) {
        let row = first + thread / p.lanes;
        var sum = vec4<f32>();
        if row < p.rows {
            let end = min(min(starts[p.starts_at + row + 1u], p.nonzeros), p.first_element + p.elements);
            let start = max(starts[p.starts_at + row], p.first_element) + lane;
            let columns_at = p.columns_at - p.first_element;
            let values_at = p.values_at - p.first_element;
            if p.vectors == 1u {
                for (var j = start; j < end; j += p.lanes) {
                    let column = min(columns[columns_at + j], p.width - 1u);
                    sum.x = fma(values[values_at + j], x[x0 + column], sum.x);
                }
            } else {
                for (var j = start; j < end; j += p.lanes) {
                    let column = min(columns[columns_at + j], p.width - 1u);
                    let values4 = vec4<f32>(x[x0 + column], x[x1 + column], x[x2 + column], x[x3 + column]);
                    sum = fma(vec4<f32>(values[values_at + j]), values4, sum);
                }
            }
        }
        sums[thread] = sum;
        for (var half = p.lanes / 2u; half > 0u; half /= 2u) {
            workgroupBarrier();
            if lane < half {
                sums[thread] += sums[thread + half];
            }
        }
        if lane == 0u && row < p.rows {
            sum = sums[thread];
            for (var v = 0u; v < p.vectors; v++) {
                let at = p.y_at + (p.first_vector + v) * p.rows + row;
                if p.adds != 0u {
                    sum[v] += y[at];
                }
                y[at] = sum[v];
            }
        }
        workgroupBarrier();
    }
}
