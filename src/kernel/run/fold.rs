//! Partial outputs folded into one, element by element. Pure.

use half::f16;
use nodectl_types::Scalar;

/// What becomes of two numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fold {
    /// Integers wrap.
    Sum,
    Min,
    Max,
}

/// Folds `part` into `whole`, both little-endian numbers of one type. NaN stays.
///
/// # Panics
/// If they are not of one length.
pub fn fold(how: Fold, scalar: Scalar, whole: &mut [u8], part: &[u8]) {
    assert_eq!(
        whole.len(),
        part.len(),
        "parts of one output have one shape"
    );
    macro_rules! each {
        ($number:ty, $sum:expr, $min:expr, $max:expr) => {{
            const BYTES: usize = size_of::<$number>();
            let operation: fn($number, $number) -> $number = match how {
                Fold::Sum => $sum,
                Fold::Min => $min,
                Fold::Max => $max,
            };
            for (whole, part) in whole.chunks_exact_mut(BYTES).zip(part.chunks_exact(BYTES)) {
                let number =
                    |bytes: &[u8]| <$number>::from_le_bytes(bytes.try_into().expect("a chunk"));
                let folded = operation(number(whole), number(part));
                whole.copy_from_slice(&folded.to_le_bytes());
            }
        }};
    }
    macro_rules! integers {
        ($number:ty) => {
            each!($number, <$number>::wrapping_add, Ord::min, Ord::max)
        };
    }
    macro_rules! floats {
        ($number:ty) => {
            each!(
                $number,
                |a, b| a + b,
                |a, b| if a.is_nan() || a < b { a } else { b },
                |a, b| if a.is_nan() || a > b { a } else { b }
            )
        };
    }
    match scalar {
        // Or, and, or: 0 and 1 stay what they are.
        Scalar::Bool => each!(u8, |a, b| a | b, |a, b| a & b, |a, b| a | b),
        Scalar::U8 => integers!(u8),
        Scalar::I8 => integers!(i8),
        Scalar::U16 => integers!(u16),
        Scalar::I16 => integers!(i16),
        Scalar::U32 => integers!(u32),
        Scalar::I32 => integers!(i32),
        Scalar::U64 => integers!(u64),
        Scalar::I64 => integers!(i64),
        Scalar::F16 => floats!(f16),
        Scalar::F32 => floats!(f32),
        Scalar::F64 => floats!(f64),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn folded(how: Fold, a: f32, b: f32) -> f32 {
        let mut whole = a.to_le_bytes();
        fold(how, Scalar::F32, &mut whole, &b.to_le_bytes());
        f32::from_le_bytes(whole)
    }

    #[test]
    fn nan_stays_whatever_it_meets() {
        for how in [Fold::Sum, Fold::Min, Fold::Max] {
            assert!(
                folded(how, f32::NAN, 1.0).is_nan() && folded(how, 1.0, f32::NAN).is_nan(),
                "{how:?}"
            );
        }
        assert_eq!(folded(Fold::Max, f32::NEG_INFINITY, -1.0), -1.0);
    }

    #[test]
    fn halves_are_numbers_and_not_integers() {
        let halves = |numbers: [f32; 2]| numbers.map(f16::from_f32).map(f16::to_le_bytes).concat();
        for (how, expected) in [
            (Fold::Sum, [-1.5, 4.0]),
            (Fold::Min, [-2.0, 1.0]),
            (Fold::Max, [0.5, 3.0]),
        ] {
            let mut whole = halves([-2.0, 1.0]);
            fold(how, Scalar::F16, &mut whole, &halves([0.5, 3.0]));
            assert_eq!(whole, halves(expected), "{how:?}");
        }
    }

    proptest! {
        #[test]
        fn integers_wrap(a: [i16; 5], b: [i16; 5]) {
            let mut whole: Vec<u8> = a.iter().flat_map(|number| number.to_le_bytes()).collect();
            fold(Fold::Sum, Scalar::I16, &mut whole, &b.iter().flat_map(|number| number.to_le_bytes()).collect::<Vec<_>>());
            let expected: Vec<u8> = a.iter().zip(b).flat_map(|(a, b)| a.wrapping_add(b).to_le_bytes()).collect();
            prop_assert_eq!(whole, expected);
        }
    }
}
