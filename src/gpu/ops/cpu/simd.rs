//! Loops that are compiled a second time for AVX2, chosen at run time: where arithmetic, not
//! memory, is what takes time. Both give the same bits, since Rust never fuses or reorders f32
//! operations by itself.

/// Defines a function in two versions. Everything it calls must be inlined to gain from it.
macro_rules! simd {
    (fn $name:ident($($argument:ident: $type:ty),* $(,)?) $body:block) => {
        fn $name($($argument: $type),*) {
            #[inline(always)]
            fn any($($argument: $type),*) $body
            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx2")]
                fn avx2($($argument: $type),*) {
                    any($($argument),*);
                }
                if std::arch::is_x86_feature_detected!("avx2") {
                    // SAFETY: this processor has AVX2.
                    return unsafe { avx2($($argument),*) };
                }
            }
            any($($argument),*);
        }
    };
}

pub(in crate::ops) use simd;
