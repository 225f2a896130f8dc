//! The processor and what is allowed of it -> which instructions the fast paths take.
//!
//! Knows nothing of what they compute.

use std::sync::atomic::{AtomicU8, Ordering};

/// Kinds of vector instructions, each with all that come before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Vectors {
    /// None: the scalar code.
    Scalar,
    /// Eight lanes of 32 bits: AVX2, or NEON on Arm.
    Narrow,
    /// Scans as with AVX2, which look for cuts beside their work, and hashes with AVX-512 (F, VL and DQ).
    Mixed,
    /// AVX-512 for both.
    Wide,
}

/// The widest that may be used. Scans with AVX-512 take a tenth longer than those with AVX2 at the default sizes,
/// since they look for cuts afterwards.
static ALLOWED: AtomicU8 = AtomicU8::new(Vectors::Mixed as u8);

impl Vectors {
    /// What this processor has, and no more than is allowed.
    pub fn at_hand() -> Self {
        // Relaxed: every path gives the same results, so it does not matter who sees a change when.
        let allowed = ALLOWED.load(Ordering::Relaxed);
        if allowed >= Self::Wide as u8 && has_wide() {
            Self::Wide
        } else if allowed >= Self::Mixed as u8 && has_wide() && has_narrow() {
            Self::Mixed
        } else if allowed >= Self::Narrow as u8 && has_narrow() {
            Self::Narrow
        } else {
            Self::Scalar
        }
    }

    /// Allows these and no wider ones in the whole process, to compare paths on one machine. [`Vectors::Mixed`] at first.
    pub fn allow(self) {
        ALLOWED.store(self as u8, Ordering::Relaxed);
    }
}

#[cfg(target_arch = "x86_64")]
fn has_wide() -> bool {
    is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512vl")
        && is_x86_feature_detected!("avx512dq")
}

#[cfg(target_arch = "x86_64")]
fn has_narrow() -> bool {
    is_x86_feature_detected!("avx2") && is_x86_feature_detected!("bmi1")
}

#[cfg(target_arch = "aarch64")]
fn has_narrow() -> bool {
    std::arch::is_aarch64_feature_detected!("neon")
}

#[cfg(not(target_arch = "x86_64"))]
fn has_wide() -> bool {
    false
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn has_narrow() -> bool {
    false
}
