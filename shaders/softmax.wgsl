// One row to a workgroup: y = exp(x - max) / sum, in `mode` 0. Mode 1: cross-entropy of softmax against a label, loss and
// gradient: loss = log(sum) + max - x[label], dx = (y - [label]) * scale. A label that is none gives NaN.
#include "include/nan.wgsl"

struct Push {
    x_at: u32, labels_at: u32, y_at: u32, loss_at: u32,
    rows: u32, columns: u32,
    // Bits: cross-entropy; y is written; the loss is written.
    flags: u32,
    scale: f32,
    nan: f32,
}

@group(0) @binding(0) var<storage, read_write> x: array<f32>;
@group(0) @binding(1) var<storage, read> labels: array<u32>;
@group(0) @binding(2) var<storage, read_write> y: array<f32>;
@group(0) @binding(3) var<storage, read_write> losses: array<f32>;
var<immediate> p: Push;

var<workgroup> shared_values: array<f32, 256>;

@compute @workgroup_size(256)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    for (var row = group.x; row < p.rows; row += groups.x) {
        let base = p.x_at + row * p.columns;
        // The lowest finite number: rows of -inf alone become 0 / 0.
        var best = -3.4028234e38;
        for (var j = thread; j < p.columns; j += 256u) {
            let value = x[base + j];
            if value > best || is_nan(value) {
                best = value;
            }
        }
        shared_values[thread] = best;
        for (var half = 128u; half > 0u; half /= 2u) {
            workgroupBarrier();
            if thread < half {
                let other = shared_values[thread + half];
                if other > shared_values[thread] || is_nan(other) {
                    shared_values[thread] = other;
                }
            }
        }
        workgroupBarrier();
        best = shared_values[0];
        // With an infinite maximum, or none, there is no answer.
        let broken = is_nan(best) || (bitcast<u32>(best) & 0x7fffffffu) == 0x7f800000u;
        workgroupBarrier();
        var sum = 0.0;
        for (var j = thread; j < p.columns; j += 256u) {
            sum += exp(x[base + j] - best);
        }
        shared_values[thread] = sum;
        for (var half = 128u; half > 0u; half /= 2u) {
            workgroupBarrier();
            if thread < half {
                shared_values[thread] += shared_values[thread + half];
            }
        }
        workgroupBarrier();
        sum = shared_values[0];
        var label = 0u;
        var wrong = broken;
        if (p.flags & 1u) != 0u {
            label = labels[p.labels_at + row];
            wrong = broken || label >= p.columns;
            if thread == 0u && (p.flags & 4u) != 0u {
                var loss = p.nan;
                if !wrong {
                    loss = log(sum) + (best - x[base + label]);
                }
                losses[p.loss_at + row] = loss;
            }
            // In place, the label's element is about to be overwritten.
            storageBarrier();
        }
        workgroupBarrier();
        if (p.flags & 2u) != 0u {
            for (var j = thread; j < p.columns; j += 256u) {
                var value = exp(x[base + j] - best) / sum;
                if (p.flags & 1u) != 0u {
                    value = (value - select(0.0, 1.0, j == label)) * p.scale;
                }
                y[p.y_at + row * p.columns + j] = select(value, p.nan, wrong);
            }
        }
        workgroupBarrier();
    }
}
