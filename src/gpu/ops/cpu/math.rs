//! exp, tanh, erf and what is made of them, in f32 without branches and calls, so that loops over
//! them become SIMD.

use std::f32::consts::{FRAC_1_SQRT_2, LOG2_E};

/// e^x within 2 ulp where the result is normal; subnormal results lose digits. Polynomial: Cephes,
/// `expf`.
#[inline(always)]
pub fn exp(x: f32) -> f32 {
    // Adding it rounds to an integer, without a call of `round`.
    const ROUND: f32 = 12_582_912.0;
    let clamped = if x > 89.0 { 89.0 } else { x };
    let clamped = if clamped < -104.0 { -104.0 } else { clamped };
    let n = (clamped * LOG2_E + ROUND) - ROUND;
    let r = (clamped - n * 0.693_359_4) - n * -2.121_944_4e-4;
    let p = 1.987_569_2e-4;
    let p = p * r + 1.398_199_9e-3;
    let p = p * r + 8.333_452e-3;
    let p = p * r + 4.166_579_6e-2;
    let p = p * r + 1.666_666_5e-1;
    let p = p * r + 5e-1;
    let value = p * (r * r) + r + 1.0;
    // In two steps: 2^n itself may not be a normal number. NaN converts to 0 and stays NaN in
    // `value`.
    let n = n as i32;
    let half = n >> 1;
    let power = |n: i32| f32::from_bits(((n + 127) << 23) as u32);
    value * power(half) * power(n - half)
}

#[inline(always)]
pub fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + exp(-x))
}

/// Cephes, `tanhf`: a polynomial near 0, where the quotient would lose digits.
#[inline(always)]
pub fn tanh(x: f32) -> f32 {
    let s = x * x;
    let p = -5.704_988_7e-3;
    let p = p * s + 2.063_909e-2;
    let p = p * s - 5.373_971_6e-2;
    let p = p * s + 1.333_144_2e-1;
    let p = p * s - 3.333_328e-1;
    let near = p * s * x + x;
    let far = 1.0 - 2.0 / (exp(2.0 * x.abs()) + 1.0);
    if x.abs() < 0.625 {
        near
    } else {
        far.copysign(x)
    }
}

/// x Φ(x), the form with erf. Hendrycks and Gimpel, arXiv 1606.08415.
#[inline(always)]
pub fn gelu(x: f32) -> f32 {
    0.5 * x * (1.0 + erf(x * FRAC_1_SQRT_2))
}

/// Within 3e-7. Abramowitz and Stegun, 7.1.26.
#[inline(always)]
pub fn erf(x: f32) -> f32 {
    let t = 1.0 / (1.0 + 0.327_591_1 * x.abs());
    let p = 1.061_405_4;
    let p = p * t - 1.453_152;
    let p = p * t + 1.421_413_7;
    let p = p * t - 0.284_496_74;
    let p = p * t + 0.254_829_6;
    (1.0 - p * t * exp(-x * x)).copysign(x)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn near(ours: f32, theirs: f64, relative: f64, absolute: f64) -> bool {
        (f64::from(ours) - theirs).abs() <= relative * theirs.abs() + absolute
    }

    proptest! {
        #[test]
        fn agrees_with_the_system(x in -120f32..100.0) {
            let exact = f64::from(x).exp();
            if exact < f64::from(f32::MAX) {
                // Half the smallest subnormal: what rounding alone loses there.
                prop_assert!(near(exp(x), exact, 3e-7, 3e-45), "{} {exact}", exp(x));
            }
            prop_assert!(near(tanh(x / 8.0), f64::from(x / 8.0).tanh(), 4e-7, 0.0));
            prop_assert!(near(sigmoid(x), 1.0 / (1.0 + (-f64::from(x)).exp()), 5e-7, 3e-38));
        }
    }

    #[test]
    fn edges() {
        for function in [exp, sigmoid, tanh, gelu, erf] {
            assert!(function(f32::NAN).is_nan());
        }
        assert_eq!(
            [
                exp(f32::INFINITY),
                exp(f32::NEG_INFINITY),
                exp(0.0),
                exp(89.5)
            ],
            [f32::INFINITY, 0.0, 1.0, f32::INFINITY]
        );
        assert_eq!(
            [tanh(f32::INFINITY), tanh(f32::NEG_INFINITY), tanh(0.0)],
            [1.0, -1.0, 0.0]
        );
        assert_eq!(
            [
                sigmoid(f32::INFINITY),
                sigmoid(f32::NEG_INFINITY),
                sigmoid(0.0)
            ],
            [1.0, 0.0, 0.5]
        );
        assert_eq!(gelu(f32::INFINITY), f32::INFINITY);
        assert!((erf(0.5) - 0.520_499_9).abs() < 3e-7 && (erf(-2.0) + 0.995_322_3).abs() < 3e-7);
    }
}
