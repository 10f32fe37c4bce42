// What follows a product, by its number in `gpu::ops::Activation`.
#include "include/nan.wgsl"

// Abramowitz and Stegun, 7.1.26.
fn erf(x: f32) -> f32 {
    let t = 1.0 / (1.0 + 0.3275911 * abs(x));
    let poly = ((((1.0614054 * t - 1.453152) * t + 1.4214137) * t - 0.28449674) * t + 0.2548296) * t;
    let value = 1.0 - poly * exp(-x * x);
    return select(value, -value, x < 0.0);
}

fn activate(x: f32, kind: u32) -> f32 {
    if is_nan(x) {
        return x;
    }
    switch kind {
        case 1u: { return max(x, 0.0); }
        case 2u: { return tanh(x); }
        case 3u: { return 1.0 / (1.0 + exp(-x)); }
        case 4u: { return 0.5 * x * (1.0 + erf(x * 0.70710677)); }
        default: { return x; }
    }
}
