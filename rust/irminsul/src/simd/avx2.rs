//! Registers of 32 bytes <-> arrays, and what the compiler may know of them.
//!
//! Knows nothing of hashes.

use std::arch::asm;
use std::arch::x86_64::{
    __m256i, _mm256_castps_si256, _mm256_castsi256_ps, _mm256_loadu_si256, _mm256_shuffle_ps,
    _mm256_storeu_si256,
};

/// The same value, of which the compiler is to know nothing; costs no instruction.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn opaque(value: __m256i) -> __m256i {
    #[cfg(miri)]
    return value;
    #[cfg(not(miri))]
    {
        let mut value = value;
        // Safety: there is no instruction in it.
        unsafe {
            asm!("/* {0} */", inout(ymm_reg) value, options(pure, nomem, nostack, preserves_flags));
        }
        value
    }
}

/// Picks two 32-bit lanes of `a` and two of `b` in each half.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn shuffle<const ORDER: i32>(a: __m256i, b: __m256i) -> __m256i {
    let (a, b) = (_mm256_castsi256_ps(a), _mm256_castsi256_ps(b));
    _mm256_castps_si256(_mm256_shuffle_ps::<ORDER>(a, b))
}

/// The 32-bit lanes.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn lanes(value: __m256i) -> [u32; 8] {
    let mut lanes = [0; 8];
    // Safety: the array is 32 bytes long; the store needs no alignment.
    #[allow(clippy::cast_ptr_alignment)]
    unsafe {
        _mm256_storeu_si256(lanes.as_mut_ptr().cast::<__m256i>(), value);
    }
    lanes
}

/// A register of 32-bit lanes.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn read(lanes: &[u32; 8]) -> __m256i {
    // Safety: the array is 32 bytes long; the load needs no alignment.
    #[allow(clippy::cast_ptr_alignment)]
    unsafe {
        _mm256_loadu_si256(lanes.as_ptr().cast::<__m256i>())
    }
}
