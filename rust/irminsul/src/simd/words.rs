//! Four 64-bit lanes: the arithmetic of xxHash64, as AVX2 and as AVX-512 have it.
//!
//! Knows nothing of chunks or streams.

use std::arch::x86_64::{__m256i, _mm256_loadu_si256, _mm256_storeu_si256};

/// What AVX2 has.
pub(super) mod avx2 {
    use std::arch::x86_64::{
        __m256i, _mm256_add_epi64, _mm256_blend_epi32, _mm256_mul_epu32, _mm256_mullo_epi32,
        _mm256_or_si256, _mm256_set1_epi64x, _mm256_setzero_si256, _mm256_slli_epi64,
        _mm256_srli_epi64,
    };

    use crate::simd::avx2::opaque;
    use crate::simd::xxh64::{P1, P2};

    /// The low 64 bits of four products.
    #[inline]
    #[target_feature(enable = "avx2")]
    pub(in super::super) fn multiply(x: __m256i, factor: u64) -> __m256i {
        let low = _mm256_set1_epi64x((factor & 0xFFFF_FFFF) as i64);
        let swapped = _mm256_set1_epi64x(factor.rotate_left(32) as i64);
        // Lower halves times the upper half of the factor, and the other way round: both belong into
        // the upper half. Opaque, or the compiler makes two multiplications of each.
        let cross = opaque(_mm256_mullo_epi32(x, swapped));
        let upper = _mm256_blend_epi32::<0b1010_1010>(_mm256_setzero_si256(), cross);
        let upper = _mm256_add_epi64(upper, _mm256_slli_epi64::<32>(cross));
        _mm256_add_epi64(upper, opaque(_mm256_mul_epu32(x, low)))
    }

    /// Four rotations to the left by `LEFT`, which is 64 less `RIGHT`.
    #[inline]
    #[target_feature(enable = "avx2")]
    pub(in super::super) fn rotate<const LEFT: i32, const RIGHT: i32>(x: __m256i) -> __m256i {
        _mm256_or_si256(_mm256_slli_epi64::<LEFT>(x), _mm256_srli_epi64::<RIGHT>(x))
    }

    /// Four words taken into as many accumulators.
    #[inline]
    #[target_feature(enable = "avx2")]
    pub(in super::super) fn round(state: __m256i, words: __m256i) -> __m256i {
        // Opaque, or the state enters the additions of the product, which makes the chain longer.
        let sum = _mm256_add_epi64(state, opaque(multiply(words, P2)));
        multiply(rotate::<31, 33>(sum), P1)
    }
}

/// What AVX-512 has: rotations and multiplications of 64 bits.
pub(super) mod avx512 {
    use std::arch::x86_64::{
        __m256i, _mm256_add_epi64, _mm256_mullo_epi64, _mm256_rol_epi64, _mm256_set1_epi64x,
    };

    use crate::simd::xxh64::{P1, P2};

    /// The low 64 bits of four products.
    #[inline]
    #[target_feature(enable = "avx512vl,avx512dq")]
    pub(in super::super) fn multiply(x: __m256i, factor: u64) -> __m256i {
        _mm256_mullo_epi64(x, _mm256_set1_epi64x(factor as i64))
    }

    /// Four rotations to the left by `LEFT`.
    #[inline]
    #[target_feature(enable = "avx512vl")]
    pub(in super::super) fn rotate<const LEFT: i32, const RIGHT: i32>(x: __m256i) -> __m256i {
        _mm256_rol_epi64::<LEFT>(x)
    }

    /// Four words taken into as many accumulators.
    #[inline]
    #[target_feature(enable = "avx512vl,avx512dq")]
    pub(in super::super) fn round(state: __m256i, words: __m256i) -> __m256i {
        let sum = _mm256_add_epi64(state, multiply(words, P2));
        multiply(rotate::<31, 33>(sum), P1)
    }
}

/// Reads 32 bytes, at any address.
///
/// # Safety
/// They can be read.
#[inline]
#[target_feature(enable = "avx2")]
#[allow(clippy::cast_ptr_alignment)]
pub(super) unsafe fn load(bytes: *const u8) -> __m256i {
    // Safety: as promised; the load needs no alignment.
    unsafe { _mm256_loadu_si256(bytes.cast::<__m256i>()) }
}

/// Writes 32 bytes, to any address.
///
/// # Safety
/// They can be written.
#[inline]
#[target_feature(enable = "avx2")]
#[allow(clippy::cast_ptr_alignment)]
pub(super) unsafe fn store(bytes: *mut u8, value: __m256i) {
    // Safety: as promised; the store needs no alignment.
    unsafe { _mm256_storeu_si256(bytes.cast::<__m256i>(), value) }
}
