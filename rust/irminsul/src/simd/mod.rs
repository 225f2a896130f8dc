//! The only folder with `unsafe`: the same results as the scalar code, with wider instructions.
//!
//! Knows nothing of what is cut or hashed. What the processor has is asked at run time, so that one
//! build serves all; where it has nothing, the caller's scalar code does the work.

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod block;
#[cfg(target_arch = "x86_64")]
mod gear_avx2;
#[cfg(target_arch = "x86_64")]
mod gear_avx512;
#[cfg(target_arch = "aarch64")]
mod gear_neon;
#[cfg(target_arch = "x86_64")]
mod sampled_avx2;
mod xxh64;
#[cfg(target_arch = "x86_64")]
mod xxh64_avx2;

use crate::params::ChunkParams;
use crate::scan::Candidates;

/// Scans the next block of `text`; false if there is no fast way, or too little text for it.
#[cfg(target_arch = "x86_64")]
pub(crate) fn scan_block(found: &mut Candidates, text: &[u32], params: &ChunkParams) -> bool {
    // Safety: the instructions are detected before each call.
    if is_x86_feature_detected!("avx512f") {
        scan_with(found, text, params, |block, bits, markers| unsafe {
            gear_avx512::scan(block, bits, markers);
        })
    } else if is_x86_feature_detected!("avx2") {
        scan_with(found, text, params, |block, bits, markers| unsafe {
            gear_avx2::scan(block, bits, markers);
        })
    } else {
        false
    }
}

/// Scans the next block of `text`; false if there is no fast way, or too little text for it.
#[cfg(target_arch = "aarch64")]
pub(crate) fn scan_block(found: &mut Candidates, text: &[u32], params: &ChunkParams) -> bool {
    std::arch::is_aarch64_feature_detected!("neon")
        && scan_with(found, text, params, |block, bits, markers| {
            // Safety: NEON was detected.
            unsafe { gear_neon::scan(block, bits, markers) }
        })
}

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
fn scan_with(
    found: &mut Candidates,
    text: &[u32],
    params: &ChunkParams,
    scan: impl FnOnce(&block::Block<'_>, &mut [u8], &mut block::Markers),
) -> bool {
    let Some(block) = block::Block::next(found, text, params) else {
        return false;
    };
    let mut markers = block::Markers::default();
    scan(&block, found.next_bytes(block.len()), &mut markers);
    found.add_markers(markers.found.into_iter().flatten());
    true
}

/// Scans the next block of `text`; false if there is no fast way, or too little text for it.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
pub(crate) fn scan_block(_: &mut Candidates, _: &[u32], _: &ChunkParams) -> bool {
    false
}

/// What [`sampled`] needs room for.
#[cfg(target_arch = "x86_64")]
pub(crate) use sampled_avx2::Scratch as SampleScratch;

/// What [`sampled`] needs room for: nothing.
#[cfg(not(target_arch = "x86_64"))]
#[derive(Debug, Default)]
pub(crate) struct SampleScratch;

/// Calls `found` with the index and the window key of each sampled place among the first tokens after
/// the 31 that `tokens` begins with; says how many tokens it looked at, 0 if there is no fast way.
#[cfg(target_arch = "x86_64")]
pub(crate) fn sampled(
    tokens: &[u32],
    secret: u32,
    scratch: &mut SampleScratch,
    found: impl FnMut(usize, u32),
) -> usize {
    if !is_x86_feature_detected!("avx2") {
        return 0;
    }
    // Safety: AVX2 was detected.
    unsafe { sampled_avx2::sampled(tokens, secret, scratch, found) };
    let before = crate::window::WINDOW_TOKENS - 1;
    tokens.len().saturating_sub(before).min(sampled_avx2::BLOCK)
}

/// No fast way: looks at nothing.
#[cfg(not(target_arch = "x86_64"))]
pub(crate) fn sampled(
    _: &[u32],
    _: u32,
    _: &mut SampleScratch,
    _: impl FnMut(usize, u32),
) -> usize {
    0
}

/// Appends the fingerprints of the chunks between consecutive `bounds`.
pub(crate) fn hash_chunks(tokens: &[u32], bounds: &[usize], hashes: &mut Vec<u64>) {
    #[cfg(target_arch = "x86_64")]
    if xxh64_avx2::hash_chunks(tokens, bounds, hashes) {
        return;
    }
    hashes.extend(
        bounds
            .windows(2)
            .map(|pair| xxh64::hash(&tokens[pair[0]..pair[1]])),
    );
}
