//! The only folder with `unsafe`: the same results as the scalar code, with wider instructions.
//!
//! Knows nothing of what is cut or hashed. Each entry point checks at run time what the processor
//! has and says whether it did the work.

#[cfg(target_arch = "x86_64")]
mod gear_avx2;

use crate::params::ChunkParams;
use crate::scan::Candidates;

/// Scans the next block of `text` if there is a fast way; otherwise the caller does it.
pub(crate) fn scan_block(found: &mut Candidates, text: &[u32], params: &ChunkParams) -> bool {
    #[cfg(target_arch = "x86_64")]
    return gear_avx2::scan_block(found, text, params);
    #[cfg(not(target_arch = "x86_64"))]
    {
        let _ = (found, text, params);
        false
    }
}
