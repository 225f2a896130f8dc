//! Token id -> 64-bit gear value -> rolling hash of the last 64 tokens.
//!
//! Knows nothing of cuts or chunk sizes. Frozen: `tests/golden/chunks.json` pins every bit.

/// Tokens that a hash value depends on: one bit of the state leaves at the top with each step.
pub const WINDOW: usize = 64;

/// Hashes below this always cut. Chance reaches it once in 2^40 tokens, a boundary marker by construction.
pub const MARKER_THRESHOLD: u64 = 1 << 24;

/// Mixes a token id into the 64-bit value that the rolling hash adds up.
///
/// It uses 32x32 -> 64 bit multiplies only, the widest that AVX2 has, and ends with an addition: the low bits
/// must be good too, since the token of age `i` reaches the top bits through its low `64 - i` bits. Without that
/// last addition, constant runs never cut and sequential ids cut periodically.
///
/// ```
/// assert_eq!(irminsul::gear::mix(0), 0);
/// assert_ne!(irminsul::gear::mix(1), irminsul::gear::mix(2));
/// ```
#[inline]
pub fn mix(token: u32) -> u64 {
    let a = u64::from(token) * 0x9E37_79B1;
    let low = u64::from((a >> 13) as u32);
    (low * 0xF2D4_A6C7).wrapping_add(a << 32)
}

/// One step of the rolling hash.
#[inline]
pub fn roll(hash: u64, token: u32) -> u64 {
    (hash << 1).wrapping_add(mix(token))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_forgets_tokens_older_than_the_window() {
        let tail: Vec<u32> = (1..=WINDOW as u32).map(|i| i * 7919).collect();
        let hash = |head: &[u32]| head.iter().chain(&tail).fold(0, |h, &t| roll(h, t));
        assert_eq!(hash(&[]), hash(&[5, 6, u32::MAX]));
    }
}
