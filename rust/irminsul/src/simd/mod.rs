//! The only folder with `unsafe`: the same results as the scalar code, with wider instructions.
//!
//! Knows nothing of what is cut or hashed. What the processor has is asked at run time, so that one
//! build serves all; where it has nothing, the caller's scalar code does the work.

#[cfg(target_arch = "x86_64")]
mod avx2;
mod block;
#[cfg(target_arch = "x86_64")]
mod ends;
#[cfg(target_arch = "x86_64")]
mod gear_avx2;
#[cfg(target_arch = "x86_64")]
mod gear_avx512;
#[cfg(target_arch = "aarch64")]
mod gear_neon;
mod looks;
#[cfg(target_arch = "x86_64")]
mod sampled_avx2;
#[cfg(target_arch = "x86_64")]
mod steps_avx2;
#[cfg(target_arch = "x86_64")]
mod streams;
#[cfg(test)]
mod tests;
#[cfg(all(target_arch = "x86_64", not(miri)))]
mod unit;
mod vectors;
#[cfg(target_arch = "x86_64")]
mod words;
mod xxh64;

pub(crate) use block::{Block, Rare, Seen};
pub(crate) use looks::{AHEAD, Looks};
pub use vectors::Vectors;

/// Writes the candidate bits of a block, a bit for each token, and those of its markers if it has
/// any; none if there is no fast way. May take looks for cuts in the block before meanwhile.
#[cfg(target_arch = "x86_64")]
pub(crate) fn scan_block(
    block: &Block<'_>,
    content: &mut [u64],
    markers: Rare<'_>,
    looks: &mut Looks<'_>,
) -> Option<Seen> {
    let content = block::Bits::new(content, block);
    match Vectors::at_hand() {
        // Safety: AVX-512F was detected.
        Vectors::Wide => Some(unsafe { gear_avx512::scan(block, content, markers) }),
        // Safety: AVX2 and BMI1 were detected.
        Vectors::Narrow | Vectors::Mixed => {
            Some(unsafe { gear_avx2::scan(block, content, markers, looks) })
        }
        Vectors::Scalar => None,
    }
}

/// Writes the candidate bits of a block, a bit for each token, and those of its markers if it has
/// any; none if there is no fast way.
#[cfg(target_arch = "aarch64")]
pub(crate) fn scan_block(
    block: &Block<'_>,
    content: &mut [u64],
    markers: Rare<'_>,
    _: &mut Looks<'_>,
) -> Option<Seen> {
    let content = block::Bits::new(content, block);
    (Vectors::at_hand() >= Vectors::Narrow).then(|| {
        // Safety: NEON was detected.
        unsafe { gear_neon::scan(block, content, markers) }
    })
}

/// There is no fast way.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
pub(crate) fn scan_block(
    _: &Block<'_>,
    _: &mut [u64],
    _: Rare<'_>,
    _: &mut Looks<'_>,
) -> Option<Seen> {
    None
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
    if Vectors::at_hand() < Vectors::Narrow {
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
    hash_chunks_before(tokens, bounds, hashes, std::ptr::null());
}

/// As [`hash_chunks`]; what is read next, from `later` on, may be fetched into the cache meanwhile.
pub(crate) fn hash_chunks_before(
    tokens: &[u32],
    bounds: &[usize],
    hashes: &mut Vec<u64>,
    #[cfg_attr(not(target_arch = "x86_64"), allow(unused_variables))] later: *const u32,
) {
    let known = hashes.len();
    hashes.resize(known + bounds.len().saturating_sub(1), 0);
    let fresh = &mut hashes[known..];
    #[cfg(target_arch = "x86_64")]
    if streams::hash_chunks(tokens, bounds, fresh, later) {
        return;
    }
    for (pair, hash) in bounds.windows(2).zip(fresh) {
        *hash = xxh64::hash(&tokens[pair[0]..pair[1]]);
    }
}
