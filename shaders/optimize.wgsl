// One step of an optimizer for each parameter. Rules: 0 SGD, 1 momentum, 2 Nesterov, 3 Adam, 4 AdamW, 5 Adagrad.

struct Push {
    parameters_at: u32, gradients_at: u32, a_at: u32, b_at: u32, schedule_at: u32,
    n: u32, rule: u32,
    // Momentum or beta 1; beta 2.
    first: f32, second: f32,
    epsilon: f32,
    decay: f32,
}

@group(0) @binding(0) var<storage, read_write> parameters: array<f32>;
@group(0) @binding(1) var<storage, read> gradients: array<f32>;
@group(0) @binding(2) var<storage, read_write> a: array<f32>;
@group(0) @binding(3) var<storage, read_write> b: array<f32>;
@group(0) @binding(4) var<storage, read> schedule: array<f32>;
var<immediate> p: Push;

@compute @workgroup_size(256)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    let rate = schedule[p.schedule_at];
    let scale = schedule[p.schedule_at + 1u];
    let correction_a = schedule[p.schedule_at + 2u];
    let correction_b = schedule[p.schedule_at + 3u];
    for (var i = id.x; i < p.n; i += groups.x * 256u) {
        var x = parameters[p.parameters_at + i];
        var g = gradients[p.gradients_at + i] * scale;
        if p.rule == 4u {
            x -= rate * p.decay * x;
        } else {
            g += p.decay * x;
        }
        switch p.rule {
            case 1u, 2u: {
                let v = p.first * a[p.a_at + i] + g;
                a[p.a_at + i] = v;
                x -= rate * select(v, g + p.first * v, p.rule == 2u);
            }
            case 3u, 4u: {
                let m = p.first * a[p.a_at + i] + (1.0 - p.first) * g;
                let v = p.second * b[p.b_at + i] + (1.0 - p.second) * g * g;
                a[p.a_at + i] = m;
                b[p.b_at + i] = v;
                x -= rate * (m / correction_a) / (sqrt(v / correction_b) + p.epsilon);
            }
            case 5u: {
                let s = a[p.a_at + i] + g * g;
                a[p.a_at + i] = s;
                x -= rate * g / (sqrt(s) + p.epsilon);
            }
            default: {
                x -= rate * g;
            }
        }
        parameters[p.parameters_at + i] = x;
    }
}
